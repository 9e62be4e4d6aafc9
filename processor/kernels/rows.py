"""Row versions (MVCC) of a served table: arena rows stamped with their epoch and linked to their predecessors.

ref < base_rows        a row of the loaded version's file
ref < SETTLED          slot ref - base_rows of the arena: a version, stamped with its epoch
ref < LOGGED           slot ref - SETTLED of the arena: the only version that any reader can still need
ref >= LOGGED          record ref - LOGGED of the log (processor.tables.tier)
meta int64 [slots, 2]  of a version: (epoch * 2 + tombstone, ref of the row it replaced, or ABSENT)
                       of a settled slot: (the same, ref of the file's row or the record that it copies, or ABSENT)

All but versions exist in every epoch, so a reader need not read meta for them. A settled row keeps its epoch, by which
kernels.row_stamps tells whether a row is the one that was read before.

A table's descriptor is a row of int64 with addresses and sizes, all accessible to its reader
(processor.tables.table.descriptor):

index, capacity          the hash index (kernels.index)
base, base_rows          the file's rows; row_nbytes each, as the arena's
arena, meta
row_nbytes
default                  float32 [dim], the row of an unseen id
dtype                    the code of the type that rows are stored as (processor.package.tensors)
                         plus TIERED for a table with a memory budget
scales, arena_scales     float32, one per row, scaled types only
log, record_nbytes       records of a key, a scale, an epoch and a row (LOG_KEY, LOG_SCALE, LOG_EPOCH, LOG_ROW: offsets
                         in a record)
hits                     uint8 [slots], recent reads of settled slots
ring                     int64 [RING_HEADER + RING_KEYS]: notes so far, cold lookups, hot lookups; keys of cold rows
numbered, changed, heads the number of keys that are row numbers of the file, 0 for none; one bit a row, in int64 words;
                         int64 [numbered], the head of each key whose bit is set
shared, unknown_key      1 if keys without a row read the row of unknown_key, while it has one; else 0
filter                   the filter of the index (kernels.key_filter), 0 for none; only where keys without a row read a
                         default row of zeros

Row numbers. In a table whose keys are 0 .. numbered - 1, the file's row of key k is row k. Its bit in `changed` is set
before its head first leaves that row, and never cleared. So a reader that finds it clear has the key's row without the
index: whatever the head becomes later is of an epoch that this reader does not see. A reader that finds the bit set has
the key's head in heads[k], which is written before the bit is set, and from then on just before the head in the index
(publish). Between the two stores a reader of either finds the same version: the heads differ by a version of an epoch
that no reader sees yet, or that none sees any more, or by how the same row is referred to. So a kernel may read either.
The index has all keys: writers work on it, and it finds all keys that are no row numbers, as in any table.

A reader of epoch g walks from the head to the first version that is not newer than g. The writer fills a slot that no
head points at, then publishes the head with one release store; so a reader meets whole rows or none.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.conversion import copy_typed, store_typed
from freshet_serving.processor.kernels.index import ABSENT, EMPTY, home, probe, probe_from
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.key_filter import admit
from freshet_serving.processor.kernels.pointers import load_acquire, load_i64, prefetch, store_i64, store_release
from freshet_serving.processor.package import SCALED

TABLE_FIELDS = 21
TABLE_NBYTES = 8 * TABLE_FIELDS
INDEX, CAPACITY, BASE, BASE_ROWS, ARENA, META, ROW_NBYTES, DEFAULT = range(0, 64, 8)
DTYPE, SCALES, ARENA_SCALES, LOG, RECORD_NBYTES, HITS, RING, NUMBERED, CHANGED, HEADS = range(64, 144, 8)
SHARED, UNKNOWN_KEY, FILTER = range(144, TABLE_NBYTES, 8)

SETTLED, LOGGED = 1 << 40, 1 << 41
TIERED = 2 * SCALED
LOG_KEY, LOG_SCALE, LOG_EPOCH, LOG_ROW = 0, 8, 12, 16
RING_HEADER, RING_KEYS = 8, 1 << 14
BLOCK = 32
"""Rows of a delta in flight at once: each reads distant memory, which is prefetched before it is needed."""


@inlined
def visible(ref, base_rows, meta, epoch):
    """Return the ref of the row that is visible from the head `ref` as of an epoch, or ABSENT."""
    while ref >= base_rows and ref < SETTLED:
        stamp = load_i64(meta + 16 * (ref - base_rows))
        if stamp >> 1 <= epoch:
            return ABSENT if stamp & 1 else ref
        ref = load_i64(meta + 16 * (ref - base_rows) + 8)
    return ref


@inlined
def unchanged(numbered, changed, key):
    """Report whether a key's row is the file's row of that number, as of any epoch that the caller may read."""
    if np.uint64(key) >= np.uint64(numbered):
        return False
    return (load_acquire(changed + 8 * (key >> 6)) >> (key & 63)) & 1 == 0


@inlined
def publish(table, key, e, ref):
    """Make the ref of a written row the head of a key, whose entry of the index is e. For the writer only."""
    if np.uint64(key) < np.uint64(load_i64(table + NUMBERED)):
        store_release(load_i64(table + HEADS) + 8 * key, ref)
        word = load_i64(table + CHANGED) + 8 * (key >> 6)
        store_release(word, load_i64(word) | (np.int64(1) << (key & 63)))
    store_release(load_i64(table + INDEX) + 16 * e + 8, ref)


@inlined
def resolve(table, key, epoch):
    """Return the ref of a key's row as of an epoch, or ABSENT."""
    numbered = load_i64(table + NUMBERED)
    if unchanged(numbered, load_i64(table + CHANGED), key):
        return key
    if np.uint64(key) < np.uint64(numbered):
        head = load_acquire(load_i64(table + HEADS) + 8 * key)
        return visible(head, load_i64(table + BASE_ROWS), load_i64(table + META), epoch)
    index = load_i64(table + INDEX)
    e = probe(index, load_i64(table + CAPACITY), key)
    if e < 0:
        return ABSENT
    return visible(load_acquire(index + 16 * e + 8), load_i64(table + BASE_ROWS), load_i64(table + META), epoch)


