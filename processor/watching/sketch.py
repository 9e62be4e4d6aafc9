"""Mergeable sketches of a version's batches: counts and sums that add up over sessions and processes. Values.

A Sketch is the sum of the blocks that sessions write (kernels.counting); the difference of two sketches of one version
is what happened between them. Scores has one output as a histogram, fine enough for means, quantiles (within a
sixteenth of an octave) and comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.kernels import counting as k
from freshet_serving.processor.kernels.counting import first_lost, note_batch, note_scores

__all__ = ["Scores", "Sketch", "StatsBlock", "first_lost", "note_batch", "note_scores"]

PHASES = {"queue": (k.QUEUE, k.QUEUE_S), "sparse": (k.SPARSE, k.SPARSE_S), "dense": (k.DENSE, k.DENSE_S)}
# Upper bounds of all bins but the last, which is unbounded.
TIME_BOUNDS_S = tuple(2.0**k.TIME_LOW * 2 ** (n // 2) * (1.5 if n % 2 else 1) for n in range(k.TIME_BINS - 1))
ROW_BOUNDS = tuple(1 << n for n in range(k.ROW_BINS - 1))
# Number of parts of about equal mass in which two distributions are compared.
PARTS = 10


class StatsBlock:
    """The arrays that one session writes for one version, and their addresses."""

    __slots__ = ("counts", "counts_address", "sums", "sums_address")

    def __init__(self, outputs: int) -> None:
        self.counts = np.zeros(k.OUTPUTS + outputs * k.OUTPUT_COUNTS, np.int64)
        self.sums = np.zeros(k.SCORES + outputs)
        self.counts_address, self.sums_address = self.counts.ctypes.data, self.sums.ctypes.data

    def fail(self, requests: int) -> None:
        self.counts[k.FAILED] += requests

    def done(self, requests: int, rows: int = 0) -> None:
        """Count answered requests, and rows of them, that were not recorded with the batches."""
        self.counts[k.REQUESTS] += requests
        self.counts[k.ROWS] += rows

    def note(self, output: int, scores: NDArray[np.float32]) -> None:
        """Add scores of one output, of any shape."""
        flat = np.ascontiguousarray(scores, np.float32)
        note_scores(self.counts_address, self.sums_address, output, flat.ctypes.data, flat.size)

    def lose(self, output: int, scores: int) -> None:
        """Count scores of one output that are NaN or infinite and were not added."""
        self.counts[k.OUTPUTS + output * k.OUTPUT_COUNTS] += scores


@dataclass(frozen=True, eq=False)
class Scores:
    """The distribution of one output's scores: int64 [SCORE_BINS] and sum of the finite ones, number of the lost."""

    lost: int
    bins: NDArray[np.int64]
    total: float

    @classmethod
    def of(cls, scores: NDArray[np.float32]) -> Scores:
        """Return the distribution of an array of any shape."""
        block = StatsBlock(1)
        block.note(0, scores)
        return Sketch(block.counts, block.sums).scores(0)

    @cached_property
    def count(self) -> int:
        """Number of finite scores."""
        return int(self.bins.sum())

    @property
    def mean(self) -> float:
        """Mean of the finite scores; NaN if there are none."""
        return self.total / self.count if self.count else float("nan")

    def quantile(self, share: float) -> float:
        """Return the score below which a share of the scores lies; NaN if there are none."""
        if not self.count:
            return float("nan")
        ascending = self.bins[_ORDER]
        ends = np.cumsum(ascending)
        at = int(np.searchsorted(ends, min(share * self.count, self.count - 0.5), side="right"))
        inside = (share * self.count - (ends[at] - ascending[at])) / ascending[at]
        low, high = _EDGES[at]
        return float(low + (high - low) * min(max(inside, 0.0), 1.0))

    def shift(self, other: Scores) -> float:
        """Return the population stability index (PSI) of two distributions; 0 if either is empty.

        It is taken over parts of about equal mass of both together. 0 for equal ones; above 0.25 is a significant
        shift.
        """
        if not (self.count and other.count):
            return 0.0
        share, other_share = self.bins[_ORDER] / self.count, other.bins[_ORDER] / other.count
        mean = (share + other_share) / 2
        # Assigned by the middle of each bin's mass, so that one large bin is a part of its own.
        part = np.minimum(((np.cumsum(mean) - mean / 2) * PARTS).astype(np.int64), PARTS - 1)
        p, q = (np.bincount(part, d * n, PARTS) for d, n in ((share, self.count), (other_share, other.count)))
        occupied = p + q > 0
        p, q = ((d[occupied] + 0.5) / (d.sum() + 0.5 * occupied.sum()) for d in (p, q))
        return float(((p - q) * np.log(p / q)).sum())


