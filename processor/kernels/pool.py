"""The sparse graph as one kernel: transform, look up and pool every feature of every request of a batch.

All state arrives as flat int64 tables of addresses and sizes, so one call serves any number of tables, features and
requests, runs without the GIL and allocates nothing.

tables   int64 [T, 8]      index, capacity, base, base_rows, arena, meta, row_nbytes, default
plan     int64 [F, 8]      kind, slot, column, table, combiner, max_length, offset, width
scaling  float32 [F, 3]    log1p (0 | 1), mean, scale of float features
inputs   int64 [R, S, 4]   per request and slot: values, rows (1: broadcast to all), stride in values, row_splits (0: none)
spans    int64 [R, 2]      per request: its first row in this call, how many rows
out      float32 [rows, width]   rows of the requests one after another
counts   int64 [T, 2]      lookups and misses, added to

Pooling adds rows in the order of the list, in float32, and divides once: training calls this very kernel, so pooled
embeddings are equal to the bit. An empty list pools to zeros; an unseen id counts with the table's default row.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from processor.kernels.pointers import load_f32, load_i64
from processor.kernels.rows import MISSING, resolve

KIND_FLOAT, KIND_ONE, KIND_MANY = 0, 1, 2
SUM, MEAN, SQRTN = 0, 1, 2
TABLE_FIELDS, PLAN_FIELDS, INPUT_FIELDS = 8, 8, 4


@nb.njit(nb.float32(nb.float32, nb.float32, nb.float32, nb.float32), cache=True, nogil=True, inline="always")
def transform(value, log1p, mean, scale):
    """One float feature: signed log1p if asked, standardised, 0 where missing (NaN)."""
    if np.isnan(value):
        return np.float32(0.0)
    if log1p != 0:
        size = np.float32(np.log1p(np.float64(abs(value))))
        value = size if value >= 0 else -size
    return (value - mean) * scale


@nb.njit(
    nb.int64(nb.int64[:, ::1], nb.int64, nb.int64, nb.int64, nb.int64[:, ::1]), cache=True, nogil=True, inline="always"
)
def row_address(tables, table, key, epoch, counts):
    """Address of a key's row as of an epoch, of the default row where it has none."""
    t = tables[table]
    counts[table, 0] += 1
    address = resolve(t[0], t[1], t[2], t[3], t[4], t[5], t[6], key, epoch)
    if address == MISSING:
        counts[table, 1] += 1
        return t[7]
    return address


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
    for f in range(plan.shape[0]):
        kind, slot, column, table = plan[f, 0], plan[f, 1], plan[f, 2], plan[f, 3]
        combiner, max_length, offset, width = plan[f, 4], plan[f, 5], plan[f, 6], plan[f, 7]
        at = 0
        for r in range(inputs.shape[0]):
            values, stride, splits = inputs[r, slot, 0], inputs[r, slot, 2], inputs[r, slot, 3]
            first, rows = spans[r, 0], spans[r, 1]
            computed = rows
            if inputs[r, slot, 1] == 1:
                first, computed = 0, 1
            for i in range(computed):
                source = (first + i) * stride + column
                target = at + i
                if kind == KIND_FLOAT:
                    out[target, offset] = transform(
                        load_f32(values + 4 * source), scaling[f, 0], scaling[f, 1], scaling[f, 2]
                    )
                elif kind == KIND_ONE:
                    row = row_address(tables, table, load_i64(values + 8 * source), epoch, counts)
                    for j in range(width):
                        out[target, offset + j] = load_f32(row + 4 * j)
                else:
                    start, stop = load_i64(splits + 8 * (first + i)), load_i64(splits + 8 * (first + i + 1))
                    if max_length > 0:
                        stop = min(stop, start + max_length)
                    for j in range(width):
                        out[target, offset + j] = np.float32(0.0)
                    for v in range(start, stop):
                        row = row_address(tables, table, load_i64(values + 8 * v), epoch, counts)
                        for j in range(width):
                            out[target, offset + j] += load_f32(row + 4 * j)
                    if combiner != SUM and stop - start > 1:
                        share = np.float32(stop - start)
                        if combiner == SQRTN:
                            share = np.sqrt(share)
                        for j in range(width):
                            out[target, offset + j] /= share
            for i in range(computed, rows):
                for j in range(width):
                    out[at + i, offset + j] = out[at, offset + j]
            at += rows
