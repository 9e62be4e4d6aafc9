"""Held versions, verdicts and drift of inputs, as Prometheus sees them."""

from types import SimpleNamespace

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.version_gate import VersionGate
from freshet_serving.serving.telemetry.gate_metrics import gate_families


def test_each_model_reports_its_gate():
    gate = VersionGate("ctr", ModelPolicy, FakeClock())
    gate.outcomes["in line"], gate.taken_back["shift"], gate.input_drift = 3, 1, {"age": 0.5}
    gate.judge_s.observe(0.1)
    model = SimpleNamespace(gate=gate, decisions=SimpleNamespace(held={8: "held by gate: the order"}))
    samples = {(s.name, *s.labels.values()): s.value for f in gate_families({"ctr": model}) for s in f.samples}
    assert samples["freshet_version_held", "ctr", "8"] == 1
    assert samples["freshet_version_verdicts_total", "ctr", "in line"] == 3
    assert samples["freshet_versions_rolled_back_total", "ctr", "shift"] == 1
    assert samples["freshet_version_gate_duration_seconds_count", "ctr"] == 1
    assert samples["freshet_input_drift", "ctr", "age"] == 0.5
