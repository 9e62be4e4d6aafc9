from contextlib import contextmanager
from dataclasses import asdict

from loadtest.load.launch import RunningServer
from loadtest.load.sides import Ratio
from loadtest.load.wrk import WrkRun
from loadtest.peers import measure
from loadtest.peers.measure import CANDIDATES, GOALS, LIGHT, PeerSettings
from loadtest.peers.peers_report import markdown, summary, unmet
from loadtest.peers.roster import Peer
from loadtest.reports.report import keep, origin


def result(name, factor=2.0, refused=""):
    def figure(what, candidates, f, freshet, peer, options):
        ratio = asdict(Ratio(f, f, f, 3))
        found = {"what": what, "candidates": candidates, "ratio": ratio, "freshet": freshet, "peer": peer}
        return found | {"options": options}

    def figures(f):
        throughput = [
            figure(what, n, f, 100 * f, 100, "--workers 2") for n in CANDIDATES for what in ("throughput", "p99")
        ]
        return [*throughput, *(figure("light", n, f, 1.0, f, "--workers 1 --batch 1") for n in LIGHT)]

    variants = [{"name": v, "figures": figures(factor)} for v in ("tuned", "untuned")]
    machine = {"cores": 2, "cpu": "a CPU", "load_average": 0.1}
    return {
        "name": name,
        "refused": refused,
        "variants": [] if refused else variants,
        "machine": machine,
        "layout": "workers=2 compute=inline",
        "origin": origin("-C loadtest peers", "ARGS", ["--only", "mosec", "--out", "elsewhere"]),
        "settings": asdict(PeerSettings()),
        "goals": {str(n): goal for n, goal in GOALS.items()},
    }


def test_peer_that_could_not_run_is_reported_with_its_reason(tmp_path):
    stored = []
    for found in (result("ray", refused="no route\nto it"), result("mosec", 3.0), result("mosec", 1.2)):
        stored = keep(tmp_path, "peers", found, ["mosec", "ray"], markdown)
    assert [r["name"] for r in stored] == ["mosec", "ray"]
    page = (tmp_path / "peers.md").read_text()
    assert "Could not be run here: no route to it" in page
    assert summary(stored) in page
    assert "1.20 (1.20)" in page
    assert (
        "| median latency at light load, ms, 64 candidates | 1 | 1.2 | 1.20 | 1.20 to 1.20 | `--workers 1 --batch 1` |"
        in page
    )
    assert '`make -C loadtest peers ARGS="--only mosec"`' in page
    assert "Freshet: `freshet serve`, workers=2 compute=inline." in page
    assert "could not be run" in summary(stored)
    assert {p.name for p in tmp_path.iterdir()} == {"peers.json", "peers.md"}


def test_goals_apply_to_tuned_peers():
    assert unmet([result("mosec", 2.0), result("ray", refused="x")]) == []
    short = unmet([result("mosec", 1.2)])
    assert short == [f"mosec, throughput, 1 candidates: 1.20, {GOALS[1]:g} wanted"]
    assert len(unmet([result("mosec", 0.5)])) == len(CANDIDATES) * 2 + len(LIGHT)


class Turnable:
    """An Arena's machine: figures by the options that serve, without a server."""

    def __init__(self, per_s, p50_ms):
        self.per_s, self.p50_ms, self.up = per_s, p50_ms, ""

    @contextmanager
    def running(self, peer, python, options, version, payload):
        self.up = options
        yield 0

    def saturate(self, port, payload, seconds, connections):
        return WrkRun(round(self.per_s[self.up]), 1.0, {"p50": self.p50_ms[self.up], "p99": 9.0}, {})


def test_each_line_uses_the_settings_best_for_it(tmp_path, monkeypatch):
    waiting, plain, single = "--batch 16", "--workers 2", "--workers 1"
    peer = Peer("mosec", "/inference", "raw", untuned=single, tuned=(plain, waiting))
    machine = Turnable({waiting: 900, plain: 800, single: 400}, {waiting: 3.0, plain: 0.6, single: 0.5})
    monkeypatch.setattr(measure, "running", machine.running)
    monkeypatch.setattr(measure.wrk, "saturate", machine.saturate)
    settings = PeerSettings(rounds=2, table_rows=100)
    arena = measure.PeerBench(tmp_path, tmp_path, RunningServer(1, 2, 0.1, 3, 4, tmp_path), settings, lambda line: None)

    chosen = arena._tune(peer, tmp_path)

    assert chosen == {(what, n): waiting if what == "throughput" else single for what, n in measure.LINES}
