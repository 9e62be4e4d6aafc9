"""Look up and add up lists of keys a block at a time, without one operation per key.

A block holds the keys of lists, or of parts of long ones, and a note for each list. While a block is written, the index
line of each key is prefetched. When it is full, all keys are resolved list by list, so that a table's descriptor is
read once per list; then each list's rows are added up in their order. A list that does not fit continues in the next
block.

Single lookups have an operation of 48 bytes each (kernels.pool). Without these, and with the line after a key's home
prefetched too, lists of 20 ids take 0.92 of the time with rows of 128 float32, 0.87 with int8 (40 alternating rounds).

Rejected: comparing a line's four entries at once. It takes 0.9 of the time of the lookup alone, but refs may then be
seen out of order with their keys, which the order of the stores must rule out.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.conversion import FLOAT32, copy_row, copy_typed
from freshet_serving.processor.kernels.index import ABSENT, home, probe_from
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
from freshet_serving.processor.kernels.row_tiering import note, sampled
from freshet_serving.processor.kernels.rows import (
    BASE,
    BASE_ROWS,
    CAPACITY,
    DEFAULT,
    DTYPE,
    INDEX,
    META,
    ROW_NBYTES,
    TABLE_NBYTES,
    TIERED,
    row_at,
    scale_at,
    visible,
)
from freshet_serving.processor.package import SCALED

# int64 fields of a key: the key, later its row's address; the row's type; unused; the key's home, later the address of
# the row's scale.
KEYS, KEY_NBYTES = 64, 32
ROW, TYPE, PLACE = 0, 8, 24
# int64 fields of a list: table, target, width, number of keys, 1 if the target already holds a sum, divisor (0: none),
# 1 to divide by its square root.
LISTS, LIST_NBYTES = 32, 56
NUMBER, TARGET, WIDTH, COUNT, MORE, SHARE, ROOT = range(0, LIST_NBYTES, 8)
LINE_NBYTES = 64
# A sixth of all probes end in the cache line after that of the key's home.
FURTHER = 48
BLOCK_NBYTES = KEYS * KEY_NBYTES + LISTS * LIST_NBYTES


@nb.njit(nb.void(*[nb.int64] * 6), cache=True, nogil=True, boundscheck=False, error_model="numpy")
def find_rows(keys, count, number, tables, epoch, counts):
    """Resolve the keys of one list to the addresses, types and scales of their rows, and prefetch the rows.

    Args:
        keys: Address of the list's first key in the block.
        count: Number of keys.
        number: Number of the table.
        tables: Address of the table descriptors (kernels.rows).
        epoch: The epoch that is read.
        counts: Address of int64 [T, 2], lookups and misses; added to.
    """
    table = tables + number * TABLE_NBYTES
    index, capacity, base_rows = load_i64(table + INDEX), load_i64(table + CAPACITY), load_i64(table + BASE_ROWS)
    base, meta, row_nbytes = load_i64(table + BASE), load_i64(table + META), load_i64(table + ROW_NBYTES)
    special, tally = load_i64(table + DTYPE), counts + 16 * number
    dtype, looked, misses = special % TIERED, load_i64(tally), 0
    for at in range(keys, keys + count * KEY_NBYTES, KEY_NBYTES):
        key = load_i64(at + ROW)
        e = probe_from(index, capacity, key, load_i64(at + PLACE))
        ref = np.int64(ABSENT)
        if e >= 0:
            ref = visible(load_acquire(index + 16 * e + 8), base_rows, meta, epoch)
        looked += 1
        if ref < 0:
            misses += 1
            row, kind = load_i64(table + DEFAULT), np.int64(FLOAT32)
        else:
            kind = dtype
            row = base + ref * row_nbytes if ref < base_rows else row_at(table, ref)
            if special != FLOAT32:
                if special >= TIERED and sampled(looked):
                    note(table, key, ref)
                if dtype >= SCALED:
                    scale = scale_at(table, ref)
                    prefetch(scale)
                    store_i64(at + PLACE, scale)
        for line in range(row, row + row_nbytes, LINE_NBYTES):
            prefetch(line)
        store_i64(at + ROW, row)
        store_i64(at + TYPE, kind)
    store_i64(tally, looked)
    store_i64(tally + 8, load_i64(tally + 8) + misses)


@nb.njit(nb.void(*[nb.int64] * 5), cache=True, nogil=True, boundscheck=False, error_model="numpy")
def add_list(keys, count, target, width, more):
    """Add up the rows of one list, in their order.

    Args:
        keys: Address of the list's first resolved key in the block.
        count: Number of keys.
        target: Address of `width` float32.
        width: Elements per row.
        more: 1 if the target already holds a sum to add to.
    """
    at, end = keys, keys + count * KEY_NBYTES
    if not more:
        kind = load_i64(at + TYPE)
        if kind == FLOAT32:
            copy_row(target, load_i64(at + ROW), width)
        else:
            copy_typed(kind, target, load_i64(at + ROW), load_i64(at + PLACE), width)
        at += KEY_NBYTES
    while at < end:
        first, kind = at, load_i64(at + TYPE)
        at += KEY_NBYTES
        while at < end and load_i64(at + TYPE) == kind:
            at += KEY_NBYTES
        add_rows(kind, target, first, KEY_NBYTES, (at - first) // KEY_NBYTES, width)


@nb.njit(nb.void(*[nb.int64] * 5), cache=True, nogil=True, boundscheck=False, error_model="numpy")
def add_up(lists, block, tables, epoch, counts):
    """Resolve and add up the first `lists` lists of a block.

    Args:
        lists: Number of lists.
        block: Address of the block.
        tables: Address of the table descriptors (kernels.rows).
        epoch: The epoch that is read.
        counts: Address of int64 [T, 2], lookups and misses; added to.
    """
    notes = block + KEYS * KEY_NBYTES
    keys = block
    for listed in range(notes, notes + lists * LIST_NBYTES, LIST_NBYTES):
        count = load_i64(listed + COUNT)
        find_rows(keys, count, load_i64(listed + NUMBER), tables, epoch, counts)
        keys += count * KEY_NBYTES
    keys = block
    for listed in range(notes, notes + lists * LIST_NBYTES, LIST_NBYTES):
        count, target, width = load_i64(listed + COUNT), load_i64(listed + TARGET), load_i64(listed + WIDTH)
        add_list(keys, count, target, width, load_i64(listed + MORE))
        keys += count * KEY_NBYTES
        if load_i64(listed + SHARE):
            share = np.float32(load_i64(listed + SHARE))
            if load_i64(listed + ROOT):
                share = np.sqrt(share)
            for j in range(width):
                store_f32(target + 4 * j, load_f32(target + 4 * j) / share)


@nb.njit(
    nb.types.UniTuple(nb.int64, 2)(*[nb.int64] * 15),
    cache=True,
    nogil=True,
    boundscheck=False,
    error_model="numpy",
)
def take_list(values, start, stop, number, target, width, more, share, root, held, lists, block, tables, epoch, counts):
    """Enter a list of int64 keys, values[start:stop], not empty, in the block, adding up the block whenever it is full.

    Args:
        values: Address of int64 keys.
        start: Position of the list's first key.
        stop: Position after its last key.
        number: Number of the table.
        target: Address of `width` float32 for the sum.
        width: Elements per row.
        more: 1 if the target already holds a sum to add to.
        share: Divisor of the finished sum, 0 for none.
        root: 1 to divide by the square root of `share`.
        held: Number of keys that the block holds.
        lists: Number of lists that the block holds.
        block: Address of the block.
        tables: Address of the table descriptors (kernels.rows).
        epoch: The epoch that is read.
        counts: Address of int64 [T, 2], lookups and misses; added to.

    Returns:
        The numbers of keys and of lists that the block holds now.
    """
    table = tables + number * TABLE_NBYTES
    index, capacity = load_i64(table + INDEX), load_i64(table + CAPACITY)
    while start < stop:
        if held == KEYS or lists == LISTS:
            add_up(lists, block, tables, epoch, counts)
            held = lists = 0
        count = min(stop - start, KEYS - held)
        source, at = values + 8 * start, block + held * KEY_NBYTES
        for k in range(count):
            key = load_i64_anywhere(source + 8 * k)
            place = home(key, capacity)
            prefetch(index + 16 * place)
            prefetch(index + 16 * place + FURTHER)
            store_i64(at + KEY_NBYTES * k + ROW, key)
            store_i64(at + KEY_NBYTES * k + PLACE, place)
        start += count
        listed = block + KEYS * KEY_NBYTES + lists * LIST_NBYTES
        store_i64(listed + NUMBER, number)
        store_i64(listed + TARGET, target)
        store_i64(listed + WIDTH, width)
        store_i64(listed + COUNT, count)
        store_i64(listed + MORE, more)
        store_i64(listed + SHARE, share if start == stop else 0)
        store_i64(listed + ROOT, root)
        held, lists, more = held + count, lists + 1, 1
    return held, lists
