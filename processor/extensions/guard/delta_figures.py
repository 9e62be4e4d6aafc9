"""Compute the figures of a delta: how far it moves existing rows and weights, and the scores of the same rows.

Pure: arrays come in, numbers go out. A figure is 0 for a delta that changes nothing, and grows with what it changes;
each is relative to the state before, so that one bound suits any model.

    moved     of a table: length of the change of the rows that it had, relative to those rows' own
    size      of a table: the logarithm of how many times shorter those rows have become; 0 where they have grown
    longest   of a table: length of the delta's longest row, relative to the longest that the table usually has
    new       of a table: rows of ids that it did not have, relative to the rows that it has (at least MANY_ROWS)
    removed   of a table: the share of its rows that are removed
    dense     of all dense tensors together: length of the change, relative to their own
    bias      of an output: how far the mean score has moved, relative to the mean score
    disorder  of an output: how far the order of the rows has changed: 1 - rank correlation
    spread    of an output: the logarithm of how many times wider or narrower the scores lie
    nonfinite of an output: the share of rows whose score has become non-finite
    shift     of an output: the signed logarithm of how many times as high the mean score is; for
              drift, from at least LEAST_ROWS different scores
    stretch   of an output: the signed logarithm of how many times as wide the scores lie; likewise
    level     of an output that is never negative: the logarithm of the new mean score; likewise
    width     of an output: the logarithm of the width of the new scores; likewise. Level and width are positions, not
              changes: where shift or stretch have added up, they show whether the scores are really there
    evidence  of the scored rows: the number of different rows, each requested once, that would give as much evidence;
              rows differ where any output distinguishes them. It is no change and is not judged: it is the weight of
              the other figures

Rows that a delta brings for the first time have not moved: `new` and `longest` cover them. A publisher must not know
which of its rows are sampled: moved and size are computed from rows drawn by a secret generator; `longest` is of every
row, compared with the usual length of the table's longest rows (RowLengths).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.package import Delta
from freshet_serving.processor.watching import LEAST_ROWS, Figure

Float32s = NDArray[np.float32]
RowsBefore = Callable[[str, NDArray[np.int64]], tuple[NDArray[np.bool_], Float32s]]
"""Returns, for keys of a table, which of them have a row (bool [n]) and the rows of those m, float32 [m, dim]."""

Longest = Callable[[str, Float32s], float]
"""Returns, for a table and rows of it (float32 [m, dim]), the usual length of its longest rows; 0 if unknown."""

SAMPLE_ROWS = 512
"""Rows of a table that are sampled from the delta's."""
MANY_ROWS = 10_000
"""This many new ids are not a flood in a table of any size."""
SIGNED = SHIFT, STRETCH = "shift", "stretch"
PLACES = LEVEL, WIDTH = "level", "width"
EVIDENCE = "evidence"
MOST_RATIO = 1e6
ALIKE = 1e-6


@np.errstate(over="ignore", invalid="ignore")
def delta_figures(
    delta: Delta,
    before: RowsBefore,
    rows: Mapping[str, float],
    dense: Mapping[str, Float32s],
    random: np.random.Generator,
    longest: Longest = lambda table, are_known: 0.0,
) -> list[Figure]:
    """Return the figures of a delta that need no scores: at most one of each kind per table, none of too few rows.

    Rows are read as of the generation that the delta stands on, and drawn by a secret generator. `rows` counts those of
    each table, the delta's included, which are staged by then; infinite where they cannot be counted.
    """
    figures = []
    for name, changes in delta.tables.items():
        count, fresh = len(changes.keys), 0.0
        if count:
            keys, new = changes.keys, changes.rows
            if count > SAMPLE_ROWS:
                # A row that is drawn twice counts twice: drawing with replacement is cheaper than shuffling.
                drawn = random.integers(0, count, SAMPLE_ROWS)
                keys, new = keys[drawn], new[drawn]
            are_known, old = before(name, keys)
            if len(old) >= LEAST_ROWS and new.dtype == np.float32:
                new = new if len(old) == len(are_known) else new[are_known]
                length = _length(old)
                figures.append(Figure("moved", name, _ratio(_length(new - old), length)))
                figures.append(Figure("size", name, max(0.0, -_log_ratio(_length(new), length))))
            if new.dtype == np.float32 and (usual := longest(name, old)):
                figures.append(Figure("longest", name, _ratio(longest_row(changes.rows), usual)))
            fresh = count * (1 - len(old) / len(are_known))
        rows_after = rows[name] - fresh + len(changes.removed)
        # Also where there are no new or removed rows: zeros belong to what is usual.
        figures.append(Figure("new", name, fresh / max(rows_after, MANY_ROWS)))
        figures.append(Figure("removed", name, len(changes.removed) / max(rows_after, LEAST_ROWS)))
    if delta.dense:
        length = math.hypot(*(_length(dense[name]) for name in delta.dense))
        change = math.hypot(*(_length(tensor - dense[name]) for name, tensor in delta.dense.items()))
        figures.append(Figure("dense", "", _ratio(change, length)))
    return figures


