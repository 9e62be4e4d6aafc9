"""The measurements of a run, as it happens: latencies in HDR histograms, faults by their text, generations by the
moment they were first seen, deltas by the moment they were published.

All moments are time.monotonic() seconds: on one machine that clock is the same in every process.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hdrh.histogram import HdrHistogram

LOWEST_US, HIGHEST_US, DIGITS = 1, 120_000_000, 3
WINDOW_S = 1.0
MAX_FAULT_TEXTS = 100


def histogram() -> HdrHistogram:
    """Microseconds from 1 to two minutes, to three digits."""
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


def microseconds(seconds: float) -> int:
    return max(LOWEST_US, min(HIGHEST_US, round(seconds * 1e6)))


@dataclass(slots=True)
class RequestCounts:
    """Counts of one kind of request. failed: whatever was not answered right, mixed replies included."""

    latency: HdrHistogram
    requests: int = 0
    failed: int = 0
    mixed: int = 0


class Measurements:
    """Collects one process's side of a run; used from one thread (or one gevent hub).

    Attributes:
        deltas: generation; way: admin | folder; published_s.
        windows: Each a second of predict requests, by when they ended; at_s since the start.
    """

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self.end_s = start_s
        self.kinds: dict[str, RequestCounts] = {}
        self.faults: Counter[str] = Counter()
        self.first_seen_s: dict[str, float] = {}
        self.deltas: list[dict[str, Any]] = []
        self.windows: list[dict[str, float]] = []
        self._window, self._window_failed, self._window_end_s = histogram(), 0, start_s + WINDOW_S

    def request(
        self,
        kind: str,
        end_s: float,
        latency_s: float,
        fault: str = "",
        mixed: bool = False,
        load: bool = True,
    ) -> None:
        """Notes one finished request. load: it is one of those that the windows show."""
        entry = self.kinds.setdefault(kind, RequestCounts(histogram()))
        entry.latency.record_value(microseconds(latency_s))
        entry.requests += 1
        entry.mixed += mixed
        if fault:
            entry.failed += 1
            if fault in self.faults or len(self.faults) < MAX_FAULT_TEXTS:
                self.faults[fault] += 1
        self.end_s = max(self.end_s, end_s)
        if load:
            if end_s >= self._window_end_s:
                self._close_window()
                self._window_end_s += WINDOW_S * (1 + math.floor((end_s - self._window_end_s) / WINDOW_S))
            self._window.record_value(microseconds(latency_s))
            self._window_failed += bool(fault)

    def seen(self, generation: str, at_s: float) -> None:
        """A reply of this generation came; only the first counts."""
        self.first_seen_s.setdefault(generation, at_s)

    def published(self, generation: str, way: str, published_s: float) -> None:
        self.deltas.append({"generation": generation, "way": way, "published_s": published_s})

    def totals(self) -> tuple[int, int, int]:
        """(requests, failed, mixed) of all kinds so far."""
        kinds = self.kinds.values()
        return sum(k.requests for k in kinds), sum(k.failed for k in kinds), sum(k.mixed for k in kinds)

    def document(self) -> dict[str, Any]:
        """Everything, for JSON; closes the open window."""
        self._close_window()
        return {
            "start_s": self.start_s,
            "end_s": self.end_s,
            "kinds": {
                name: {
                    "requests": k.requests,
                    "failed": k.failed,
                    "mixed": k.mixed,
                    "latency": k.latency.encode().decode(),
                }
                for name, k in self.kinds.items()
            },
            "faults": dict(self.faults.most_common()),
            "first_seen_s": self.first_seen_s,
            "deltas": self.deltas,
            "windows": self.windows,
        }

    def _close_window(self) -> None:
        taken = self._window
        if taken.total_count:
            at_s = round(self._window_end_s - WINDOW_S - self.start_s, 3)
            window = {"at_s": at_s, "requests": taken.total_count, "failed": self._window_failed}
            window |= {f"p{p}_ms": taken.get_value_at_percentile(p) / 1000 for p in (50, 99)}
            self.windows.append(window | {"max_ms": taken.get_max_value() / 1000})
            taken.reset()
        self._window_failed = 0


def until_served(deltas: list[dict[str, Any]], first_seen: list[dict[str, float]]) -> list[float | None]:
    """Of each delta, the seconds from publication to the first reply that carries it; None for one never seen.

    deltas: as in document(). first_seen: generation -> moment, from any number of observers. A reply of a
    later step of the same version carries the delta as well.
    """
    seen: dict[tuple[int, int], float] = {}
    for observer in first_seen:
        for generation, at_s in observer.items():
            key = _parse(generation)
            seen[key] = min(at_s, seen.get(key, math.inf))
    taken: list[float | None] = []
    for delta in deltas:
        version, step = _parse(delta["generation"])
        carried = [at for (v, s), at in seen.items() if v == version and s >= step]
        taken.append(min(carried) - delta["published_s"] if carried else None)
    return taken


def freshness(
    deltas: list[dict[str, Any]], first_seen: list[dict[str, float]]
) -> tuple[dict[str, list[float]], list[str]]:
    """(way -> seconds as until_served() gives them, generations never seen)."""
    by_way: dict[str, list[float]] = {}
    missing = []
    for delta, taken_s in zip(deltas, until_served(deltas, first_seen)):
        if taken_s is None:
            missing.append(delta["generation"])
        else:
            by_way.setdefault(delta["way"], []).append(taken_s)
    return by_way, missing


def _parse(generation: str) -> tuple[int, int]:
    version, _, step = generation.partition(".")
    return int(version), int(step)
