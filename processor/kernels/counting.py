"""Record the figures of a batch in one call: its times, its size and the distribution of its scores.

The kernels allocate nothing and run without the GIL. A block is two arrays that one session writes for one version:
int64 counts and float64 sums, laid out as below. The bin of a number is read off its bits, so recording one is a shift,
a comparison and an addition:

time    two bins per octave from 2^-18 s (3.8 us) to 2^1 s; the first and the last take everything below and above
rows    one bin per octave, from 1 to 4096
score   eight bins per octave of the magnitude from 2^-20 to 2^12, for each sign; one bin for all that is closer to 0
"""

# mypy: ignore-errors

import math

import numba as nb

from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import load_f32, load_f32_bits, load_f64, load_i64, store_f64, store_i64

TIME_LOW, TIME_OCTAVES = -18, 19
TIME_BINS = 2 * TIME_OCTAVES + 2
ROW_BINS = 14
SCORE_LOW, SCORE_OCTAVES = -20, 32
SIGN_BINS = 8 * SCORE_OCTAVES
SCORE_BINS = 1 + 2 * SIGN_BINS

# Counts of a block. For each output: the number of scores that are NaN or infinite, then the bins of the others.
REQUESTS, BATCHES, ROWS, PADDED, FAILED = 0, 1, 2, 3, 4
QUEUE = 5
SPARSE = QUEUE + TIME_BINS
DENSE = SPARSE + TIME_BINS
SIZES = DENSE + TIME_BINS
OUTPUTS = SIZES + ROW_BINS
OUTPUT_COUNTS = 1 + SCORE_BINS
# Sums of a block: seconds, then the sum of the finite scores of each output.
QUEUE_S, SPARSE_S, DENSE_S, SCORES = 0, 1, 2, 3

_FIRST_SCORE_BIN = (127 + SCORE_LOW) << 3


@inlined
def time_bin(seconds):
    """Return the bin of a duration.

    Bin k > 0 begins at 2^LOW, 1.5 * 2^LOW, 2 * 2^LOW, 3 * 2^LOW, 4 * 2^LOW, ... for k = 1, 2, 3, 4, 5, ...
    """
    if not seconds >= 2.0**TIME_LOW:
        return 0
    mantissa, exponent = math.frexp(seconds)
    k = 1 + 2 * (exponent - 1 - TIME_LOW) + (1 if mantissa >= 0.75 else 0)
    return min(k, TIME_BINS - 1)


@inlined
def _count(address, more):
    store_i64(address, load_i64(address) + more)


@inlined
def _sum(address, more):
    store_f64(address, load_f64(address) + more)


@kernel(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64))
def note_scores(counts, sums, output, scores, n):
    """Add the scores of one output, float32 [n] at an address, to a block. The caller keeps every address alive."""
    first, total, lost = counts + 8 * (OUTPUTS + output * OUTPUT_COUNTS), 0.0, 0
    for i in range(n):
        bits = load_f32_bits(scores + 4 * i)
        size = bits & 0x7FFFFFFF
        if size >= 0x7F800000:
            lost += 1
            continue
        total += load_f32(scores + 4 * i)
        k = (size >> 20) - _FIRST_SCORE_BIN
        if k < 0:
            k = 0
        else:
            k = 1 + min(k, SIGN_BINS - 1) + (SIGN_BINS if bits != size else 0)
        _count(first + 8 * (1 + k), 1)
    if lost:
        _count(first, lost)
    _sum(sums + 8 * (SCORES + output), total)


@kernel(nb.void(
        nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.float64, nb.float64, nb.float64
    ))  # fmt: skip
def note_batch(counts, sums, requests, rows, padded, scores, n, queue_s, sparse_s, dense_s):
    """Add a batch to a block, with the scores of its first output; arguments as of note_scores().

    Each request is counted with the mean queueing time, queue_s; sparse_s and dense_s are seconds in the graphs.
    """
    _count(counts + 8 * REQUESTS, requests)
    _count(counts + 8 * BATCHES, 1)
    _count(counts + 8 * ROWS, rows)
    _count(counts + 8 * PADDED, padded)
    _count(counts + 8 * (QUEUE + time_bin(queue_s)), requests)
    _count(counts + 8 * (SPARSE + time_bin(sparse_s)), 1)
    _count(counts + 8 * (DENSE + time_bin(dense_s)), 1)
    k, size = 0, rows
    while size > 1 and k < ROW_BINS - 1:
        size = (size + 1) >> 1
        k += 1
    _count(counts + 8 * (SIZES + k), 1)
    _sum(sums + 8 * QUEUE_S, queue_s * requests)
    _sum(sums + 8 * SPARSE_S, sparse_s)
    _sum(sums + 8 * DENSE_S, dense_s)
    note_scores(counts, sums, 0, scores, n)


@kernel(nb.int64(nb.int64, nb.int64))
def first_lost(scores, n):
    """Return the position of the first of float32 [n] at an address that is NaN or infinite, or -1 if there is none."""
    for i in range(n):
        if load_f32_bits(scores + 4 * i) & 0x7FFFFFFF >= 0x7F800000:
            return i
    return -1
