"""Metric families of tables whose rows are in a row store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, Metric

from freshet_serving.processor.watching import ModelStats

# name, help, counter (processor.extensions.remote_rows.reader)
COUNTERS = (
    ("freshet_model_remote_ids", "Distinct ids looked up in the row store or its cache.", "asked"),
    ("freshet_model_remote_cached_ids", "Row store ids answered from the cache.", "cached"),
    ("freshet_model_remote_unavailable_ids", "Row store ids whose row was unavailable.", "lost"),
    ("freshet_model_remote_fetches", "Batches that queried the row store.", "fetches"),
    ("freshet_model_remote_fetch_seconds", "Seconds spent in row store queries.", "fetch_s"),
)


def remote_families(stats: Sequence[ModelStats]) -> Iterator[Metric]:
    """Yield the metric families of the models that have remote tables."""
    for name, text, counter in COUNTERS:
        family = CounterMetricFamily(name, text, labels=("model",))
        for snapshot in stats:
            if snapshot.remote:
                family.add_metric((snapshot.model,), snapshot.remote[counter])
        yield family
