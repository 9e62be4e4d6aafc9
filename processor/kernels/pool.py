"""The sparse graph as one kernel: transform, look up and pool every feature of every request of a batch.

All state arrives as flat int64 tables of addresses and sizes, so one call serves any number of tables, features and
requests, runs without the GIL and allocates nothing but one block of 2.5 kB.

tables   int64 [T, 8]      index, capacity, base, base_rows, arena, meta, row_nbytes, default
plan     int64 [F, 8]      kind, slot, column, table, combiner, max_length, offset, width
scaling  float32 [F, 3]    log1p (0 | 1), mean, scale of float features
inputs   int64 [R, S, 4]   per request and slot: values, rows (1: broadcast), stride in values, row_splits (0: none)
spans    int64 [R, 2]      per request: its first row in this call, how many rows
out      float32 [rows, width]   rows of the requests one after another
counts   int64 [T, 2]      lookups and misses, added to

Lookups are memory-bound, and one lookup is three dependent misses (index, row, perhaps a chain). So work is written
down as operations first and carried out a block at a time: the index lines of a block are prefetched while it is
written, its rows while it is resolved, and only then moved. A block runs across rows, features and tables, so a
single candidate with 26 features overlaps its misses just as well as 64 candidates do.

Pooling adds rows in the order of the list, in float32, and divides once: training calls this very kernel, so pooled
embeddings are equal to the bit. An empty list pools to zeros; an unseen id counts with the table's default row.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from processor.kernels.index import home
from processor.kernels.pointers import add_f32x8, copy_f32x8, load_f32, load_i64, prefetch, store_f32
from processor.kernels.rows import MISSING, resolve

KIND_FLOAT, KIND_ONE, KIND_MANY = 0, 1, 2
SUM, MEAN, SQRTN = 0, 1, 2
TABLE_FIELDS, PLAN_FIELDS, INPUT_FIELDS = 8, 8, 4

# An operation: (what, a, b, target address, width). COPY and ADD: table, key; once resolved, the row's address.
COPY, ADD, CLEAR, DIVIDE, REPEAT = 0, 1, 2, 3, 4
BLOCK, BLOCK_FIELDS = 32, 5
LINE_NBYTES = 64


@nb.njit(nb.float32(nb.float32, nb.float32, nb.float32, nb.float32), cache=True, nogil=True, inline="always")
def transform(value, log1p, mean, scale):
    """One float feature: signed log1p if asked, standardised, 0 where missing (NaN)."""
    if np.isnan(value):
        return np.float32(0.0)
    if log1p != 0:
        size = np.float32(np.log1p(np.float64(abs(value))))
        value = size if value >= 0 else -size
    return (value - mean) * scale


@nb.njit(nb.void(nb.int64, nb.int64, nb.int64), cache=True, nogil=True, inline="always")
def copy_row(target, source, width):
    """Copies width float32."""
    whole = width & ~7
    for j in range(0, whole, 8):
        copy_f32x8(target + 4 * j, source + 4 * j)
    for j in range(whole, width):
        store_f32(target + 4 * j, load_f32(source + 4 * j))


@nb.njit(nb.void(nb.int64, nb.int64, nb.int64), cache=True, nogil=True, inline="always")
def add_row(target, source, width):
    """Adds width float32 to others."""
    whole = width & ~7
    for j in range(0, whole, 8):
        add_f32x8(target + 4 * j, source + 4 * j)
    for j in range(whole, width):
        store_f32(target + 4 * j, load_f32(target + 4 * j) + load_f32(source + 4 * j))


@nb.njit(
    nb.void(nb.int64, nb.int64[:, ::1], nb.int64[:, ::1], nb.int64, nb.int64[:, ::1]),
    cache=True,
    nogil=True,
    boundscheck=False,
    error_model="numpy",
)
def carry_out(count, block, tables, epoch, counts):
    """The first `count` operations of a block: finds all rows, then moves them, in order."""
    for i in range(count):
        if block[i, 0] <= ADD:
            table = block[i, 1]
            row = resolve(
                tables[table, 0],
                tables[table, 1],
                tables[table, 2],
                tables[table, 3],
                tables[table, 4],
                tables[table, 5],
                tables[table, 6],
                block[i, 2],
                epoch,
            )
            counts[table, 0] += 1
            if row == MISSING:
                counts[table, 1] += 1
                row = tables[table, 7]
            for line in range(0, block[i, 4] * 4, LINE_NBYTES):
                prefetch(row + line)
            block[i, 2] = row
    for i in range(count):
        op, a, b, target, width = block[i, 0], block[i, 1], block[i, 2], block[i, 3], block[i, 4]
        if op == COPY:
            copy_row(target, b, width)
        elif op == ADD:
            add_row(target, b, width)
        elif op == CLEAR:
            for j in range(width):
                store_f32(target + 4 * j, np.float32(0.0))
        elif op == DIVIDE:
            share = np.float32(a)
            if b == SQRTN:
                share = np.sqrt(share)
            for j in range(width):
                store_f32(target + 4 * j, load_f32(target + 4 * j) / share)
        else:
            for k in range(1, a):
                copy_row(target + k * b, target, width)


@nb.njit(
    nb.int64(
        nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[:, ::1], nb.int64[:, ::1], nb.int64,
        nb.int64[:, ::1],
    ),
    cache=True,
    nogil=True,
    boundscheck=False,
    inline="always",
)  # fmt: skip
def push(op, a, b, target, width, count, block, tables, epoch, counts):
    """Writes one operation down, carrying out the block first when it is full; returns how many it holds now."""
    if count == block.shape[0]:
        carry_out(count, block, tables, epoch, counts)
        count = 0
    if op <= ADD:
        prefetch(tables[a, 0] + 16 * home(b, tables[a, 1]))
    block[count, 0] = op
    block[count, 1] = a
    block[count, 2] = b
    block[count, 3] = target
    block[count, 4] = width
    return count + 1


@nb.njit(
    nb.void(
        nb.int64[:, ::1],
        nb.int64[:, ::1],
        nb.float32[:, ::1],
        nb.int64[:, :, ::1],
        nb.int64[:, ::1],
        nb.int64,
        nb.float32[:, ::1],
        nb.int64[:, ::1],
    ),
    cache=True,
    nogil=True,
    boundscheck=False,
    error_model="numpy",
)
def run(tables, plan, scaling, inputs, spans, epoch, out, counts):
    """Fills out[:sum of rows, :] for all requests as of one epoch."""
    block = np.empty((BLOCK, BLOCK_FIELDS), np.int64)
    pitch = out.shape[1] * 4
    count = 0
    for f in range(plan.shape[0]):
        kind, slot, column, table = plan[f, 0], plan[f, 1], plan[f, 2], plan[f, 3]
        combiner, max_length, offset, width = plan[f, 4], plan[f, 5], plan[f, 6], plan[f, 7]
        target = np.int64(out.ctypes.data) + 4 * offset
        for r in range(inputs.shape[0]):
            values, stride, splits = inputs[r, slot, 0], inputs[r, slot, 2], inputs[r, slot, 3]
            first, rows = spans[r, 0], spans[r, 1]
            computed = rows
            if inputs[r, slot, 1] == 1:
                first, computed = 0, 1
            here = target
            for i in range(first, first + computed):
                if kind == KIND_FLOAT:
                    value = load_f32(values + 4 * (i * stride + column))
                    store_f32(here, transform(value, scaling[f, 0], scaling[f, 1], scaling[f, 2]))
                elif kind == KIND_ONE:
                    key = load_i64(values + 8 * (i * stride + column))
                    count = push(COPY, table, key, here, width, count, block, tables, epoch, counts)
                else:
                    start, stop = load_i64(splits + 8 * i), load_i64(splits + 8 * (i + 1))
                    if max_length > 0:
                        stop = min(stop, start + max_length)
                    if start == stop:
                        count = push(CLEAR, 0, 0, here, width, count, block, tables, epoch, counts)
                    op = COPY
                    for v in range(start, stop):
                        count = push(
                            op, table, load_i64(values + 8 * v), here, width, count, block, tables, epoch, counts
                        )
                        op = ADD
                    if combiner != SUM and stop - start > 1:
                        count = push(DIVIDE, stop - start, combiner, here, width, count, block, tables, epoch, counts)
                here += pitch
            if computed < rows:
                if kind == KIND_FLOAT:
                    for k in range(1, rows):
                        store_f32(target + k * pitch, load_f32(target))
                else:
                    count = push(REPEAT, rows, pitch, target, width, count, block, tables, epoch, counts)
            target += rows * pitch
    carry_out(count, block, tables, epoch, counts)
