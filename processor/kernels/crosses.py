"""Feature crosses: hash each combination of a row's values of several columns into an id, as SparseCross does."""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.kernel import kernel
from freshet_serving.processor.kernels.string_hashes import cat


@kernel(nb.boolean(nb.int64[:, ::1], nb.int64, nb.int64[::1]))
def count(splits, most, ends):
    """Write the end of each row's combinations; returns False if a row has more than `most`.

    Args:
        splits: int64 [columns, rows + 1], row splits of each column.
        most: The largest number of combinations allowed per row.
        ends: int64 [rows + 1], cumulative number of combinations; written.
    """
    ends[0] = 0
    for row in range(len(ends) - 1):
        total = np.int64(1)
        for column in range(len(splits)):
            total *= splits[column, row + 1] - splits[column, row]
            # No product overflows int64: each factor is bounded by the limits on rows and values.
            if total > most:
                for rest in range(column + 1, len(splits)):
                    if splits[rest, row + 1] == splits[rest, row]:
                        total = 0
                if total > most:
                    return False
                break
        ends[row + 1] = ends[row] + total
    return True


@kernel(nb.void(nb.uint64[::1], nb.int64[::1], nb.int64[:, ::1], nb.int64[::1], nb.uint64, nb.uint64, nb.int64[::1]))
def cross(values, starts, splits, ends, buckets, key, ids):
    """Write the ids of each row's combinations to ids[ends[row]:ends[row + 1]]; the last column's values vary fastest.

    Args:
        values: uint64, the hashed values of all columns, one column after another.
        starts: int64 [columns], the position in `values` at which each column begins.
        splits: int64 [columns, rows + 1], row splits of each column.
        ends: int64 [rows + 1], as written by count().
        buckets: Number of hash buckets.
        key: Initial value of every combination's hash.
        ids: int64 [ends[-1]]; written.
    """
    columns = len(splits)
    place = np.empty(columns, np.int64)
    for row in range(len(ends) - 1):
        place[:] = 0
        for at in range(ends[row], ends[row + 1]):
            h = key
            for column in range(columns):
                h = cat(h, values[starts[column] + splits[column, row] + place[column]])
            ids[at] = np.int64(h % buckets)
            for column in range(columns - 1, -1, -1):
                place[column] += 1
                if place[column] < splits[column, row + 1] - splits[column, row]:
                    break
                place[column] = 0
