"""The figures of a run of a thousand requests and four deltas."""

from dataclasses import asdict

from loadtest.live.run import RunSettings
from loadtest.live.score_plan import CLEAR, TOLERANCE
from loadtest.load.measurements import Measurements
from loadtest.reports.report import machine, origin, summarize


def summary(fault="", mixed=False, lost=False, error=""):
    load, prober = Measurements(50.0), Measurements(50.0)
    for i in range(1000):
        load.request("kserve" if i % 4 else "tfs", 50.0 + i / 200, (i + 1) / 1e5)
    if fault:
        load.request("tfs", 55.0, 0.01, fault, mixed)
    for step in range(1, 5):
        load.request("delta", 50.0 + step, 0.02, load=False)
        load.published(f"1.{step}", "admin" if step < 3 else "folder", 50.0 + step)
        if not (lost and step == 4):
            prober.seen(f"1.{step}", 50.0 + step + step / 100)
    prober.request("probe", 51.0, 0.002, load=False)
    probes = prober.document() | {"interval_ms": {"p50": 4.0, "p99": 9.0}}
    about = {**asdict(RunSettings()), "tolerance": TOLERANCE, "clear": CLEAR, "moved_share": 1.0}
    usage = [{"at_s": 50.0 + n, "cores": 1.5, "nbytes": 600 << 20, "processes": 3} for n in range(1, 6)]
    facts = {"machine": machine(), "settings": about, "ready_s": 1.5, "error": error}
    facts |= {"origin": origin("loadtest", "LOADTEST_ARGS", []), "layout": "workers=2 compute=inline (2 cores)"}
    return summarize(load.document(), probes, usage, facts)