@inlined
def unknown_ref(table, epoch):
    """Return the ref of the row of all keys without one as of an epoch, or ABSENT for the default row."""
    if load_i64(table + SHARED) == 0:
        return np.int64(ABSENT)
    return np.int64(resolve(table, load_i64(table + UNKNOWN_KEY), epoch))


@inlined
def prefetch_row(row, nbytes):
    """Prefetch the cache lines of a row of 1 or more bytes.

    In ascending order: the other way round a lookup of 512 bytes took 1.3 times as long. Without a loop where two lines
    are enough, which the compiler would unroll by eight: a quarter of a lookup of 128 bytes in the cache.
    """
    if nbytes >= 512:
        for line in range(row, row + nbytes, 64):
            prefetch(line)
    else:
        prefetch(row)
        if nbytes > 64:
            prefetch(row + 64)
            for line in range(row + 128, row + nbytes, 128):
                prefetch(line)
                prefetch(line + 64)


@inlined
def row_at(table, ref):
    """Return the address of the row at a ref of 0 or more."""
    base_rows, row_nbytes = load_i64(table + BASE_ROWS), load_i64(table + ROW_NBYTES)
    if ref < base_rows:
        return load_i64(table + BASE) + ref * row_nbytes
    if ref < SETTLED:
        return load_i64(table + ARENA) + (ref - base_rows) * row_nbytes
    if ref < LOGGED:
        return load_i64(table + ARENA) + (ref - SETTLED) * row_nbytes
    return load_i64(table + LOG) + (ref - LOGGED) * load_i64(table + RECORD_NBYTES) + LOG_ROW


@inlined
def scale_at(table, ref):
    """Return the address of the row's scale at a ref of 0 or more, for a table of a scaled type."""
    base_rows = load_i64(table + BASE_ROWS)
    if ref < base_rows:
        return load_i64(table + SCALES) + 4 * ref
    if ref < SETTLED:
        return load_i64(table + ARENA_SCALES) + 4 * (ref - base_rows)
    if ref < LOGGED:
        return load_i64(table + ARENA_SCALES) + 4 * (ref - SETTLED)
    return load_i64(table + LOG) + (ref - LOGGED) * load_i64(table + RECORD_NBYTES) + LOG_SCALE


