"""Training's own kernels: gradients from pooled columns back to rows, and the optimizers that move rows.

The forward pass is serving's kernel (processor.kernels.pool); these are its mirror. All run without the GIL and are
deterministic: contributions are added in the order of the batch.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from processor.kernels.pool import MEAN, NONE, SQRTN

ADAGRAD_EPSILON = 1e-7
ADAM_BETA_1, ADAM_BETA_2, ADAM_EPSILON = 0.9, 0.999, 1e-7

_I64 = nb.types.Array(nb.int64, 1, "A", readonly=True)
_F32_2 = nb.types.Array(nb.float32, 2, "A", readonly=True)


@nb.njit(
    nb.int64(_I64, _I64, nb.int64, nb.int64, _F32_2, nb.int32[::1], nb.int64[::1], nb.float32[:, ::1], nb.int64),
    cache=True,
    nogil=True,
)
def accumulate(refs, splits, combiner, max_length, grad, place, touched, sums, count):
    """Adds one feature's gradient to the rows that it read; returns how many distinct rows there are now.

    refs: row numbers of the feature's values. splits: int64 [n + 1], or [0] for one value a row. grad: float32
    [n, width], of the feature's columns. place: int32 by row number, -1 where the row is not in `touched` yet.
    touched: row numbers, the first `count` of them in use. sums: float32 [_, dim], their gradients.
    """
    for i in range(len(grad)):
        start, stop = i, i + 1
        if len(splits) > 1:
            start, stop = splits[i], splits[i + 1]
            if max_length > 0:
                stop = min(stop, start + max_length)
        share = np.float32(1.0)
        if combiner in (MEAN, SQRTN) and stop - start > 1:
            share = np.float32(stop - start)
            if combiner == SQRTN:
                share = np.sqrt(share)
        for v in range(start, stop):
            ref = refs[v]
            at = place[ref]
            if at < 0:
                at = count
                place[ref] = at
                touched[at] = ref
                sums[at, :] = 0.0
                count += 1
            first = (v - start) * sums.shape[1] if combiner == NONE else 0
            for j in range(sums.shape[1]):
                sums[at, j] += grad[i, first + j] / share
    return count


@nb.njit(nb.void(nb.int32[::1], nb.int64[::1]), cache=True, nogil=True)
def forget(place, touched):
    """Resets `place` for the next batch."""
    for ref in touched:
        place[ref] = -1


@nb.njit(
    nb.void(nb.int64[::1], nb.float32[:, ::1], nb.float32[:, ::1], nb.float32[:, ::1], nb.float32),
    cache=True,
    nogil=True,
)
def adagrad(touched, sums, rows, slots, rate):
    """Adagrad as Keras computes it. slots: [_, dim] accumulators."""
    for i in range(len(touched)):
        r = touched[i]
        for j in range(rows.shape[1]):
            g = sums[i, j]
            slots[r, j] += g * g
            rows[r, j] -= rate * g / np.sqrt(slots[r, j] + np.float32(ADAGRAD_EPSILON))


@nb.njit(
    nb.void(nb.int64[::1], nb.float32[:, ::1], nb.float32[:, ::1], nb.float32[:, ::1], nb.float32),
    cache=True,
    nogil=True,
)
def adam(touched, sums, rows, slots, rate):
    """Lazy Adam: Keras' formula with the row's own step count. slots: [_, 2 * dim + 1]: m, v, steps of the row."""
    dim = rows.shape[1]
    for i in range(len(touched)):
        r = touched[i]
        slots[r, 2 * dim] += np.float32(1.0)
        steps = np.float64(slots[r, 2 * dim])
        alpha = np.float32(rate * np.sqrt(1.0 - ADAM_BETA_2**steps) / (1.0 - ADAM_BETA_1**steps))
        for j in range(dim):
            g = sums[i, j]
            slots[r, j] += (g - slots[r, j]) * np.float32(1.0 - ADAM_BETA_1)
            slots[r, dim + j] += (g * g - slots[r, dim + j]) * np.float32(1.0 - ADAM_BETA_2)
            rows[r, j] -= slots[r, j] * alpha / (np.sqrt(slots[r, dim + j]) + np.float32(ADAM_EPSILON))


@nb.njit(
    nb.void(nb.int64[::1], nb.float32[:, ::1], nb.float32[:, ::1], nb.float32[:, ::1], nb.float32),
    cache=True,
    nogil=True,
)
def ftrl(touched, sums, rows, slots, rate):
    """FTRL-proximal as Keras computes it, without regularisation. slots: [_, 2 * dim]: accumulator, linear."""
    dim = rows.shape[1]
    for i in range(len(touched)):
        r = touched[i]
        for j in range(dim):
            g = sums[i, j]
            before = np.sqrt(slots[r, j])
            slots[r, j] += g * g
            after = np.sqrt(slots[r, j])
            slots[r, dim + j] += g - (after - before) / rate * rows[r, j]
            rows[r, j] = -slots[r, dim + j] * rate / after
