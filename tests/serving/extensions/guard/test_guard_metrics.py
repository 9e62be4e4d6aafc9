"""Verdicts, time of scoring and drift of inputs, as Prometheus sees them."""

from pathlib import Path
from types import SimpleNamespace

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.guard.guard import Guard
from freshet_serving.processor.versions.judges import JudgedModel
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.serving.extensions.guard.guard_metrics import guard_families


def test_each_model_reports_its_guard():
    guard = Guard(JudgedModel("ctr", ModelPolicy, FakeClock(), Path(), ""))
    guard.gate.outcomes["in line"], guard.gate.input_drift = 3, {"age": 0.5}
    guard.gate.judge_s.observe(0.1)
    guard.preview_s.observe(0.004)
    model = SimpleNamespace(judges=SimpleNamespace(by_name={"guard": guard}))
    host = SimpleNamespace(catalogue={"ctr": model})
    samples = {(s.name, *s.labels.values()): s.value for f in guard_families(host) for s in f.samples}
    assert samples["freshet_version_verdicts_total", "ctr", "in line"] == 3
    assert samples["freshet_version_gate_duration_seconds_count", "ctr"] == 1
    assert samples["freshet_delta_preview_duration_seconds_count", "ctr"] == 1
    assert samples["freshet_input_drift", "ctr", "age"] == 0.5
