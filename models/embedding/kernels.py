"""Training kernels: gradients from pooled columns back to rows, and the optimizers that update rows.

The counterpart of serving's kernel (processor.kernels.pool). All run without the GIL and are deterministic:
contributions are added in the order of the batch.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.index import BLOCK, home, probe_from
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import load_i64, prefetch, store_i64
from freshet_serving.processor.kernels.rows import prefetch_row
from freshet_serving.processor.package import DIVIDED_SUMS, NOT_COMBINED, ROOT_DIVIDED_SUMS

ADAGRAD_EPSILON = 1e-7
MOST_COUNTED = 65535
AHEAD = 8
"""Rows that an optimizer prefetches ahead."""
ADAM_BETA_1, ADAM_BETA_2, ADAM_EPSILON = 0.9, 0.999, 1e-7
RATE, STEP, INITIAL_ACCUMULATOR, L1, L2, BETA, WEIGHT_DECAY, ACCUMULATOR_DECAY, DECAY_STEPS = range(9)
"""Indices of an optimizer's options: the rate, the step of the run, and the fields of RowOptions in order."""

_I64 = nb.types.Array(nb.int64, 1, "A", readonly=True)
_STRIDED = nb.types.Array(nb.float32, 2, "A", readonly=True)
_F32_2 = nb.types.Array(nb.float32, 2, "C", readonly=True)


