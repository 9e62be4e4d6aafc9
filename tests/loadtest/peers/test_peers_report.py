from dataclasses import asdict

from loadtest.load.sides import Ratio
from loadtest.peers import __main__ as peers
from loadtest.peers.measure import CANDIDATES, GOALS, LIGHT, Figure, PeerSettings, PeerVariant, document
from loadtest.peers.peers_report import BEGIN, END, summary, unmet


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
