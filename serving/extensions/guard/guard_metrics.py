"""Metric families of the guard: verdicts on versions, the time that scoring took, drift of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from freshet_serving.processor.extensions.guard.guard import guard_of
from freshet_serving.serving.telemetry.version_metrics import buckets

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost


def guard_families(host: ModelHost) -> Iterator[Metric]:
    preview = HistogramMetricFamily(
        "freshet_delta_preview_duration_seconds",
        "Seconds spent scoring recent rows before a delta is served.",
        labels=("model",),
    )
    verdicts = CounterMetricFamily(
        "freshet_version_verdicts", "Verdicts on new versions before they were served.", labels=("model", "outcome")
    )
    seconds = HistogramMetricFamily(
        "freshet_version_gate_duration_seconds",
        "Seconds spent scoring kept requests before a new version is served.",
        labels=("model",),
    )
    drift = GaugeMetricFamily(
        "freshet_input_drift",
        "Population stability index of recent requests' inputs against the rows that the version was trained on.",
        labels=("model", "input"),
    )
    for name, model in sorted(host.catalogue.items()):
        guard = guard_of(model)
        for family, histogram in ((preview, guard.preview_s), (seconds, guard.gate.judge_s)):
            family.add_metric((name,), buckets(histogram.bounds, histogram.counts), histogram.total)
        for outcome, count in sorted(guard.gate.outcomes.items()):
            verdicts.add_metric((name, outcome), count)
        for input_name, index in guard.gate.input_drift.items():
            drift.add_metric((name, input_name), index)
    yield from (preview, verdicts, seconds, drift)
