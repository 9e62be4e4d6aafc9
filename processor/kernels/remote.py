"""Kernels for tables whose base rows live in a row store: what a batch reads, the cache of rows, a bucket's bytes.

A remote table's local index holds only what deltas brought (base_rows is 0, a ref is a slot). A batch gets an index of
its own, the stand-in, in which the fused kernel of kernels.pool finds every id that the batch reads:

    ref p < bound           row p of the batch's fetched rows
    ref bound + slot        a local row, in the table's arena
    ABSENT                  a visible tombstone, or an id that has no row: the default row

Statuses of fetched ids: LOST (could not be had), FOUND, NOWHERE (the store has no row for it).
"""

# mypy: ignore-errors

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from processor.kernels.index import ABSENT, EMPTY, LINE_ENTRIES, home, probe
from processor.kernels.pointers import load_acquire, load_i64, load_i64_anywhere, prefetch, store_i64, store_release
from processor.kernels.pool import KIND_ONE
from processor.kernels.rows import CAPACITY, INDEX, META, SETTLED, holder

LOST, FOUND, NOWHERE = 0, 1, 2
BURIED, ELSEWHERE = -3, -4
WAYS = 8
AHEAD = 16
MOST = 127
HAS_ROW = 128
HALVE_EVERY = 16
CACHE_FIELDS = 6
BUCKET_HEADER_NBYTES = 8


@intrinsic
def copy_bytes(typingctx, target, source, nbytes):
    """Copies bytes between addresses that do not overlap, of any alignment."""

    def codegen(context, builder, signature, args):
        pointer = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(a, pointer) for a in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def load_mark(typingctx, address, n):
    """The byte at address + n, as int64."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(builder.add(args[0], args[1]), ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_mark(typingctx, address, n, value):
    """Stores the low byte of a value at address + n."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(builder.add(args[0], args[1]), ir.IntType(8).as_pointer())
        builder.store(builder.trunc(args[2], ir.IntType(8)), pointer)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@nb.njit(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64), cache=True, nogil=True, inline="always")
def put(rows, row_nbytes, scales, number, value, nbytes):
    """Copies a value's row, and its scale if it has one, to their place among others."""
    copy_bytes(rows + number * row_nbytes, value, row_nbytes)
    if nbytes > row_nbytes:
        copy_bytes(scales + 4 * number, value + row_nbytes, 4)


@nb.njit(nb.int64(nb.int64, nb.int64, nb.int64), cache=True, nogil=True, inline="always")
def local(ref, meta, epoch):
    """From a head of a remote table, the slot visible as of an epoch, BURIED, or ELSEWHERE: ask the store.

    kernels.rows.visible answers ABSENT both for a tombstone and for the far end of a chain; here they differ. A settled
    slot keeps its stamp, which says whether it is a tombstone.
    """
    while ref >= 0:
        slot = ref if ref < SETTLED else ref - SETTLED
        stamp = load_i64(meta + 16 * slot)
        if ref >= SETTLED or stamp >> 1 <= epoch:
            return BURIED if stamp & 1 else slot
        ref = load_i64(meta + 16 * ref + 8)
    return ELSEWHERE


