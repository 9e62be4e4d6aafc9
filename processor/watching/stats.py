"""Snapshots of what sessions, groups, models and versions have done. Values; who takes them is told above
(processor.overview, processor.sessions.placement).

Histogram: counts of what happens now and then, by bounds. Written by one thread, read by any.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.tables.remote.reader import RemoteStats
from freshet_serving.processor.tables.tier import TierStats
from freshet_serving.processor.watching.sketch import Scores, Sketch

CHAIN_STATES = CURRENT, WAITING, HELD, DIVERGED = "CURRENT", "WAITING", "HELD", "DIVERGED"
"""Of a version against its chain (processor.versions.log_applier)."""
OBSTACLES = REFUSED, GAP, UNREADABLE, GATE, DAMAGED = "refused", "gap", "unreadable", "held", "damaged"
"""What keeps deltas that are there from being served: one that this server refuses, one that is missing before a file,
a repository that cannot be read for now, a gate, a chain that is damaged."""


@dataclass(slots=True)
class SessionStats:
    """Counts of one session, written by its thread only; and of what its group has refused, under the group's lock.

    batches to failed: computed. expired: dropped from the queue, their deadline passed or out of reach. refused_full,
    refused_late: not admitted. wait_s, predicted_wait_s: in the queue, summed over requests. busy_s: in batches.
    user_once: requests whose user's part was computed once. buckets: runs by bucket, named as JSON would.
    """

    batches: int = 0
    requests: int = 0
    rows: int = 0
    padded_rows: int = 0
    failed: int = 0
    expired: int = 0
    refused_full: int = 0
    refused_late: int = 0
    wait_s: float = 0.0
    predicted_wait_s: float = 0.0
    busy_s: float = 0.0
    user_once: int = 0
    buckets: dict[str, int] = field(default_factory=dict)

    def record_run(self, bucket: int, rows: int) -> None:
        """Notes a run of so many rows in a bucket."""
        label = str(bucket)
        self.padded_rows += bucket - rows
        self.buckets[label] = self.buckets.get(label, 0) + 1


def total(parts: Sequence[SessionStats]) -> SessionStats:
    """The sum of what several sessions have done."""
    whole = SessionStats()
    for part in parts:
        for f in fields(SessionStats):
            if f.name != "buckets":
                setattr(whole, f.name, getattr(whole, f.name) + getattr(part, f.name))
        for bucket, runs in part.buckets.copy().items():
            whole.buckets[bucket] = whole.buckets.get(bucket, 0) + runs
    return whole


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A session group's snapshot. queue_rows: those that wait now. work: of all its sessions since the start."""

    sessions: int
    queue_rows: int
    work: SessionStats


@dataclass(frozen=True, slots=True, eq=False)
class ShadowComparison:
    """A shadow's scores, compared with what was answered. differences: its scores less those that were answered."""

    differences: Sketch
    dropped: int


@dataclass(frozen=True, slots=True)
class ModelStats:
    """A model's snapshot, of the version that stands for it. published_at and event_time (newest event learned): Unix
    seconds, of the served generation. deltas: seconds that each took to apply ("apply"), from its publication
    ("publication") and from its newest event ("event") until it was served. lookups, misses: of all its tables, and
    those that got the default row. remote: of its tables in a row store. tiers: of its tables with a memory budget."""

    model: str
    generation: Generation
    delta_count: int
    delta_rows: int
    last_apply_ms: float
    last_freshness_s: float
    published_at: float
    event_time: float | None
    lookups: int
    misses: int
    delta_nbytes: int = 0
    deltas: Mapping[str, Histogram] = field(default_factory=dict)
    remote: RemoteStats | None = None
    tiers: dict[str, TierStats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """Where a version stands against its chain. state: one of CHAIN_STATES; reason: of any but CURRENT. digest: of what
    is served. records: on disk, as far as known. next_step: for who publishes next. behind: generations that are known
    and not served. obstacle: one of OBSTACLES, "" for CURRENT."""

    state: str
    reason: str
    digest: str
    records: int
    next_step: int
    behind: int
    obstacle: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class VersionStats:
    """A loaded version's snapshot. tables: lookups, and those answered by the default row, by table. outputs: names of
    the sketch's outputs, in order. scores, drift: see Trend. out: why it has been taken out, or "". shadow: what it has
    done as one. chain: where it stands against its files. computes: backend and precision, by bucket. staleness_s:
    since it was last known to serve the newest record."""

    model: str
    version: int
    generation: Generation
    sketch: Sketch
    tables: Mapping[str, tuple[int, int]]
    outputs: tuple[str, ...]
    scores: tuple[Scores, ...]
    drift: tuple[float, ...] | None
    labels: tuple[str, ...]
    share: float
    out: str
    shadow: ShadowComparison | None = None
    chain: ChainStatus | None = None
    computes: Mapping[int, str] = field(default_factory=dict)
    staleness_s: float = 0.0


# Seconds: half octaves from a millisecond to a minute; octaves from 8 ms to a day.
SHORT_S = tuple(2.0 ** (n // 2 - 10) * (1.5 if n % 2 else 1) for n in range(33))
LONG_S = tuple(2.0**n for n in range(-7, 17))


class Histogram:
    """counts: one a bound, of values up to it and above the one before, and one above them all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
