"""What of the peers can be told without installing one."""

import tomllib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from loadtest.load.payload import bench_count, bench_inputs
from loadtest.load.sides import Ratio
from loadtest.peers import __main__ as peers
from loadtest.peers import bodies
from loadtest.peers.measure import CANDIDATES, GOALS, LIGHT, Figure, PeerSettings, PeerVariant, document
from loadtest.peers.peers_report import BEGIN, END, summary, unmet
from loadtest.peers.plain import ROW_NBYTES, split
from loadtest.peers.roster import PEERS, chosen

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("peer", PEERS, ids=lambda p: p.name)
def test_a_peer_has_a_server_pinned_requirements_and_a_page(peer):
    assert peer.body in bodies.KINDS
    compile(peer.server.read_text(), peer.server.name, "exec")
    lines = [line for line in peer.requirements.read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert all("==" in line and "//" not in line for line in lines)
    assert "Untuned:" in (peer.server.parent / "README.md").read_text()


def test_peers_are_no_part_of_the_installation():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    assert not [
        d for d in wanted for name in ("mosec", "litserve", "bentoml", "mlserver", "ray", "pytriton") if name in d
    ]


def test_peers_are_chosen_by_name():
    assert [p.name for p in chosen("mosec, ray")] == ["mosec", "ray"]
    assert chosen("") == list(PEERS)
    with pytest.raises(ValueError, match="one of mosec"):
        chosen("nothing")


@pytest.mark.parametrize("candidates", [1, 64])
def test_raw_bodies_hold_the_same_inputs_as_ours(candidates):
    payload = bodies.payload("raw", "/predict", candidates, 100)
    inputs = bench_inputs(candidates, bench_count(candidates), 100)
    assert len(payload.bodies) == len(inputs)
    for body, wanted in zip(payload.bodies, inputs):
        assert len(body) == ROW_NBYTES * candidates
        ids, floats = split(body)
        assert np.array_equal(ids, wanted["ids"])
        assert np.array_equal(floats, wanted["floats"])


def test_scores_are_read_from_bytes_and_from_json():
    assert bodies.scores("raw", np.float32([0.5, 0.25]).tobytes(), {}).tolist() == [0.5, 0.25]
    assert bodies.scores("json", b'{"outputs":[{"name":"score","data":[0.5,0.25]}]}', {}).tolist() == [0.5, 0.25]
    with pytest.raises(ValueError, match="one output"):
        bodies.scores("json", b"{}", {})
    with pytest.raises(ValueError, match="body"):
        bodies.payload("xml", "/", 1, 100)


def result(name, factor=2.0, refused=""):
    def figures(f):
        ratio = Ratio(f, f, f, 3)
        throughput = [Figure(what, n, ratio, 100 * f, 100) for n in CANDIDATES for what in ("throughput", "p99")]
        return [*throughput, *(Figure("light", n, ratio, 1.0, f) for n in LIGHT)]

    variants = [
        PeerVariant(v, {"1": "--workers 2", "64": "--workers 1"}, figures(factor)) for v in ("tuned", "untuned")
    ]
    machine = {"cores": 2, "cpu": "a CPU", "load_average": 0.1}
    return {
        "name": name,
        "refused": refused,
        "variants": [] if refused else [document(v) for v in variants],
        "machine": machine,
        "settings": asdict(PeerSettings()),
    }


def test_a_peer_that_could_not_be_run_stands_in_the_report_with_its_reason(tmp_path):
    peers.keep(tmp_path, result("ray", refused="no route\nto it"))
    peers.keep(tmp_path, result("mosec", 3.0))
    peers.keep(tmp_path, result("mosec", 1.2))
    stored = peers.write_page(tmp_path)
    assert [r["name"] for r in stored] == ["mosec", "ray"]
    page = (tmp_path / "peers.md").read_text()
    assert "Could not be run here: no route to it" in page
    assert summary(stored) == page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip()
    assert "1.20 (1.20)" in page
    assert "Tuned: 1 candidates `--workers 2`, 64 candidates `--workers 1`" in page
    assert "could not be run" in summary(stored)
    assert {p.name for p in tmp_path.iterdir()} == {"peers.json", "peers.md", "peers.png"}


def test_goals_hold_for_tuned_peers():
    assert unmet([result("mosec", 2.0), result("ray", refused="x")]) == []
    short = unmet([result("mosec", 1.2)])
    assert short == [f"mosec, throughput, 1 candidates: 1.20, {GOALS[1]:g} wanted"]
    assert len(unmet([result("mosec", 0.5)])) == len(CANDIDATES) * 2 + len(LIGHT)
