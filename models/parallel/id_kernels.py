"""Numba kernels for a training step over several processes. All run without the GIL and are deterministic."""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.models.embedding.kernels import AHEAD, ask_for_entries, shard_of
from freshet_serving.processor.kernels.index import BLOCK, EMPTY, probe_from
from freshet_serving.processor.kernels.kernel import kernel
from freshet_serving.processor.kernels.pointers import load_i64, prefetch, store_i64

_I64 = nb.types.Array(nb.int64, 1, "A", readonly=True)
_F32_2 = nb.types.Array(nb.float32, 2, "A", readonly=True)


@kernel(
    nb.int64(
        nb.int64,
        nb.int64,
        _I64,
        nb.int64,
        nb.int64,
        nb.int64[::1],
        nb.int64[::1],
        nb.int64[:, ::1],
        nb.int64[::1],
        nb.int64[::1],
    )
)
def distinct(address, capacity, ids, shards, processes, found, times, scratch, refs, ends):
    """Find the distinct ids, grouped by owning process; return their number.

    Args:
        address: Address of an empty index with room for all ids; on return it maps each id to its position.
        ids: int64 [n], the ids of the batch.
        shards: Number of shards (models.embedding.id_shards).
        found: Output: the distinct ids, grouped by process, within one in order of first occurrence.
        times: Output: their occurrences.
        scratch: int64 [4, n], working memory.
        refs: Output: refs[i] is the position of ids[i] among the distinct ids.
        ends: Output, int64 [processes + 1]: where the ids of each process begin.
    """
    starts = np.empty(BLOCK, np.int64)
    entries, first_ids, owners, places = scratch[0], scratch[1], scratch[2], scratch[3]
    count = 0
    ends[:] = 0
    for first in range(0, len(ids), BLOCK):
        for i in range(ask_for_entries(address, capacity, ids, first, starts)):
            key = ids[first + i]
            e = probe_from(address, capacity, key, starts[i])
            if e < 0:
                e = -1 - e
                store_i64(address + 16 * e, key)
                store_i64(address + 16 * e + 8, count)
                entries[count], first_ids[count] = e, key
                owners[count] = shard_of(key, shards) * processes // shards
                places[count] = 0
                ends[owners[count] + 1] += 1
                count += 1
            at = load_i64(address + 16 * e + 8)
            refs[first + i] = at
            places[at] += 1
    for p in range(processes):
        ends[p + 1] += ends[p]
    for n in range(count):
        at = ends[owners[n]]
        ends[owners[n]] += 1
        found[at], times[at] = first_ids[n], places[n]
        places[n] = at
        store_i64(address + 16 * entries[n] + 8, at)
    for p in range(processes, 0, -1):
        ends[p] = ends[p - 1]
    ends[0] = 0
    for i in range(len(ids)):
        refs[i] = places[refs[i]]
    return count


@kernel(nb.void(nb.int64, _I64))
def clear(address, entries):
    """Empty an index whose `entries` are in use."""
    for e in entries:
        store_i64(address + 16 * e + 8, EMPTY)


@kernel(
    nb.int64(
        _I64,
        _I64,
        _F32_2,
        nb.int64,
        nb.int64,
        nb.int32[::1],
        nb.int64[::1],
        nb.float32[:, ::1],
        nb.int64[::1],
        nb.int64,
    )
)
def add_up(refs, times, gradients, part, parts, place, touched, sums, met, count):
    """Add one process's gradients to the sums of their rows, but for rows not read or without a number.

    Other arguments, and the result, are as for models.embedding.kernels.accumulate.

    Args:
        refs: int64 [n], row numbers.
        times: int64 [n], how often the process read each row.
        gradients: float32 [n, dim].
    """
    for i in range(len(refs)):
        if i + AHEAD < len(refs) and refs[i + AHEAD] >= 0:
            prefetch(place.ctypes.data + 4 * refs[i + AHEAD])
        ref = refs[i]
        if ref < 0 or times[i] == 0 or (parts > 1 and ref % parts != part):
            continue
        at = place[ref]
        if at < 0:
            at = count
            place[ref] = at
            touched[at] = ref
            met[at] = times[i]
            count += 1
            for j in range(sums.shape[1]):
                sums[at, j] = gradients[i, j]
            continue
        met[at] += times[i]
        for j in range(sums.shape[1]):
            sums[at, j] += gradients[i, j]
    return count
