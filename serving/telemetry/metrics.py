"""Prometheus metrics: the processor's own counters, and request counts and latencies by protocol and status code.

Thread ownership: observe(), predicted() and phase() are called only on the data port's event loop, and only append
values; scrape() runs in any thread and sorts the values into histograms (_Series).

Reading and encoding are timed for one request in 16, and values are sorted by the hundred: one at a time takes three
times as long. All metrics together cost 1.6 % of processor time at most (`make bench`, scenario observe).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from freshet_serving.processor.counter_block import Snapshot, merged
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.watching import GroupStats, ModelStats, SessionStats
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.ports import SERVER
from freshet_serving.serving.telemetry.version_metrics import buckets, valued_families, version_families

if TYPE_CHECKING:
    from freshet_serving.processor.tables.tier import TierStats
    from freshet_serving.processor.versions.host import ModelHost
    from freshet_serving.processor.versions.model import ServedModel

CONTENT_TYPE = CONTENT_TYPE_LATEST
# Seconds; two or three bins per octave in the range of CTR requests, wider ones above.
BOUNDS_S = (
    0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.032,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

# Bounds for phases, which take a fraction of a request: half octaves from 2 us.
PHASE_BOUNDS_S = tuple(round(2e-6 * 2 ** (n / 2), 8) for n in range(30))

SORT_EVERY = 512

Value = Callable[[ModelStats], float | None]

# name, help, value of one model
COUNTERS: tuple[tuple[str, str, Value], ...] = (
    ("freshet_model_deltas", "Deltas applied to the served version.", lambda s: s.delta_count),
    ("freshet_model_delta_rows", "Table rows changed by applied deltas.", lambda s: s.delta_rows),
    ("freshet_model_delta_bytes", "Bytes of the tensors of applied deltas.", lambda s: s.delta_nbytes),
    ("freshet_model_lookups", "Embedding lookups.", lambda s: s.lookups),
    ("freshet_model_lookup_misses", "Embedding lookups answered by the default row.", lambda s: s.misses),
)
GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("freshet_model_version", "Version that is served.", lambda s: s.generation.version),
    ("freshet_model_step", "Step of the newest delta that is served.", lambda s: s.generation.step),
    (
        "freshet_model_delta_apply_seconds",
        "Seconds that the newest delta took to apply.",
        lambda s: s.last_apply_ms / 1000.0 if s.delta_count else None,
    ),
    (
        "freshet_model_delta_freshness_seconds",
        "Seconds from the publication of the newest delta until it was served.",
        lambda s: s.last_freshness_s if s.delta_count else None,
    ),
    (
        "freshet_model_event_timestamp_seconds",
        "Unix time of the newest training event in the served generation.",
        lambda s: s.event_time,
    ),
    (
        "freshet_model_published_timestamp_seconds",
        "Unix time of the publication of the served generation.",
        lambda s: s.published_at,
    ),
    (
        "freshet_model_item_vectors_lag_steps",
        "Steps by which items' vectors lag behind the served generation, of models that rank items by them.",
        lambda s: s.derived_lag[0] if s.derived_lag else None,
    ),
    (
        "freshet_model_item_vectors_lag_seconds",
        "Seconds since the generation of items' vectors ceased to be served, 0 while they do not lag.",
        lambda s: s.derived_lag[1] if s.derived_lag else None,
    ),
)
# name, help, value of one table with a memory budget
TIER_COUNTERS: tuple[tuple[str, str, Callable[[TierStats], int]], ...] = (
    ("freshet_table_hot_lookups", "Lookups answered from memory.", lambda t: t.hot_lookups),
    ("freshet_table_cold_lookups", "Lookups answered from disk.", lambda t: t.cold_lookups),
    ("freshet_table_compactions", "Log segments rewritten by compaction.", lambda t: t.compactions),
)
TIER_GAUGES: tuple[tuple[str, str, Callable[[TierStats], int]], ...] = (
    ("freshet_table_hot_rows", "Rows in memory.", lambda t: t.hot_rows),
    ("freshet_table_log_bytes", "Disk used by cold rows that deltas changed.", lambda t: t.log_nbytes),
)
# name, help, value of one group of sessions
SESSION_COUNTERS: tuple[tuple[str, str, Callable[[SessionStats], float]], ...] = (
    ("freshet_session_requests", "Requests computed by sessions.", lambda s: s.requests),
    ("freshet_session_rows", "Candidate rows computed.", lambda s: s.rows),
    ("freshet_session_failures", "Requests that failed in a session.", lambda s: s.failed),
    ("freshet_session_batches", "Batches run.", lambda s: s.batches),
    ("freshet_session_padded_rows", "Padding rows computed to fill a bucket.", lambda s: s.padded_rows),
    (
        "freshet_session_user_split_requests",
        "Requests for which the user part of the dense graph was computed once for all candidates.",
        lambda s: s.user_once,
    ),
    ("freshet_session_busy_seconds", "Seconds that sessions spent computing batches.", lambda s: s.busy_s),
    ("freshet_queue_wait_seconds", "Total seconds that requests waited for a session.", lambda s: s.wait_s),
    (
        "freshet_queue_predicted_wait_seconds",
        "Total seconds that requests were predicted to wait on arrival.",
        lambda s: s.predicted_wait_s,
    ),
    (
        "freshet_queue_expired",
        "Requests dropped from the queue because they were too late to be answered.",
        lambda s: s.expired,
    ),
)


class _Series:
    """A histogram with a buffer of values that are not sorted into it yet.

    One thread appends to the end of `seconds`; the thread that sorts removes from its beginning.
    """

    __slots__ = ("_bounds_s", "_counts", "_lock", "_sum_s", "seconds")

    def __init__(self, bounds_s: Sequence[float], counts: Sequence[int] = (), sum_s: float = 0.0) -> None:
        """Create a histogram, from counts by upper bound and above them, and their sum."""
        self.seconds: list[float] = []
        self._bounds_s = np.array(bounds_s)
        self._counts = np.array(counts or [0] * (len(bounds_s) + 1), np.int64)
        self._sum_s = sum_s
        self._lock = threading.Lock()

    def sorted(self) -> tuple[list[int], float]:
        """Return the counts and the sum of all values so far."""
        with self._lock:
            seconds = self.seconds.copy()
            if seconds:
                del self.seconds[: len(seconds)]
                self._counts += np.bincount(np.searchsorted(self._bounds_s, seconds), minlength=len(self._counts))
                self._sum_s += sum(seconds)
            return self._counts.tolist(), self._sum_s


class Counts:
    """Requests by protocol and status code, predictions by model, and times of parsing and encoding, of one process."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, int], _Series] = {}
        self._predicted: dict[str, list[int]] = {}
        self._phases: dict[tuple[str, str], _Series] = {}
        self._sources: list[Callable[[], Snapshot]] = []

    def observe(self, protocol: str, code: int, seconds: float) -> None:
        """Count one answered request by its status code and duration."""
        series = self._series.get((protocol, code))
        if series is None:
            series = self._series[protocol, code] = _Series(BOUNDS_S)
        buffer = series.seconds
        buffer.append(seconds)
        if len(buffer) >= SORT_EVERY:
            series.sorted()

    def predicted(self, model: str, rows: int) -> None:
        """Count one answered prediction of a model that exists, so that the number of labels stays bounded."""
        counts = self._predicted.get(model)
        if counts is None:
            counts = self._predicted[model] = [0, 0]
        counts[0] += 1
        counts[1] += rows

    def phase(self, protocol: str, name: str, seconds: float) -> None:
        """Count the parsing ("parse") or encoding ("encode") of one of the sampled requests."""
        series = self._phases.get((protocol, name))
        if series is None:
            series = self._phases[protocol, name] = _Series(PHASE_BOUNDS_S)
        series.seconds.append(seconds)
        if len(series.seconds) >= SORT_EVERY:
            series.sorted()

    def phases(self) -> Iterator[tuple[str, str, list[int], float]]:
        """Yield (protocol, phase, requests by bound and beyond, sum of seconds), in order."""
        for (protocol, name), series in sorted(self._phases.copy().items()):
            yield protocol, name, *series.sorted()

    def source(self, counted: Callable[[], Snapshot]) -> None:
        """Add an owner of counters, by the function that returns its snapshot."""
        self._sources.append(counted)

    def counted(self) -> Snapshot:
        return merged(counted() for counted in self._sources)

    def series(self) -> Iterator[tuple[str, int, list[int], float]]:
        """Yield (protocol, code, requests by bound and beyond, sum of seconds), in order."""
        for (protocol, code), series in sorted(self._series.copy().items()):
            yield protocol, code, *series.sorted()

    def predictions(self) -> Iterator[tuple[str, int, int]]:
        """Yield (model, predictions, rows), in order."""
        for model, (requests, rows) in sorted(self._predicted.copy().items()):
            yield model, requests, rows

    def snapshot(self) -> dict[str, Any]:
        """Return all but counted() as JSON-compatible values; those of several processes can be added by number."""
        return {
            "series": {f"{protocol} {code}": [*counts, sum_s] for protocol, code, counts, sum_s in self.series()},
            "predicted": {model: [requests, rows] for model, requests, rows in self.predictions()},
            "phases": {f"{protocol} {name}": [*counts, sum_s] for protocol, name, counts, sum_s in self.phases()},
        }

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> Counts:
        """Return the counts of a snapshot, or of a sum of snapshots, without counted()."""
        counts = cls()
        for key, (*numbers, sum_s) in snapshot.get("series", {}).items():
            protocol, code = key.split()
            counts._series[protocol, int(code)] = _Series(BOUNDS_S, numbers, sum_s)
        for key, (*numbers, sum_s) in snapshot.get("phases", {}).items():
            protocol, name = key.split()
            counts._phases[protocol, name] = _Series(PHASE_BOUNDS_S, numbers, sum_s)
        counts._predicted = dict(snapshot.get("predicted", {}))
        return counts


