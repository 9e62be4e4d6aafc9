"""Feature crosses: hash each combination of a row's values of several columns into an id, as SparseCross does.

cross() makes combinations of any number of columns. cross_pairs() makes the same ids of two: the hash of a pair mixes
each of its values by itself first, so that is done once a value and not once a pair; and one call makes the pairs of
all distances from the newest event of a history.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.hashing import high_product
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import load_i64_anywhere
from freshet_serving.processor.kernels.string_hashes import cat, cat_first, cat_mixed, cat_second


@kernel(nb.boolean(nb.int64[:, ::1], nb.int64, nb.int64[::1]))
def count(splits, most, ends):
    """Write the end of each row's combinations, int64 [rows + 1]; return False if a row has more than `most`.

    `splits` are the row splits of each column, int64 [columns, rows + 1].
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
        key: Initial value of every combination's hash.
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


@inlined
def bucket(h, buckets, share):
    """Return h % buckets (1 to 2**63 - 1) without a division.

    `share` is (2**64 - 1) // buckets, so that the quotient below is the right one or one less.
    """
    rest = h - high_product(h, share) * buckets
    return np.int64(rest - buckets if rest >= buckets else rest)


@inlined
def _begin(splits, width, rows, row):
    """Return the position of the first value of a row; a column of one row is broadcast."""
    at = np.int64(0) if rows == 1 else row
    return load_i64_anywhere(splits + 8 * at) if splits else at * width


@inlined
def _end(splits, width, rows, row):
    """Return the position after the last value of a row."""
    at = np.int64(0) if rows == 1 else row
    return load_i64_anywhere(splits + 8 * (at + 1)) if splits else (at + 1) * width


@kernel(nb.types.UniTuple(nb.int64, 2)(*[nb.int64] * 6, nb.int64[:, ::1], nb.int64, nb.int64[:, ::1]))
def pair_ends(first_splits, first_width, first_rows, second_splits, second_width, second_rows, windows, windowed, ends):
    """Write the end of each row's pairs, int64 [P, rows + 1], for each window of one of two columns.

    Args:
        first_splits: Address of the first column's row splits, int64; 0 for `first_width` values a row.
        first_rows: Its rows; one row is broadcast.
        windows: int64 [P, 2], without the last [0] values of a row, the last [1] of the others.
        windowed: The column that the windows are of, 0 or 1.

    Returns:
        The number of all pairs, at most 2**62, and the largest number of pairs of a row and a window.
    """
    total, most = np.int64(0), np.int64(0)
    for p in range(len(windows)):
        ends[p, 0] = 0
        for row in range(ends.shape[1] - 1):
            a = _end(first_splits, first_width, first_rows, row) - _begin(first_splits, first_width, first_rows, row)
            b = _end(second_splits, second_width, second_rows, row) - _begin(
                second_splits, second_width, second_rows, row
            )
            if windowed == 0:
                a = min(max(a - windows[p, 0], 0), windows[p, 1])
            else:
                b = min(max(b - windows[p, 0], 0), windows[p, 1])
            # Rows are bounded by memory, so that a product does not overflow; a sum of them is bounded here.
            most = max(most, a * b)
            total = min(total + a * b, np.int64(1) << 62)
            ends[p, row + 1] = ends[p, row] + a * b
    return total, most


@kernel(
    nb.void(
        *[nb.int64] * 10,
        nb.int64[:, ::1],
        nb.int64,
        nb.int64,
        nb.uint64,
        nb.uint64,
        nb.uint64[::1],
        nb.int64[::1],
    ),
    boundscheck=False,
    error_model="numpy",
)
def cross_pairs(
    first,
    first_count,
    first_splits,
    first_width,
    first_rows,
    second,
    second_count,
    second_splits,
    second_width,
    second_rows,
    windows,
    windowed,
    rows,
    buckets,
    key,
    mixed,
    ids,
):
    """Write the ids that cross() makes of two columns, for each window of one of them, one window after another.

    Each value is mixed once; a pair is then two multiplications, and two more for its bucket. Arguments that are not
    here are those of pair_ends() and cross().

    Args:
        first: Address of the first column's hashed values, uint64.
        first_count: Their number.
        rows: Rows of the columns together.
        mixed: uint64 [first_count + second_count]; written.
        ids: int64 [number of all pairs]; written.
    """
    for i in range(first_count):
        mixed[i] = cat_first(cat(key, np.uint64(load_i64_anywhere(first + 8 * i))))
    for i in range(second_count):
        mixed[first_count + i] = cat_second(np.uint64(load_i64_anywhere(second + 8 * i)))
    share = np.uint64(0xFFFFFFFFFFFFFFFF) // buckets
    at = 0
    for p in range(len(windows)):
        skip, most = windows[p, 0], windows[p, 1]
        for row in range(rows):
            a, a_end = (
                _begin(first_splits, first_width, first_rows, row),
                _end(first_splits, first_width, first_rows, row),
            )
            b, b_end = (
                _begin(second_splits, second_width, second_rows, row),
                _end(second_splits, second_width, second_rows, row),
            )
            if windowed == 0:
                a_end = max(a, a_end - skip)
                a = max(a, a_end - most)
            else:
                b_end = max(b, b_end - skip)
                b = max(b, b_end - most)
            if b_end - b == 1:
                half = mixed[first_count + b]
                for i in range(a_end - a):
                    ids[at + i] = bucket(cat_mixed(mixed[a + i], half), buckets, share)
                at += a_end - a
            else:
                for i in range(a, a_end):
                    half = mixed[i]
                    for j in range(b_end - b):
                        ids[at + j] = bucket(cat_mixed(half, mixed[first_count + b + j]), buckets, share)
                    at += b_end - b


@kernel(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1]), boundscheck=False, error_model="numpy")
def count_equal(events, event_count, values, value_count, counts):
    """Write how many of a few events equal each value: every pair is compared.

    Args:
        events: Address of the events, uint64.
        values: As of the events.
        counts: int64 [value_count]; written.
    """
    for row in range(value_count):
        value, count = load_i64_anywhere(values + 8 * row), np.int64(0)
        for at in range(event_count):
            count += load_i64_anywhere(events + 8 * at) == value
        counts[row] = count
