"""Metric families of counter blocks (processor.counter_block): each slot says which family it is of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from freshet_serving.processor.counter_block import Snapshot


def counter_families(counted: Iterable[tuple[Mapping[str, str], Snapshot]]) -> Iterator[Metric]:
    """Yield the metric families of snapshots.

    Args:
        counted: Labels by name, the same names for all, and the snapshot that they distinguish.
    """
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for labels, snapshot in counted:
        for slot, number in snapshot.items():
            if not slot.metric:
                continue
            family = families.get(slot.metric)
            if family is None:
                names = (*labels, slot.label) if slot.label else tuple(labels)
                kind = GaugeMetricFamily if slot.gauge else CounterMetricFamily
                family = families[slot.metric] = kind(f"freshet_{slot.metric}", slot.text, labels=names)
            family.add_metric((*labels.values(), slot.value) if slot.label else tuple(labels.values()), number)
    yield from families.values()
