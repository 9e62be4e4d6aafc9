"""The probe of the event loop, and the report on what blocks it."""

import json
import os
import time

import numpy as np
import pytest

from loadtest.bench import bench_blocked as bench
from loadtest.bench.blocked_side import INSTANT, LoopProbe


def test_probe_tells_how_long_instants_have_waited(capsys):
    reading, writing = os.pipe()
    try:
        probe = LoopProbe(reading)
        now_ns = time.monotonic_ns()
        for instant_ns in (now_ns - 5_000_000, now_ns, 0):
            os.write(writing, INSTANT.pack(instant_ns))
        probe.read()
        first, second = json.loads(capsys.readouterr().out)
        assert second >= 0
        assert first - second == pytest.approx(5_000, abs=1)
        os.write(writing, INSTANT.pack(0))
        probe.read()
        assert json.loads(capsys.readouterr().out) == []
    finally:
        os.close(reading)
        os.close(writing)


def test_report_tells_each_writer_beside_the_null():
    figures = {
        "idle": {"p50": 0.1, "p99": 0.5, "most": 2.0},
        "deltas": {"p50": 0.1, "p99": 2.0, "most": 9.0},
        "JSON": {"p50": 0.2, "p99": 40.0, "most": 60.0},
    }
    origin = {"command": "make -C loadtest blocked", "date": "2026-11-30"}
    text = bench.page(
        {"machine": {"cores": 2, "cpu": "a CPU", "load_average": 0.1}, "origin": origin, "figures": figures}
    )
    assert "| idle | 0.10 | **0.50** | 2.0 |  |  |" in text
    assert "| deltas | 0.10 | **2.00** | 9.0 | 4.0 | 1, missed |" in text
    assert "| JSON | 0.20 | **40.00** | 60.0 | 80.0 | 60 |" in text


def test_json_body_has_the_length_that_is_asked_for():
    assert 5_000 < len(bench.json_body(10_000, 100)) <= 10_000
    assert len(json.loads(bench.json_body(1, 100))["inputs"]["ids"]) == 1


def test_summary_is_of_one_turn():
    assert bench.summary(np.arange(101.0)) == {"p50": 50.0, "p99": pytest.approx(99.0), "most": 100.0}
