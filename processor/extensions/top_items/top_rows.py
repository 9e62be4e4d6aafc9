"""Scan a table for the rows whose products with given vectors are largest (exact inner-product search).

The order is by product, largest first; among equal products the smallest key comes first. A row's product depends on
the row and the vector alone, to the bit, not on where the row lies or what else is scanned: so equal rows tie.

Each vector keeps its best rows in a heap whose root is the worst of them. Most rows are worse than the root, which one
comparison shows; a key is looked for among the excluded ones only if it would enter the heap.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.conversion import copy_typed
from freshet_serving.processor.kernels.index import probe
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import load_acquire, load_i64
from freshet_serving.processor.kernels.rows import (
    BASE_ROWS,
    BLOCK,
    CAPACITY,
    DTYPE,
    INDEX,
    META,
    ROW_NBYTES,
    TIERED,
    prefetch_row,
    row_at,
    scale_at,
    visible,
)

REASSOCIATED = {"reassoc", "contract", "nsz"}
"""Lets the compiler add up a product in vectors; infinities and NaN keep their meaning."""


@kernel(nb.float32(nb.float32[::1], nb.float32[::1]), fastmath=REASSOCIATED)
def product(row, vector):
    """Return the inner product of two vectors of one length."""
    total = np.float32(0.0)
    for j in range(len(row)):
        total += row[j] * vector[j]
    return total


@kernel(nb.boolean(nb.int64[::1], nb.int64, nb.int64, nb.int64))
def among(keys, first, last, key):
    """Report whether a key is in keys[first:last], which ascend."""
    end = last
    while first < last:
        middle = (first + last) // 2
        if keys[middle] < key:
            first = middle + 1
        else:
            last = middle
    return first < end and keys[first] == key


@inlined
def behind(score, key, other_score, other_key):
    """Report whether a row comes after another one in the order."""
    return score < other_score or (score == other_score and key > other_key)


@kernel(nb.void(nb.float32[::1], nb.int64[::1], nb.int64, nb.float32, nb.int64))
def sift_down(scores, keys, size, score, key):
    """Put a row in the place of a heap's root.

    Args:
        scores: float32 [k], the heap's products.
        keys: int64 [k], their keys.
        size: Number of rows in the heap.
        score: The row's product.
        key: Its key.
    """
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and behind(scores[right], keys[right], scores[child], keys[child]):
            child = right
        if not behind(scores[child], keys[child], score, key):
            break
        scores[at], keys[at] = scores[child], keys[child]
        at = child
    scores[at], keys[at] = score, key


@kernel(nb.void(nb.float32[::1], nb.int64[::1], nb.int64, nb.float32, nb.int64))
def sift_up(scores, keys, size, score, key):
    """Add a row to a heap that has room; arguments as of sift_down()."""
    at = size
    while at > 0:
        parent = (at - 1) // 2
        if not behind(score, key, scores[parent], keys[parent]):
            break
        scores[at], keys[at] = scores[parent], keys[parent]
        at = parent
    scores[at], keys[at] = score, key


@kernel(
    nb.void(
        nb.float32[::1],
        nb.int64,
        nb.float32[:, ::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.float32[:, ::1],
        nb.int64[:, ::1],
        nb.int64[::1],
    )
)
def offer(row, key, vectors, excluded, splits, scores, keys, sizes):
    """Offer a row to each vector's heap.

    Args:
        row: float32 [padded(dim)], 0 beyond dim.
        key: Its key.
        vectors: As of scan_entries(), and so are the others.
        excluded: See there.
        splits: See there.
        scores: See there.
        keys: See there.
        sizes: See there.
    """
    count, most = scores.shape
    for i in range(count):
        score = product(row, vectors[i])
        if score != score:
            continue
        size = sizes[i]
        if size == most and not behind(scores[i, 0], keys[i, 0], score, key):
            continue
        if among(excluded, splits[i], splits[i + 1], key):
            continue
        if size < most:
            sift_up(scores[i], keys[i], size, score, key)
            sizes[i] = size + 1
        else:
            sift_down(scores[i], keys[i], size, score, key)


@kernel(
    nb.int64(
        nb.int64[::1],
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64[::1],
        nb.boolean[::1],
        nb.float32[:, ::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.float32[:, ::1],
        nb.int64[:, ::1],
        nb.int64[::1],
    )
)
def scan_entries(table, epoch, first, last, dim, file_keys, in_file, vectors, excluded, splits, scores, keys, sizes):
    """Offer the changed rows of some entries of a table's index, and note those of the table's file for scan_file().

    Args:
        table: int64 [TABLE_FIELDS], the table's descriptor.
        epoch: The epoch that is read.
        first: First entry of the index.
        last: Entry after the last one.
        dim: Elements of a row that products read, the first ones.
        file_keys: int64 [rows of the file], the key of each row that is visible; written.
        in_file: bool [rows of the file], which are; written.
        vectors: float32 [n, padded(dim)], 0 beyond dim.
        excluded: Keys that do not count for vector i are [splits[i], splits[i + 1]), ascending.
        splits: int64 [n + 1].
        scores: float32 [n, k], the heaps' products; written.
        keys: int64 [n, k], their keys; written.
        sizes: int64 [n], rows in each heap; written.

    Returns:
        The number of rows that were offered.
    """
    at = np.int64(table.ctypes.data)
    index, base_rows, meta = table[INDEX // 8], table[BASE_ROWS // 8], table[META // 8]
    nbytes, dtype = table[ROW_NBYTES // 8], table[DTYPE // 8] % TIERED
    # The padding stays 0.
    row = np.zeros(vectors.shape[1], np.float32)
    into = np.int64(row.ctypes.data)
    found, refs = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    entry, rows = first, 0
    while entry < last:
        filled = 0
        while entry < last and filled < BLOCK:
            # The key of an entry is written before its first head.
            ref = visible(load_acquire(index + 16 * entry + 8), base_rows, meta, epoch)
            key = load_i64(index + 16 * entry)
            entry += 1
            if ref >= base_rows:
                found[filled], refs[filled] = key, ref
                prefetch_row(row_at(at, ref), nbytes)
                filled += 1
            elif ref >= 0:
                file_keys[ref], in_file[ref] = key, True
        for j in range(filled):
            copy_typed(dtype, into, row_at(at, refs[j]), scale_at(at, refs[j]), dim)
            offer(row, found[j], vectors, excluded, splits, scores, keys, sizes)
        rows += filled
    return rows


@kernel(
    nb.int64(
        nb.int64[::1],
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64[::1],
        nb.boolean[::1],
        nb.float32[:, ::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.float32[:, ::1],
        nb.int64[:, ::1],
        nb.int64[::1],
    )
)
def scan_file(table, first, last, dim, file_keys, in_file, vectors, excluded, splits, scores, keys, sizes):
    """Offer rows of a table's file, in their order; return their number.

    Args:
        table: int64 [TABLE_FIELDS], the table's descriptor.
        first: First row of the file.
        last: Row after the last one.
        dim: As of scan_entries().
        file_keys: int64 [rows of the file], as scan_entries() has noted them.
        in_file: bool [rows of the file], likewise.
        vectors: As of scan_entries(), and so are the others.
        excluded: See there.
        splits: See there.
        scores: See there.
        keys: See there.
        sizes: See there.
    """
    at, dtype, rows = np.int64(table.ctypes.data), table[DTYPE // 8] % TIERED, 0
    row = np.zeros(vectors.shape[1], np.float32)
    into = np.int64(row.ctypes.data)
    for ref in range(first, last):
        if in_file[ref]:
            copy_typed(dtype, into, row_at(at, ref), scale_at(at, ref), dim)
            offer(row, file_keys[ref], vectors, excluded, splits, scores, keys, sizes)
            rows += 1
    return rows


@kernel(nb.void(nb.int64[::1], nb.int64, nb.int64, nb.int64[::1], nb.float32[:, ::1], nb.boolean[::1]))
def read_rows(table, epoch, dim, keys, rows, there):
    """Read the rows of some keys.

    Args:
        table: int64 [TABLE_FIELDS], the table's descriptor.
        epoch: The epoch that is read.
        dim: Elements per row.
        keys: int64 [n].
        rows: float32 [n, dim]; written where there is a row.
        there: bool [n], for which keys there is one; written.
    """
    at = np.int64(table.ctypes.data)
    index, capacity = table[INDEX // 8], table[CAPACITY // 8]
    base_rows, meta, dtype = table[BASE_ROWS // 8], table[META // 8], table[DTYPE // 8] % TIERED
    into = np.int64(rows.ctypes.data)
    for i in range(len(keys)):
        entry = probe(index, capacity, keys[i])
        there[i] = False
        if entry < 0:
            continue
        ref = visible(load_acquire(index + 16 * entry + 8), base_rows, meta, epoch)
        if ref >= 0:
            copy_typed(dtype, into + 4 * dim * i, row_at(at, ref), scale_at(at, ref), dim)
            there[i] = True
