"""Metric families of judgements: deltas and versions that are held, released and rolled back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from freshet_serving.processor.versions.model import ServedModel


def judgement_families(catalogue: Mapping[str, ServedModel]) -> Iterator[Metric]:
    """Yield the metric families of what became of the verdicts on the models' deltas and versions."""
    held = CounterMetricFamily(
        "freshet_deltas_held", "Deltas held by the guard before they were served.", labels=("model", "kind")
    )
    auto_rollbacks = CounterMetricFamily("freshet_deltas_rolled_back", "Automatic rollbacks.", labels=("model", "kind"))
    released = CounterMetricFamily(
        "freshet_deltas_auto_released",
        "Holds that this server released automatically because the newest generation was in line with the served one.",
        labels=("model",),
    )
    held_versions = GaugeMetricFamily(
        "freshet_version_held",
        "1 while the version is held: no server chooses it by itself until a person decides.",
        labels=("model", "version"),
    )
    taken_back = CounterMetricFamily(
        "freshet_versions_rolled_back", "Automatic rollbacks to the version before.", labels=("model", "kind")
    )
    for name, model in sorted(catalogue.items()):
        counts = model.judgement_counts
        for kind, count in sorted(counts.held.items()):
            held.add_metric((name, kind), count)
        for kind, count in sorted(counts.auto_rollbacks.items()):
            auto_rollbacks.add_metric((name, kind), count)
        released.add_metric((name,), counts.released)
        for number in sorted(model.decisions.held):
            held_versions.add_metric((name, str(number)), 1)
        for kind, count in sorted(counts.taken_back.items()):
            taken_back.add_metric((name, kind), count)
    yield from (held, auto_rollbacks, released, held_versions, taken_back)
