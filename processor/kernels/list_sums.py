"""Look up and add up lists of keys a block at a time, without one operation per key.

A block holds the keys of lists, or of parts of long ones, and a note for each list. While a block is written, a key
that is the number of an unchanged row (kernels.rows) becomes the row's address at once, and the row is prefetched.
Every other key waits, and the line of its head is prefetched. When the block is full, the waiting keys are resolved
list by list, so that a table's descriptor is read once per list; then each list's rows are added up in their order. A
list that does not fit continues in the next block.

Single lookups have an operation of 48 bytes each (kernels.pool). Without these, and with the line after a key's home
prefetched too, lists of 20 ids take 0.92 of the time with rows of 128 float32, 0.87 with int8 (40 alternating rounds).

Rejected: resolving a list's waiting keys while later ones are still taken, so that their rows arrive earlier, and
resolving the lists of one table together: neither is faster where a tenth of the rows is changed. Comparing a line's
four entries at once: it takes 0.9 of the time of the lookup alone, but refs may then be seen out of order with their
keys, which the order of the stores must rule out.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.conversion import FLOAT32
from freshet_serving.processor.kernels.index import ABSENT, home, probe_from
from freshet_serving.processor.kernels.kernel import inlined, kernel
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
    CHANGED,
    DEFAULT,
    DTYPE,
    HEADS,
    INDEX,
    META,
    NUMBERED,
    ROW_NBYTES,
    SCALES,
    TABLE_NBYTES,
    TIERED,
    UNKNOWN_KEY,
    prefetch_row,
    row_at,
    scale_at,
    unchanged,
    unknown_ref,
    visible,
)
from freshet_serving.processor.package import SCALED

# int64 fields of a key: the address of its row, that of the row's scale.
KEYS, KEY_NBYTES = 64, 16
ROW, SCALE = 0, 8
# int64 fields of a waiting key: its place among the keys, the key, its home in the index or BY_HEAD.
WAIT_NBYTES = 24
PLACE, KEY, HOME = 0, 8, 16
BY_HEAD = -1
"""In place of the home of a key that is a row number: its head is in `heads` (kernels.rows)."""
# int64 fields of a list: table, target, width, number of keys, 1 if the target already holds a sum, divisor (0: none),
# 1 to divide by its square root, number of keys that wait (once they are resolved: of those without a row).
LISTS, LIST_NBYTES = 32, 64
NUMBER, TARGET, WIDTH, COUNT, MORE, SHARE, ROOT, WAITING = range(0, LIST_NBYTES, 8)
# A block: the numbers of keys, of waiting keys and of lists that it holds; the keys; the waiting keys, with room for
# one that does not wait; the rows' types, only of lists with several; the lists.
HELD, HELD_WAITING, HELD_LISTS, ENTRIES = 0, 8, 16, 24
WAITS = ENTRIES + KEYS * KEY_NBYTES
TYPES = WAITS + (KEYS + 1) * WAIT_NBYTES
NOTES = TYPES + KEYS * 8
BLOCK_NBYTES = NOTES + LISTS * LIST_NBYTES
# A sixth of all probes end in the cache line after that of the key's home.
FURTHER = 48


@inlined
def clear(block):
    """Make a block of BLOCK_NBYTES hold nothing."""
    store_i64(block + HELD, 0)
    store_i64(block + HELD_WAITING, 0)
    store_i64(block + HELD_LISTS, 0)


@kernel(nb.int64(*[nb.int64] * 8), boundscheck=False, error_model="numpy")
def find_rows(block, first, count, waits, waiting, table, epoch, tally):
    """Resolve the waiting keys of one list to the addresses and scales of their rows, and prefetch the rows.

    The list has `count` keys from place `first` on, of which `waiting` wait, from place `waits` among all that wait.

    Returns:
        The number of keys that have the default row, which is float32 in every table. If there are any and the table's
        rows are of another type, the block holds the type of each of the list's rows.
    """
    index, capacity, base_rows = load_i64(table + INDEX), load_i64(table + CAPACITY), load_i64(table + BASE_ROWS)
    base, meta, row_nbytes = load_i64(table + BASE), load_i64(table + META), load_i64(table + ROW_NBYTES)
    heads = load_i64(table + HEADS)
    special, looked, misses = load_i64(table + DTYPE), load_i64(tally), 0
    unseen = np.int64(0)
    dtype = special % TIERED
    for i in range(waits, waits + waiting):
        wait = block + WAITS + WAIT_NBYTES * i
        key, place = load_i64(wait + KEY), load_i64(wait + PLACE)
        at = block + ENTRIES + KEY_NBYTES * place
        start, ref = load_i64(wait + HOME), np.int64(ABSENT)
        if start == BY_HEAD:
            ref = visible(load_acquire(heads + 8 * key), base_rows, meta, epoch)
        else:
            e = probe_from(index, capacity, key, start)
            if e >= 0:
                ref = visible(load_acquire(index + 16 * e + 8), base_rows, meta, epoch)
        if ref < 0:
            unseen += 1
            ref, key = unknown_ref(table, epoch), load_i64(table + UNKNOWN_KEY)
        if ref < 0:
            row = load_i64(table + DEFAULT)
            if dtype != FLOAT32:
                if misses == 0:
                    for j in range(first, first + count):
                        store_i64(block + TYPES + 8 * j, dtype)
                store_i64(block + TYPES + 8 * place, FLOAT32)
            misses += 1
        else:
            row = base + ref * row_nbytes if ref < base_rows else row_at(table, ref)
            if special != FLOAT32:
                # In a table with a memory budget all keys wait.
                if special >= TIERED and sampled(looked + 1 + i - waits):
                    note(table, key, ref)
                if dtype >= SCALED:
                    scale = scale_at(table, ref)
                    prefetch(scale)
                    store_i64(at + SCALE, scale)
        prefetch_row(row, row_nbytes)
        store_i64(at + ROW, row)
    store_i64(tally, looked + count)
    store_i64(tally + 8, load_i64(tally + 8) + unseen)
    return misses


@kernel(nb.void(*[nb.int64] * 7), boundscheck=False, error_model="numpy")
def add_list(block, first, count, dtype, target, width, more):
    """Add up the `count` rows of one list from place `first` on, in their order, to what the target holds if `more`.

    `dtype` is the code of the rows' type, or -1 if the block holds each row's.
    """
    if dtype >= 0:
        add_rows(dtype, target, block + ENTRIES + KEY_NBYTES * first, KEY_NBYTES, count, width, more)
        return
    i, stop = first, first + count
    while i < stop:
        start, kind = i, load_i64(block + TYPES + 8 * i)
        i += 1
        while i < stop and load_i64(block + TYPES + 8 * i) == kind:
            i += 1
        add_rows(kind, target, block + ENTRIES + KEY_NBYTES * start, KEY_NBYTES, i - start, width, more)
        more = 1


@kernel(nb.void(*[nb.int64] * 4), boundscheck=False, error_model="numpy")
def add_up(block, tables, epoch, counts):
    """Resolve and add up the lists of a block, and empty it."""
    begin, end = block + NOTES, block + NOTES + load_i64(block + HELD_LISTS) * LIST_NBYTES
    first = waits = 0
    for listed in range(begin, end, LIST_NBYTES):
        count, waiting, number = load_i64(listed + COUNT), load_i64(listed + WAITING), load_i64(listed + NUMBER)
        table, tally = tables + number * TABLE_NBYTES, counts + 16 * number
        store_i64(listed + WAITING, find_rows(block, first, count, waits, waiting, table, epoch, tally))
        first += count
        waits += waiting
    first = 0
    for listed in range(begin, end, LIST_NBYTES):
        count, target, width = load_i64(listed + COUNT), load_i64(listed + TARGET), load_i64(listed + WIDTH)
        dtype = load_i64(tables + load_i64(listed + NUMBER) * TABLE_NBYTES + DTYPE) % TIERED
        if dtype != FLOAT32 and load_i64(listed + WAITING):
            dtype = np.int64(-1)
        add_list(block, first, count, dtype, target, width, load_i64(listed + MORE))
        first += count
        if load_i64(listed + SHARE):
            share = np.float32(load_i64(listed + SHARE))
            if load_i64(listed + ROOT):
                share = np.sqrt(share)
            for j in range(width):
                store_f32(target + 4 * j, load_f32(target + 4 * j) / share)
    clear(block)


@kernel(nb.int64(*[nb.int64] * 6), boundscheck=False, error_model="numpy")
def take_keys(source, count, block, held, waits, table):
    """Enter `count` keys at `source` in a block of `held` keys, of which `waits` wait; return how many wait now.

    Prefetches their rows or index lines.
    """
    index, capacity = load_i64(table + INDEX), load_i64(table + CAPACITY)
    numbered, changed, heads = load_i64(table + NUMBERED), load_i64(table + CHANGED), load_i64(table + HEADS)
    base, row_nbytes, scales = load_i64(table + BASE), load_i64(table + ROW_NBYTES), load_i64(table + SCALES)
    scaled, first = load_i64(table + DTYPE) % TIERED >= SCALED, waits
    if not numbered:
        for k in range(count):
            key, wait = load_i64_anywhere(source + 8 * k), block + WAITS + WAIT_NBYTES * (waits + k)
            place = home(key, capacity)
            prefetch(index + 16 * place)
            prefetch(index + 16 * place + FURTHER)
            store_i64(wait + PLACE, held + k)
            store_i64(wait + KEY, key)
            store_i64(wait + HOME, place)
        return waits + count
    # Which keys wait is as good as random, so there is no branch on it: each key is written both as a row and as
    # one that waits, and the next one is written over the latter unless it does.
    for k in range(count):
        key, at = load_i64_anywhere(source + 8 * k), block + ENTRIES + KEY_NBYTES * (held + k)
        number = key if np.uint64(key) < np.uint64(numbered) else np.int64(0)
        there = unchanged(numbered, changed, key)
        row = base + number * row_nbytes
        prefetch_row(row if there else block, row_nbytes)
        if scaled:
            prefetch(scales + 4 * number)
        store_i64(at + ROW, row)
        store_i64(at + SCALE, scales + 4 * number)
        wait = block + WAITS + WAIT_NBYTES * waits
        store_i64(wait + PLACE, held + k)
        store_i64(wait + KEY, key)
        waits += 0 if there else 1
    for wait in range(block + WAITS + WAIT_NBYTES * first, block + WAITS + WAIT_NBYTES * waits, WAIT_NBYTES):
        key, place = load_i64(wait + KEY), np.int64(BY_HEAD)
        if np.uint64(key) < np.uint64(numbered):
            prefetch(heads + 8 * key)
        else:
            place = home(key, capacity)
            prefetch(index + 16 * place)
            prefetch(index + 16 * place + FURTHER)
        store_i64(wait + HOME, place)
    return waits


@kernel(nb.void(*[nb.int64] * 13), boundscheck=False, error_model="numpy")
def take_list(values, start, stop, number, target, width, more, share, root, block, tables, epoch, counts):
    """Enter a list of int64 keys, values[start:stop], not empty, in the block, adding up the block whenever it is full.

    Args:
        number: Number of the table.
        more: 1 if the target already holds a sum to add to.
        share: Divisor of the finished sum, or with `root` its square; 0 for none.
    """
    table = tables + number * TABLE_NBYTES
    while start < stop:
        if load_i64(block + HELD) == KEYS or load_i64(block + HELD_LISTS) == LISTS:
            add_up(block, tables, epoch, counts)
        held, before = load_i64(block + HELD), load_i64(block + HELD_WAITING)
        count = min(stop - start, KEYS - held)
        waits = take_keys(values + 8 * start, count, block, held, before, table)
        start += count
        lists = load_i64(block + HELD_LISTS)
        listed = block + NOTES + lists * LIST_NBYTES
        store_i64(listed + NUMBER, number)
        store_i64(listed + TARGET, target)
        store_i64(listed + WIDTH, width)
        store_i64(listed + COUNT, count)
        store_i64(listed + MORE, more)
        store_i64(listed + SHARE, share if start == stop else 0)
        store_i64(listed + ROOT, root)
        store_i64(listed + WAITING, waits - before)
        store_i64(block + HELD, held + count)
        store_i64(block + HELD_WAITING, waits)
        store_i64(block + HELD_LISTS, lists + 1)
        more = 1
