"""The cache of rows that a row store was asked for: sets of WAYS ids, each with a mark and the value behind it.

A mark is a byte: 0 for an empty way, else a count of hits up to MOST, and HAS_ROW unless the store has no row for the
id. A value is a row's bytes and, of a scaled type, its scale.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.bucket_bytes import FOUND, LOST, NOWHERE
from freshet_serving.processor.kernels.index import ABSENT, home
from freshet_serving.processor.kernels.pointers import copy_bytes, load_i64, load_u8, prefetch, store_i8, store_i64

WAYS = 8
AHEAD = 16
MOST = 127
HAS_ROW = 128
HALVE_EVERY = 16
CACHE_FIELDS = 6


@nb.njit(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64), cache=True, nogil=True, inline="always")
def put(rows, row_nbytes, scales, number, value, nbytes):
    """Copies a value's row, and its scale if it has one, to their place among others."""
    copy_bytes(rows + number * row_nbytes, value, row_nbytes)
    if nbytes > row_nbytes:
        copy_bytes(scales + 4 * number, value + row_nbytes, 4)


@nb.njit(
    nb.int64(
        nb.int64[:, ::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.int64[:, ::1],
        nb.uint8[::1],
    ),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def take(cache, starts, counts, wanted, entries, rows, status):
    """Serves waiting ids from the cache; returns how many it does not know.

    cache int64 [K, 6]: addresses of keys, marks and values, sets, bytes a value (a row with its scale), evictions.
    rows int64 [K, 3]: where table k's fetched rows go, bytes of one, where their scales go. status[starts[k] + p]:
    LOST for those that are to be fetched. Caller holds the cache's lock.
    """
    unknown = 0
    for k in range(cache.shape[0]):
        keys, marks, kept, sets, nbytes = cache[k, 0], cache[k, 1], cache[k, 2], cache[k, 3], cache[k, 4]
        for p in range(counts[k]):
            if p % AHEAD == 0:
                # Sets are far apart and two lines each: their misses overlap when asked for together.
                for q in range(p, min(p + AHEAD, counts[k])):
                    line = home(wanted[starts[k] + q], sets) * WAYS
                    prefetch(keys + 8 * line)
                    prefetch(marks + line)
                for q in range(p, min(p + AHEAD, counts[k])):
                    line = home(wanted[starts[k] + q], sets) * WAYS
                    for way in range(line, line + WAYS):
                        if load_i64(keys + 8 * way) == wanted[starts[k] + q]:
                            prefetch(kept + way * nbytes)
            key = wanted[starts[k] + p]
            line = home(key, sets) * WAYS
            status[starts[k] + p] = LOST
            for way in range(line, line + WAYS):
                mark = load_u8(marks + way)
                if mark == 0 or load_i64(keys + 8 * way) != key:
                    continue
                if mark & MOST < MOST:
                    store_i8(marks + way, mark + 1)
                if mark & HAS_ROW:
                    put(rows[k, 0], rows[k, 1], rows[k, 2], p, kept + way * nbytes, nbytes)
                    status[starts[k] + p] = FOUND
                else:
                    store_i64(entries[starts[k] + p], ABSENT)
                    status[starts[k] + p] = NOWHERE
                break
            if status[starts[k] + p] == LOST:
                unknown += 1
    return unknown


@nb.njit(
    nb.void(nb.int64[::1], nb.int64[::1], nb.uint8[:, ::1], nb.uint8[::1]), cache=True, nogil=True, boundscheck=False
)
def keep(cache, ids, rows, status):
    """Enters fetched ids in one table's cache: those FOUND with their row, those NOWHERE without.

    A full set gives up a way with the smallest count, each in its turn; every HALVE_EVERY-th eviction halves the counts
    of its set. cache: a row of take()'s, its last field counts evictions. Caller holds the cache's lock.
    """
    keys, marks, kept, sets, nbytes = cache[0], cache[1], cache[2], cache[3], cache[4]
    source = np.int64(rows.ctypes.data)
    for i in range(len(ids)):
        if status[i] == LOST:
            continue
        line = home(ids[i], sets) * WAYS
        chosen, least, known = np.int64(0), np.int64(MOST + 1), False
        for turn in range(cache[5], cache[5] + WAYS):
            way = line + turn % WAYS
            mark = load_u8(marks + way)
            known |= mark != 0 and load_i64(keys + 8 * way) == ids[i]
            if mark & MOST < least:
                chosen, least = way, mark & MOST
        if known:
            continue
        if least > 0:
            cache[5] += 1
            if cache[5] % HALVE_EVERY == 0:
                for way in range(line, line + WAYS):
                    mark = load_u8(marks + way)
                    store_i8(marks + way, (mark & HAS_ROW) | max(1, (mark & MOST) >> 1))
        store_i64(keys + 8 * chosen, ids[i])
        if status[i] == FOUND:
            copy_bytes(kept + chosen * nbytes, source + i * nbytes, nbytes)
        store_i8(marks + chosen, 1 | (HAS_ROW if status[i] == FOUND else 0))


@nb.njit(
    nb.int64(nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.uint8[:, ::1], nb.uint8[::1]),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def place(positions, entries, target, rows, status):
    """Puts fetched rows where the stand-in expects them; returns how many ids are LOST.

    positions[i]: which waiting id row i belongs to. entries: addresses of the waiting ids' refs. target: the table's
    row of take()'s rows.
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
