"""Cores of groups, and those that are lent, as Prometheus sees them."""

from types import SimpleNamespace

from freshet_serving.serving.extensions.core_planner import EXTENSION
from freshet_serving.serving.extensions.core_planner.core_metrics import core_families


def test_each_group_reports_its_cores():
    planning = SimpleNamespace(cores={"one": frozenset({0, 1}), "rest": frozenset({2})}, lent=frozenset({2}))
    samples = {(s.name, *s.labels.values()): s.value for f in core_families(planning) for s in f.samples}
    assert samples["freshet_group_cores", "one"] == 2
    assert samples["freshet_group_cores", "rest"] == 1
    assert samples[("freshet_lent_cores",)] == 1


def test_host_without_a_plan_reports_none():
    assert list(EXTENSION.metrics["cores"](SimpleNamespace(core_planning=None), [])) == []
