"""Compute metrics by the value of a column, and AUC within the groups of another.

Both read the column batch by batch, in bounded memory. Of very many values, those with the most rows stay separate, and
the rest are counted together as `others`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.evaluation.ranking import RankingResult, ranking
from freshet_serving.models.evaluation.tally import Entries, ScoreTally, joined
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.hashing import hash_strings

MOST_VALUES, MOST_LINES = 4096, 20
FIRST_VALUES, FIRST_ROWS = 1 << 16, 1_000_000
MOST_GROUPED = 1 << 21
LONGEST = 256
"""Bytes of a text value that are compared."""
OTHERS = -1

Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowMetrics:
    """The weighted metrics of some rows; NaN where a figure does not exist.

    `predicted` is the mean score, `observed` the share of labels that are 1.
    """

    rows: int
    weight: float
    auc: float
    log_loss: float
    predicted: float
    observed: float


def row_metrics(counts: Entries) -> list[RowMetrics]:
    """Return the metrics of each key, by ascending key."""
    if not len(counts):
        return []
    firsts = counts.firsts()
    rows, weight = np.add.reduceat(counts.rows, firsts), np.add.reduceat(counts.weight, firsts)
    sums = (counts.losses(), counts.predicted, counts.positive)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = [np.add.reduceat(values, firsts) / weight for values in sums]
    columns = (rows, weight, counts.aucs(), *means)
    return [RowMetrics(int(n), *map(float, values)) for n, *values in zip(*columns)]


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows whose column has one value, as text.

    `others` is the least number of values merged into this slice; 0 for a slice of a single value.
    """

    value: str
    metrics: RowMetrics
    others: int = 0


class Slices:
    """Rows by the value of one column.

    A row counts in the slice of each value of its list, or of the empty text if that is empty. Values stay separate
    until there are FIRST_VALUES of them, or FIRST_ROWS rows and more than MOST_VALUES values; from then on only those
    with the most rows so far.
    """

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}
        self._rows: dict[int, int] = {}
        self._next = self._dropped = 0
        self._open = True
        self._tally = ScoreTally()

    def add(self, column: Column, labels: Float32s, scores: Float32s, weights: Float32s | None = None) -> None:
        """Add n rows, values or lists, with labels, scores and weights as ScoreTally.add takes them."""
        if isinstance(column, Ragged):
            codes, rows = self._of_lists(column)
            labels, scores = labels[rows], scores[rows]
            weights = None if weights is None else weights[rows]
        else:
            codes = self._of_values(column)
        for code, count in zip(*(array.tolist() for array in np.unique(codes, return_counts=True))):
            self._rows[code] = self._rows.get(code, 0) + count
        self._tally.add(labels, scores, weights, codes)
        many = len(self._codes) > (MOST_VALUES if self._tally.rows >= FIRST_ROWS else FIRST_VALUES)
        if self._open and many:
            self._close()

    def lines(self, most: int = MOST_LINES) -> list[Slice]:
        """Return the `most` values with the most rows, by descending rows, then the remaining rows as one slice."""
        counts = self._tally.counts()
        if not len(counts):
            return []
        ranked = sorted(self._codes.items(), key=lambda item: -self._rows[item[1]])
        shown = dict(ranked[:most])
        left = len(ranked) - len(shown) + self._dropped
        separate = np.array(sorted(shown.values()), np.int64)
        keys = np.where(np.isin(counts.keys, separate), counts.keys, OTHERS)
        counts = joined([Entries(keys, counts.ranks, counts.rows, counts.weight, counts.positive, counts.predicted)])
        by_code = dict(zip(np.unique(counts.keys).tolist(), row_metrics(counts)))
        slices = [Slice(_shown(value), by_code[code]) for value, code in shown.items() if code in by_code]
        return [*slices, Slice("", by_code[OTHERS], left)] if OTHERS in by_code else slices

    def _of_values(self, column: Column) -> NDArray[np.int64]:
        if isinstance(column, Strings):
            return self._coded([value[:LONGEST] for value in column.tolist()])
        if not isinstance(column, np.ndarray) or column.ndim != 1:
            raise BadInput("evaluate.by: expected a column with one value or one list a row")
        values, place = np.unique(column, return_inverse=True)
        return self._coded(values.tolist())[place]

    def _of_lists(self, column: Ragged) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths = np.diff(column.row_splits)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        pairs = np.unique(np.stack([rows, self._of_values(column.values)]), axis=1)
        empty = np.flatnonzero(lengths == 0)
        none = np.repeat(self._coded([b""] if len(empty) else []), len(empty))
        return np.concatenate([pairs[1], none]), np.concatenate([pairs[0], empty])

    def _coded(self, values: Iterable[Hashable]) -> NDArray[np.int64]:
        codes = []
        for value in values:
            # NaN is not equal to itself, so it cannot be a key.
            value = "nan" if value != value else value
            code = self._codes.get(value, None if self._open else OTHERS)
            if code is None:
                code = self._codes[value] = self._next
                self._next += 1
            codes.append(code)
        return np.array(codes, np.int64)

    def _close(self) -> None:
        """Keep only the values with the most rows separate from now on."""
        ranked = sorted(self._codes.items(), key=lambda item: -self._rows[item[1]])
        separate = dict(ranked[:MOST_VALUES])
        self._open, self._dropped, self._codes = False, len(self._codes) - len(separate), separate
        codes = np.array(sorted(separate.values()), np.int64)
        self._tally.rekey(lambda keys: np.where(np.isin(keys, codes), keys, OTHERS))