class PortMetrics(Protocol):
    """The metrics that a process's data ports write to and serve at /metrics: Metrics, or a worker's counts."""

    def observe(self, protocol: str, code: int, seconds: float) -> None: ...

    def predicted(self, model: str, rows: int) -> None: ...

    def phase(self, protocol: str, name: str, seconds: float) -> None: ...

    def scrape(self) -> bytes:
        """Return the text exposition of all processes."""


class Metrics(Collector):
    """Collector that turns Counts and the processor's snapshots into metric families when scraped."""

    def __init__(self, lifecycle: Availability[ModelHost]) -> None:
        self._lifecycle = lifecycle
        self._counts = Counts()
        self.observe, self.predicted, self.phase = self._counts.observe, self._counts.predicted, self._counts.phase
        self._extension_metrics = tuple(SERVER.offers("metrics").values())
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    @property
    def own(self) -> Counts:
        """The counts of this process."""
        return self._counts

    def counts(self) -> Counts:
        """Return the counts of all processes that answer for this server."""
        return self._counts

    def counted(self) -> Snapshot:
        """Return the counters beside those of requests, of all processes of this server."""
        return self._counts.counted()

    def requests(self) -> dict[str, int]:
        """Return the number of predictions answered so far, by model."""
        return {model: requests for model, requests, _ in self.counts().predictions()}

    def scrape(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "freshet_ready",
            "1 when every model answers, none is stale and the server is not draining.",
            int(self._lifecycle.ready),
        )
        counts = self.counts()
        yield from _request_families(counts)
        yield from _prediction_families(counts)
        yield from counter_families([({}, self.counted())])
        yield from self._model_families()

    def _model_families(self) -> Iterator[Metric]:
        # Loaded with the first scrape.
        from freshet_serving.processor.versions.overview import model_stats, version_stats
        from freshet_serving.serving.telemetry.judgement_metrics import judgement_families
        from freshet_serving.serving.telemetry.trainer_metrics import trainer_families

        try:
            processor = self._lifecycle.processor()
            stats, groups, versions = model_stats(processor), processor.group_stats(), version_stats(processor)
        except FreshetError:
            # Models are loading, or the server has closed.
            return
        yield GaugeMetricFamily(
            "freshet_repository_reachable",
            "1 when the last poll of the repository succeeded.",
            int(processor.reachable),
        )
        yield from trainer_families(processor.trainers.standings())
        yield from _group_families(groups)
        yield from _catalogue_families(processor.catalogue)
        yield from judgement_families(processor.catalogue)
        yield from valued_families(COUNTERS, GAUGES, ("model",), [((model.model,), model) for model in stats])
        yield from _delta_families(stats)
        yield from _tier_families(stats)
        yield from version_families(versions)
        yield from counter_families([({"model": model.model}, model.counted) for model in stats])
        for families in self._extension_metrics:
            yield from families(processor, stats)


