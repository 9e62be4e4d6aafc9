"""Rank a table's rows by their products with given vectors, exactly, as of an epoch.

Codes of the rows are scanned (code_scan), and the rows themselves are read where that is needed, as of the epoch that
the caller has pinned: the answer is that of its rows. Costs: loadtest/results/top-items.md.

Rejected: the products of a block by BLAS (the same row has another last bit elsewhere in a block, so equal rows would
not tie, and its threads take the cores of other requests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items import code_scan
from freshet_serving.processor.extensions.top_items.code_scan import LANES, TOP, WORD
from freshet_serving.processor.kernels.rows import SHARED, UNKNOWN_KEY

POSITIONS = 1 << 16
"""Products between two questions whether to go on, a few milliseconds where rows must be read."""
MOST_NUMBER = 32767.0
MOST_SUM = 2.0**31 / TOP * 0.99
"""Sum of a vector's numbers of 16 bits up to which no product of codes overflows."""
SMALLEST, LARGEST = 1e-30, 1e28
"""Numbers of vectors that are scanned by codes; the bound of any other one says nothing, or little."""

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class RankedRows(NamedTuple):
    """The best rows for one vector, best first: int64 [m], and their products, float32 [m]."""

    keys: Int64s
    scores: Float32s


class CodedVectors(NamedTuple):
    """Vectors in whole numbers, int16 [n, columns], with the steps and slacks of code_scan, float32 [n]."""

    numbers: NDArray[np.int16]
    steps: Float32s
    slacks: Float32s

    @classmethod
    def of(cls, vectors: Float32s) -> CodedVectors:
        exact = np.abs(vectors.astype(np.float64))
        largest, total = exact.max(1, initial=0.0), exact.sum(1)
        columns, rounding = vectors.shape[1], (vectors.shape[1] + 16) * float(np.finfo(np.float32).eps) * TOP
        coded = (largest > SMALLEST) & (largest < LARGEST)
        steps = np.where(coded, np.maximum(largest / MOST_NUMBER, total / MOST_SUM), 1.0)
        steps = steps.astype(np.float32).astype(np.float64)
        numbers = np.where(coded[:, None], np.rint(vectors / steps[:, None]), 0.0)
        slack = (0.5 + 1e-5 + rounding) * total + (0.5 + 1e-5) * TOP * columns * steps
        # No row has a product beyond this one; larger numbers have none that float32 can hold.
        slack = np.where(coded, slack, (TOP + 1 + rounding) * total)
        slack = np.where(largest < LARGEST, slack * (1 + 1e-5), np.inf)
        return cls(numbers.astype(np.int16), np.where(coded, steps, 0.0).astype(np.float32), slack.astype(np.float32))


class Heaps:
    """The best rows so far for each vector, float32 [n, columns]; `rest` is what kernels take from them on."""

    def __init__(self, table: Int64s, vectors: Float32s, excluded: Sequence[Int64s], k: int) -> None:
        self.vectors = vectors
        # The row of unknown keys is no item.
        no_item = table[UNKNOWN_KEY // 8 : UNKNOWN_KEY // 8 + 1] if table[SHARED // 8] else np.empty(0, np.int64)
        without = [np.unique(np.concatenate([keys, no_item])) for keys in excluded]
        self._scores, self._keys = np.empty((len(vectors), k), np.float32), np.empty((len(vectors), k), np.int64)
        self._sizes = np.zeros(len(vectors), np.int64)
        self.rest = (vectors, *end_to_end(without), self._scores, self._keys, self._sizes)

    def ranked(self) -> list[RankedRows]:
        ranked = []
        for n, size in enumerate(self._sizes.tolist()):
            order = np.lexsort((self._keys[n, :size], -self._scores[n, :size]))
            ranked.append(RankedRows(self._keys[n, order], self._scores[n, order]))
        return ranked


def end_to_end(lists: Sequence[Int64s]) -> tuple[Int64s, Int64s]:
    """Return lists end to end, and where each begins and ends."""
    splits = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(keys) for keys in lists], out=splits[1:])
    return np.concatenate([np.empty(0, np.int64), *lists]), splits


def rank_keys(
    table: Int64s,
    epoch: int,
    columns: int,
    vectors: Float32s,
    allowed: Sequence[Int64s],
    excluded: Sequence[Int64s],
    k: int,
) -> list[RankedRows]:
    """Return the rows with the largest products among `allowed` keys of each vector, as rank_rows() does among all."""
    heaps = Heaps(table, _padded(vectors, columns), excluded, k)
    code_scan.offer_keys(table, epoch, columns, *end_to_end(allowed), *heaps.rest)
    return heaps.ranked()


def _padded(vectors: Float32s, columns: int) -> Float32s:
    padded = np.zeros((len(vectors), -(-columns // LANES) * LANES), np.float32)
    padded[:, : vectors.shape[1]] = vectors
    return padded


def rank_rows(
    table: Int64s,
    epoch: int,
    arrays: Mapping[str, NDArray[Any]],
    vectors: Float32s,
    excluded: Sequence[Int64s],
    k: int,
    proceed: Callable[[int], bool],
    allowed: Callable[[int, int], Int64s] | None = None,
) -> list[RankedRows]:
    """Return up to k rows with the largest products for each vector; equal products are ordered by key.

    The caller has pinned the epoch. Products that are no number do not count.

    Args:
        table: int64 [TABLE_FIELDS], the table's descriptor.
        arrays: Codes of the table's rows (RowCodes.arrays).
        vectors: float32 [n, columns], as many as rows have codes, or fewer: products read the first ones.
        excluded: For each vector, the keys that do not count.
        proceed: Asked with the number of rows looked at so far, again and again; returns False to end the scan early:
            the result means nothing then.
        allowed: Returns a bit for each position from one to before another, in words of 64, that says whether its row
            counts; None if all do.
    """
    positions, columns = map(int, arrays["code_count"])
    heaps, rows = Heaps(table, _padded(vectors, columns), excluded, k), 0
    coded = CodedVectors.of(heaps.vectors)
    rest = (
        columns, *(arrays[f"code_{name}"] for name in ("keys", "more_keys", "bytes", "scales", "stale")),
        coded.numbers, coded.steps, coded.slacks, *heaps.rest,
    )  # fmt: skip
    step = max(WORD, POSITIONS // max(1, len(vectors)) // WORD * WORD)
    for block in range(0, positions, POSITIONS):
        end = min(block + POSITIONS, positions)
        bits = np.empty(0, np.int64) if allowed is None else allowed(block, end)
        for first in range(block, end, step):
            rows += code_scan.scan_codes(table, epoch, first, min(first + step, end), bits, block, *rest)
            if not proceed(rows):
                return heaps.ranked()
    return heaps.ranked()
