"""Stamps of rows: a number for each key that changes with the row that a reader sees, without reading the row.

Whoever keeps what was computed from rows keeps their stamps beside it, and compares them before it is used again, under
the epoch that is read then.

A stamp is

    0 or more          the epoch of the delta that wrote the key's row; 0 for a row of the version's file
    ABSENT_STAMP       the key has no row, and reads the table's default
    below that         the key has no row, and reads the row of the unknown key, of the epoch ABSENT_STAMP - 1 - stamp
    UNKNOWN_STAMP      the row's epoch is not known: equal to nothing, itself included

Invariants
- Two readers of one loaded version that see the same stamp of a key, other than UNKNOWN_STAMP, see the same row. A
  delta writes a key once, an epoch is never used twice (versions.served_version), and a row keeps its epoch when it is
  settled, promoted, demoted and when the log is compacted (kernels.row_tiering). Stamps of two loads say nothing.
- A reader finds stamps as it finds rows, under its pin, so what a row's ref leads to is not reused meanwhile.

A record of the log has 32 bits for its epoch; a later one is UNKNOWN_STAMP there.

Costs: the two or three cache misses of a lookup without its row, which are prefetched.
"""

# mypy: ignore-errors

import numpy as np

from freshet_serving.processor.kernels.index import home
from freshet_serving.processor.kernels.kernel import inlined
from freshet_serving.processor.kernels.pointers import load_f32_bits, load_i64, prefetch
from freshet_serving.processor.kernels.rows import (
    BASE_ROWS,
    CAPACITY,
    CHANGED,
    HEADS,
    INDEX,
    LOG,
    LOG_EPOCH,
    LOGGED,
    META,
    NUMBERED,
    RECORD_NBYTES,
    SETTLED,
    resolve,
    unknown_ref,
)

ABSENT_STAMP = -1
UNKNOWN_STAMP = 2**32 - 1
BLOCK = 32
"""Keys whose entries are prefetched before the first of them is read."""


@inlined
def stamp_at(table, ref):
    """Return the stamp of the row at a ref of 0 or more."""
    base_rows = load_i64(table + BASE_ROWS)
    if ref < base_rows:
        return np.int64(0)
    if ref < LOGGED:
        slot = ref - base_rows if ref < SETTLED else ref - SETTLED
        return load_i64(load_i64(table + META) + 16 * slot) >> 1
    record = load_i64(table + LOG) + (ref - LOGGED) * load_i64(table + RECORD_NBYTES)
    return np.int64(load_f32_bits(record + LOG_EPOCH))


@inlined
def stamp_of(table, key, epoch):
    """Return the stamp of what a key reads as of an epoch."""
    ref = np.int64(resolve(table, key, epoch))
    if ref >= 0:
        return stamp_at(table, ref)
    shared = unknown_ref(table, epoch)
    if shared < 0:
        return np.int64(ABSENT_STAMP)
    stamp = stamp_at(table, shared)
    return stamp if stamp == UNKNOWN_STAMP else ABSENT_STAMP - 1 - stamp


@inlined
def prefetch_head(table, key):
    """Prefetch where the head of a key is found."""
    if np.uint64(key) < np.uint64(load_i64(table + NUMBERED)):
        prefetch(load_i64(table + CHANGED) + 8 * (key >> 6))
        prefetch(load_i64(table + HEADS) + 8 * key)
    else:
        prefetch(load_i64(table + INDEX) + 16 * home(key, load_i64(table + CAPACITY)))
