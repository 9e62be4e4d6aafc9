"""Row versions of a served table: arena rows stamped with the epoch that wrote them, chained to what they replaced.

ref < base_rows        a row of the loaded version's file, there in every epoch
ref >= base_rows       slot ref - base_rows of the arena
meta int64 [slots, 2]  (epoch * 2 + tombstone, ref of what it replaced: a row, or ABSENT)

A reader of epoch g walks from the head to the first version that is not newer than g. The writer stages rows and
meta where no reader looks, then publishes each head with one release store; so a reader meets whole rows or none.
"""

# mypy: ignore-errors

import numba as nb

from processor.kernels.index import ABSENT, probe
from processor.kernels.pointers import load_acquire, load_f32, load_i64, store_release

MISSING = 0


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
    ref = load_acquire(index + 16 * e + 8)
    while ref >= base_rows:
        slot = ref - base_rows
        stamp = load_i64(meta + 16 * slot)
        if stamp >> 1 <= epoch:
            if stamp & 1:
                return MISSING
            return arena + slot * row_nbytes
        ref = load_i64(meta + 16 * slot + 8)
    if ref < 0:
        return MISSING
    return base + ref * row_nbytes


@nb.njit(nb.void(nb.int64, nb.int64[::1], nb.int64[::1], nb.int64[:, ::1], nb.int64, nb.int64), cache=True, nogil=True)
def stage(index, entries, slots, meta, epoch, tombstone):
    """Writes the meta of new versions; their heads still point at what they will replace."""
    for i in range(len(entries)):
        meta[slots[i], 0] = epoch * 2 + tombstone
        meta[slots[i], 1] = load_i64(index + 16 * entries[i] + 8)


@nb.njit(
    nb.void(nb.float32[:, ::1], nb.int64[::1], nb.types.Array(nb.float32, 2, "A", readonly=True)),
    cache=True,
    nogil=True,
)
def scatter(arena, slots, rows):
    """arena[slots[i]] = rows[i]."""
    for i in range(len(slots)):
        for j in range(rows.shape[1]):
            arena[slots[i], j] = rows[i, j]


@nb.njit(nb.void(nb.int64, nb.int64[::1], nb.int64[::1], nb.int64), cache=True, nogil=True)
def publish(index, entries, slots, base_rows):
    """Points each head at its new version; readers of older epochs walk on to the one before."""
    for i in range(len(entries)):
        store_release(index + 16 * entries[i] + 8, base_rows + slots[i])


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