@kernel(
    nb.void(
        nb.int64[::1],
        nb.types.Array(nb.int64, 1, "A", readonly=True),
        nb.int64,
        nb.int64,
        nb.int64[::1],
        nb.int64,
        nb.int64[::1],
    )
)
def upsert(table, keys, rows, dim, slots, epoch, tally):
    """Write row i to slots[i] as the newest version of keys[i], of an epoch that no reader sees yet.

    One call per table and not one per phase: every call releases the GIL and has to win it back from busy sessions.

    Args:
        rows: Address of float32 [m, dim]; the rows are stored as the table's type.
        tally: int64 [2], increased by the number of entries claimed for new ids, and by the number of keys that had no
            row. It is the table's own array, so that a writer that fails after this call has nothing left to count.
    """
    at = np.int64(table.ctypes.data)
    index, capacity, base_rows, meta = table[INDEX // 8], table[CAPACITY // 8], table[BASE_ROWS // 8], table[META // 8]
    dtype, filter_ = table[DTYPE // 8] % TIERED, table[FILTER // 8]
    starts, before = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for first in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - first)
        for j in range(count):
            starts[j] = home(keys[first + j], capacity)
            prefetch(index + 16 * starts[j])
            prefetch(meta + 16 * slots[first + j])
            prefetch(row_at(at, base_rows + slots[first + j]))
        for j in range(count):
            # From here on starts[j] is the key's entry, no longer its home.
            e = probe_from(index, capacity, keys[first + j], starts[j])
            before[j] = ABSENT
            if e < 0:
                e = -1 - e
                if filter_:
                    admit(filter_, capacity, keys[first + j])
                store_i64(index + 16 * e, keys[first + j])
                store_release(index + 16 * e + 8, ABSENT)
                tally[0] += 1
            else:
                before[j] = load_i64(index + 16 * e + 8)
                if before[j] >= base_rows and before[j] < SETTLED:
                    prefetch(meta + 16 * (before[j] - base_rows))
            starts[j] = e
        for j in range(count):
            version = before[j] >= base_rows and before[j] < SETTLED
            if before[j] < 0 or (version and load_i64(meta + 16 * (before[j] - base_rows)) & 1):
                tally[1] += 1
            slot = slots[first + j]
            ref = base_rows + slot
            store_typed(dtype, row_at(at, ref), scale_at(at, ref), rows + 4 * dim * (first + j), dim)
            store_i64(meta + 16 * slot, epoch * 2)
            store_i64(meta + 16 * slot + 8, before[j])
            publish(at, keys[first + j], starts[j], ref)


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64, nb.int64[::1]))
def add_tombstones(table, keys, slots, epoch, tally):
    """Make slots[i], int64 [m], a tombstone, the newest version of keys[i], which has a row; `tally` as of upsert()."""
    at = np.int64(table.ctypes.data)
    index, capacity, base_rows, meta = table[INDEX // 8], table[CAPACITY // 8], table[BASE_ROWS // 8], table[META // 8]
    for i in range(len(keys)):
        e = probe(index, capacity, keys[i])
        store_i64(meta + 16 * slots[i], epoch * 2 + 1)
        store_i64(meta + 16 * slots[i] + 8, load_i64(index + 16 * e + 8))
        publish(at, keys[i], e, base_rows + slots[i])
        tally[1] -= 1


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.int64[::1]))
def unpublish(table, keys, slots):
    """Point the head of each key back at the predecessor of slots[i], where slots[i] is the key's newest version.

    Where it is not, it was never published: a partly staged delta is undone as well. Allocates no memory. Heads by
    row number are checked separately: they may be one store ahead of the index.
    """
    index, capacity, base_rows, meta = table[INDEX // 8], table[CAPACITY // 8], table[BASE_ROWS // 8], table[META // 8]
    numbered, heads = table[NUMBERED // 8], table[HEADS // 8]
    for first in range(0, len(keys), BLOCK):
        last = min(first + BLOCK, len(keys))
        for i in range(first, last):
            prefetch(index + 16 * home(keys[i], capacity))
            prefetch(meta + 16 * slots[i])
        for i in range(first, last):
            before = load_i64(meta + 16 * slots[i] + 8)
            if np.uint64(keys[i]) < np.uint64(numbered):
                by_number = heads + 8 * keys[i]
                if load_i64(by_number) == base_rows + slots[i]:
                    store_release(by_number, before)
            e = probe(index, capacity, keys[i])
            if e >= 0 and load_i64(index + 16 * e + 8) == base_rows + slots[i]:
                store_release(index + 16 * e + 8, before)


@kernel(nb.int64(nb.int64, nb.int64, nb.int64))
def holder(table, key, ref):
    """Return the address of the int64 that holds a ref: a key's head, or the link of a version or settled slot; else 0.

    For the writer only: no other thread may change what it finds.
    """
    index, base_rows, meta = load_i64(table + INDEX), load_i64(table + BASE_ROWS), load_i64(table + META)
    e = probe(index, load_i64(table + CAPACITY), key)
    if e < 0:
        return 0
    at = index + 16 * e + 8
    while True:
        held = load_i64(at)
        if held == ref:
            return at
        if held < base_rows or held >= LOGGED:
            return 0
        slot = held - base_rows if held < SETTLED else held - SETTLED
        at = meta + 16 * slot + 8


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.boolean[::1], nb.int64[::1], nb.int64[::1]))
def plan_vacuum(table, slots, rows, replaced, dead):
    """Compute what vacuum() of these slots will leave behind; changes nothing, so that memory can be reserved first.

    Writes, per version: rows, False for a tombstone; `replaced`, the settled slot that it has replaced, and `dead`, the
    record of the log, -1 if none. These are unreachable once the version is settled.
    """
    meta = table[META // 8]
    for first in range(0, len(slots), BLOCK):
        last = min(first + BLOCK, len(slots))
        for i in range(first, last):
            prefetch(meta + 16 * slots[i])
        for i in range(first, last):
            before = load_i64(meta + 16 * slots[i] + 8)
            if before >= SETTLED and before < LOGGED:
                prefetch(meta + 16 * (before - SETTLED))
        for i in range(first, last):
            before = load_i64(meta + 16 * slots[i] + 8)
            replaced[i] = dead[i] = -1
            if before >= SETTLED and before < LOGGED:
                replaced[i] = before - SETTLED
                before = load_i64(meta + 16 * replaced[i] + 8)
            if before >= LOGGED:
                dead[i] = before - LOGGED
            rows[i] = load_i64(meta + 16 * slots[i]) & 1 == 0


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.int64[::1]))
def vacuum(table, keys, slots):
    """Settle versions that every reader sees and no rollback can undo: each becomes the only version of its key.

    Oldest deltas come first. A row's slot is settled in place. A tombstone's key becomes ABSENT; its slot may still be
    read.
    """
    at = np.int64(table.ctypes.data)
    index, capacity, base_rows, meta = table[INDEX // 8], table[CAPACITY // 8], table[BASE_ROWS // 8], table[META // 8]
    numbered, heads = table[NUMBERED // 8], table[HEADS // 8]
    for first in range(0, len(keys), BLOCK):
        last = min(first + BLOCK, len(keys))
        for i in range(first, last):
            prefetch(index + 16 * home(keys[i], capacity))
            prefetch(meta + 16 * slots[i])
        for i in range(first, last):
            own = meta + 16 * slots[i]
            held = holder(at, keys[i], base_rows + slots[i])
            row = load_i64(own) & 1 == 0
            ref = SETTLED + slots[i] if row else np.int64(ABSENT)
            store_i64(own + 8, ABSENT)
            if np.uint64(keys[i]) < np.uint64(numbered):
                by_number = heads + 8 * keys[i]
                if load_i64(by_number) == base_rows + slots[i]:
                    store_release(by_number, ref)
            store_release(held, ref)


@kernel(nb.int64(nb.int64[::1], nb.int64, nb.int64[::1], nb.int64[::1]))
def live(table, epoch, keys, refs):
    """Write every key with a row as of an epoch, and the row's ref; return their number."""
    at = np.int64(table.ctypes.data)
    index, capacity = table[INDEX // 8], table[CAPACITY // 8]
    count = 0
    for e in range(capacity):
        if load_i64(index + 16 * e + 8) == EMPTY:
            continue
        key = load_i64(index + 16 * e)
        ref = resolve(at, key, epoch)
        if ref >= 0:
            keys[count] = key
            refs[count] = ref
            count += 1
    return count


@kernel(nb.void(nb.int64[::1], nb.int64, nb.types.Array(nb.int64, 1, "A", readonly=True), nb.int64[::1]))
def look_up(table, epoch, keys, refs):
    """Write the ref of each key's row as of an epoch to refs, int64 [n], or ABSENT."""
    at = np.int64(table.ctypes.data)
    for i in range(len(keys)):
        refs[i] = resolve(at, keys[i], epoch)


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.float32[:, ::1]))
def gather(table, refs, rows):
    """Write the rows at `refs` to rows, float32 [n, dim]."""
    at, out, dim = np.int64(table.ctypes.data), np.int64(rows.ctypes.data), rows.shape[1]
    for i in range(len(refs)):
        copy_typed(table[DTYPE // 8] % TIERED, out + 4 * dim * i, row_at(at, refs[i]), scale_at(at, refs[i]), dim)
