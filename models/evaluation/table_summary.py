"""Summarise a table: histograms of its rows by reads, age and norm, and estimated savings of admission and eviction.

One pass over pieces, in memory that does not grow with the table. Bins double: bin i of frequencies and ages holds the
numbers from 2**(i-1) to 2**i - 1, bin 0 holds 0. Bins of norms are eighths of a doubling. Savings of eviction are
estimated at edges of bins, where the histograms are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.variable import norms
from freshet_serving.models.evaluation.row_layers import RowChunk

ADMITTED_AFTER = (2, 3, 5, 10)
BINS = 64
NORM_BINS, NORMS_A_DOUBLING, LEAST_NORM = 8 * 60, 8, 2.0**-40
NORM_SHARES = (0.05, 0.1, 0.25, 0.5)
MOST_TOLD = 6

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SavingEstimate:
    """Estimated saving of one key of [tables.NAME]: rows that would not exist.

    `lookups` is the share of training's lookups that would have read the default instead; NaN if they were not counted.
    """

    key: str
    value: float
    rows: int
    lookups: float


@dataclass(slots=True)
class TableSummary:
    """Summary of one table. Rows and lookups by bin are all 0, and other figures 0 or "", if unknown.

    Attributes:
        hashed: A row is shared by many ids.
        memory_nbytes: Bytes of a server that holds all of it in memory.
        slots_nbytes: Bytes of the optimizer in training.
        read_by: How a server finds a row, "row number" or "hash".
        admission: (rows, lookups) that each of ADMITTED_AFTER would save.
    """

    name: str
    dim: int
    dtype: str
    steps: int = 0
    hashed: bool = False
    rows: int = 0
    lookups: int = 0
    file_nbytes: int = 0
    memory_nbytes: int = 0
    slots_nbytes: int = 0
    read_by: str = ""
    rows_by_frequency: Int64s = field(default_factory=lambda: np.zeros(BINS, np.int64))
    lookups_by_frequency: Int64s = field(default_factory=lambda: np.zeros(BINS, np.int64))
    rows_by_age: Int64s = field(default_factory=lambda: np.zeros(BINS, np.int64))
    lookups_by_age: Int64s = field(default_factory=lambda: np.zeros(BINS, np.int64))
    rows_by_norm: Int64s = field(default_factory=lambda: np.zeros(NORM_BINS, np.int64))
    lookups_by_norm: Int64s = field(default_factory=lambda: np.zeros(NORM_BINS, np.int64))
    admission: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)] * len(ADMITTED_AFTER))

    @property
    def counted(self) -> bool:
        return self.lookups > 0

    @property
    def aged(self) -> bool:
        return bool(self.rows_by_age.any())

    def add(self, piece: RowChunk) -> None:
        self.rows += len(piece.keys)
        counts = np.zeros(len(piece.keys), np.int64) if piece.counts is None else piece.counts
        self.lookups += int(counts.sum())
        _tally(norm_bins(norms(piece.rows)), counts, self.rows_by_norm, self.lookups_by_norm)
        if piece.counts is not None:
            _tally(doubling_bins(counts), counts, self.rows_by_frequency, self.lookups_by_frequency)
            self.admission = [
                (rows + int((counts < after).sum()), lost + int(np.minimum(counts, after - 1).sum()))
                for after, (rows, lost) in zip(ADMITTED_AFTER, self.admission)
            ]
        if piece.last_step is not None:
            ages = np.maximum(0, self.steps - piece.last_step)
            _tally(doubling_bins(ages), counts, self.rows_by_age, self.lookups_by_age)

    def savings(self) -> list[SavingEstimate]:
        """Return the estimated savings of admission and eviction; none for a hashed table, which has neither.

        These are admission at ADMITTED_AFTER, and evictions that would remove from a hundredth to nearly all rows.
        """
        savings: list[SavingEstimate] = []
        if self.hashed:
            return savings
        if self.counted:
            for after, (rows, lost) in zip(ADMITTED_AFTER, self.admission):
                savings.append(SavingEstimate("admit_after", after, rows, lost / self.lookups))
        if self.aged:
            gone, lost_by = _from_the_end(self.rows_by_age), _from_the_end(self.lookups_by_age)
            edges = [i for i in range(2, BINS) if 0.01 * self.rows <= gone[i] < 0.99 * self.rows]
            for i in edges[-MOST_TOLD:]:
                # Rows in bin i or later are older than 2**(i-1) - 1 steps.
                savings.append(
                    SavingEstimate("evict_after_steps", 2 ** (i - 1) - 1, int(gone[i]), self._share(lost_by[i]))
                )
        below, lost_below = np.cumsum(self.rows_by_norm), np.cumsum(self.lookups_by_norm)
        shown: set[int] = set()
        for share in NORM_SHARES:
            i = int(np.searchsorted(below, share * self.rows))
            if self.rows and i < NORM_BINS - 1 and i not in shown and below[i] < self.rows:
                shown.add(i)
                savings.append(
                    SavingEstimate("evict_below_norm", norm_edge(i + 1), int(below[i]), self._share(lost_below[i]))
                )
        return savings

    def median_norm(self) -> float:
        """Return the upper edge of the bin with the median norm; 0 without rows."""
        if not self.rows:
            return 0.0
        return norm_edge(1 + int(np.searchsorted(np.cumsum(self.rows_by_norm), self.rows / 2)))

    def _share(self, lookups: float) -> float:
        return float(lookups) / self.lookups if self.lookups else math.nan


def summarise(summary: TableSummary, pieces: Iterable[RowChunk], advance: Callable[[int], None]) -> TableSummary:
    """Add all of a table's rows to a summary; `advance` gets the numbers of rows."""
    for piece in pieces:
        summary.add(piece)
        advance(len(piece.keys))
    return summary


def doubling_bins(numbers: Int64s) -> Int64s:
    """Return the bin of each integer: its number of bits."""
    bins: Int64s = np.frexp(numbers.astype(np.float64))[1].astype(np.int64)
    return np.clip(bins, 0, BINS - 1)


def norm_bins(norm: NDArray[np.float64]) -> Int64s:
    """Return the bin of each norm; 0 for LEAST_NORM and less, and for NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        bins = np.floor(np.log2(norm / LEAST_NORM) * NORMS_A_DOUBLING) + 1
    bins = np.where(np.isnan(bins), 0, bins)
    return np.clip(bins, 0, NORM_BINS - 1).astype(np.int64)


def norm_edge(i: int) -> float:
    return LEAST_NORM * 2.0 ** ((i - 1) / NORMS_A_DOUBLING) if i else 0.0


def _tally(bins: Int64s, counts: Int64s, rows_by: Int64s, lookups_by: Int64s) -> None:
    rows_by += np.bincount(bins, minlength=len(rows_by))
    np.add.at(lookups_by, bins, counts)


def _from_the_end(by_bin: Int64s) -> Int64s:
    reversed_sums: Int64s = np.cumsum(by_bin[::-1])[::-1]
    return reversed_sums
