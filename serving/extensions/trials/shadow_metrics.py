"""Metric families of shadows: copied requests, and how far their scores are from the answered ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from freshet_serving.processor.extensions.trials.shadow import shadow_comparison
from freshet_serving.serving.telemetry.version_metrics import LABELS, QUANTILES

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost


def shadow_families(host: ModelHost) -> Iterator[Metric]:
    versions = [v for _, model in sorted(host.catalogue.items()) for _, v in sorted(model.routes.served.items())]
    shadows = [(v, comparison) for v in versions if (comparison := shadow_comparison(host, v)) is not None]
    if not shadows:
        return
    requests = CounterMetricFamily(
        "freshet_shadow_requests", "Copied requests scored by the shadow version.", labels=LABELS
    )
    failed = CounterMetricFamily(
        "freshet_shadow_failures", "Copied requests that failed in the shadow version.", labels=LABELS
    )
    dropped = CounterMetricFamily("freshet_shadow_dropped", "Copied requests dropped for lack of time.", labels=LABELS)
    labels = (*LABELS, "output")
    mean = GaugeMetricFamily(
        "freshet_shadow_difference_mean", "Mean of the shadow's score minus the answered score.", labels=labels
    )
    difference = GaugeMetricFamily(
        "freshet_shadow_difference", "Quantiles of the shadow's score minus the answered score.", labels=(*labels, "q")
    )
    lost = CounterMetricFamily(
        "freshet_shadow_nonfinite", "Score pairs in which either score is NaN or infinite.", labels=labels
    )
    for version, comparison in shadows:
        shadow = (version.manifest.model, str(version.manifest.version))
        requests.add_metric(shadow, comparison.differences.requests)
        failed.add_metric(shadow, comparison.differences.failed)
        dropped.add_metric(shadow, comparison.dropped)
        for output, scores in zip(version.manifest.outputs, comparison.differences.every()):
            where = (*shadow, output.name)
            lost.add_metric(where, scores.lost)
            if scores.count:
                mean.add_metric(where, scores.mean)
                for quantile in QUANTILES:
                    difference.add_metric((*where, str(quantile)), scores.quantile(quantile))
    yield from (requests, failed, dropped, mean, difference, lost)
