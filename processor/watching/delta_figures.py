"""What a delta is like, in figures: how far it moves the rows and weights that were there, and the scores of the same
rows. Pure: arrays come in, numbers go out.

A figure is 0 for a delta that changes nothing, and grows with what it changes; each is relative to what was there, so
that one bound is good for any model.

    moved     of a table: length of the change of the rows that it had, relative to those rows' own
    size      of a table: how many times shorter those rows have become, as a logarithm; 0 where they have grown
    longest   of a table: length of the longest row that comes, relative to the longest that it usually has
    new       of a table: rows of ids that it did not have, relative to the rows that it has (MANY_ROWS at least)
    removed   of a table: the share of its rows that go
    dense     of all dense tensors together: length of the change, relative to their own
    bias      of an output: how far the mean score has moved, relative to the mean score
    disorder  of an output: how far the order of the rows is another one: 1 less the rank correlation
    spread    of an output: how many times wider or narrower the scores lie, as a logarithm
    nonfinite of an output: the share of rows whose score is no number any more
    shift     of an output: the logarithm of how many times as high the mean score is, with its sign; for
              processor.watching.drift, of LEAST_ROWS different scores at least
    stretch   of an output: the logarithm of how many times as wide the scores lie, with its sign; the same
    level     of an output that is never negative: the logarithm of the new mean score; the same
    width     of an output: the logarithm of how wide the new scores lie; the same. These two are places and no changes:
              where shift or stretch have added up, they say whether the scores lie there
    evidence  of the scored rows: how many different ones, each asked for once, would say as much; rows differ where any
              output tells them apart. It is no change, and judged by nobody: it says what the others are worth

Rows that a delta brings for the first time have not moved: of them `new` and `longest` tell.

Whoever makes a delta must not know which of its rows are looked at: moved and size are of rows that are drawn by a
secret generator. `longest` is of every row.

RowLengths: how long the longest rows of tables usually are: what a delta's longest row is measured by. Pure.

It begins with rows of the table, and grows with what is served, GROWTH times in an hour at most: who makes rows longer
delta by delta cannot take the measure along.

Cost: three numbers a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.package import Delta

Float32s = NDArray[np.float32]
RowsBefore = Callable[[str, NDArray[np.int64]], tuple[NDArray[np.bool_], Float32s]]
"""Of a table's keys: which have a row, bool [n], and the rows of those m, float32 [m, dim]."""

Longest = Callable[[str, Float32s], float]
"""Of a table, and of rows that it has (float32 [m, dim]): how long the longest usually are; 0 where nobody knows."""

SAMPLE_ROWS = 512
"""Rows of a table that are looked at, drawn from the delta's."""
LEAST_ROWS = 32
"""Fewer say nothing."""
MANY_ROWS = 10_000
"""So many new ids are no flood in a table of any size."""
SIGNED = SHIFT, STRETCH = "shift", "stretch"
PLACES = LEVEL, WIDTH = "level", "width"
EVIDENCE = "evidence"
MOST_RATIO = 1e6
ALIKE = 1e-6


class Figure(NamedTuple):
    """One figure of a delta. what: the table or output, "" for all together."""

    kind: str
    what: str
    value: float


@np.errstate(over="ignore", invalid="ignore")
def delta_figures(
    delta: Delta,
    before: RowsBefore,
    rows: Mapping[str, float],
    dense: Mapping[str, Float32s],
    random: np.random.Generator,
    longest: Longest = lambda table, known: 0.0,
) -> list[Figure]:
    """The figures of a delta that need no scores.

    Args:
        delta: what comes.
        before: rows as of the generation that it stands on.
        rows: of each table, with the delta's, which are staged by then; infinite where nobody can count them, then no
            share of them is told.
        dense: the tensors there.
        random: draws the rows that are looked at; secret.
        longest: see Longest.

    Returns:
        Of each kind at most one a table; none for what too few rows cannot tell.
    """
    figures = []
    for name, changes in delta.tables.items():
        count, fresh = len(changes.keys), 0.0
        if count:
            keys, new = changes.keys, changes.rows
            if count > SAMPLE_ROWS:
                # One that is drawn twice counts twice: drawing is cheaper than shuffling.
                drawn = random.integers(0, count, SAMPLE_ROWS)
                keys, new = keys[drawn], new[drawn]
            known, old = before(name, keys)
            if len(old) >= LEAST_ROWS:
                new = new if len(old) == len(known) else new[known]
                length = _length(old)
                figures.append(Figure("moved", name, _ratio(_length(new - old), length)))
                figures.append(Figure("size", name, max(0.0, -_log_ratio(_length(new), length))))
            if usual := longest(name, old):
                figures.append(Figure("longest", name, _ratio(longest_row(changes.rows), usual)))
            fresh = count * (1 - len(old) / len(known))
        there = rows[name] - fresh + len(changes.removed)
        # Also where there are none: that too is what is usual.
        figures.append(Figure("new", name, fresh / max(there, MANY_ROWS)))
        figures.append(Figure("removed", name, len(changes.removed) / max(there, LEAST_ROWS)))
    if delta.dense:
        length = math.hypot(*(_length(dense[name]) for name in delta.dense))
        change = math.hypot(*(_length(tensor - dense[name]) for name, tensor in delta.dense.items()))
        figures.append(Figure("dense", "", _ratio(change, length)))
    return figures


