"""Held, released and rolled back deltas and versions, as Prometheus sees them."""

from types import SimpleNamespace

from freshet_serving.processor.versions.judges import JudgementCounts
from freshet_serving.serving.telemetry.judgement_metrics import judgement_families


def test_each_model_reports_what_became_of_its_verdicts():
    counts = JudgementCounts()
    counts.held["bias"], counts.auto_rollbacks["shift"], counts.taken_back["errors"], counts.released = 2, 1, 1, 3
    model = SimpleNamespace(judgement_counts=counts, decisions=SimpleNamespace(held={8: "held by gate: the order"}))
    samples = {(s.name, *s.labels.values()): s.value for f in judgement_families({"ctr": model}) for s in f.samples}
    assert samples["freshet_version_held", "ctr", "8"] == 1
    assert samples["freshet_deltas_held_total", "ctr", "bias"] == 2
    assert samples["freshet_deltas_rolled_back_total", "ctr", "shift"] == 1
    assert samples["freshet_versions_rolled_back_total", "ctr", "errors"] == 1
    assert samples["freshet_deltas_auto_released_total", "ctr"] == 3
