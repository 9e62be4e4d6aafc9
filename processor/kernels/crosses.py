"""Crosses: every combination of a row's values of several columns, hashed into one id, as TensorFlow's SparseCross."""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.string_hashes import cat


@nb.njit(nb.boolean(nb.int64[:, ::1], nb.int64, nb.int64[::1]), cache=True, nogil=True)
def count(splits, most, ends):
    """ends [rows + 1]: where each row's combinations end; splits [columns, rows + 1]. False where a row has more than
    `most`."""
    ends[0] = 0
    for row in range(len(ends) - 1):
        total = np.int64(1)
        for column in range(len(splits)):
            total *= splits[column, row + 1] - splits[column, row]
            # Not one product runs over: neither factor is above what rows and values can be.
            if total > most:
                for rest in range(column + 1, len(splits)):
                    if splits[rest, row + 1] == splits[rest, row]:
                        total = 0
                if total > most:
                    return False
                break
        ends[row + 1] = ends[row] + total
    return True


@nb.njit(
    nb.void(nb.uint64[::1], nb.int64[::1], nb.int64[:, ::1], nb.int64[::1], nb.uint64, nb.uint64, nb.int64[::1]),
    cache=True,
    nogil=True,
)
def cross(values, starts, splits, ends, buckets, key, ids):
    """ids[ends[row]:ends[row + 1]]: of each combination, the last column's values first.

    values: of all columns one after another, column c from starts[c] on. splits: as count() takes them."""
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
