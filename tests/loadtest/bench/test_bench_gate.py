"""The report of what the server's gate costs a request, on figures that are made up."""

import pytest

pytest.importorskip("tensorflow", reason="the model that is measured needs the train extra")

from loadtest.bench.bench_gate import page
from loadtest.reports.report import machine, origin

pytestmark = pytest.mark.tensorflow

FIGURES = {"ratio": [0.99, 1.004, 1.01], "with_us": 100.4, "without_us": 100.0, "keep_ms": 2.5}


def test_report_has_the_ratio_with_its_aim_and_command():
    about = {"machine": machine(), "origin": origin("-C loadtest gate", "ARGS", ["--pairs", "15"])}
    text = page({**about, "pairs": 15, "requests": 4000, **FIGURES})
    assert "| a request, us | 100.4 | 100.0 | **1.004** (0.990 to 1.010) | at most 1.02 |" in text
    assert '`make -C loadtest gate ARGS="--pairs 15"`' in text
    assert "written in 2.5 ms, once in 60 s" in text
