"""Snapshots of what sessions, groups, models and versions have done. Values.

The modules above take them (processor.versions.overview, processor.sessions.placement).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from freshet_serving.processor.generation import Generation

if TYPE_CHECKING:
    from freshet_serving.processor.tables.tier import TierStats
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.watching.sketch import Scores, Sketch

OBSTACLES = REFUSED, GAP, UNREADABLE, GATE, DAMAGED = "refused", "gap", "unreadable", "held", "damaged"
"""Reasons why existing deltas are not served.

A delta that this server rejects, a missing delta, a repository that cannot be read for now, a hold, a damaged log.
"""


@dataclass(slots=True)
class SessionStats:
    """Counts of one session, written only by its thread, and of its group's rejections, under the group's lock.

    Attributes:
        padded_rows: Rows computed only to fill a bucket.
        expired: Requests dropped from the queue because their deadline passed or could not be met.
        refused_full: Requests not admitted because the queue was full.
        refused_late: Requests not admitted because they would have been late.
        wait_s: Seconds in the queue, summed over requests.
        user_once: Requests whose user part was computed once.
        buckets: Runs by bucket, with string keys as in JSON.
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
        """Count a run of a bucket with `rows` rows, the others being padding."""
        label = str(bucket)
        self.padded_rows += bucket - rows
        self.buckets[label] = self.buckets.get(label, 0) + 1


def total(parts: Sequence[SessionStats]) -> SessionStats:
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
    """A session group's snapshot: rows that wait now, and counts of all its sessions since the start."""

    sessions: int
    queue_rows: int
    work: SessionStats


@dataclass(frozen=True, slots=True)
class ModelStats:
    """A model's snapshot, of the version that represents it.

    Attributes:
        delta_rows: Rows that the applied deltas upserted.
        last_apply_ms: Milliseconds that applying the newest delta took.
        last_freshness_s: Seconds from the newest delta's publication until it was served.
        published_at: Unix seconds at which the served generation was published.
        event_time: Newest event that the served generation has learned from, in Unix seconds.
        misses: Lookups that returned the default row, in all tables.
        delta_nbytes: Bytes of the applied deltas.
        deltas: Histograms of seconds per delta: applying it ("apply"), from its publication ("publication") and from
            its newest event ("event") until it was served.
        counted: Counters of what serves the version beside the core, such as remote tables.
        derived_lag: Steps and seconds by which rows derived from the version's lag; None if there are none.
    """

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
    tiers: dict[str, TierStats] = field(default_factory=dict)
    counted: Snapshot = field(default_factory=dict)
    derived_lag: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """The state of a version, one of CHAIN_STATES, relative to its change log.

    Attributes:
        reason: Explanation, unless CURRENT.
        digest: Digest of the served generation.
        records: Records on disk, as far as known.
        next_step: The step that the next publisher has to use.
        behind: Known generations that are not served.
        obstacle: One of OBSTACLES, "" for CURRENT.
    """

    state: str
    reason: str
    digest: str
    records: int
    next_step: int
    behind: int
    obstacle: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class VersionStats:
    """A loaded version's snapshot.

    Attributes:
        tables: Lookups, and lookups that returned the default row, by table.
        outputs: Names of the sketch's outputs, in order, as that of scores and drift (see Trend).
        share: Share of the requests that the split sends to it.
        out: Reason why it was taken out of the split, or "".
        computes: Backend and precision by bucket.
        staleness_s: Seconds since it was last known to serve the newest record.
    """

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
    chain: ChainStatus | None = None
    computes: Mapping[int, str] = field(default_factory=dict)
    staleness_s: float = 0.0


# Bounds in seconds: half octaves from a millisecond to a minute; octaves from 8 ms to a day.
SHORT_S = tuple(2.0 ** (n // 2 - 10) * (1.5 if n % 2 else 1) for n in range(33))
LONG_S = tuple(2.0**n for n in range(-7, 17))


class Histogram:
    """A histogram of occasional values with fixed bounds. Written by one thread, read by any.

    Attributes:
        bounds: Ascending upper bounds.
        counts: One per bound, of values up to it and above the previous one, and one of values above them all.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
