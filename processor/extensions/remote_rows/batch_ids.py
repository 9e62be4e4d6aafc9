"""Kernels for tables whose base rows are in a row store: local rows from deltas, and the ids that a batch reads.

A remote table's local index holds only rows that deltas brought (base_rows is 0, a ref is a slot). Each batch gets an
index of its own, the stand-in, in which the fused kernel of kernels.pool finds every id that the batch reads:

    ref p < bound           row p of the batch's fetched rows
    ref bound + slot        a local row, in the table's arena
    ABSENT                  a visible tombstone, or an id that has no row: the default row

Kernels take a table's descriptor, int64 [TABLE_FIELDS], the epoch that is read, and plan, inputs and spans as of
kernels.pool.run; `remote`, int64 [T], is the number k of a remote table, -1 for a local one.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.index import ABSENT, EMPTY, LINE_ENTRIES, probe
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import (
    load_acquire,
    load_i64,
    load_i64_anywhere,
    store_i64,
    store_release,
)
from freshet_serving.processor.kernels.pool import (
    COLUMN,
    KIND,
    KIND_ONE,
    MAX_LENGTH,
    ROWS,
    SOURCE,
    SPLITS,
    STRIDE,
    TABLE,
    VALUES,
)
from freshet_serving.processor.kernels.rows import CAPACITY, INDEX, META, SETTLED, SHARED, UNKNOWN_KEY, holder

BURIED, ELSEWHERE = -3, -4


@inlined
def local(ref, meta, epoch):
    """Return the slot visible from a head of a remote table as of an epoch, BURIED, or ELSEWHERE (in the store).

    kernels.rows.visible returns ABSENT both for a tombstone and for the end of a chain; here they differ. A settled
    slot keeps its stamp, which records whether it is a tombstone.
    """
    while ref >= 0:
        slot = ref if ref < SETTLED else ref - SETTLED
        stamp = load_i64(meta + 16 * slot)
        if ref >= SETTLED or stamp >> 1 <= epoch:
            return BURIED if stamp & 1 else slot
        ref = load_i64(meta + 16 * ref + 8)
    return ELSEWHERE


@kernel(nb.void(nb.int64[::1], nb.types.Array(nb.int64, 1, "A", readonly=True), nb.int64[::1]))
def claim(table, keys, tally):
    """Create entries with the ref ABSENT for unknown keys, int64 [n], and add their number to tally[0]."""
    index, capacity = table[INDEX // 8], table[CAPACITY // 8]
    for i in range(len(keys)):
        e = probe(index, capacity, keys[i])
        if e < 0:
            store_i64(index + 16 * (-1 - e), keys[i])
            store_release(index + 16 * (-1 - e) + 8, ABSENT)
            tally[0] += 1


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.int64[::1]))
def vacuum(table, keys, slots):
    """Settle the slot of each key of a remote table; a tombstone is settled in place (kernels.rows.vacuum)."""
    at = np.int64(table.ctypes.data)
    meta = table[META // 8]
    for i in range(len(keys)):
        holding = holder(at, keys[i], slots[i])
        store_i64(meta + 16 * slots[i] + 8, ABSENT)
        store_release(holding, SETTLED + slots[i])


@kernel(nb.int64(nb.int64[::1], nb.int64, nb.int64[::1], nb.int64[::1]))
def live(table, epoch, keys, refs):
    """Write the keys with a row in a remote table's arena, and its refs; return their number (kernels.rows.live)."""
    index, capacity, meta = table[INDEX // 8], table[CAPACITY // 8], table[META // 8]
    count = 0
    for e in range(capacity):
        ref = load_i64(index + 16 * e + 8)
        slot = local(ref, meta, epoch) if ref >= 0 else np.int64(ELSEWHERE)
        if slot >= 0:
            keys[count], refs[count] = load_i64(index + 16 * e), SETTLED + slot
            count += 1
    return count


@kernel(
    nb.int64(nb.int64[:, ::1], nb.int64[:, :, ::1], nb.int64[:, ::1], nb.int64[::1], nb.int64[:, ::1], nb.int64[::1]),
    boundscheck=False,
)
def lay_out(plan, inputs, spans, remote, stands, starts):
    """Compute the sizes of what collect() fills; returns the number of entries of all stand-ins together.

    Args:
        stands: int64 [K, 3]; written: the first entry of a stand-in among all entries, its capacity (load factor 2/3),
            and its bound: the number of ids read of table k, repeats counted, and one for the key of unknown ids.
        starts: int64 [K + 1]; written: the cumulative bounds.
    """
    stands[:] = 0
    stands[:, 2] = 1
    for f in range(plan.shape[0]):
        kind, source, table, max_length = plan[f, KIND], plan[f, SOURCE], plan[f, TABLE], plan[f, MAX_LENGTH]
        if table < 0 or remote[table] < 0:
            continue
        total = 0
        for r in range(inputs.shape[0]):
            first, rows = spans[r, 0], spans[r, 1]
            if inputs[r, source, ROWS] == 1:
                first, rows = 0, 1
            if kind == KIND_ONE:
                total += rows
                continue
            splits = inputs[r, source, SPLITS]
            for i in range(first, first + rows):
                length = load_i64(splits + 8 * (i + 1)) - load_i64(splits + 8 * i)
                total += min(length, max_length) if max_length > 0 else length
        stands[remote[table], 2] += total
    entries, starts[0] = 0, 0
    for k in range(stands.shape[0]):
        bound = stands[k, 2]
        stands[k, 0], stands[k, 1] = entries, bound + bound // 2 + LINE_ENTRIES
        entries += stands[k, 1]
        starts[k + 1] = starts[k] + bound
    return entries


@inlined  # fmt: skip
def note(key, index, capacity, bound, local_index, local_capacity, meta, epoch, ids, entries, start, count):
    """Enter a key in the stand-in unless it is there; returns the number of keys that wait for a row now.

    Args:
        index: Address of the stand-in, of so many entries and this bound.
        local_index: Address of the table's local index, of so many entries.
        meta: Address of the table's meta.
        wanted: int64, ids to fetch; the key is added if it has no local version.
        entries: int64, addresses of the refs of `ids`; added to likewise.
        start: Position in `ids` of the table's first id.
        count: Number of the table's ids in `ids`.
    """
    e = probe(index, capacity, key)
    if e >= 0:
        return count
    e = -1 - e
    store_i64(index + 16 * e, key)
    slot = np.int64(ELSEWHERE)
    place = probe(local_index, local_capacity, key)
    if place >= 0:
        slot = local(load_acquire(local_index + 16 * place + 8), meta, epoch)
    if slot >= 0:
        store_i64(index + 16 * e + 8, bound + slot)
    elif slot == BURIED:
        store_i64(index + 16 * e + 8, ABSENT)
    else:
        store_i64(index + 16 * e + 8, count)
        ids[start + count] = key
        entries[start + count] = index + 16 * e + 8
        count += 1
    return count


@kernel(
    nb.void(
        nb.int64[:, ::1], nb.int64[:, ::1], nb.int64[:, :, ::1], nb.int64[:, ::1], nb.int64, nb.int64[::1],
        nb.int64[:, ::1], nb.int64[:, ::1], nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64[::1],
    ),
    boundscheck=False,
)  # fmt: skip
def collect(tables, plan, inputs, spans, epoch, remote, index_of_all, stands, starts, ids, entries, counts):
    """Fill the stand-in indexes with every id that the spans read of remote tables, each once.

    Args:
        tables: The published descriptors.
        index_of_all: int64 [entries, 2], memory for the stand-ins of lay_out(); written.
        stands: int64 [K, 3], as written by lay_out(); stands[:, 0] becomes the address of each stand-in.
        starts: int64 [K + 1], as written by lay_out().
        wanted: int64; written: from starts[k] on, counts[k] ids without a local version visible in `epoch`.
        entries: int64; written: the addresses of the refs of `ids`.
        counts: int64 [K]; written: the number of ids to fetch of each table.
    """
    counts[:] = 0
    stood = np.int64(index_of_all.ctypes.data)
    for i in range(index_of_all.shape[0]):
        index_of_all[i, 1] = EMPTY
    for k in range(stands.shape[0]):
        stands[k, 0] = stood + 16 * stands[k, 0]
    for f in range(plan.shape[0]):
        kind, source, column = plan[f, KIND], plan[f, SOURCE], plan[f, COLUMN]
        table, max_length = plan[f, TABLE], plan[f, MAX_LENGTH]
        if table < 0 or remote[table] < 0:
            continue
        k = remote[table]
        index, capacity, bound = stands[k, 0], stands[k, 1], stands[k, 2]
        own, own_capacity, meta = (tables[table, INDEX // 8], tables[table, CAPACITY // 8], tables[table, META // 8])
        start, count = starts[k], counts[k]
        if tables[table, SHARED // 8] != 0:
            key = tables[table, UNKNOWN_KEY // 8]
            count = note(key, index, capacity, bound, own, own_capacity, meta, epoch, ids, entries, start, count)
        for r in range(inputs.shape[0]):
            values, stride, splits = inputs[r, source, VALUES], inputs[r, source, STRIDE], inputs[r, source, SPLITS]
            first, rows = spans[r, 0], spans[r, 1]
            if inputs[r, source, ROWS] == 1:
                first, rows = 0, 1
            for i in range(first, first + rows):
                begin, end = i * stride + column, i * stride + column + 1
                if kind != KIND_ONE:
                    begin, end = load_i64(splits + 8 * i), load_i64(splits + 8 * (i + 1))
                    if max_length > 0:
                        end = min(end, begin + max_length)
                for v in range(begin, end):
                    key = load_i64_anywhere(values + 8 * v)
                    count = note(
                        key, index, capacity, bound, own, own_capacity, meta, epoch, ids, entries, start, count
                    )
        counts[k] = count
