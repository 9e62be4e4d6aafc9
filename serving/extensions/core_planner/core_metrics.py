"""Metric families of planned cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from freshet_serving.processor.extensions.core_planner.core_planning import CorePlanning


def core_families(planning: CorePlanning) -> Iterator[Metric]:
    """Yield the metric families of a plan.

    Args:
        planning: What plans the cores.
    """
    cores = GaugeMetricFamily(
        "freshet_group_cores",
        "Cores that the group computes on; groups without a budget share them.",
        labels=("group",),
    )
    for name, own in planning.cores.items():
        cores.add_metric((name,), len(own))
    yield cores
    yield GaugeMetricFamily("freshet_lent_cores", "Shared cores that are lent to trainers.", len(planning.lent))