@nb.njit(nb.void(nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64[::1]), cache=True, nogil=True)
def settle(table, keys, slots, replaced):
    """kernels.rows.settle for a remote table: tombstones are settled as rows are, where they are.

    replaced[i]: the settled slot that version i had replaced, or -1: nobody can want it any more.
    """
    at = np.int64(table.ctypes.data)
    meta = table[META // 8]
    for i in range(len(keys)):
        own = meta + 16 * slots[i]
        before = load_i64(own + 8)
        replaced[i] = before - SETTLED if before >= SETTLED else -1
        held = holder(at, keys[i], slots[i])
        store_i64(own + 8, ABSENT)
        store_release(held, SETTLED + slots[i])


@nb.njit(nb.int64(nb.int64[::1], nb.int64, nb.int64[::1], nb.int64[::1]), cache=True, nogil=True)
def live(table, epoch, keys, refs):
    """kernels.rows.live for a remote table: the keys that have a row here, and its ref."""
    index, capacity, meta = table[INDEX // 8], table[CAPACITY // 8], table[META // 8]
    count = 0
    for e in range(capacity):
        ref = load_i64(index + 16 * e + 8)
        slot = local(ref, meta, epoch) if ref >= 0 else np.int64(ELSEWHERE)
        if slot >= 0:
            keys[count], refs[count] = load_i64(index + 16 * e), SETTLED + slot
            count += 1
    return count


@nb.njit(
    nb.int64(nb.int64[:, ::1], nb.int64[:, :, ::1], nb.int64[:, ::1], nb.int64[::1], nb.int64[:, ::1], nb.int64[::1]),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def lay_out(plan, inputs, spans, remote, stands, starts):
    """Sizes what collect() fills; returns the entries of all stand-ins together.

    plan, inputs, spans: as kernels.pool.run takes them. remote int64 [T]: a table's k, or -1 for a local one.
    stands int64 [K, 3]: first entry of a stand-in among all entries, its capacity (load 2/3), and its bound: the ids
    read of table k, repeats counted. starts int64 [K + 1]: the bounds, summed up.
    """
    stands[:] = 0
    for f in range(plan.shape[0]):
        kind, slot, table, max_length = plan[f, 0], plan[f, 1], plan[f, 3], plan[f, 5]
        if table < 0 or remote[table] < 0:
            continue
        total = 0
        for r in range(inputs.shape[0]):
            first, rows = spans[r, 0], spans[r, 1]
            if inputs[r, slot, 1] == 1:
                first, rows = 0, 1
            if kind == KIND_ONE:
                total += rows
                continue
            splits = inputs[r, slot, 3]
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


@nb.njit(
    nb.int64(
        nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64[::1],
        nb.int64, nb.int64
    ),
    cache=True,
    nogil=True,
    boundscheck=False,
    inline="always",
)  # fmt: skip
def note(key, index, capacity, bound, local_index, local_capacity, meta, epoch, wanted, entries, start, count):
    """Enters a key in the stand-in unless it is there; returns how many keys wait for a row now."""
    e = probe(index, capacity, key)
    if e >= 0:
        return count
    e = -1 - e
    store_i64(index + 16 * e, key)
    slot = np.int64(ELSEWHERE)
    known = probe(local_index, local_capacity, key)
    if known >= 0:
        slot = local(load_acquire(local_index + 16 * known + 8), meta, epoch)
    if slot >= 0:
        store_i64(index + 16 * e + 8, bound + slot)
    elif slot == BURIED:
        store_i64(index + 16 * e + 8, ABSENT)
    else:
        store_i64(index + 16 * e + 8, count)
        wanted[start + count] = key
        entries[start + count] = index + 16 * e + 8
        count += 1
    return count


@nb.njit(
    nb.void(
        nb.int64[:, ::1],
        nb.int64[:, ::1],
        nb.int64[:, :, ::1],
        nb.int64[:, ::1],
        nb.int64,
        nb.int64[::1],
        nb.int64[:, ::1],
        nb.int64[:, ::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.int64[::1],
    ),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def collect(tables, plan, inputs, spans, epoch, remote, index_of_all, stands, starts, wanted, entries, counts):
    """Fills the stand-in indexes with every id that the spans read of remote tables, each once.

    tables: the published descriptors. index_of_all int64 [entries, 2]: room for the stand-ins of lay_out(), whose
    addresses go to stands[:, 0]. wanted, entries: from starts[k] on, counts[k] ids without a local version visible
    in `epoch`, and the addresses of their refs.
    """
    counts[:] = 0
    stood = np.int64(index_of_all.ctypes.data)
    for i in range(index_of_all.shape[0]):
        index_of_all[i, 1] = EMPTY
    for k in range(stands.shape[0]):
        stands[k, 0] = stood + 16 * stands[k, 0]
    for f in range(plan.shape[0]):
        kind, slot, column, table, max_length = plan[f, 0], plan[f, 1], plan[f, 2], plan[f, 3], plan[f, 5]
        if table < 0 or remote[table] < 0:
            continue
        k = remote[table]
        index, capacity, bound = stands[k, 0], stands[k, 1], stands[k, 2]
        own, own_capacity, meta = tables[table, INDEX // 8], tables[table, CAPACITY // 8], tables[table, META // 8]
        start, count = starts[k], counts[k]
        for r in range(inputs.shape[0]):
            values, stride, splits = inputs[r, slot, 0], inputs[r, slot, 2], inputs[r, slot, 3]
            first, rows = spans[r, 0], spans[r, 1]
            if inputs[r, slot, 1] == 1:
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
                        key, index, capacity, bound, own, own_capacity, meta, epoch, wanted, entries, start, count
                    )
        counts[k] = count


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
                mark = load_mark(marks, way)
                if mark == 0 or load_i64(keys + 8 * way) != key:
                    continue
                if mark & MOST < MOST:
                    store_mark(marks, way, mark + 1)
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
            mark = load_mark(marks, way)
            known |= mark != 0 and load_i64(keys + 8 * way) == ids[i]
            if mark & MOST < least:
                chosen, least = way, mark & MOST
        if known:
            continue
        if least > 0:
            cache[5] += 1
            if cache[5] % HALVE_EVERY == 0:
                for way in range(line, line + WAYS):
                    mark = load_mark(marks, way)
                    store_mark(marks, way, (mark & HAS_ROW) | max(1, (mark & MOST) >> 1))
        store_i64(keys + 8 * chosen, ids[i])
        if status[i] == FOUND:
            copy_bytes(kept + chosen * nbytes, source + i * nbytes, nbytes)
        store_mark(marks, chosen, 1 | (HAS_ROW if status[i] == FOUND else 0))


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


@nb.njit(nb.void(nb.types.Array(nb.int64, 1, "A", readonly=True), nb.int64, nb.int64[::1]), cache=True, nogil=True)
def buckets_of(ids, buckets, out):
    """out[i] = the bucket that ids[i] belongs to."""
    for i in range(len(ids)):
        out[i] = home(ids[i], buckets)


@nb.njit(
    nb.void(
        nb.types.Array(nb.uint8, 1, "C", readonly=True),
        nb.int64[::1],
        nb.int64,
        nb.int64[::1],
        nb.int64[::1],
        nb.uint8[:, ::1],
        nb.uint8[::1],
    ),
    cache=True,
    nogil=True,
    boundscheck=False,
)
def unpack(data, starts, tag, ids, bucket, rows, status):
    """Looks ids up in the buckets that came: status[i], and rows[i] where it is FOUND.

    data: buckets end to end; bucket b is data[starts[b]:starts[b + 1]], empty when it did not come. tag: what the
    bucket's first four bytes have to be. A bucket of any other tag or length is as good as lost.
    """
    source, nbytes = np.int64(data.ctypes.data), rows.shape[1]
    target = np.int64(rows.ctypes.data)
    for i in range(len(ids)):
        status[i] = LOST
        start = starts[bucket[i]]
        size = starts[bucket[i] + 1] - start - BUCKET_HEADER_NBYTES
        if size < 0:
            continue
        header = load_i64_anywhere(source + start)
        count = (header >> 32) & 0xFFFFFFFF
        if header & 0xFFFFFFFF != tag or count * (8 + nbytes) != size:
            continue
        status[i] = NOWHERE
        keys = source + start + BUCKET_HEADER_NBYTES
        for n in range(count):
            if load_i64_anywhere(keys + 8 * n) == ids[i]:
                copy_bytes(target + i * nbytes, keys + 8 * count + n * nbytes, nbytes)
                status[i] = FOUND
                break
