"""Metric families of online features: requests that looked some up, what came of it, and the time that it took.

The counters are those of the extension of the engine (reader.OnlineFeatureStats), as workers send them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from freshet_serving.processor.watching import ModelStats

LABELS = ("model",)
COUNTERS = (
    ("freshet_model_feature_reads", "Requests whose online features were looked up.", "reads"),
    ("freshet_model_feature_store_reads", "Lookups that asked an online store.", "store_reads"),
    ("freshet_model_feature_read_seconds", "Seconds spent in lookups that asked a store.", "read_s"),
    ("freshet_model_feature_keys", "Distinct keys of all lookups.", "entities"),
    ("freshet_model_feature_cached_keys", "Keys answered from memory.", "cached"),
    (
        "freshet_model_feature_joined_keys",
        "Keys that another request was reading at the same time.",
        "joined",
    ),
)


def feature_families(stats: Iterable[ModelStats]) -> Iterator[Metric]:
    """Yield the metric families of the models that have online features."""
    looked_up = [(s.model, s.features) for s in stats if s.features is not None]
    if not looked_up:
        return
    for name, text, counter in COUNTERS:
        family = CounterMetricFamily(name, text, labels=LABELS)
        for model, features in looked_up:
            family.add_metric((model,), features[counter])
        yield family
    values = CounterMetricFamily(
        "freshet_model_feature_values",
        "Looked-up values by outcome; all but present are answered with the training default.",
        labels=(*LABELS, "status"),
    )
    losses = CounterMetricFamily(
        "freshet_model_feature_losses", "Keys that a store did not answer, by reason.", labels=(*LABELS, "reason")
    )
    damaged = CounterMetricFamily(
        "freshet_model_feature_damaged",
        "Looked-up values that cannot be read, by feature; they are answered with the training default.",
        labels=(*LABELS, "feature"),
    )
    cache = GaugeMetricFamily("freshet_model_feature_cache_bytes", "Memory of cached features.", labels=LABELS)
    for model, features in looked_up:
        for status, count in features["values"].items():
            values.add_metric((model, status), count)
        for reason, count in features["losses"].items():
            losses.add_metric((model, reason), count)
        for feature, count in features["damaged"].items():
            damaged.add_metric((model, feature), count)
        cache.add_metric((model,), features["cache_nbytes"])
    yield from (values, losses, damaged, cache)