@np.errstate(over="ignore", invalid="ignore")
def score_figures(before: Mapping[str, Float32s], after: Mapping[str, Float32s]) -> list[Figure]:
    """Return the figures of the same rows' scores under two states, by output, of any shape."""
    figures, evidence = [], 0.0
    for name, scores in before.items():
        old, new = scores.reshape(-1).astype(np.float64), after[name].reshape(-1).astype(np.float64)
        finite = np.isfinite(old)
        lost = finite & ~np.isfinite(new)
        figures.append(Figure("nonfinite", name, float(lost.sum()) / max(1, int(finite.sum()))))
        old, new = old[finite & ~lost], new[finite & ~lost]
        if len(old) < LEAST_ROWS:
            continue
        size, width = float(np.abs(old).mean()), float(old.std())
        evidence = max(evidence, _different(old), _different(new))
        figures.append(Figure("bias", name, _ratio(abs(float(new.mean() - old.mean())), size)))
        # A few rows say little about the model: their noise would add up to a drift.
        varied = len(np.unique(old)) >= LEAST_ROWS
        if varied:
            figures.append(Figure(SHIFT, name, _step(old, new, size)))
            if min(old.min(), new.min()) >= 0:
                figures.append(Figure(LEVEL, name, _log_ratio(float(new.mean()), 1.0)))
        # Scores that are all nearly equal have no order and no meaningful spread.
        if width > ALIKE * size:
            stretch = _log_ratio(float(new.std()), width)
            figures.append(Figure("spread", name, abs(stretch)))
            if varied:
                figures.append(Figure(STRETCH, name, stretch))
                figures.append(Figure(WIDTH, name, _log_ratio(float(new.std()), 1.0)))
            figures.append(Figure("disorder", name, 1.0 - rank_correlation(old, new)))
    if evidence:
        figures.append(Figure(EVIDENCE, "", evidence))
    return figures


def _different(scores: NDArray[np.float64]) -> float:
    """Return the effective number of different scores: how many, each present once, would give a mean as certain.

    4 if four rows are requested all the time; less than 2 if one of a hundred is requested nearly always.
    """
    _, counts = np.unique(scores, return_counts=True)
    return float(len(scores) ** 2 / np.square(counts, dtype=np.float64).sum())


def rank_correlation(scores: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return Spearman's correlation: -1 to 1, 0 if either is constant; equal values share a rank."""
    a, b = _ranks(scores), _ranks(others)
    spread = math.sqrt(float(((a - a.mean()) ** 2).sum() * ((b - b.mean()) ** 2).sum()))
    return float(((a - a.mean()) * (b - b.mean())).sum()) / spread if spread else 0.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def longest_row(rows: Float32s) -> float:
    return math.sqrt(float(np.einsum("ij,ij->i", rows, rows).max())) if len(rows) else 0.0


def _step(old: NDArray[np.float64], new: NDArray[np.float64], size: float) -> float:
    """Return the signed distance of the mean score; the way back is the same distance with the other sign."""
    if old.min() >= 0 and new.min() >= 0:
        return _log_ratio(float(new.mean()), float(old.mean()))
    larger = max(size, float(np.abs(new).mean()))
    return float(new.mean() - old.mean()) / larger if larger else 0.0


def _length(array: Float32s) -> float:
    return math.sqrt(float(np.vdot(array, array)))


def _ratio(value: float, of: float) -> float:
    if not of:
        return MOST_RATIO if value else 0.0
    ratio = value / of
    # A length that overflows float32 is NaN here.
    return ratio if ratio < MOST_RATIO else MOST_RATIO


def _log_ratio(dividend: float, divisor: float) -> float:
    return math.log(max(_ratio(dividend, divisor), 1 / MOST_RATIO)) if dividend or divisor else 0.0


HOUR_S = 3600.0
GROWTH = 2.0


@dataclass(slots=True)
class _LongestRow:
    length: float
    since_s: float
    then: float


class RowLengths:
    """The usual lengths of the longest rows of one version's tables. Pure.

    They begin with rows of the table, and grow with what is served, at most GROWTH times in an hour: a publisher that
    makes rows longer delta by delta cannot raise the reference along with them.
    """

    def __init__(self) -> None:
        self._of: dict[str, _LongestRow] = {}

    def longest(self, table: str) -> float | None:
        """Return the length of a table's longest rows; None before begin()."""
        entry = self._of.get(table)
        return None if entry is None else entry.length

    def begin(self, table: str, length: float, now_s: float) -> None:
        """Set the length of a table's longest rows; the time is monotonic, here and below."""
        self._of[table] = _LongestRow(length, now_s, length)

    def served(self, table: str, times: float, now_s: float) -> None:
        """Record that a row is served that is `times` as long as longest()."""
        entry = self._of.get(table)
        if entry is None or times <= 1:
            return
        if now_s - entry.since_s >= HOUR_S:
            entry.since_s, entry.then = now_s, entry.length
        entry.length = min(entry.length * times, GROWTH * entry.then)
