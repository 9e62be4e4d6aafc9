"""The outcome of an open-loop run: what became of its requests, and its figures.

Latency is counted from the instant at which a request was due, not from when it was sent: a server that stalls is
charged for every request that would have come meanwhile (Tene, "How NOT to measure latency": coordinated omission).
The time that the generator itself was late is part of that latency, and is reported so that it can be judged; so is
what is left without it, which is no latency that a client has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

from loadtest.load.measurements import HIGHEST_US, LOWEST_US, histogram

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
OK = 200
NEVER = -1


@dataclass(frozen=True, slots=True, eq=False)
class RequestOutcomes:
    """The outcome of requests, one entry each, by when it was due. due_s: since the start. latency_us: from due to the
    last byte of its reply, NEVER without one. status: of the reply, 0 without one. late_us: by how much the generator
    sent it later than it could have, NEVER where it was not sent. answered_us: from when it was sent until the reply
    was there, whether or not the generator had come to read it; NEVER without one."""

    due_s: NDArray[np.float64]
    latency_us: NDArray[np.int64]
    status: NDArray[np.int16]
    late_us: NDArray[np.int64]
    answered_us: NDArray[np.int64]

    @classmethod
    def of(cls, due_s: NDArray[np.float64]) -> RequestOutcomes:
        n = len(due_s)
        latency_us, late_us, answered_us = (np.full(n, NEVER, np.int64) for _ in range(3))
        return cls(due_s, latency_us, np.zeros(n, np.int16), late_us, answered_us)

    def between(self, first_s: float, last_s: float) -> RequestOutcomes:
        """The Outcome of the requests that were due in [first_s, last_s)."""
        a, b = np.searchsorted(self.due_s, [first_s, last_s])
        return RequestOutcomes(
            self.due_s[a:b], self.latency_us[a:b], self.status[a:b], self.late_us[a:b], self.answered_us[a:b]
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the requests that were due in one stretch of time; `achieved` is of the replies that came in that
    stretch. Rates are a second; hdr: the latency of replies of status 200, in microseconds, encoded so that it can be
    added to others'. statuses: by code, "none" for no reply. good: replies of status 200 within the deadline, all of
    them where there is none. late_ms, cores: of the generator, how late it was and how many cores it used over the
    whole run; waited: the share of that time in which it stood ready and had no core. answered_ms: of replies of status
    200, from when they were asked for until they were there, without the generator's own waiting."""

    seconds: float
    requests: int
    offered: float
    achieved: float
    statuses: dict[str, int]
    good: int
    goodput: float
    latency_ms: dict[str, float]
    late_ms: dict[str, float]
    answered_ms: dict[str, float]
    hdr: str
    faults: dict[str, int] = field(default_factory=dict)
    windows: list[dict[str, Any]] = field(default_factory=list)
    start_s: float = 0.0
    cores: float = 0.0
    waited: float = 0.0

    @property
    def failed(self) -> int:
        """Requests without a reply of status 200."""
        return self.requests - self.statuses.get(str(OK), 0)


def figures(
    outcome: RequestOutcomes,
    first_s: float,
    last_s: float,
    deadline_s: float | None = None,
    window_s: float | None = None,
    faults: Mapping[str, int] | None = None,
    start_s: float = 0.0,
    cores: float = 0.0,
    waited: float = 0.0,
) -> Figures:
    """The figures of what was due in [first_s, last_s). window_s: also of each stretch of this length. start_s: the
    monotonic clock at due_s 0."""
    part, seconds = outcome.between(first_s, last_s), last_s - first_s
    ok = part.latency_us[part.status == OK]
    good = int((ok <= deadline_s * 1e6).sum()) if deadline_s is not None else len(ok)
    done_s = (outcome.due_s + outcome.latency_us / 1e6)[outcome.status > 0]
    hdr = of_microseconds(ok)
    windows = []
    if window_s is not None:
        for n in range(round(seconds / window_s)):
            at = first_s + n * window_s
            window = outcome.between(at, at + window_s)
            inside = window.status == OK
            windows.append(
                {
                    "at_s": round(at, 3),
                    "requests": len(window.status),
                    "failed": int((~inside).sum()),
                    "hdr": encode(of_microseconds(window.latency_us[inside])),
                }
            )
    return Figures(
        seconds=seconds,
        requests=len(part.status),
        offered=round(len(part.status) / seconds, 2),
        achieved=round(int(((done_s >= first_s) & (done_s < last_s)).sum()) / seconds, 2),
        statuses={str(code) if code else "none": int((part.status == code).sum()) for code in np.unique(part.status)},
        good=good,
        goodput=round(good / seconds, 2),
        latency_ms=quantiles_ms(hdr),
        late_ms=quantiles_ms(of_microseconds(part.late_us[part.late_us != NEVER])),
        answered_ms=quantiles_ms(of_microseconds(part.answered_us[part.status == OK])),
        hdr=encode(hdr),
        faults=dict(faults or {}),
        windows=windows,
        start_s=start_s,
        cores=round(cores, 3),
        waited=round(waited, 3),
    )


def of_microseconds(values: NDArray[np.int64]) -> HdrHistogram:
    total = histogram()
    for value, count in zip(*np.unique(np.clip(values, LOWEST_US, HIGHEST_US), return_counts=True)):
        total.record_value(int(value), int(count))
    return total


def encode(hdr: HdrHistogram) -> str:
    encoded: bytes = hdr.encode()
    return encoded.decode()


def merge(encoded: Iterable[str]) -> HdrHistogram:
    total = histogram()
    for text in encoded:
        total.add(HdrHistogram.decode(text))
    return total


def quantiles_ms(hdr: HdrHistogram) -> dict[str, float]:
    """p50, p90, p99, p99.9 and max in milliseconds; zeros when nothing was recorded."""
    found = {f"p{p:g}": hdr.get_value_at_percentile(p) / 1000 for p in PERCENTILES}
    return {**found, "max": hdr.get_max_value() / 1000 if hdr.total_count else 0.0}
