"""Set-associative cache of rows fetched from a row store: sets of WAYS ids, each with a mark and a value.

A mark is a byte: 0 for an empty way, else a count of hits up to MOST, and HAS_ROW unless the store has no row for the
id. A value is a row's bytes and, for a scaled type, its scale.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.extensions.remote_rows.bucket_bytes import FOUND, LOST, NOWHERE
from freshet_serving.processor.kernels.index import ABSENT, home
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import copy_bytes, load_i64, load_u8, prefetch, store_i8, store_i64

WAYS = 8
AHEAD = 16
MOST = 127
HAS_ROW = 128
HALVE_EVERY = 16
CACHE_FIELDS = 6


@inlined
def put(rows, row_nbytes, scales, number, value, nbytes):
    """Copy a value's row, and its scale if it has one, to position `number` of an array of rows, at an address.

    A value has `nbytes`: those of a row, or of a row and its scale.
    """
    copy_bytes(rows + number * row_nbytes, value, row_nbytes)
    if nbytes > row_nbytes:
        copy_bytes(scales + 4 * number, value + row_nbytes, 4)


@kernel(
    nb.int64(
        nb.int64[:, ::1], nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64[:, ::1], nb.uint8[::1]
    ),
    boundscheck=False,
)
def take(cache, starts, counts, ids, entries, rows, status):
    """Serve waiting ids from the cache; returns the number of misses. The caller holds the cache's lock.

    Args:
        cache: int64 [K, 6], addresses of keys, marks and values, number of sets, bytes per value, evictions.
        starts: int64 [K + 1], the position of each table's first id in `ids`.
        counts: int64 [K], the number of ids of each table.
        entries: int64, the addresses of the refs of the waiting ids, `ids`.
        rows: int64 [K, 3], the address of table k's fetched rows, bytes per row, the address of their scales.
        status: uint8; status[starts[k] + p] is set to LOST for ids that must be fetched.
    """
    unknown = 0
    for k in range(cache.shape[0]):
        keys, marks, cached, sets, nbytes = cache[k, 0], cache[k, 1], cache[k, 2], cache[k, 3], cache[k, 4]
        for p in range(counts[k]):
            if p % AHEAD == 0:
                # Sets are far apart in memory and two cache lines each; prefetching several overlaps their misses.
                for q in range(p, min(p + AHEAD, counts[k])):
                    line = home(ids[starts[k] + q], sets) * WAYS
                    prefetch(keys + 8 * line)
                    prefetch(marks + line)
                for q in range(p, min(p + AHEAD, counts[k])):
                    line = home(ids[starts[k] + q], sets) * WAYS
                    for way in range(line, line + WAYS):
                        if load_i64(keys + 8 * way) == ids[starts[k] + q]:
                            prefetch(cached + way * nbytes)
            key = ids[starts[k] + p]
            line = home(key, sets) * WAYS
            status[starts[k] + p] = LOST
            for way in range(line, line + WAYS):
                mark = load_u8(marks + way)
                if mark == 0 or load_i64(keys + 8 * way) != key:
                    continue
                if mark & MOST < MOST:
                    store_i8(marks + way, mark + 1)
                if mark & HAS_ROW:
                    put(rows[k, 0], rows[k, 1], rows[k, 2], p, cached + way * nbytes, nbytes)
                    status[starts[k] + p] = FOUND
                else:
                    store_i64(entries[starts[k] + p], ABSENT)
                    status[starts[k] + p] = NOWHERE
                break
            if status[starts[k] + p] == LOST:
                unknown += 1
    return unknown


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.uint8[:, ::1], nb.uint8[::1]), boundscheck=False)
def keep(cache, ids, rows, status):
    """Enter fetched ids, int64 [n], in one table's cache: those FOUND with their row, those NOWHERE without.

    A full set evicts a way with the smallest count, ties broken round-robin; every HALVE_EVERY-th eviction halves the
    counts of its set. The caller holds the cache's lock. `cache` is a row of take()'s.
    """
    keys, marks, cached, sets, nbytes = cache[0], cache[1], cache[2], cache[3], cache[4]
    source = np.int64(rows.ctypes.data)
    for i in range(len(ids)):
        if status[i] == LOST:
            continue
        line = home(ids[i], sets) * WAYS
        chosen, least, is_cached = np.int64(0), np.int64(MOST + 1), False
        for turn in range(cache[5], cache[5] + WAYS):
            way = line + turn % WAYS
            mark = load_u8(marks + way)
            is_cached |= mark != 0 and load_i64(keys + 8 * way) == ids[i]
            if mark & MOST < least:
                chosen, least = way, mark & MOST
        if is_cached:
            continue
        if least > 0:
            cache[5] += 1
            if cache[5] % HALVE_EVERY == 0:
                for way in range(line, line + WAYS):
                    mark = load_u8(marks + way)
                    store_i8(marks + way, (mark & HAS_ROW) | max(1, (mark & MOST) >> 1))
        store_i64(keys + 8 * chosen, ids[i])
        if status[i] == FOUND:
            copy_bytes(cached + chosen * nbytes, source + i * nbytes, nbytes)
        store_i8(marks + chosen, 1 | (HAS_ROW if status[i] == FOUND else 0))


@kernel(nb.int64(nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.uint8[:, ::1], nb.uint8[::1]), boundscheck=False)
def place(positions, entries, target, rows, status):
    """Copy fetched rows to where the stand-in expects them; returns the number of ids that are LOST.

    Row i, uint8 [bytes per value], is that of waiting id positions[i], whose ref is at entries[positions[i]]. `target`
    is the table's row of take()'s `rows`.
    """
    lost, nbytes = 0, rows.shape[1]
    source = np.int64(rows.ctypes.data)
    for i in range(len(positions)):
        if status[i] == FOUND:
            put(target[0], target[1], target[2], positions[i], source + i * nbytes, nbytes)
        else:
            store_i64(entries[positions[i]], ABSENT)
            lost += status[i] == LOST
    return lost
