"""Counts what a batch was like, in one call: where its time went, its size, how its scores lie. No allocation, no GIL.

A block is two arrays that one session writes for one version: int64 counts and float64 sums, laid out as below. Bins
are read off the bits of a number, so that noting one is a shift, a comparison and an addition:

time    two bins an octave from 2^-18 s (3.8 us) to 2^1 s, the first and the last for all below and above
rows    an octave each, from 1 to 4096
score   eight bins an octave of its size from 2^-20 to 2^12, for either sign; one for all that is closer to 0
"""

# mypy: ignore-errors

import math

import numba as nb

from freshet_serving.processor.kernels.pointers import load_f32, load_f32_bits, load_f64, load_i64, store_f64, store_i64

TIME_LOW, TIME_OCTAVES = -18, 19
TIME_BINS = 2 * TIME_OCTAVES + 2
ROW_BINS = 14
SCORE_LOW, SCORE_OCTAVES = -20, 32
SIGN_BINS = 8 * SCORE_OCTAVES
SCORE_BINS = 1 + 2 * SIGN_BINS

# Counts of a block. Each output: how many scores are NaN or infinite, then the bins of the others.
REQUESTS, BATCHES, ROWS, PADDED, FAILED = 0, 1, 2, 3, 4
QUEUE = 5
SPARSE = QUEUE + TIME_BINS
DENSE = SPARSE + TIME_BINS
SIZES = DENSE + TIME_BINS
OUTPUTS = SIZES + ROW_BINS
OUTPUT_COUNTS = 1 + SCORE_BINS
# Its sums: seconds, then one of the finite scores of each output.
QUEUE_S, SPARSE_S, DENSE_S, SCORES = 0, 1, 2, 3

_FIRST_SCORE_BIN = (127 + SCORE_LOW) << 3


@nb.njit(nb.int64(nb.float64), cache=True, nogil=True, inline="always")
def time_bin(seconds):
    """Bin k > 0 holds [2^(LOW + (k - 1) / 2), ...) in steps of 1, 1.5, 2, 3, 4, ... times 2^LOW."""
    if not seconds >= 2.0**TIME_LOW:
        return 0
    mantissa, exponent = math.frexp(seconds)
    k = 1 + 2 * (exponent - 1 - TIME_LOW) + (1 if mantissa >= 0.75 else 0)
    return min(k, TIME_BINS - 1)


@nb.njit(nb.void(nb.int64, nb.int64), cache=True, nogil=True, inline="always")
def _count(address, more):
    store_i64(address, load_i64(address) + more)


@nb.njit(nb.void(nb.int64, nb.float64), cache=True, nogil=True, inline="always")
def _sum(address, more):
    store_f64(address, load_f64(address) + more)


@nb.njit(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64), cache=True, nogil=True)
def note_scores(counts, sums, output, scores, n):
    """Adds n scores of one output: float32 at an address. Every address is the caller's to keep alive."""
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


@nb.njit(
    nb.void(
        nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.float64, nb.float64, nb.float64
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def note_batch(counts, sums, requests, rows, padded, scores, n, queue_s, sparse_s, dense_s):
    """Adds a batch, and the n scores of its first output. queue_s: the mean wait of its requests, each of which counts
    with it."""
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


@nb.njit(nb.int64(nb.int64, nb.int64), cache=True, nogil=True)
def first_lost(scores, n):
    """The place of the first of n scores (float32 at an address) that is NaN or infinite; -1 where there is none."""
    for i in range(n):
        if load_f32_bits(scores + 4 * i) & 0x7FFFFFFF >= 0x7F800000:
            return i
    return -1
