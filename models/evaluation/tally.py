"""Count labelled scores by (key, score) in bounded memory, as the basis of AUC, log-loss and calibration.

Invariants
- Entries are sorted by key, then score, and are unique in both. Until the limit is reached, their metrics equal those
  of the rows.
- A score is stored as its rank: the bits of its float32, reordered so that integers compare like the numbers. With more
  than `most` entries, all ranks lose a low bit: near scores merge, their order stays, and the sum of their scores is
  kept. If `sampled`, half of the keys are dropped instead, chosen by a hash.
- At least the newest KEPT rows are also kept as rows.

Cost: an entry takes 44 bytes, a row not yet counted 5 to 21. A row is sorted once or twice, amortised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.building.auc import aucs

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Float32s = NDArray[np.float32]

MOST = 1 << 20
KEPT = 1 << 18
CLIP = 1e-7
"""Probabilities are clipped to [CLIP, 1 - CLIP] in a log-loss."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries by ascending (key, rank), each the sums of its rows.

    `positive` is the part of `weight` whose label is 1, `predicted` the sum of weight times score.
    """

    keys: Int64s
    ranks: NDArray[np.int32]
    rows: Int64s
    weight: Float64s
    positive: Float64s
    predicted: Float64s

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def scores(self) -> Float64s:
        """Mean score of each entry, float64 [m]; NaN where the weight is 0."""
        scores: Float64s = np.full(len(self), np.nan)
        return np.divide(self.predicted, self.weight, out=scores, where=self.weight > 0)

    def firsts(self) -> Int64s:
        return np.flatnonzero(np.diff(self.keys, prepend=self.keys[:1] - 1))

    def aucs(self) -> Float64s:
        return aucs(self.positive, self.weight - self.positive, self.firsts()) if len(self) else np.empty(0)

    def losses(self) -> Float64s:
        """Return the log-loss of each entry times its weight; NaN where scores are not probabilities."""
        p = np.clip(self.scores, CLIP, 1 - CLIP)
        loss = -(self.positive * np.log(p) + (self.weight - self.positive) * np.log1p(-p))
        scores = self.scores
        loss[(scores < 0) | (scores > 1)] = np.nan
        return np.where(self.weight > 0, loss, 0.0)

    def taken(self, which: NDArray[np.bool_]) -> Entries:
        return Entries(*(getattr(self, f.name)[which] for f in fields(self)))


NOTHING = Entries(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64), *(np.empty(0),) * 3)


@dataclass(frozen=True, slots=True, eq=False)
class BufferedRows:
    """Rows that are not counted yet, [n] each; weight None for 1."""

    keys: Int64s
    scores: Float32s
    positive: NDArray[np.bool_]
    weight: Float64s | None

    def __len__(self) -> int:
        return len(self.scores)

    def counts(self, bits: int) -> Entries:
        weight = np.ones(len(self)) if self.weight is None else self.weight
        return joined(
            [
                Entries(
                    self.keys,
                    ranks_of(self.scores) >> bits << bits,
                    np.ones(len(self), np.int64),
                    weight,
                    np.where(self.positive, weight, 0.0),
                    weight * self.scores,
                )
            ]
        )


class ScoreTally:
    """Rows counted by key and score; `lost` rows, whose score is not finite, are not among `rows`.

    Ranks have lost `bits` low bits, and half of the keys were dropped `halvings` times.
    """

    def __init__(self, most: int = MOST, sampled: bool = False) -> None:
        """Create an empty tally of at most `most` entries, which drops low bits of scores or, if `sampled`, keys."""
        self._most, self._sampled = most, sampled
        self._counted, self._waiting, self._waits = NOTHING, list[BufferedRows](), 0
        self.rows = self.lost = 0
        self.bits = self.halvings = 0

    def add(
        self,
        labels: Float32s,
        scores: Float32s,
        weights: Float32s | None = None,
        keys: Int64s | None = None,
    ) -> None:
        """Add n rows: labels, positive where above 0.5, scores, weights (None for 1) and keys (None for 0)."""
        finite = np.isfinite(scores)
        if not finite.all():
            self.lost += len(scores) - int(finite.sum())
            labels, scores = labels[finite], scores[finite]
            weights, keys = None if weights is None else weights[finite], None if keys is None else keys[finite]
        if keys is None:
            keys = np.broadcast_to(np.int64(0), scores.shape)
        self.rows += len(scores)
        if self.halvings:
            stays = self._sample(keys)
            keys, labels, scores = keys[stays], labels[stays], scores[stays]
            weights = None if weights is None else weights[stays]
        weight = None if weights is None else weights.astype(np.float64)
        # Copy: batches are views of a reader's buffers.
        self._waiting.append(BufferedRows(keys, scores.astype(np.float32), labels > 0.5, weight))
        self._waits += len(scores)
        if self._waits >= 2 * KEPT:
            self._count()

    def counts(self) -> Entries:
        parts = [self._counted] if len(self._counted) else []
        if self._waiting:
            parts.append(self._entries(self._waiting))
        return joined(parts)

    def newest(self, rows: int) -> Entries:
        """Return the entries of the newest `rows` rows, at most KEPT."""
        left, parts = min(rows, KEPT), list[BufferedRows]()
        for part in reversed(self._waiting):
            if left <= 0:
                break
            parts.append(_sliced(part, max(0, len(part) - left), len(part)))
            left -= len(part)
        return self._entries(parts) if parts else NOTHING

    def rekey(self, new: Callable[[Int64s], Int64s]) -> None:
        counted = self.counts()
        self._waiting, self._waits = [], 0
        self._counted = joined([Entries(new(counted.keys), *(getattr(counted, f.name) for f in fields(Entries)[1:]))])

    def _count(self) -> None:
        """Merge the older half of the buffered rows into the entries."""
        older = list[BufferedRows]()
        while self._waits - len(self._waiting[0]) >= KEPT:
            older.append(self._waiting.pop(0))
            self._waits -= len(older[-1])
        if older:
            self._counted = joined([self._counted, self._entries(older)])
        while len(self._counted) > self._most:
            self._shrink()

    def _entries(self, waiting: list[BufferedRows]) -> Entries:
        """Count buffered rows, including rows that were added before the last halving."""
        entries = _rows(waiting).counts(self.bits)
        return entries.taken(self._sample(entries.keys)) if self.halvings else entries

    def _shrink(self) -> None:
        c = self._counted
        if self._sampled:
            self.halvings += 1
            self._counted = c.taken(self._sample(c.keys))
        else:
            self.bits += 1
            self._counted = _merged(c.keys, c.ranks >> self.bits << self.bits, lambda name: getattr(c, name))

    def _sample(self, keys: Int64s) -> NDArray[np.bool_]:
        """Return a mask of the keys that stay: those whose hash ends in as many zero bits as there were halvings."""
        z = keys.astype(np.uint64)
        # Finalizer of SplitMix64 (Steele, Lea and Flood 2014).
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        stays: NDArray[np.bool_] = z & np.uint64((1 << self.halvings) - 1) == 0
        return stays


def ranks_of(scores: Float32s) -> NDArray[np.int32]:
    """Return int32 [n] ordered like the scores; equal scores have equal ranks."""
    bits = (scores + np.float32(0.0)).view(np.int32)
    ranks: NDArray[np.int32] = bits ^ (bits >> 31 & 0x7FFFFFFF)
    return ranks


def joined(parts: list[Entries]) -> Entries:
    if not sum(map(len, parts)):
        return NOTHING
    keys, ranks = (np.concatenate([getattr(p, name) for p in parts]) for name in ("keys", "ranks"))
    order = np.argsort(ranks, kind="stable") if (keys == keys[0]).all() else np.lexsort((ranks, keys))
    return _merged(keys[order], ranks[order], lambda name: np.concatenate([getattr(p, name) for p in parts])[order])


def _merged(keys: Int64s, ranks: NDArray[np.int32], column: Callable[[str], NDArray[Any]]) -> Entries:
    """Merge sorted entries of equal key and rank; `column` returns the values of a sum by its name."""
    new = np.ones(len(keys), np.bool_)
    new[1:] = (keys[1:] != keys[:-1]) | (ranks[1:] != ranks[:-1])
    firsts = np.flatnonzero(new)
    # Take one column at a time: the columns are most of the memory.
    sums = (np.add.reduceat(column(name), firsts) for name in ("rows", "weight", "positive", "predicted"))
    return Entries(keys[firsts], ranks[firsts], *sums)


def _rows(parts: list[BufferedRows]) -> BufferedRows:
    weight = None
    if any(p.weight is not None for p in parts):
        weight = np.concatenate([np.ones(len(p)) if p.weight is None else p.weight for p in parts])
    keys, scores, positive = (np.concatenate([getattr(p, n) for p in parts]) for n in ("keys", "scores", "positive"))
    return BufferedRows(keys, scores, positive, weight)


def _sliced(rows: BufferedRows, first: int, last: int) -> BufferedRows:
    weight = None if rows.weight is None else rows.weight[first:last]
    return BufferedRows(rows.keys[first:last], rows.scores[first:last], rows.positive[first:last], weight)
