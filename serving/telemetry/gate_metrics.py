"""Metric families of the gate: versions that are held, verdicts and the time that they took, drift of inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from freshet_serving.serving.telemetry.version_metrics import buckets

if TYPE_CHECKING:
    from freshet_serving.processor.versions.model import ServedModel


def gate_families(catalogue: Mapping[str, ServedModel]) -> Iterator[Metric]:
    """Yield all metric families of the models' gates."""
    held = GaugeMetricFamily(
        "freshet_version_held",
        "1 while the version is held: no server chooses it by itself until a person decides.",
        labels=("model", "version"),
    )
    verdicts = CounterMetricFamily(
        "freshet_version_verdicts", "Verdicts on new versions before they were served.", labels=("model", "outcome")
    )
    taken_back = CounterMetricFamily(
        "freshet_versions_rolled_back", "Automatic rollbacks to the version before.", labels=("model", "kind")
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
    for name, model in sorted(catalogue.items()):
        for input_name, index in model.gate.input_drift.items():
            drift.add_metric((name, input_name), index)
        for number in sorted(model.decisions.held):
            held.add_metric((name, str(number)), 1)
        for outcome, count in sorted(model.gate.outcomes.items()):
            verdicts.add_metric((name, outcome), count)
        for kind, count in sorted(model.gate.taken_back.items()):
            taken_back.add_metric((name, kind), count)
        done = model.gate.judge_s
        seconds.add_metric((name,), buckets(done.bounds, done.counts), done.total)
    yield from (held, verdicts, taken_back, seconds, drift)
