"""Fill the lines of a batch: where on the device its rows lie, and its numbers. Find what changed in a table.

A place is the number of a row in a pool (extensions.device_rows.row_mirror), int32:

    0             a row of zeros: a place of a list that is shorter
    above         a row of a table's file, its default row, or a row of its arena that has been copied
    below 0       the row is not on the device: it has been written to `host`, at the place's own number of the row

    devices  int64 [T, DEVICE_FIELDS], by table of the version:
             FIRST    place of the file's first row
             DEFAULT  place of the default row
             ARENA    address of int32 [slots], the place of each slot of the arena, 0 for a slot without one; 0 for a
                      table with a memory budget, none of whose rows has one: they move between slots with old stamps
             BASE     address of int32 [rows], the place of each row of the file, 0 for one without; 0 if all have one
             NOTES    address of int64 [1 + NOTED], rows of the file that had no place (hot_rows)
             USED     address of uint8 by place from FIRST on, set to 1 where one is read
    lookups  int64 [F, LOOKUP_FIELDS], by feature whose rows lie on the device:
             SOURCE, COLUMN, TABLE, MAX_LENGTH, OFFSET   as of its plan (kernels.pool); OFFSET counts places in `slots`
             PLACES   its places in a row: 1, or the most values of its list
             LIST     1 for a list
             HOST     address of float32 [rows, ...], the rows of its pool that are not on the device
             AT       its first place among those of its pool
             PITCH    bytes of a row of `host`
             DIM      numbers of a row of its table
    floats   int64 [G, FLOAT_FIELDS], by feature that is one number: SOURCE, COLUMN, and FLOAT_OFFSET, its column in a
             line

A reader finds a place as it finds a row (kernels.rows), under its pin (RowMirror.catch_up).
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.conversion import FLOAT32, copy_row, copy_typed
from freshet_serving.processor.kernels.index import ABSENT, home, probe_from
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import (
    load_acquire,
    load_f32_anywhere,
    load_f32_bits,
    load_i64,
    load_i64_anywhere,
    prefetch,
    store_f32,
    store_i8,
    store_i32,
    store_i64,
)
from freshet_serving.processor.kernels.pool import ROWS, SPLITS, STRIDE, VALUES, transform
from freshet_serving.processor.kernels.rows import (
    BASE_ROWS,
    CAPACITY,
    CHANGED,
    DTYPE,
    HEADS,
    INDEX,
    META,
    NUMBERED,
    SETTLED,
    TABLE_NBYTES,
    TIERED,
    row_at,
    scale_at,
    unchanged,
    unknown_ref,
    visible,
)
from freshet_serving.processor.package import SCALED

DEVICE_FIELDS, LOOKUP_FIELDS = 6, 11
FIRST, DEFAULT, ARENA, BASE, NOTES, USED = range(DEVICE_FIELDS)
SOURCE, COLUMN, TABLE, MAX_LENGTH, OFFSET, PLACES, LIST, HOST, AT, PITCH, DIM = range(LOOKUP_FIELDS)
# SOURCE and COLUMN of a float are those of a lookup.
FLOAT_FIELDS, FLOAT_OFFSET = 3, 2
BLOCK = 32
ROW_BLOCK = 64
"""Rows of a request that are filled together: their lines and what they are filled from lie in a core's first cache."""
BY_HEAD, BY_NUMBER = -1, -2
NOTED = 8192
"""Notes of one table; a power of two."""
CHANGED_BLOCK = 4096
"""Slots of an arena that are looked at together; slots are used from the first on."""


@inlined
def load_i32(address):
    """Return the int32 at an address that is a multiple of 4."""
    return np.int64(np.int32(load_f32_bits(address)))


@inlined
def start_of(table, key):
    """Return where the probe for a key starts, or how it is found without the index, and prefetch what it reads."""
    numbered = load_i64(table + NUMBERED)
    if unchanged(numbered, load_i64(table + CHANGED), key):
        return np.int64(BY_NUMBER)
    if np.uint64(key) < np.uint64(numbered):
        prefetch(load_i64(table + HEADS) + 8 * key)
        return np.int64(BY_HEAD)
    start = home(key, load_i64(table + CAPACITY))
    prefetch(load_i64(table + INDEX) + 16 * start)
    return start


@inlined
def ref_of(table, key, start, epoch):
    """Return the ref of the row that a key reads as of an epoch, by start_of(); negative for the default row."""
    if start == BY_NUMBER:
        return key
    index, base_rows = load_i64(table + INDEX), load_i64(table + BASE_ROWS)
    head = load_i64(table + HEADS) + 8 * key
    if start != BY_HEAD:
        e = probe_from(index, load_i64(table + CAPACITY), key, start)
        head = index + 16 * e + 8 if e >= 0 else np.int64(0)
    ref = np.int64(ABSENT)
    if head != 0:
        ref = visible(load_acquire(head), base_rows, load_i64(table + META), epoch)
    return ref