def _catalogue_families(catalogue: Mapping[str, ServedModel]) -> Iterator[Metric]:
    ready = GaugeMetricFamily("freshet_model_ready", "1 when a version of the model answers.", labels=("model",))
    refused = GaugeMetricFamily(
        "freshet_version_load_failed",
        "1 when the version cannot be served in its current state.",
        labels=("model", "version"),
    )
    lock_held = GaugeMetricFamily(
        "freshet_model_lock_held_seconds",
        "Seconds for which the change in progress has blocked other changes of the model.",
        labels=("model",),
    )
    damaged = CounterMetricFamily(
        "freshet_files_damaged",
        "Versions no longer served because one of their files was truncated or overwritten.",
        labels=("model", "file"),
    )
    for name, model in sorted(catalogue.items()):
        ready.add_metric((name,), bool(model.routes.served))
        for status in model.routes.status():
            held_back = status.version in model.decisions.barred
            refused.add_metric((name, str(status.version)), bool(status.error) and not held_back)
        lock_held.add_metric((name,), model.lock_watch.held_s)
        for file, count in sorted(model.damaged.items()):
            damaged.add_metric((name, file), count)
    yield from (ready, refused, lock_held, damaged)


def _request_families(counts: Counts) -> Iterator[Metric]:
    histogram = HistogramMetricFamily(
        "freshet_http_request_duration_seconds",
        "Seconds from a request's headers to its reply, by protocol and status code.",
        labels=("protocol", "code"),
    )
    counter = CounterMetricFamily(
        "freshet_http_requests", "Requests answered, by protocol and status code.", labels=("protocol", "code")
    )
    for protocol, code, numbers, sum_s in counts.series():
        histogram.add_metric((protocol, str(code)), buckets(BOUNDS_S, numbers), sum_s)
        counter.add_metric((protocol, str(code)), sum(numbers))
    phases = HistogramMetricFamily(
        "freshet_http_phase_duration_seconds",
        "Seconds spent parsing requests and encoding replies; one request in 16 is timed.",
        labels=("protocol", "phase"),
    )
    for protocol, name, numbers, sum_s in counts.phases():
        phases.add_metric((protocol, name), buckets(PHASE_BOUNDS_S, numbers), sum_s)
    yield from (counter, histogram, phases)