@dataclass(frozen=True, slots=True)
class GroupedAucResult:
    """The AUC within groups.

    Attributes:
        auc: Mean AUC of the groups, weighted by the groups' weights (or rows); NaN without a usable group.
        groups: Number of groups with labels of both kinds, the usable ones, `of` all groups.
        share: Share of all groups that this sample holds; 1 if it holds all.
        error: Standard error of the sample; 0 if share is 1.
    """

    auc: float
    groups: int
    of: int
    share: float
    error: float


class GroupedAuc:
    """AUC within groups, as published with Deep Interest Network (Zhou et al. 2018): sum(w_i AUC_i) / sum(w_i).

    Exact for two million rows. Beyond that it uses a sample of whole groups, drawn by their hash.
    """

    def __init__(self) -> None:
        self._tally = ScoreTally(MOST_GROUPED, sampled=True)

    def add(self, column: Column, labels: Float32s, scores: Float32s, weights: Float32s | None = None) -> None:
        """Add n rows, with labels, scores and weights as ScoreTally.add takes them; BadInput for a column of lists."""
        if isinstance(column, Strings):
            keys = hash_strings(column, 0)
        elif isinstance(column, np.ndarray) and column.ndim == 1:
            keys = column if column.dtype == np.int64 else column.astype(np.float64).view(np.int64)
        else:
            raise BadInput("evaluate.group: expected a column with one value a row, got lists")
        self._tally.add(labels, scores, weights, keys)

    def result(self) -> GroupedAucResult:
        counts = self._tally.counts()
        aucs, share = counts.aucs(), 0.5**self._tally.halvings
        both = np.isfinite(aucs)
        if not both.any():
            return GroupedAucResult(float("nan"), 0, len(aucs), share, 0.0)
        weight = np.add.reduceat(counts.weight, counts.firsts())[both]
        mean = float((weight * aucs[both]).sum() / weight.sum())
        error = float(np.sqrt((weight**2 * (aucs[both] - mean) ** 2).sum()) / weight.sum()) if share < 1 else 0.0
        return GroupedAucResult(mean, int(both.sum()), len(aucs), share, error)

    def ranking(self, k: int) -> RankingResult:
        return ranking(self._tally.counts(), k)


def _shown(value: Hashable) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:g}" if isinstance(value, float) else str(value)
