"""Metric families of planned cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric


def core_families(planning: Any) -> Iterator[Metric]:
    cores = GaugeMetricFamily(
        "freshet_group_cores",
        "Cores that the group computes on; groups without a budget share them.",
        labels=("group",),
    )
    for name, group_cores in planning.cores.items():
        cores.add_metric((name,), len(group_cores))
    yield cores
    yield GaugeMetricFamily("freshet_lent_cores", "Shared cores that are lent to trainers.", len(planning.lent))
