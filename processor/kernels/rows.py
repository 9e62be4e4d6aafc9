"""Row versions of a served table: arena rows stamped with the epoch that wrote them, chained to what they replaced.

ref < base_rows        a row of the loaded version's file, there in every epoch
ref >= base_rows       slot ref - base_rows of the arena
meta int64 [slots, 2]  (epoch * 2 + tombstone, ref of what it replaced: a row, or ABSENT)

A reader of epoch g walks from the head to the first version that is not newer than g. The writer fills a slot that no
head points at, then publishes the head with one release store; so a reader meets whole rows or none.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from processor.kernels.index import ABSENT, probe
from processor.kernels.pointers import load_acquire, load_f32, load_i64, store_i64, store_release

MISSING = 0


@nb.njit(nb.int64(nb.int64, nb.int64, nb.int64, nb.int64), cache=True, nogil=True, inline="always")
def visible(ref, base_rows, meta, epoch):
    """From a head, the ref of the row as of an epoch, or ABSENT."""
    while ref >= base_rows:
        stamp = load_i64(meta + 16 * (ref - base_rows))
        if stamp >> 1 <= epoch:
            return ABSENT if stamp & 1 else ref
        ref = load_i64(meta + 16 * (ref - base_rows) + 8)
    return ref


@nb.njit(
    nb.int64(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64),
    cache=True,
    nogil=True,
    inline="always",
)
def resolve(index, capacity, base, base_rows, arena, meta, row_nbytes, key, epoch):
    """Address of the key's row as of an epoch, or MISSING."""
    e = probe(index, capacity, key)
    if e < 0:
        return MISSING
    ref = visible(load_acquire(index + 16 * e + 8), base_rows, meta, epoch)
    if ref < 0:
        return MISSING
    return base + ref * row_nbytes if ref < base_rows else arena + (ref - base_rows) * row_nbytes


@nb.njit(
    nb.void(
        nb.int64,
        nb.int64,
        nb.types.Array(nb.int64, 1, "A", readonly=True),
        nb.types.Array(nb.float32, 2, "A", readonly=True),
        nb.int64[::1],
        nb.float32[:, ::1],
        nb.int64[:, ::1],
        nb.int64,
        nb.int64,
        nb.int64[::1],
    ),
    cache=True,
    nogil=True,
)
def upsert(index, capacity, keys, rows, slots, arena, meta, base_rows, epoch, tally):
    """Writes row i to slots[i] as the newest version of keys[i], of an epoch that no reader sees yet.

    One call a table and not one a step: every call gives up the GIL and has to win it back from busy sessions.
    tally int64 [2]: entries claimed for new ids, and keys that had a row already.
    """
    tally[:] = 0
    for i in range(len(keys)):
        e = probe(index, capacity, keys[i])
        before = np.int64(ABSENT)
        if e < 0:
            e = -1 - e
            store_i64(index + 16 * e, keys[i])
            store_release(index + 16 * e + 8, ABSENT)
            tally[0] += 1
        else:
            before = load_i64(index + 16 * e + 8)
            if before >= 0 and (before < base_rows or meta[before - base_rows, 0] & 1 == 0):
                tally[1] += 1
        slot = slots[i]
        for j in range(rows.shape[1]):
            arena[slot, j] = rows[i, j]
        meta[slot, 0] = epoch * 2
        meta[slot, 1] = before
        store_release(index + 16 * e + 8, base_rows + slot)


@nb.njit(
    nb.void(nb.int64, nb.int64, nb.int64[::1], nb.int64[::1], nb.int64[:, ::1], nb.int64, nb.int64),
    cache=True,
    nogil=True,
)
def bury(index, capacity, keys, slots, meta, base_rows, epoch):
    """Makes slots[i] a tombstone, the newest version of keys[i], which has a row."""
    for i in range(len(keys)):
        e = probe(index, capacity, keys[i])
        meta[slots[i], 0] = epoch * 2 + 1
        meta[slots[i], 1] = load_i64(index + 16 * e + 8)
        store_release(index + 16 * e + 8, base_rows + slots[i])


@nb.njit(nb.void(nb.int64, nb.int64[::1], nb.int64[::1], nb.int64[:, ::1]), cache=True, nogil=True)
def unpublish(index, entries, slots, meta):
    """Points each head back at what its newest version replaced."""
    for i in range(len(entries)):
        store_release(index + 16 * entries[i] + 8, meta[slots[i], 1])


@nb.njit(
    nb.int64(nb.int64, nb.int64[::1], nb.int64[::1], nb.int64[:, ::1], nb.int64, nb.int64[::1]), cache=True, nogil=True
)
def superseded(index, entries, slots, meta, base_rows, freed):
    """Slots that no reader can need once the given versions cannot be undone; returns how many were put in `freed`.

    A version's predecessor is never walked to again. A tombstone that is still the head becomes ABSENT itself.
    freed has room for twice the versions.
    """
    count = 0
    for i in range(len(entries)):
        before = meta[slots[i], 1]
        if before >= base_rows:
            freed[count] = before - base_rows
            count += 1
        head = index + 16 * entries[i] + 8
        if meta[slots[i], 0] & 1 and load_i64(head) == base_rows + slots[i]:
            store_release(head, ABSENT)
            freed[count] = slots[i]
            count += 1
    return count


@nb.njit(nb.int64(nb.int64[::1], nb.int64, nb.int64[::1], nb.int64[::1]), cache=True, nogil=True)
def live(table, epoch, keys, addresses):
    """Every key with a row as of an epoch and where its row is; returns how many.

    table: a row of kernels.pool's tables. Both outputs hold as many as the index has entries.
    """
    index, capacity = table[0], table[1]
    count = 0
    for e in range(capacity):
        if load_i64(index + 16 * e + 8) == -1:
            continue
        key = load_i64(index + 16 * e)
        address = resolve(index, capacity, table[2], table[3], table[4], table[5], table[6], key, epoch)
        if address != MISSING:
            keys[count] = key
            addresses[count] = address
            count += 1
    return count


@nb.njit(nb.void(nb.int64[::1], nb.float32[:, ::1]), cache=True, nogil=True)
def gather(addresses, rows):
    """rows[i] = the row at addresses[i]."""
    for i in range(len(addresses)):
        for j in range(rows.shape[1]):
            rows[i, j] = load_f32(addresses[i] + 4 * j)