@np.errstate(over="ignore", invalid="ignore")
def score_figures(before: Mapping[str, Float32s], after: Mapping[str, Float32s]) -> list[Figure]:
    """The figures of the same rows' scores under two states, by output; any shape, the same in both."""
    figures, evidence = [], 0.0
    for name, scores in before.items():
        old, new = scores.reshape(-1).astype(np.float64), after[name].reshape(-1).astype(np.float64)
        there = np.isfinite(old)
        lost = there & ~np.isfinite(new)
        figures.append(Figure("nonfinite", name, float(lost.sum()) / max(1, int(there.sum()))))
        old, new = old[there & ~lost], new[there & ~lost]
        if len(old) < LEAST_ROWS:
            continue
        size, width = float(np.abs(old).mean()), float(old.std())
        evidence = max(evidence, _different(old), _different(new))
        figures.append(Figure("bias", name, _ratio(abs(float(new.mean() - old.mean())), size)))
        # What a few rows score says how they score, and little of the model: their noise would add up to a drift.
        many = len(np.unique(old)) >= LEAST_ROWS
        if many:
            figures.append(Figure(SHIFT, name, _step(old, new, size)))
            if min(old.min(), new.min()) >= 0:
                figures.append(Figure(LEVEL, name, _log_ratio(float(new.mean()), 1.0)))
        # Scores that are all alike have no order, and no spread worth speaking of.
        if width > ALIKE * size:
            stretch = _log_ratio(float(new.std()), width)
            figures.append(Figure("spread", name, abs(stretch)))
            if many:
                figures.append(Figure(STRETCH, name, stretch))
                figures.append(Figure(WIDTH, name, _log_ratio(float(new.std()), 1.0)))
            figures.append(Figure("disorder", name, 1.0 - rank_correlation(old, new)))
    if evidence:
        figures.append(Figure(EVIDENCE, "", evidence))
    return figures


def _different(scores: NDArray[np.float64]) -> float:
    """How many different scores, each there once, would make a mean as sure as this one: 4 where four rows are asked
    all the time, and less than two where one of a hundred is asked nearly always."""
    _, counts = np.unique(scores, return_counts=True)
    return float(len(scores) ** 2 / np.square(counts, dtype=np.float64).sum())


def rank_correlation(some: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Spearman's: 1 for the same order, -1 for the opposite, 0 where either is constant. Equal values share a rank."""
    a, b = _ranks(some), _ranks(others)
    spread = math.sqrt(float(((a - a.mean()) ** 2).sum() * ((b - b.mean()) ** 2).sum()))
    return float(((a - a.mean()) * (b - b.mean())).sum()) / spread if spread else 0.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def longest_row(rows: Float32s) -> float:
    """Length of the longest of some rows, float32 [n, dim]; 0.0 of none."""
    return math.sqrt(float(np.einsum("ij,ij->i", rows, rows).max())) if len(rows) else 0.0


def _step(old: NDArray[np.float64], new: NDArray[np.float64], size: float) -> float:
    """How far the mean has gone, with its sign: the way back is the same way."""
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
    # What is too long to be measured is NaN here.
    return ratio if ratio < MOST_RATIO else MOST_RATIO


def _log_ratio(some: float, other: float) -> float:
    return math.log(max(_ratio(some, other), 1 / MOST_RATIO)) if some or other else 0.0


HOUR_S = 3600.0
GROWTH = 2.0


@dataclass(slots=True)
class _LongestRow:
    length: float
    since_s: float
    then: float


class RowLengths:
    """Of one version's tables."""

    def __init__(self) -> None:
        self._of: dict[str, _LongestRow] = {}

    def longest(self, table: str) -> float | None:
        """Length of a table's longest rows; None before begin()."""
        known = self._of.get(table)
        return None if known is None else known.length

    def begin(self, table: str, length: float, now_s: float) -> None:
        """Rows of a table are at most so long."""
        self._of[table] = _LongestRow(length, now_s, length)

    def served(self, table: str, times: float, now_s: float) -> None:
        """A row is served that is so many times as long as the longest that was known."""
        known = self._of.get(table)
        if known is None or times <= 1:
            return
        if now_s - known.since_s >= HOUR_S:
            known.since_s, known.then = now_s, known.length
        known.length = min(known.length * times, GROWTH * known.then)