@kernel(
    nb.int64(
        _I64,
        _I64,
        _I64,
        _I64,
        nb.int64,
        nb.int64,
        nb.int64,
        _F32_2,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int32[::1],
        nb.int64[::1],
        nb.float32[:, ::1],
        nb.int64[::1],
        nb.int64,
    ),
    error_model="numpy",
)
def accumulate(
    refs, splits, rows, times, combiner, max_length, codes, grad, column, part, parts, place, touched, sums, met, count
):
    """Add one feature's gradient to the rows that it read.

    Args:
        refs: Row numbers of the feature's values; negative values have no row, and their gradient is dropped.
        splits: int64 [batch rows + 1], or [0] for one value a row.
        rows: int64 [n], the row of the batch whose values each row of `grad` is for.
        times: int64 [n], the number of rows of the batch that have these values.
        max_length: As in the feature's plan (processor.kernels.pool), and `codes`.
        grad: float32 [n, _], the feature's columns starting at `column`.
        column: First column of the feature in `grad`.
        part: Only rows with number = part modulo `parts` are updated.
        place: int32 by row number, the row's index in `touched`, or -1.
        touched: Row numbers, the first `count` in use.
        sums: float32 [_, dim], gradients of the touched rows.
        met: int64 [_], number of times each was read.
        count: Number of touched rows so far; returned with the new ones.
    """
    for i in range(len(grad)):
        start, stop = rows[i], rows[i] + 1
        if len(splits) > 1:
            start, stop = splits[rows[i]], splits[rows[i] + 1]
            if max_length > 0:
                stop = min(stop, start + max_length)
        share = np.float32(1.0)
        length = (stop - start) // codes
        if combiner in DIVIDED_SUMS and length > 1:
            share = np.float32(length)
            if combiner in ROOT_DIVIDED_SUMS:
                share = np.sqrt(share)
        for v in range(start, stop):
            ref = refs[v]
            if ref < 0 or (parts > 1 and ref % parts != part):
                continue
            at = place[ref]
            if at < 0:
                at = count
                place[ref] = at
                touched[at] = ref
                sums[at, :] = 0.0
                met[at] = 0
                count += 1
            met[at] += times[i]
            first = column + ((v - start) // codes * sums.shape[1] if combiner == NOT_COMBINED else 0)
            for j in range(sums.shape[1]):
                sums[at, j] += grad[i, first + j] / share
    return count


@inlined
def ask_for_entries(address, capacity, ids, first, starts):
    """Prefetch the index entries where the probes of a block of ids begin, into `starts`; return the block's size."""
    block = min(BLOCK, len(ids) - first)
    for i in range(block):
        starts[i] = home(ids[first + i], capacity)
        prefetch(address + 16 * starts[i])
    return block


@kernel(nb.types.UniTuple(nb.int64, 2)(nb.int64, nb.int64, _I64, nb.int64[::1], nb.int64[::1], nb.int64[::1]))
def give_rows(address, capacity, ids, numbers, keys, refs):
    """Look up or create rows: refs[i] is the row number of ids[i], taken in order from `numbers` if it had none.

    The index at `address` has room for all ids; `keys` by row number gets the ids of new rows. Return the numbers of
    row numbers taken and of index entries claimed.
    """
    starts = np.empty(BLOCK, np.int64)
    taken, claimed = 0, 0
    for first in range(0, len(ids), BLOCK):
        for i in range(ask_for_entries(address, capacity, ids, first, starts)):
            key = ids[first + i]
            e = probe_from(address, capacity, key, starts[i])
            if e < 0:
                e = -1 - e
                store_i64(address + 16 * e, key)
                claimed += 1
            elif load_i64(address + 16 * e + 8) >= 0:
                refs[first + i] = load_i64(address + 16 * e + 8)
                continue
            store_i64(address + 16 * e + 8, numbers[taken])
            keys[numbers[taken]] = key
            refs[first + i] = numbers[taken]
            taken += 1
    return taken, claimed


@kernel(nb.int64(nb.int64, nb.int64, _I64, nb.int64[::1], nb.int64))
def collect(address, capacity, ids, distinct, count):
    """Add to `distinct`, whose first `count` are in use and in the index, further ids; return the new count."""
    starts = np.empty(BLOCK, np.int64)
    for first in range(0, len(ids), BLOCK):
        for i in range(ask_for_entries(address, capacity, ids, first, starts)):
            e = probe_from(address, capacity, ids[first + i], starts[i])
            if e < 0:
                store_i64(address + 16 * (-1 - e), ids[first + i])
                store_i64(address + 16 * (-1 - e) + 8, count)
                distinct[count] = ids[first + i]
                count += 1
    return count


@kernel(nb.void(nb.int32[::1], nb.int64[::1]))
def forget(place, touched):
    """Reset `place` of touched rows to -1 for the next batch."""
    for ref in touched:
        place[ref] = -1


@kernel(nb.void(nb.float32[:, ::1], nb.float64))
def clip_rows(sums, norm):
    """Scale gradients [m, dim] with a larger L2 norm down to `norm`, in place."""
    for i in range(len(sums)):
        squares = 0.0
        for j in range(sums.shape[1]):
            squares += np.float64(sums[i, j]) * np.float64(sums[i, j])
        if squares > norm * norm:
            factor = np.float32(norm / np.sqrt(squares))
            for j in range(sums.shape[1]):
                sums[i, j] *= factor


@kernel(nb.void(_STRIDED, _I64, nb.float64[::1]))
def norms(rows, refs, found):
    """Set found[i] to the L2 norm of row refs[i], accumulated in float64."""
    for i in range(len(refs)):
        total = 0.0
        for j in range(rows.shape[1]):
            value = np.float64(rows[refs[i], j])
            total += value * value
        found[i] = np.sqrt(total)


@inlined
def _mixed(z):
    """splitmix64's finaliser."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def _hash(key):
    """Hash a key as an index does (processor.kernels.index.home)."""
    return _mixed(np.uint64(key) + np.uint64(0x9E3779B97F4A7C15))


@inlined
def shard_of(key, count):
    """Return the shard of an id (models.embedding.id_shards); `count` is a power of two."""
    return np.int64(_hash(key) & np.uint64(count - 1))


@kernel(nb.void(_I64, nb.int64, nb.int64[::1]))
def shards(ids, count, found):
    """Set found[i] to the shard of ids[i]; `count` is a power of two."""
    for i in range(len(ids)):
        found[i] = shard_of(ids[i], count)


@kernel(
    nb.void(
        _I64,
        _I64,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.int64,
        nb.uint16[::1],
        nb.int64,
        nb.boolean[::1],
        nb.int64[::1],
    )
)
def count_ids(ids, counts, hashes, count, first_shard, each, counters, block_counters, touched, least):
    """Add counts[i] to the counters of ids[i], and set least[i] to the resulting upper bound of its occurrences.

    Only the counters below that bound are raised (conservative update). Counters saturate at MOST_COUNTED.

    Args:
        hashes: Number of counters of an id.
        count: Number of shards.
        first_shard: First shard in `counters`.
        each: Number of counters of a shard, shared by its ids.
        block_counters: Number of counters of a block.
        touched: bool by block; set for blocks with raised counters.
    """
    size = np.uint64(each)
    at = np.empty(hashes, np.int64)
    for i in range(len(ids)):
        first = _hash(ids[i])
        second = _mixed(first) | np.uint64(1)
        start = (np.int64(first & np.uint64(count - 1)) - first_shard) * each
        bound = np.int64(MOST_COUNTED)
        for h in range(hashes):
            bits = _mixed(first + np.uint64(h) * second)
            at[h] = start + np.int64(((bits >> np.uint64(32)) * size) >> np.uint64(32))
            bound = min(bound, np.int64(counters[at[h]]))
        bound = min(np.int64(MOST_COUNTED), bound + counts[i])
        least[i] = bound
        for h in range(hashes):
            if counters[at[h]] < bound:
                counters[at[h]] = bound
                touched[at[h] // block_counters] = True


@inlined
def _ask_for(address, row, nbytes):
    prefetch_row(address + row * nbytes, nbytes)


@inlined
def _look_ahead(touched, i, rows, slots):
    if i + AHEAD < len(touched):
        _ask_for(rows.ctypes.data, touched[i + AHEAD], 4 * rows.shape[1])
        _ask_for(slots.ctypes.data, touched[i + AHEAD], 4 * slots.shape[1])


@kernel(nb.void(nb.float32[:, ::1], _I64, nb.float32[:, ::1]))
def copy_rows(rows, refs, copies):
    """Set copies[i] to row refs[i], or zeros if refs[i] is negative."""
    for i in range(len(refs)):
        if i + AHEAD < len(refs) and refs[i + AHEAD] >= 0:
            _ask_for(rows.ctypes.data, refs[i + AHEAD], 4 * rows.shape[1])
        ref = refs[i]
        # Copy by element: a slice costs as much as the row.
        for j in range(rows.shape[1]):
            copies[i, j] = rows[ref, j] if ref >= 0 else np.float32(0.0)


@kernel(nb.void(nb.int64[::1], nb.int64[::1], nb.int64, nb.int64[:, ::1], nb.boolean[::1]))
def note(touched, met, step, books, changed):
    """Record that rows `touched` were read `met` times in a step: books [_, 2] are last step and count."""
    for i in range(len(touched)):
        r = touched[i]
        books[r, 0] = step
        books[r, 1] += met[i]
        changed[r] = True


# Optimizers take: touched, row numbers int64 [m]; sums, gradients float32 [m, dim]; rows float32 [_, dim]; slots, as
# each says; options, float64: the rate, the step, and the fields of RowOptions.
_optimizer = kernel(
    nb.void(nb.int64[::1], nb.float32[:, ::1], nb.float32[:, ::1], nb.float32[:, ::1], nb.float64[::1]),
    error_model="numpy",
)


@_optimizer
def sgd(touched, sums, rows, slots, options):
    """Apply gradient descent; no slots."""
    rate = np.float32(options[RATE])
    for i in range(len(touched)):
        _look_ahead(touched, i, rows, slots)
        for j in range(rows.shape[1]):
            rows[touched[i], j] -= rate * sums[i, j]


@_optimizer
def adagrad(touched, sums, rows, slots, options):
    """Apply Adagrad as Keras computes it; slots are accumulators [_, dim]."""
    rate = np.float32(options[RATE])
    for i in range(len(touched)):
        _look_ahead(touched, i, rows, slots)
        r = touched[i]
        for j in range(rows.shape[1]):
            g = sums[i, j]
            slots[r, j] += g * g
            rows[r, j] -= rate * g / np.sqrt(slots[r, j] + np.float32(ADAGRAD_EPSILON))


@_optimizer
def adagrad_decay(touched, sums, rows, slots, options):
    """Apply DeepRec's AdagradDecay; slots are accumulators and the number of decays applied [_, dim + 1].

    Every decay_steps of the run an accumulator keeps the fraction accumulator_decay of itself, but never falls below
    its initial value.
    """
    dim = rows.shape[1]
    rate, least = np.float32(options[RATE]), np.float32(options[INITIAL_ACCUMULATOR])
    due = np.floor(options[STEP] / options[DECAY_STEPS])
    for i in range(len(touched)):
        _look_ahead(touched, i, rows, slots)
        r = touched[i]
        left = np.float32(options[ACCUMULATOR_DECAY] ** max(0.0, due - slots[r, dim]))
        slots[r, dim] = np.float32(due)
        for j in range(dim):
            g = sums[i, j]
            slots[r, j] = max(slots[r, j] * left, least) + g * g
            rows[r, j] -= rate * g / np.sqrt(slots[r, j])


@inlined
def _adam(r, i, sums, rows, slots, rate):
    dim = rows.shape[1]
    slots[r, 2 * dim] += np.float32(1.0)
    steps = np.float64(slots[r, 2 * dim])
    alpha = np.float32(rate * np.sqrt(1.0 - ADAM_BETA_2**steps) / (1.0 - ADAM_BETA_1**steps))
    for j in range(dim):
        g = sums[i, j]
        slots[r, j] += (g - slots[r, j]) * np.float32(1.0 - ADAM_BETA_1)
        slots[r, dim + j] += (g * g - slots[r, dim + j]) * np.float32(1.0 - ADAM_BETA_2)
        rows[r, j] -= slots[r, j] * alpha / (np.sqrt(slots[r, dim + j]) + np.float32(ADAM_EPSILON))


@_optimizer
def adam(touched, sums, rows, slots, options):
    """Apply lazy Adam: Keras' formula with the row's own step count; slots are m, v and steps [_, 2 * dim + 1]."""
    rate = np.float32(options[RATE])
    for i in range(len(touched)):
        _look_ahead(touched, i, rows, slots)
        _adam(touched[i], i, sums, rows, slots, rate)


@_optimizer
def adamw(touched, sums, rows, slots, options):
    """Apply lazy Adam after a decoupled weight decay, as Keras' AdamW does, both only to touched rows."""
    rate = np.float32(options[RATE])
    decay = np.float32(options[RATE] * options[WEIGHT_DECAY])
    for i in range(len(touched)):
        _look_ahead(touched, i, rows, slots)
        for j in range(rows.shape[1]):
            rows[touched[i], j] -= rows[touched[i], j] * decay
        _adam(touched[i], i, sums, rows, slots, rate)


@_optimizer
def ftrl(touched, sums, rows, slots, options):
    """Apply FTRL-proximal as Keras computes it; slots are accumulator and linear term [_, 2 * dim]."""
    dim = rows.shape[1]
    rate, l1, beta = np.float32(options[RATE]), np.float32(options[L1]), np.float32(options[BETA])
    twice_l2 = np.float32(2.0 * options[L2])
    for i in range(len(touched)):
        _look_ahead(touched, i, rows, slots)
        r = touched[i]
        for j in range(dim):
            g = sums[i, j]
            before = np.sqrt(slots[r, j])
            slots[r, j] += g * g
            after = np.sqrt(slots[r, j])
            slots[r, dim + j] += g - (after - before) / rate * rows[r, j]
            linear = slots[r, dim + j]
            rows[r, j] = (min(max(linear, -l1), l1) - linear) / ((after + beta) / rate + twice_l2)
