"""Records of entities as inputs of requests: find and copy the keys' records, point left-out inputs at the copies.

The copies lie one after another in the order of the batch's rows, so that a plain source is read with the record as its
stride. Lists are copied out of them, end to end with row splits, because the kernel that pools reads them so. Rows are
found a block at a time, each phase prefetching for the next, as in kernels.pool.

inputs  int64 [R, S, 5]   as in kernels.pool; a source that is BY_ENTITY is replaced, and its FLAGS are written
fields  int64 [F, 4]      by name: FIELD_SOURCE, FIELD_OFFSET (bytes in the record), FIELD_STRIDE (of plain sources, in
                          values), FIELD_CAPACITY (of lists in values; 0 for plain sources)
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.conversion import copy_row
from freshet_serving.processor.kernels.index import ABSENT, home, probe_from
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import (
    load_acquire,
    load_i64,
    load_i64_anywhere,
    prefetch,
    store_i64,
)
from freshet_serving.processor.kernels.pool import BY_ENTITY, FILLED_BY, FLAGS, ROWS, SENT, SPLITS, STRIDE, VALUES
from freshet_serving.processor.kernels.rows import (
    BASE_ROWS,
    CAPACITY,
    INDEX,
    META,
    ROW_NBYTES,
    TABLE_NBYTES,
    prefetch_row,
    row_at,
    visible,
)

RECORD_FIELDS = 4
FIELD_SOURCE, FIELD_OFFSET, FIELD_STRIDE, FIELD_CAPACITY = range(RECORD_FIELDS)
BLOCK = 32


@inlined
def leaves_out(inputs, request, fields):
    """Report whether a request leaves out one of an entity's sources."""
    found = False
    for f in range(fields.shape[0]):
        found |= inputs[request, fields[f, FIELD_SOURCE], FILLED_BY] == BY_ENTITY
    return found


@kernel(
    nb.void(
        nb.int64[:, ::1],
        nb.int64,
        nb.int64,
        nb.int64[:, ::1],
        nb.int64[:, :, ::1],
        nb.int64[:, ::1],
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64[:, ::1],
    ),
    boundscheck=False,
    error_model="numpy",
)
def fill_inputs(tables, number, key, fields, inputs, spans, epoch, default, words, records, lists, splits, counts):
    """Copy the records of all requests that leave an entity's inputs out, and point those inputs at the copies.

    Args:
        number: Number of the entity's table.
        key: The source with the keys.
        spans: int64 [R, 2], first row and rows of each request.
        default: Address of the record of unknown keys.
        words: Words of a record.
        records: Address of room for a record a row.
        lists: Address of room for the capacity of all lists a row.
        splits: Address of room for an int64 a list and row, and one more a list and request.
    """
    table = np.int64(tables.ctypes.data) + number * TABLE_NBYTES
    index, capacity = load_i64(table + INDEX), load_i64(table + CAPACITY)
    base_rows, meta, row_nbytes = load_i64(table + BASE_ROWS), load_i64(table + META), load_i64(table + ROW_NBYTES)
    starts = np.empty(BLOCK, np.int64)
    nbytes, listed = 4 * words, np.int64(0)
    for r in range(inputs.shape[0]):
        if not leaves_out(inputs, r, fields):
            continue
        first, rows = spans[r, 0], spans[r, 1]
        if inputs[r, key, ROWS] == 1:
            first, rows = 0, min(rows, 1)
        keys, stride = inputs[r, key, VALUES], inputs[r, key, STRIDE]
        flags = np.int64(0)
        for f in range(fields.shape[0]):
            if inputs[r, fields[f, FIELD_SOURCE], FILLED_BY] == BY_ENTITY:
                flags = inputs[r, fields[f, FIELD_SOURCE], FLAGS]
        for begin in range(0, rows, BLOCK):
            count = min(BLOCK, rows - begin)
            for j in range(count):
                starts[j] = home(load_i64_anywhere(keys + 8 * stride * (first + begin + j)), capacity)
                prefetch(index + 16 * starts[j])
            for j in range(count):
                one = load_i64_anywhere(keys + 8 * stride * (first + begin + j))
                e = probe_from(index, capacity, one, starts[j])
                ref = np.int64(ABSENT)
                if e >= 0:
                    ref = visible(load_acquire(index + 16 * e + 8), base_rows, meta, epoch)
                counts[number, 0] += 1
                if flags != 0:
                    store_i64(flags + 8 * (first + begin + j), np.int64(ref < 0))
                if ref < 0:
                    counts[number, 1] += 1
                    starts[j] = default
                else:
                    starts[j] = row_at(table, ref)
                    prefetch_row(starts[j], row_nbytes)
            for j in range(count):
                copy_row(records + nbytes * (begin + j), starts[j], words)
        for f in range(fields.shape[0]):
            source = fields[f, FIELD_SOURCE]
            if inputs[r, source, FILLED_BY] != BY_ENTITY:
                continue
            inputs[r, source, FILLED_BY] = SENT
            at = records + fields[f, FIELD_OFFSET]
            if fields[f, FIELD_CAPACITY] == 0:
                # The kernel that pools counts rows from the request's first, the copies begin with the span's.
                inputs[r, source, VALUES] = at - nbytes * first
                inputs[r, source, STRIDE] = fields[f, FIELD_STRIDE]
                inputs[r, source, SPLITS] = 0
                continue
            inputs[r, source, VALUES] = lists
            inputs[r, source, STRIDE] = 1
            inputs[r, source, SPLITS] = splits - 8 * first
            for i in range(rows):
                store_i64(splits + 8 * i, listed)
                # Bounded here too: a table's file may change after it was checked, and what follows writes.
                for v in range(min(load_i64(at + nbytes * i), fields[f, FIELD_CAPACITY])):
                    store_i64(lists + 8 * listed, load_i64(at + nbytes * i + 8 + 8 * v))
                    listed += 1
            store_i64(splits + 8 * rows, listed)
            splits += 8 * (rows + 1)
        records += nbytes * rows


@kernel(
    nb.void(
        nb.int64[:, ::1],
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64,
    ),
    boundscheck=False,
    error_model="numpy",
)
def copy_records(tables, number, keys, stride, rows, epoch, default, words, out):
    """Copy the records of `rows` keys, `stride` apart, to room at `out`; arguments as of fill_inputs()."""
    table = np.int64(tables.ctypes.data) + number * TABLE_NBYTES
    index, capacity = load_i64(table + INDEX), load_i64(table + CAPACITY)
    base_rows, meta = load_i64(table + BASE_ROWS), load_i64(table + META)
    for j in range(rows):
        one = load_i64_anywhere(keys + 8 * stride * j)
        e = probe_from(index, capacity, one, home(one, capacity))
        ref = np.int64(ABSENT)
        if e >= 0:
            ref = visible(load_acquire(index + 16 * e + 8), base_rows, meta, epoch)
        copy_row(out + 4 * words * j, default if ref < 0 else row_at(table, ref), words)
