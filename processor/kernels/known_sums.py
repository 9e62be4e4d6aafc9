"""Look up and add up the lists of tables with a filter (kernels.key_filter), in which most keys have no row.

Such a key reads a default row of zeros, which changes no sum, so it costs one look at the filter and is left out. What
is left of all lists of a request is noted. Once NOTES are there, the lines of their homes in the index are prefetched,
then their rows, and then the rows are added to their lists' sums in the order of the keys.

A sum is equal to the bit to that of list_sums, which adds the zeros as well. It begins as -0.0, which leaves a first
row as it is; a list with a key that is left out has 0.0 added, at its end, because zeros can be added in any order.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.conversion import FLOAT32
from freshet_serving.processor.kernels.index import ABSENT, home, home_of, mix, probe_from
from freshet_serving.processor.kernels.kernel import kernel
from freshet_serving.processor.kernels.key_filter import bits_of, word_of
from freshet_serving.processor.kernels.list_sums import FURTHER
from freshet_serving.processor.kernels.lookup_notes import note, sampled
from freshet_serving.processor.kernels.pointers import (
    load_acquire,
    load_f32,
    load_i64,
    load_i64_anywhere,
    prefetch,
    store_f32,
    store_i64,
)
from freshet_serving.processor.kernels.row_sums import add_rows
from freshet_serving.processor.kernels.rows import (
    BASE,
    BASE_ROWS,
    CAPACITY,
    DEFAULT,
    DTYPE,
    FILTER,
    INDEX,
    META,
    ROW_NBYTES,
    TIERED,
    prefetch_row,
    row_at,
    scale_at,
    visible,
)
from freshet_serving.processor.package import SCALED

# A note: the key's home and the key, later the addresses of its row and of the row's scale; that of its list's sum.
NOTES, NOTE_NBYTES = 64, 24
ROW, SCALE, TARGET = 0, 8, 16
HOME, KEY = ROW, SCALE
AHEAD = 64
"""Keys of which the words of the filter are prefetched before the first of them is read."""
# Of a key that is looked at: the address of its word in the filter, its bits there.
LOOK_NBYTES = 16
WORD, BITS = 0, 8
LOOKS = NOTES * NOTE_NBYTES
KNOWN_NBYTES = LOOKS + AHEAD * LOOK_NBYTES


@kernel(nb.void(*[nb.int64] * 6), boundscheck=False, error_model="numpy")
def add_noted(block, count, table, width, epoch, tally):
    """Add the rows of `count` noted keys to their sums."""
    index, capacity, base_rows = load_i64(table + INDEX), load_i64(table + CAPACITY), load_i64(table + BASE_ROWS)
    meta, row_nbytes, special = load_i64(table + META), load_i64(table + ROW_NBYTES), load_i64(table + DTYPE)
    base, zeros = load_i64(table + BASE), load_i64(table + DEFAULT)
    dtype, looked, misses = special % TIERED, load_i64(tally), np.int64(0)
    end = block + NOTE_NBYTES * count
    for at in range(block, end, NOTE_NBYTES):
        place = home(load_i64(at + KEY), capacity)
        prefetch(index + 16 * place)
        prefetch(index + 16 * place + FURTHER)
        store_i64(at + HOME, place)
    for at in range(block, end, NOTE_NBYTES):
        key, ref, row = load_i64(at + KEY), np.int64(ABSENT), zeros
        e = probe_from(index, capacity, key, load_i64(at + HOME))
        if e >= 0:
            ref = visible(load_acquire(index + 16 * e + 8), base_rows, meta, epoch)
        looked += 1
        if ref < 0:
            misses += 1
        else:
            row = base + ref * row_nbytes if ref < base_rows else row_at(table, ref)
            if special != FLOAT32:
                if special >= TIERED and sampled(looked):
                    note(table, key, ref)
                if dtype >= SCALED:
                    scale = scale_at(table, ref)
                    prefetch(scale)
                    store_i64(at + SCALE, scale)
        prefetch_row(row, row_nbytes)
        store_i64(at + ROW, row)
    store_i64(tally, looked)
    store_i64(tally + 8, load_i64(tally + 8) + misses)
    at = block
    while at < end:
        target, first = load_i64(at + TARGET), at
        at += NOTE_NBYTES
        if dtype != FLOAT32:
            kind = FLOAT32 if load_i64(first + ROW) == zeros else dtype
            add_rows(kind, target, first + ROW, NOTE_NBYTES, 1, width, 1)
            continue
        while at < end and load_i64(at + TARGET) == target:
            at += NOTE_NBYTES
        if width >= 8:
            add_rows(FLOAT32, target, first + ROW, NOTE_NBYTES, (at - first) // NOTE_NBYTES, width, 1)
            continue
        for column in range(0, 4 * width, 4):
            total = load_f32(target + column)
            for noted in range(first, at, NOTE_NBYTES):
                total += load_f32(load_i64(noted + ROW) + column)
            store_f32(target + column, total)


@kernel(nb.void(*[nb.int64] * 15), boundscheck=False, error_model="numpy")
def add_known(
    values, splits, first, rows, most, target, pitch, width, divides, root, codes, block, table, epoch, tally
):
    """Write the sums of the lists of `rows` rows of a request from row `first` on, for a table with a filter.

    Args:
        values: Address of int64 keys.
        splits: Address of int64 row splits.
        most: Keys of a list that count, 0 for all.
        pitch: Bytes from one row's sum to the next.
        divides: 1 to divide a sum by the number of its values, with `root` by its square root.
        codes: Keys of a value.
        block: Address of KNOWN_NBYTES.
    """
    capacity, filter_ = load_i64(table + CAPACITY), load_i64(table + FILTER)
    last = load_i64(splits + 8 * (first + rows))
    looked_from = looked_to = load_i64(splits + 8 * first)
    noted, unknown, here = np.int64(0), np.int64(0), target
    for i in range(first, first + rows):
        start, stop = load_i64(splits + 8 * i), load_i64(splits + 8 * (i + 1))
        if most > 0:
            stop = min(stop, start + most)
        for j in range(width):
            store_f32(here + 4 * j, np.float32(-0.0))
        known = np.int64(0)
        for k in range(start, stop):
            if k >= looked_to:
                looked_from, looked_to = k, min(k + AHEAD, last)
                for n in range(looked_from, looked_to):
                    mixed = mix(load_i64_anywhere(values + 8 * n))
                    word, look = (
                        word_of(filter_, home_of(mixed, capacity)),
                        block + LOOKS + LOOK_NBYTES * (n - looked_from),
                    )
                    prefetch(word)
                    store_i64(look + WORD, word)
                    store_i64(look + BITS, bits_of(mixed))
            look = block + LOOKS + LOOK_NBYTES * (k - looked_from)
            bits = load_i64(look + BITS)
            maybe = np.int64(load_acquire(load_i64(look + WORD)) & bits == bits)
            # Which keys have a row may be as good as random, so there is no branch on it: each key is noted, and the
            # next one is written over the note of one that has none.
            at = block + NOTE_NBYTES * noted
            store_i64(at + KEY, load_i64_anywhere(values + 8 * k))
            store_i64(at + TARGET, here)
            noted += maybe
            known += maybe
            if noted == NOTES:
                add_noted(block, noted, table, width, epoch, tally)
                noted = 0
        if known < stop - start or start == stop:
            unknown += stop - start - known
            for j in range(width):
                store_f32(here + 4 * j, load_f32(here + 4 * j) + np.float32(0.0))
        here += pitch
    add_noted(block, noted, table, width, epoch, tally)
    store_i64(tally, load_i64(tally) + unknown)
    store_i64(tally + 8, load_i64(tally + 8) + unknown)
    if divides:
        here = target
        for i in range(first, first + rows):
            length = load_i64(splits + 8 * (i + 1)) - load_i64(splits + 8 * i)
            if most > 0:
                length = min(length, most)
            length //= codes
            if length > 1:
                share = np.float32(length)
                if root:
                    share = np.sqrt(share)
                for j in range(width):
                    store_f32(here + 4 * j, load_f32(here + 4 * j) / share)
            here += pitch
