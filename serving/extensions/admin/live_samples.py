"""Sample a server's current rates, latencies, errors and freshness, and keep five minutes of history for a live page.

Invariants
- One sampler a server, on a thread of its own, reads the counters that /metrics reads: once a second while there is a
  subscriber, and every IDLE_S otherwise, so that a newly opened page shows the last minutes.
- Bounded: five minutes of samples, each with at most MOST_MODELS models (those with the most requests), encoded once
  for all subscribers.
- A sample covers the time since the previous one. If counters started again (a restarted process), it covers nothing.

Cost: with a page open, 3 to 6 ms of processor time a second over all processes (docs/extensions/admin.md).

Rejected: sampling in the page (two pages would be two samplers, and closing a page would lose its history); no sampling
without subscribers (an incident is over before the page is open); a histogram for each model (another label to count on
every request).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from freshet_serving.processor.errors import FreshetError, first_of
from freshet_serving.processor.standby_thread import PeriodicThread
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.telemetry.metrics import BOUNDS_S, Counts, Metrics

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost

log = logging.getLogger("freshet.live")

LOOK_S, IDLE_S = 1.0, 5.0
KEPT_S = 300.0
MOST_MODELS = 32
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
# Requests other than predictions: health, metrics, metadata.
OTHER = "http"


class LiveSample(NamedTuple):
    """One sample, encoded as JSON; numbers ascend on a server, and `at_s` is monotonic time."""

    number: int
    at_s: float
    data: bytes


class _CounterSnapshot(NamedTuple):
    """The counters at one monotonic time: requests by latency bound and by status code, (requests, rows) by model."""

    at_s: float
    histogram: list[int]
    codes: dict[int, int]
    models: dict[str, tuple[int, int]]


class LiveSamples:
    """The samples of one server. start() begins sampling, close() ends it."""

    def __init__(
        self,
        lifecycle: Availability[ModelHost],
        metrics: Metrics,
        now_s: Callable[[], float] = time.monotonic,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._lifecycle, self._metrics, self._now_s, self._unix_s = lifecycle, metrics, now_s, unix_s
        self._samples: deque[LiveSample] = deque()
        self._numbers = itertools.count(1)
        self._before: _CounterSnapshot | None = None
        self._lock = threading.Lock()
        self._subscribers: dict[object, Callable[[], None]] = {}
        self._keeper = PeriodicThread(self._maintain, IDLE_S, LOOK_S, "freshet-live")
        self.closed = False

    def start(self) -> None:
        self._keeper.start()

    def close(self) -> None:
        """Stop sampling and notify all subscribers."""
        self.closed = True
        if self._keeper.is_alive():
            self._keeper.close()
        self._tell()

    def subscribe(self, notify: Callable[[], None]) -> object:
        """Have `notify` called after each sample and at the end, on the sampler's thread; return a handle."""
        subscriber = object()
        with self._lock:
            self._subscribers[subscriber] = notify
        return subscriber

    def unsubscribe(self, subscriber: object) -> None:
        with self._lock:
            self._subscribers.pop(subscriber, None)

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def since(self, number: int) -> list[LiveSample]:
        """Return the samples after the given number; all of them for 0."""
        with self._lock:
            return [sample for sample in self._samples if sample.number > number]

    def take(self) -> None:
        try:
            document = self._document()
        except FreshetError:
            # Models are loading, or the server has closed.
            return
        now_s = self._now_s()
        with self._lock:
            self._samples.append(LiveSample(next(self._numbers), now_s, orjson.dumps(document)))
            while now_s - self._samples[0].at_s > KEPT_S:
                self._samples.popleft()
        self._tell()

    def _maintain(self) -> bool:
        try:
            self.take()
        except Exception:
            log.exception("taking a sample failed")
        # The first one follows the opening of the models within a second.
        return bool(self._subscribers) or not self._samples

    def _tell(self) -> None:
        with self._lock:
            subscribers = list(self._subscribers.values())
        for notify in subscribers:
            notify()

    def _document(self) -> dict[str, Any]:
        processor = self._lifecycle.processor()
        now, before = _counted(self._metrics.counts(), self._now_s()), self._before
        self._before = now
        since_s = now.at_s - before.at_s if before is not None else 0.0
        codes = _gained(now.codes, before.codes) if before is not None else {}
        histogram = [a - b for a, b in zip(now.histogram, before.histogram)] if before is not None else []
        groups = processor.group_stats().values()
        return {
            "at": self._unix_s(),
            "since_s": since_s,
            "ready": self._lifecycle.ready,
            "requests": _rate(sum(codes.values()), since_s),
            "codes": {str(code): _rate(count, since_s) for code, count in sorted(codes.items()) if count},
            "latency_ms": _latencies_ms(histogram),
            "queue_rows": sum(group.queue_rows for group in groups),
            "sessions": sum(group.sessions for group in groups),
            "models": self._models(processor, now, before, since_s),
        }

    def _models(
        self, processor: ModelHost, now: _CounterSnapshot, before: _CounterSnapshot | None, since_s: float
    ) -> dict[str, dict[str, Any]]:
        views = {}
        busiest = sorted(processor.catalogue, key=lambda name: -now.models.get(name, (0, 0))[0])
        for name in busiest[:MOST_MODELS]:
            model = processor.catalogue[name]
            version = model.pick() if model.routes.served else None
            requests, rows = now.models.get(name, (0, 0))
            was = before.models.get(name, (0, 0)) if before is not None else (requests, rows)
            chain = model.chain(version.generation.version) if version is not None else None
            views[name] = {
                "requests": _rate(requests - was[0], since_s),
                "rows": _rate(rows - was[1], since_s),
                "generation": str(version.generation) if version is not None else None,
                "state": chain.state if chain is not None else None,
                "age_s": round(max(0.0, self._unix_s() - version.published_at), 3) if version is not None else None,
                "freshness_s": (
                    round(version.last_freshness_s, 4) if version is not None and version.delta_count else None
                ),
            }
        return views


def _counted(counts: Counts, at_s: float) -> _CounterSnapshot:
    histogram, codes = [0] * (len(BOUNDS_S) + 1), dict[int, int]()
    for protocol, code, numbers, _ in counts.series():
        if protocol != OTHER:
            histogram = [a + b for a, b in zip(histogram, numbers)]
            codes[code] = codes.get(code, 0) + sum(numbers)
    return _CounterSnapshot(
        at_s, histogram, codes, {name: (requests, rows) for name, requests, rows in counts.predictions()}
    )


def _gained(now: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    return {key: max(0, count - before.get(key, 0)) for key, count in now.items()}


def _rate(count: int, since_s: float) -> float:
    return round(max(0, count) / since_s, 2) if since_s > 0 else 0.0


def _latencies_ms(counts: Sequence[int]) -> dict[str, float] | None:
    """Return percentiles of a histogram with BOUNDS_S, interpolated linearly within a bin; None if it is empty."""
    whole = sum(counts)
    if whole <= 0 or min(counts) < 0:
        return None
    edges = (0.0, *BOUNDS_S, BOUNDS_S[-1])
    ends = list(itertools.accumulate(counts))
    percentiles = {}
    for name, share in SHARES.items():
        rank = share * whole
        at = first_of(n for n, end in enumerate(ends) if end >= rank)
        part = (rank - (ends[at] - counts[at])) / counts[at] if counts[at] else 0.0
        percentiles[name] = round((edges[at] + (edges[at + 1] - edges[at]) * part) * 1e3, 3)
    return percentiles