def _delta_families(stats: Iterable[ModelStats]) -> Iterator[Metric]:
    apply = HistogramMetricFamily(
        "freshet_model_delta_apply_duration_seconds",
        "Seconds from the verification of a delta until it is served.",
        labels=("model",),
    )
    age = HistogramMetricFamily(
        "freshet_model_delta_age_seconds",
        "Age of a delta when first served, since its publication and since its newest event.",
        labels=("model", "since"),
    )
    for model in stats:
        for name, histogram in model.deltas.items():
            cumulated = buckets(histogram.bounds, histogram.counts)
            if name == "apply":
                apply.add_metric((model.model,), cumulated, histogram.total)
            else:
                age.add_metric((model.model, name), cumulated, histogram.total)
    yield from (apply, age)


def _tier_families(stats: Iterable[ModelStats]) -> Iterator[Metric]:
    tiers = [((s.model, table), tally) for s in stats for table, tally in s.tiers.items()]
    if tiers:
        yield from valued_families(TIER_COUNTERS, TIER_GAUGES, ("model", "table"), tiers)


def _group_families(groups: Mapping[str, GroupStats]) -> Iterator[Metric]:
    work = [((group,), stats.work) for group, stats in groups.items()]
    yield from valued_families(SESSION_COUNTERS, (), ("group",), work)
    sessions = GaugeMetricFamily("freshet_sessions", "Sessions.", labels=("group",))
    queue = GaugeMetricFamily("freshet_queue_rows", "Candidate rows waiting for a session.", labels=("group",))
    runs = CounterMetricFamily("freshet_session_runs", "Executable runs, by bucket.", labels=("group", "bucket"))
    refused = CounterMetricFamily(
        "freshet_queue_shed",
        "Requests rejected on arrival: the queue was full (full), or the deadline could not be met (late).",
        labels=("group", "reason"),
    )
    for group, stats in groups.items():
        sessions.add_metric((group,), stats.sessions)
        queue.add_metric((group,), stats.queue_rows)
        for bucket, count in sorted(stats.work.buckets.items(), key=lambda item: int(item[0])):
            runs.add_metric((group, bucket), count)
        refused.add_metric((group, "full"), stats.work.refused_full)
        refused.add_metric((group, "late"), stats.work.refused_late)
    yield from (sessions, queue, runs, refused)


def _prediction_families(counts: Counts) -> Iterator[Metric]:
    requests = CounterMetricFamily("freshet_model_requests", "Predictions answered.", labels=("model",))
    rows = CounterMetricFamily("freshet_model_rows", "Candidate rows of answered predictions.", labels=("model",))
    for model, request_count, row_count in counts.predictions():
        requests.add_metric((model,), request_count)
        rows.add_metric((model,), row_count)
    yield from (requests, rows)


def counter_families(counted: Iterable[tuple[Mapping[str, str], Snapshot]]) -> Iterator[Metric]:
    """Yield the metric families of snapshots, each with the labels, of the same names for all, that distinguish it."""
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
