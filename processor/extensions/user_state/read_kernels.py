"""Kernels over what the user's part of a request reads: the values of its inputs, the stamps of its rows.

They take sources, int64 [n, 2], the number of each source and the bytes of one of its values, 4 or 8; and inputs, int64
[S, INPUT_FIELDS], those of a request with one row.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.index import mix
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import copy_bytes, load_f32_bits, load_i64, load_i64_anywhere, store_i64
from freshet_serving.processor.kernels.pool import (
    COLUMN,
    FILLED_BY,
    KIND,
    KIND_ONE,
    MAX_LENGTH,
    SENT,
    SOURCE,
    SPLITS,
    STRIDE,
    TABLE,
    VALUES,
)
from freshet_serving.processor.kernels.row_stamps import BLOCK, prefetch_head, stamp_of
from freshet_serving.processor.kernels.rows import TABLE_NBYTES


@inlined
def values_of(source):
    """Return the number of an input's first value and the number of its values."""
    if source[SPLITS] != 0:
        first = load_i64(source[SPLITS])
        return first, load_i64(source[SPLITS] + 8) - first
    return np.int64(0), source[STRIDE]


@kernel(nb.int64(nb.int64[:, ::1], nb.int64[:, ::1]))
def draw_of(sources, inputs):
    """Return a hash of the values of inputs, 0 or more, to take samples by; -1 if one of them is left out.

    Anybody can make inputs of one hash: it names nothing.
    """
    drawn = np.uint64(0)
    for s in range(len(sources)):
        source, nbytes = inputs[sources[s, 0]], sources[s, 1]
        if source[FILLED_BY] != SENT:
            return np.int64(-1)
        first, count = values_of(source)
        at, size = source[VALUES] + nbytes * first, nbytes * count
        drawn = mix(np.int64(drawn) ^ count)
        for _ in range(size >> 3):
            drawn = mix(np.int64(drawn) ^ load_i64_anywhere(at))
            at += 8
        if size & 7:
            drawn = mix(np.int64(drawn) ^ np.int64(load_f32_bits(at)))
    return np.int64(drawn >> np.uint64(1))


@kernel(nb.int64(nb.int64[:, ::1], nb.int64[:, ::1], nb.uint8[::1]))
def write_inputs(sources, inputs, out):
    """Write the values of inputs one after another, each after its length; return the bytes, or those it would take.

    Nothing is written beyond the end of `out`, uint8 [m].
    """
    at, room = 0, len(out)
    for s in range(len(sources)):
        source, nbytes = inputs[sources[s, 0]], sources[s, 1]
        first, count = values_of(source)
        if at + 8 + nbytes * count <= room:
            store_i64(np.int64(out.ctypes.data) + at, count)
            copy_bytes(np.int64(out.ctypes.data) + at + 8, source[VALUES] + nbytes * first, nbytes * count)
        # The next length begins at a multiple of 8.
        at += 8 + ((nbytes * count + 7) & ~7)
    return at


@kernel(nb.int64(nb.int64[:, ::1], nb.int64[:, ::1], nb.int64[:, ::1], nb.int64, nb.int64[::1]))
def read_stamps(tables, plan, inputs, epoch, stamps):
    """Write the stamps of all rows that lookups of a request read under an epoch; return their number.

    If there are more than `stamps`, int64 [n], holds, the first ones are written.
    """
    count, room, start = 0, len(stamps), np.int64(tables.ctypes.data)
    for f in range(plan.shape[0]):
        if plan[f, TABLE] < 0:
            continue
        source, table = inputs[plan[f, SOURCE]], start + TABLE_NBYTES * plan[f, TABLE]
        first, keys = values_of(source)
        if plan[f, KIND] == KIND_ONE:
            first, keys = plan[f, COLUMN], 1
        elif plan[f, MAX_LENGTH] > 0:
            keys = min(keys, plan[f, MAX_LENGTH])
        values = source[VALUES] + 8 * first
        count_known = min(keys, room - count)
        for begin in range(0, count_known, BLOCK):
            end = min(begin + BLOCK, count_known)
            for i in range(begin, end):
                prefetch_head(table, load_i64_anywhere(values + 8 * i))
            for i in range(begin, end):
                stamps[count + i] = stamp_of(table, load_i64_anywhere(values + 8 * i), epoch)
        count += keys
    return count