@inlined
def joined(runs, count, first, width):
    """Append columns to runs of columns, joined with the last run where they follow it; return the number of runs.

    Runs are int64 [n, 2], first column and width of each.
    """
    if count > 0 and runs[count - 1, 0] + runs[count - 1, 1] == first:
        runs[count - 1, 1] += width
        return count
    runs[count, 0], runs[count, 1] = first, width
    return count + 1


@inlined
def place_of(devices, number, base_rows, ref):
    """Return the place on the device of a row, by its ref, 0 or more; 0 if it has none."""
    if devices[number, ARENA] == 0:
        return np.int64(0)
    if ref < base_rows:
        if devices[number, BASE] != 0:
            place = load_i32(devices[number, BASE] + 4 * ref)
            if place != 0:
                store_i8(devices[number, USED] + place - devices[number, FIRST], 1)
            else:
                count = load_i64(devices[number, NOTES])
                store_i64(devices[number, NOTES] + 8 + 8 * (count & (NOTED - 1)), ref)
                store_i64(devices[number, NOTES], count + 1)
            return place
        return devices[number, FIRST] + ref
    slot = ref - base_rows if ref < SETTLED else ref - SETTLED
    return load_i32(devices[number, ARENA] + 4 * slot)


@kernel(
    nb.types.UniTuple(nb.int64, 2)(
        nb.int64[:, ::1], nb.int64[:, ::1], nb.int64[:, ::1], nb.int64[:, ::1], nb.float32[:, ::1], nb.int64[:, :, ::1],
        nb.int64[:, ::1], nb.int64, nb.float32[:, ::1], nb.int64[:, ::1],
    ),
    boundscheck=False,
    error_model="numpy",
)  # fmt: skip
def fill(tables, devices, lookups, floats, scaling, inputs, spans, epoch, lines, counts):
    """Write the places of all rows that a batch reads as of one epoch, and its numbers.

    Args:
        scaling: float32 [G, SCALING_FIELDS] (kernels.pool).
        inputs: int64 [R, S, INPUT_FIELDS].
        spans: int64 [R, 2].
        lines: float32 [rows, n], rows of the requests one after another; written.
        counts: int64 [T, 2], lookups and misses; added to.

    Returns:
        Number of places whose rows are not on the device; 1 if a number is infinite, or becomes so when scaled, else 0.
    """
    keys, starts, targets = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    shared, shared_runs = np.empty((lookups.shape[0] + floats.shape[0], 2), np.int64), 0
    at_tables, at_lines, pitch = np.int64(tables.ctypes.data), np.int64(lines.ctypes.data), 4 * lines.shape[1]
    absent_rows, non_finite, first_out = np.int64(0), np.int64(0), np.int64(0)
    for r in range(inputs.shape[0]):
        span_first, span_rows = spans[r, 0], spans[r, 1]
        # First what all rows share, into the first of them; then a block of rows after another, which stays in a cache.
        block = np.int64(-1)
        while block < span_rows:
            once = block < 0
            low, high, first = block, min(block + ROW_BLOCK, span_rows), span_first
            if once:
                low, high, first, shared_runs = np.int64(0), np.int64(1), np.int64(0), 0
            else:
                for k in range(max(low, 1), high if shared_runs > 0 else 0):
                    for run in range(shared_runs):
                        at_line = at_lines + first_out * pitch + 4 * shared[run, 0]
                        copy_row(at_line + k * pitch, at_line, shared[run, 1])
            for f in range(lookups.shape[0]):
                source = lookups[f, SOURCE]
                if (inputs[r, source, ROWS] == 1) != once:
                    continue
                values, stride, splits = inputs[r, source, VALUES], inputs[r, source, STRIDE], inputs[r, source, SPLITS]
                number, column = lookups[f, TABLE], lookups[f, COLUMN]
                places, listed = lookups[f, PLACES], lookups[f, LIST]
                at_line = at_lines + first_out * pitch + 4 * lookups[f, OFFSET]
                table = at_tables + number * TABLE_NBYTES
                base_rows = load_i64(table + BASE_ROWS)
                # Where all rows of the file have places, that of a row that no delta has changed is known from its key.
                numbered, changed_bits = load_i64(table + NUMBERED), load_i64(table + CHANGED)
                if devices[number, ARENA] == 0 or devices[number, BASE] != 0:
                    numbered = np.int64(0)
                first_place, direct = devices[number, FIRST], np.int64(0)
                row, value, begin, stop = low, np.int64(0), np.int64(0), np.int64(0)
                target, count = np.int64(0), np.int64(0)
                at, to, step = values + 8 * ((first + low) * stride + column), at_line + low * pitch, 8 * stride
                if listed != 0:
                    row = low - 1
                # One pass a block: take keys until it is full or none are left, then find their rows.
                while True:
                    while count < BLOCK:
                        if listed == 0:
                            key = np.int64(0)
                            while row < high:
                                key = load_i64_anywhere(at)
                                if not unchanged(numbered, changed_bits, key):
                                    break
                                store_i32(to, first_place + key)
                                direct += 1
                                row += 1
                                at += step
                                to += pitch
                            if row == high:
                                break
                            target = to
                            row += 1
                            at += step
                            to += pitch
                        else:
                            if value == stop:
                                row += 1
                                if row >= high:
                                    break
                                begin = load_i64(splits + 8 * (first + row))
                                stop = min(load_i64(splits + 8 * (first + row + 1)), begin + places)
                                value = begin
                                to = at_line + row * pitch
                                for p in range(stop - begin, places):
                                    store_i32(to + 4 * p, 0)
                                if value == stop:
                                    continue
                            key = load_i64_anywhere(values + 8 * value)
                            target = to + 4 * (value - begin)
                            value += 1
                            if unchanged(numbered, changed_bits, key):
                                store_i32(target, first_place + key)
                                direct += 1
                                continue
                        keys[count], targets[count], starts[count] = key, target, start_of(table, key)
                        count += 1
                    if count == 0:
                        break
                    counts[number, 0] += count
                    for j in range(count):
                        ref = ref_of(table, keys[j], starts[j], epoch)
                        if ref < 0:
                            counts[number, 1] += 1
                            ref = unknown_ref(table, epoch)
                        if ref < 0:
                            store_i32(targets[j], devices[number, DEFAULT])
                        else:
                            place = place_of(devices, number, base_rows, ref)
                            if place == 0:
                                absent_rows += 1
                                out_row = (targets[j] - at_lines) // pitch
                                word = lookups[f, AT] + (targets[j] - at_line) % pitch // 4
                                dim = lookups[f, DIM]
                                host = lookups[f, HOST] + out_row * lookups[f, PITCH] + 4 * word * dim
                                dtype = load_i64(table + DTYPE) % TIERED
                                if dtype == FLOAT32:
                                    copy_row(host, row_at(table, ref), dim)
                                else:
                                    scale = scale_at(table, ref) if dtype >= SCALED else np.int64(0)
                                    copy_typed(dtype, host, row_at(table, ref), scale, dim)
                                place = -1 - word
                            store_i32(targets[j], place)
                    count = np.int64(0)
                counts[number, 0] += direct
                if once and span_rows > 1:
                    shared_runs = joined(shared, shared_runs, lookups[f, OFFSET], places)
                    for p in range(places):
                        if load_i32(at_line + 4 * p) < 0:
                            host = lookups[f, HOST] + 4 * (lookups[f, AT] + p) * lookups[f, DIM]
                            host += first_out * lookups[f, PITCH]
                            for k in range(1, span_rows):
                                copy_row(host + k * lookups[f, PITCH], host, lookups[f, DIM])
            for g in range(floats.shape[0]):
                source = floats[g, SOURCE]
                if (inputs[r, source, ROWS] == 1) != once:
                    continue
                stride, log1p, mean = inputs[r, source, STRIDE], scaling[g, 0], scaling[g, 1]
                scale, largest = scaling[g, 2], scaling[g, 3]
                at = inputs[r, source, VALUES] + 4 * ((first + low) * stride + floats[g, COLUMN])
                to = at_lines + (first_out + low) * pitch + 4 * floats[g, FLOAT_OFFSET]
                for _ in range(high - low):
                    scaled = transform(load_f32_anywhere(at), log1p, mean, scale)
                    non_finite |= not abs(scaled) <= largest
                    store_f32(to, scaled)
                    at += 4 * stride
                    to += pitch
                if once and span_rows > 1:
                    shared_runs = joined(shared, shared_runs, floats[g, FLOAT_OFFSET], np.int64(1))
            block = high if not once else np.int64(0)
        first_out += span_rows
    return absent_rows, non_finite


@kernel(nb.int64(nb.int64[::1], nb.int64, nb.int64, nb.int64[::1]), boundscheck=False, error_model="numpy")
def changed(table, slots, epoch, into):
    """Write the slots of an arena with rows that are newer than an epoch, as many as `into` holds; return their number.

    Slots are taken from the first on, so the first whole block without a stamp is the end of what is used.
    """
    meta, count = table[META // 8], np.int64(0)
    for first in range(0, slots, CHANGED_BLOCK):
        used = False
        for slot in range(first, min(first + CHANGED_BLOCK, slots)):
            stamp = load_i64(meta + 16 * slot)
            used |= stamp != 0
            if stamp != 0 and stamp >> 1 > epoch and stamp & 1 == 0:
                if count < len(into):
                    into[count] = slot
                count += 1
        if not used:
            break
    return count
