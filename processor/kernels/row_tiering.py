"""The tiers of a table with a memory budget: move rows between arena, file and log, and rank them.

All of it belongs to the writer; readers count lookups (kernels.lookup_notes). A row is moved by writing its copy where
no head points, then replacing the old ref wherever it is held with one release store: readers meet either, and both are
the same row. Memory given up in this way may be read until every reader has met a later flip.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.index import probe
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.lookup_notes import MOST_HITS
from freshet_serving.processor.kernels.pointers import (
    copy_bytes,
    load_f32,
    load_i64,
    store_f32,
    store_i32,
    store_i64,
    store_release,
)
from freshet_serving.processor.kernels.row_stamps import UNKNOWN_STAMP, stamp_at
from freshet_serving.processor.kernels.rows import (
    BASE_ROWS,
    CAPACITY,
    DTYPE,
    INDEX,
    LOG,
    LOG_EPOCH,
    LOG_KEY,
    LOG_ROW,
    LOG_SCALE,
    LOGGED,
    META,
    RECORD_NBYTES,
    ROW_NBYTES,
    SETTLED,
    TIERED,
    holder,
    row_at,
    scale_at,
)
from freshet_serving.processor.package import SCALED


@kernel(
    nb.int64(nb.int64[::1], nb.int64[::1], nb.uint8[::1], nb.int64[::1], nb.int64[::1], nb.boolean[::1], nb.uint8[::1])
)
def promote(table, keys, counts, slots, slot_keys, settled, hits):
    """Copy the cold rows among `keys` into free slots, in order; return the number of slots used.

    A key whose head is a version or a settled slot is skipped. Of all slots, slot_keys (int64), settled (bool) and hits
    (uint8, from `counts` of the keys' recent reads) are written.
    """
    at = np.int64(table.ctypes.data)
    index, capacity, base_rows = table[INDEX // 8], table[CAPACITY // 8], table[BASE_ROWS // 8]
    meta, nbytes, scaled = table[META // 8], table[ROW_NBYTES // 8], table[DTYPE // 8] % TIERED >= SCALED
    used = 0
    for i in range(len(keys)):
        e = probe(index, capacity, keys[i])
        if e < 0:
            continue
        ref = load_i64(index + 16 * e + 8)
        if ref < 0 or (ref >= base_rows and ref < LOGGED):
            continue
        slot = slots[used]
        copy_bytes(row_at(at, SETTLED + slot), row_at(at, ref), nbytes)
        if scaled:
            store_f32(scale_at(at, SETTLED + slot), load_f32(scale_at(at, ref)))
        store_i64(meta + 16 * slot, 2 * stamp_at(at, ref))
        store_i64(meta + 16 * slot + 8, ref)
        slot_keys[slot], settled[slot], hits[slot] = keys[i], True, counts[i]
        store_release(index + 16 * e + 8, SETTLED + slot)
        used += 1
    return used


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64, nb.int64[::1]))
def record(table, keys, refs, number, written):
    """Write the rows at `refs` as records number, number + 1, ... of the log, where no ref points yet.

    The refs of these records are written to `written`, int64 [n].
    """
    at = np.int64(table.ctypes.data)
    nbytes, scaled = table[ROW_NBYTES // 8], table[DTYPE // 8] % TIERED >= SCALED
    to = table[LOG // 8] + number * table[RECORD_NBYTES // 8]
    for i in range(len(keys)):
        store_i64(to + LOG_KEY, keys[i])
        if scaled:
            store_f32(to + LOG_SCALE, load_f32(scale_at(at, refs[i])))
        store_i32(to + LOG_EPOCH, min(stamp_at(at, refs[i]), UNKNOWN_STAMP))
        copy_bytes(to + LOG_ROW, row_at(at, refs[i]), nbytes)
        to += table[RECORD_NBYTES // 8]
        written[i] = LOGGED + number + i


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64[::1]))
def repoint(table, keys, refs, new_refs):
    """Replace refs[i] of keys[i] by new_refs[i], which refers to the same row, wherever it is held."""
    at = np.int64(table.ctypes.data)
    for i in range(len(keys)):
        store_release(holder(at, keys[i], refs[i]), new_refs[i])


@kernel(nb.int64(nb.int64[::1], nb.int64, nb.int64, nb.int64[::1], nb.int64[::1]))
def survivors(table, first, stop, keys, refs):
    """Write the keys and refs of the records in [first, stop) that are still referenced; return their number."""
    at = np.int64(table.ctypes.data)
    count = 0
    for number in range(first, stop):
        key = load_i64(table[LOG // 8] + number * table[RECORD_NBYTES // 8] + LOG_KEY)
        if holder(at, key, LOGGED + number) != 0:
            keys[count], refs[count] = key, LOGGED + number
            count += 1
    return count


@inlined
def _cell(key, row, width):
    z = np.uint64(key) + np.uint64(row + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((z ^ (z >> np.uint64(31))) & np.uint64(width - 1))


@kernel(nb.void(nb.uint8[:, ::1], nb.int64[::1], nb.uint8[::1]))
def count_up(sketch, keys, counts):
    """Count each key once in a count-min sketch, uint8 [rows, 2**k], and write the new estimates as estimate() does."""
    for i in range(len(keys)):
        least = np.int64(MOST_HITS)
        for row in range(sketch.shape[0]):
            least = min(least, np.int64(sketch[row, _cell(keys[i], row, sketch.shape[1])]))
        counts[i] = min(least + 1, MOST_HITS)
        for row in range(sketch.shape[0]):
            cell = _cell(keys[i], row, sketch.shape[1])
            sketch[row, cell] = max(sketch[row, cell], counts[i])


@kernel(nb.void(nb.uint8[:, ::1], nb.int64[::1], nb.uint8[::1]))
def estimate(sketch, keys, counts):
    """Write a sketch's estimates of each key's count, uint8 [n].

    They are too high if other keys share its cells, at most MOST_HITS.
    """
    for i in range(len(keys)):
        least = np.int64(MOST_HITS)
        for row in range(sketch.shape[0]):
            least = min(least, np.int64(sketch[row, _cell(keys[i], row, sketch.shape[1])]))
        counts[i] = least


@kernel(nb.int64(nb.boolean[::1], nb.int64, nb.int64, nb.int64[::1]))
def gather_settled(settled, start, stop, slots):
    """Write up to len(slots) settled slots from `start` on, wrapping at `stop`; return their number."""
    count = 0
    for i in range(stop):
        slot = start + i if start + i < stop else start + i - stop
        if settled[slot]:
            slots[count] = slot
            count += 1
            if count == len(slots):
                break
    return count
