"""Rank a table's rows by their products with given vectors, exactly, as of an epoch.

Nothing is kept between two calls: a call walks the index that readers use anyway and reads each row in place. So there
is no copy of the rows to own, to refresh with each delta or to pay for in each process, and the answer is of the epoch
that the caller has pinned, with the rows that were added and without those that were removed.

The index has its keys in no order. So rows of the table's file are noted first, a key and a flag each, and then read in
the order of the file; rows of the arena and the log are read as they are found.

Costs (loadtest/results/top-items.md): 80 ns a row of 50 floats in a table of a million, three times that for a row that
a delta has changed, which lies anywhere in the arena, and an eighth for each further vector; 9 bytes a row of the file
until the call returns. A numpy product with a copy of the rows that is ready takes 38 ns a row. The copy would take 4
bytes a number in each process, and three times as long as a scan to make anew after each delta.

Rejected: that copy; the products of a block by BLAS (the same row has another last bit elsewhere in a block, so equal
rows would not tie, and its threads take the cores of other requests).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items import top_rows
from freshet_serving.processor.kernels.rows import BASE_ROWS, CAPACITY, SHARED, UNKNOWN_KEY

ENTRIES, FEWEST_ENTRIES = 1 << 16, 64
"""Products between two questions whether to go on, a few milliseconds; for one vector, entries of the index. There are
at least FEWEST_ENTRIES entries, whatever the number of vectors.
"""
LANES = 32

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class RankedRows(NamedTuple):
    """The best rows for one vector, best first.

    Attributes:
        keys: int64 [m].
        scores: float32 [m], the products.
    """

    keys: Int64s
    scores: Float32s


def rank_rows(
    table: Int64s,
    epoch: int,
    vectors: Float32s,
    excluded: Sequence[Int64s],
    k: int,
    proceed: Callable[[int], bool],
) -> list[RankedRows]:
    """Return the rows with the largest products for each vector; equal products are ordered by key.

    The caller has pinned the epoch. Products that are no number do not count.

    Args:
        table: int64 [TABLE_FIELDS], the table's descriptor.
        epoch: The epoch that is read.
        vectors: float32 [n, dim], of rows' first numbers or all of them.
        excluded: For each vector, the keys that do not count.
        k: Most rows for each vector.
        proceed: Asked with the number of rows read so far, again and again; returns False to end the scan early.

    Returns:
        For each vector up to k rows. They mean nothing if `proceed` has returned False.
    """
    count, dim = vectors.shape
    # The kernel adds up whole vectors of a register's width.
    padded = np.zeros((count, -(-dim // LANES) * LANES), np.float32)
    padded[:, :dim] = vectors
    # The row of unknown keys is no item.
    no_item = table[UNKNOWN_KEY // 8 : UNKNOWN_KEY // 8 + 1] if table[SHARED // 8] else np.empty(0, np.int64)
    without = [np.unique(np.concatenate([keys, no_item])) for keys in excluded]
    splits = np.zeros(count + 1, np.int64)
    np.cumsum([len(keys) for keys in without], out=splits[1:])
    left_out = np.concatenate([np.empty(0, np.int64), *without])
    scores, keys = np.empty((count, k), np.float32), np.empty((count, k), np.int64)
    sizes, rows = np.zeros(count, np.int64), 0
    capacity, file_rows = int(table[CAPACITY // 8]), int(table[BASE_ROWS // 8])
    file_keys, in_file = np.empty(file_rows, np.int64), np.zeros(file_rows, np.bool_)
    rest = (dim, file_keys, in_file, padded, left_out, splits, scores, keys, sizes)
    step = max(FEWEST_ENTRIES, ENTRIES // max(1, count))
    for first in range(0, capacity, step):
        rows += top_rows.scan_entries(table, epoch, first, min(first + step, capacity), *rest)
        if not proceed(rows):
            break
    else:
        for first in range(0, file_rows, step):
            rows += top_rows.scan_file(table, first, min(first + step, file_rows), *rest)
            if not proceed(rows):
                break
    found = []
    for n, size in enumerate(sizes.tolist()):
        order = np.lexsort((keys[n, :size], -scores[n, :size]))
        found.append(RankedRows(keys[n, order], scores[n, order]))
    return found