@dataclass(frozen=True, eq=False)
class Sketch:
    """A sketch of a version's batches: int64 counts and float64 sums, laid out as in kernels.counting."""

    counts: NDArray[np.int64]
    sums: NDArray[np.float64]

    @classmethod
    def empty(cls, outputs: int) -> Sketch:
        return cls.total(outputs, ())

    @classmethod
    def total(cls, outputs: int, blocks: Sequence[StatsBlock]) -> Sketch:
        """Return the sum of blocks that their sessions may still be writing."""
        whole = StatsBlock(outputs)
        for block in blocks:
            whole.counts += block.counts
            whole.sums += block.sums
        return cls(whole.counts, whole.sums)

    def since(self, earlier: Sketch) -> Sketch | None:
        """Return the counts since an earlier sketch of the same version, or None if counting has begun again.

        It begins again when a version is rebuilt for a rollback that nothing in memory reaches.
        """
        counts = self.counts - earlier.counts
        return None if counts.min() < 0 else Sketch(counts, self.sums - earlier.sums)

    def __add__(self, other: Sketch) -> Sketch:
        return Sketch(self.counts + other.counts, self.sums + other.sums)

    @property
    def outputs(self) -> int:
        return len(self.sums) - k.SCORES

    @property
    def requests(self) -> int:
        return int(self.counts[k.REQUESTS])

    @property
    def failed(self) -> int:
        return int(self.counts[k.FAILED])

    @property
    def rows(self) -> int:
        return int(self.counts[k.ROWS])

    @property
    def padded(self) -> int:
        """Rows computed only to fill a bucket."""
        return int(self.counts[k.PADDED])

    def phase(self, name: str) -> tuple[NDArray[np.int64], float]:
        """Return batches (for "queue": requests) by time bin, and the total seconds, of one of PHASES."""
        first, total = PHASES[name]
        return self.counts[first : first + k.TIME_BINS], float(self.sums[total])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Batches by the bin of their rows."""
        return self.counts[k.SIZES : k.SIZES + k.ROW_BINS]

    def scores(self, output: int) -> Scores:
        first = k.OUTPUTS + output * k.OUTPUT_COUNTS
        bins = self.counts[first + 1 : first + k.OUTPUT_COUNTS]
        return Scores(int(self.counts[first]), bins, float(self.sums[k.SCORES + output]))

    def every(self) -> Iterator[Scores]:
        return (self.scores(n) for n in range(self.outputs))

    def to_json(self) -> dict[str, Any]:
        """Return the sketch as JSON, which adds up key by key with those of other processes."""
        places = np.flatnonzero(self.counts)
        return {
            "counts": dict(zip(map(str, places.tolist()), self.counts[places].tolist())),
            "sums": self.sums.tolist(),
        }

    @classmethod
    def from_json(cls, outputs: int, raw: Mapping[str, Any] | None) -> Sketch:
        """Return the sketch that to_json() of this version wrote, or a sum of such; empty for None."""
        whole = cls.empty(outputs)
        if raw:
            for place, count in raw["counts"].items():
                whole.counts[int(place)] = count
            whole.sums[:] = raw["sums"]
        return whole


def _edges() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the bins by ascending score, and float64 [SCORE_BINS, 2]: the bounds of each, in that order."""
    sizes = 2.0 ** (k.SCORE_LOW + np.arange(k.SIGN_BINS + 1) // 8) * (1 + np.arange(k.SIGN_BINS + 1) % 8 / 8)
    positive = np.stack([sizes[:-1], sizes[1:]], axis=1)
    order = [*range(k.SCORE_BINS - 1, k.SIGN_BINS, -1), 0, *range(1, k.SIGN_BINS + 1)]
    zero = np.array([[-sizes[0], sizes[0]]])
    return np.array(order), np.concatenate([-positive[::-1, ::-1], zero, positive])


_ORDER, _EDGES = _edges()
