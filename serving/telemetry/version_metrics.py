"""Metric families of loaded versions: phase durations, change log state, table lookups, scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from freshet_serving.processor.generation import CHAIN_STATES
from freshet_serving.processor.watching import OBSTACLES, PHASES, ROW_BOUNDS, TIME_BOUNDS_S, VersionStats

T = TypeVar("T")
LABELS = ("model", "version")
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)

COUNTERS: tuple[tuple[str, str, Callable[[VersionStats], float]], ...] = (
    ("freshet_version_requests", "Requests answered by the version.", lambda s: s.sketch.requests),
    ("freshet_version_failures", "Requests that failed in a session.", lambda s: s.sketch.failed),
    ("freshet_version_rows", "Candidate rows computed.", lambda s: s.sketch.rows),
    ("freshet_version_padded_rows", "Padding rows computed to fill a bucket.", lambda s: s.sketch.padded),
)
GAUGES: tuple[tuple[str, str, Callable[[VersionStats], float]], ...] = (
    ("freshet_version_step", "Step of the newest delta that the version serves.", lambda s: s.generation.step),
    ("freshet_version_share", "Share of the requests without a version that the version answers.", lambda s: s.share),
    ("freshet_version_ejected", "1 when the version was removed from the traffic split.", lambda s: bool(s.out)),
)


def buckets(bounds: Sequence[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """Return a histogram in Prometheus' form, cumulative counts by upper bound, from counts by bound and above them."""
    total = 0
    cumulative: list[tuple[str, float]] = []
    for bound, count in zip((*bounds, math.inf), counts):
        total += count
        cumulative.append(("+Inf" if bound == math.inf else repr(float(bound)), total))
    return cumulative


def valued_families(
    counters: Iterable[tuple[str, str, Callable[[T], float | None]]],
    gauges: Iterable[tuple[str, str, Callable[[T], float | None]]],
    labels: Sequence[str],
    subjects: Sequence[tuple[tuple[str, ...], T]],
) -> Iterator[Metric]:
    """Yield the families of two tables of (name, help, value), from subjects by the values of their labels."""
    for kind, table in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
        for name, text, value in table:
            family = kind(name, text, labels=labels)
            for label_values, subject in subjects:
                number = value(subject)
                if number is not None:
                    family.add_metric(label_values, number)
            yield family


def version_families(stats: Sequence[VersionStats]) -> Iterator[Metric]:
    yield from _work_families(stats)
    yield from _chain_families(stats)
    yield from _table_families(stats)
    yield from _score_families(stats)


def _of(stats: VersionStats) -> tuple[str, str]:
    return stats.model, str(stats.version)


def _work_families(stats: Sequence[VersionStats]) -> Iterator[Metric]:
    yield from valued_families(COUNTERS, GAUGES, LABELS, [(_of(version), version) for version in stats])
    labels = GaugeMetricFamily("freshet_version_label", "1 for each label of the version.", labels=(*LABELS, "label"))
    buckets_of = GaugeMetricFamily(
        "freshet_version_buckets", "Number of batch sizes, by precision.", labels=(*LABELS, "precision")
    )
    phases = HistogramMetricFamily(
        "freshet_phase_duration_seconds",
        "Seconds of waiting for a session (mean of each batch), and of the sparse and dense graphs of a batch.",
        labels=(*LABELS, "phase"),
    )
    sizes = HistogramMetricFamily("freshet_batch_rows", "Rows of a batch.", labels=LABELS)
    for version in stats:
        for label in version.labels:
            labels.add_metric((*_of(version), label), 1)
        precisions = Counter(described.split()[1].rstrip(":") for described in version.computes.values())
        for precision, count in sorted(precisions.items()):
            buckets_of.add_metric((*_of(version), precision), count)
        for phase in PHASES:
            counts, total_s = version.sketch.phase(phase)
            phases.add_metric((*_of(version), phase), buckets(TIME_BOUNDS_S, counts.tolist()), total_s)
        sizes.add_metric(_of(version), buckets(ROW_BOUNDS, version.sketch.sizes.tolist()), version.sketch.rows)
    yield from (labels, buckets_of, phases, sizes)


def _chain_families(stats: Sequence[VersionStats]) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "freshet_version_chain_state",
        "1 for the state of the version relative to its change log.",
        labels=(*LABELS, "state"),
    )
    behind = GaugeMetricFamily(
        "freshet_version_chain_behind", "Known generations that are not served yet.", labels=LABELS
    )
    blocked = GaugeMetricFamily(
        "freshet_version_deltas_blocked", "Deltas that are present but not served, by cause.", labels=(*LABELS, "kind")
    )
    staleness = GaugeMetricFamily(
        "freshet_version_staleness_seconds",
        "Seconds since the version was last known to serve the newest record of its change log.",
        labels=LABELS,
    )
    for version in stats:
        staleness.add_metric(_of(version), version.staleness_s)
        if version.chain is not None:
            for state in CHAIN_STATES:
                states.add_metric((*_of(version), state), state == version.chain.state)
            behind.add_metric(_of(version), version.chain.behind)
            for kind in OBSTACLES:
                # Damage may hide how many deltas are blocked.
                count = max(1, version.chain.behind) if kind == version.chain.obstacle else 0
                blocked.add_metric((*_of(version), kind), count)
    yield from (states, behind, blocked, staleness)


def _table_families(stats: Sequence[VersionStats]) -> Iterator[Metric]:
    lookups = CounterMetricFamily("freshet_table_lookups", "Rows looked up.", labels=(*LABELS, "table"))
    missed = CounterMetricFamily(
        "freshet_table_default_rows", "Row lookups answered by the default row.", labels=(*LABELS, "table")
    )
    for version in stats:
        for table, (asked, defaults) in version.tables.items():
            lookups.add_metric((*_of(version), table), asked)
            missed.add_metric((*_of(version), table), defaults)
    yield from (lookups, missed)


def _score_families(stats: Sequence[VersionStats]) -> Iterator[Metric]:
    labels = (*LABELS, "output")
    # The label is not "quantile", which belongs to summaries; exporter linters refuse it elsewhere.
    scores = GaugeMetricFamily(
        "freshet_score", "Quantiles of the scores of the last full minute.", labels=(*labels, "q")
    )
    mean = GaugeMetricFamily("freshet_score_mean", "Mean of the scores of the last full minute.", labels=labels)
    drift = GaugeMetricFamily(
        "freshet_score_drift",
        "Population stability index of the generation's scores against those of the generation before.",
        labels=labels,
    )
    finite = CounterMetricFamily("freshet_scores", "Finite scores computed.", labels=labels)
    lost = CounterMetricFamily("freshet_scores_nonfinite", "Scores that are NaN or infinite.", labels=labels)
    for version in stats:
        for n, output in enumerate(version.outputs):
            where = (*_of(version), output)
            whole = version.sketch.scores(n)
            finite.add_metric(where, whole.count)
            lost.add_metric(where, whole.lost)
            if version.scores and version.scores[n].count:
                mean.add_metric(where, version.scores[n].mean)
                for quantile in QUANTILES:
                    scores.add_metric((*where, str(quantile)), version.scores[n].quantile(quantile))
            if version.drift is not None:
                drift.add_metric(where, version.drift[n])
    yield from (scores, mean, drift, finite, lost)
