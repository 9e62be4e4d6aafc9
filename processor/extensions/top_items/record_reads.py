"""Read records of entities by key, as of an epoch, and bits and lists by position.

Kernels: what they read is laid out as kernels.rows says.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.extensions.top_items.code_scan import among
from freshet_serving.processor.kernels.conversion import copy_row
from freshet_serving.processor.kernels.kernel import kernel
from freshet_serving.processor.kernels.pointers import load_acquire, load_i64, store_release
from freshet_serving.processor.kernels.rows import resolve, row_at

LENGTH_BITS = 24
"""Bits of a list's length in its word; those above are its place."""


@kernel(nb.void(nb.int64[::1], nb.int64, nb.int64[::1], nb.int32[:, ::1], nb.boolean[::1]))
def read_records(table, epoch, keys, records, present):
    """Copy the records of keys, int64 [n], to int32 [n, words], and for which there is one to bool [n]."""
    at, words = np.int64(table.ctypes.data), records.shape[1]
    for i in range(len(keys)):
        ref = resolve(at, keys[i], epoch)
        present[i] = ref >= 0
        if ref >= 0:
            copy_row(np.int64(records[i].ctypes.data), row_at(at, ref), words)


@kernel(nb.void(nb.types.Array(nb.int64, 1, "C", readonly=True), nb.int64[::1]))
def copy_words(words, into):
    """Copy words of bits, each before anything that is read after this call."""
    at = np.int64(words.ctypes.data)
    for i in range(len(into)):
        into[i] = load_acquire(at + 8 * i)


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.boolean))
def write_bits(words, positions, value):
    """Set or clear the bit of each position in words of 64, after all that was written before this call."""
    at = np.int64(words.ctypes.data)
    for place in positions:
        word, bit = at + 8 * (place >> 6), np.int64(1) << (place & 63)
        before = load_i64(word)
        store_release(word, before | bit if value else before & ~bit)


@kernel(
    nb.void(
        nb.types.Array(nb.int64, 1, "C", readonly=True), nb.types.Array(nb.int64, 1, "C", readonly=True), nb.int64,
        nb.int64, nb.int64[::1], nb.boolean[::1],
    )
)  # fmt: skip
def match_lists(words, lists, low, high, members, matches):
    """Find the lists with a value from low to high, or among `members`, ascending, unless these are empty.

    `words`, int64 [n], are the place and the length of each list among the values of all (filter_columns).
    """
    for i in range(len(words)):
        place, count = words[i] >> LENGTH_BITS, words[i] & ((1 << LENGTH_BITS) - 1)
        holds = False
        # A list that is being written may have the place of another one, in memory that is there.
        for j in range(place, min(place + count, len(lists))):
            value = lists[j]
            if value < low or value > high:
                continue
            if len(members) == 0 or among(members, 0, len(members), value):
                holds = True
                break
        matches[i] = holds
