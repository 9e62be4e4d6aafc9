"""Scan int8 codes of a table's rows for those whose products with given vectors are largest, exactly.

A row x is kept as codes c, whole numbers from -127 to 127, and a scale s: x_j = s (c_j + r_j) with |r_j| <= 1/2. A
vector q is kept as whole numbers z of 16 bits and a step t: q_j = t (z_j + e_j) with |e_j| <= 1/2. So

    <q, x> <= s (t <z, c> + slack),  slack = sum |q_j| / 2 + 127 t columns / 2, and a little for the rounding of floats

holds for every row. A row whose bound is below the worst of the best rows so far is none of the best. All others are
read from the table as of the epoch, and their products are computed: the answer is exact to the bit, whatever the codes
are worth. (As FAISS' IndexRefine and Vespa's rescoring do, with a proven bound in place of a number of candidates.)

The order is by product, largest first; among equal products the smallest key comes first. A row's product depends on
the row and the vector alone, not on where the row lies or what else is scanned: so equal rows tie. Each vector keeps
its best rows in a heap whose root is the worst of them.

Kernels take a table's descriptor, int64 [TABLE_FIELDS], the epoch that is read, and how many numbers of a row count
(`columns`); of a table's codes (row_codes):
    file_keys, more_keys   int64, keys of the first positions and of those after them
    codes                  int8 [positions * columns + LANES or more]
    scales                 float32 [positions], DEAD where there is no row
    stale                  int64, one bit a position: its codes say nothing
and of n vectors:
    numbers, steps, slacks int16 [n, padded(columns)], float32 [n] and [n]: z, t and slack above
    vectors                float32 [n, padded(columns)], 0 beyond columns
    excluded, splits       keys that do not count for vector i: excluded[splits[i]:splits[i + 1]], ascending
    scores, keys, sizes    float32 [n, k], int64 [n, k] and [n]: the heaps' products, keys and numbers of rows; written
"""

# mypy: ignore-errors

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freshet_serving.processor.kernels.conversion import copy_typed
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import load_acquire, load_i64, store_release
from freshet_serving.processor.kernels.rows import DTYPE, TIERED, resolve, row_at, scale_at

REASSOCIATED = {"reassoc", "contract", "nsz"}
"""Lets the compiler add up a product in vectors; infinities and NaN keep their meaning."""

LANES = 32
"""Codes that one step of a product reads; vectors are padded to a multiple of it, and so is the end of the codes."""
TOP = 127.0
FEWEST = np.float32(1e-30)
"""Rows whose numbers are all smaller are kept with this as their largest: a scale has no subnormal numbers."""
DEAD = np.float32(-1.0)
"""Scale of a position without a row."""
WORD = 64
EVERY = np.uint64(2**64 - 1)


@intrinsic
def code_product(typingctx, codes, numbers, steps):
    """Return the sum of products of int8 codes with int16 numbers, int32; LANES * steps of both, at addresses.

    Adjacent products are added in pairs, which one instruction of x86 does (pmaddwd); LLVM knows it by this form.
    """

    def codegen(context, builder, signature, args):
        codes, numbers, steps = args
        half = ir.VectorType(ir.IntType(32), LANES // 2)
        even, odd = (ir.Constant(half, list(range(first, LANES, 2))) for first in (0, 1))
        total = cgutils.alloca_once_value(builder, ir.Constant(half, [0] * (LANES // 2)))

        def load(address, bits, nbytes, step):
            kind = ir.VectorType(ir.IntType(bits), LANES)
            offset = builder.mul(step, ir.Constant(ir.IntType(64), nbytes * LANES))
            read = builder.load(builder.inttoptr(builder.add(address, offset), kind.as_pointer()), align=1)
            return builder.sext(read, ir.VectorType(ir.IntType(32), LANES))

        with cgutils.for_range(builder, steps) as loop:
            products = builder.mul(load(codes, 8, 1, loop.index), load(numbers, 16, 2, loop.index), flags=["nsw"])
            pairs = builder.add(*(builder.shuffle_vector(products, products, part) for part in (even, odd)))
            builder.store(builder.add(builder.load(total), pairs), total)
        left, width = builder.load(total), LANES // 2
        while width > 1:
            width //= 2
            low, high = (
                ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(first, first + width)))
                for first in (0, width)
            )
            left = builder.add(builder.shuffle_vector(left, left, low), builder.shuffle_vector(left, left, high))
        return builder.extract_element(left, ir.Constant(ir.IntType(32), 0))

    return types.int32(types.int64, types.int64, types.int64), codegen


@intrinsic
def lowest_bit(typingctx, word):
    """Return the number of the lowest bit that is set in a uint64 other than 0, int64."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


@intrinsic
def ones(typingctx, word):
    """Return how many bits of a uint64 are set, int64."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@kernel(nb.float32(nb.float32[::1], nb.float32[::1]), fastmath=REASSOCIATED)
def product(row, vector):
    total = np.float32(0.0)
    for j in range(len(row)):
        total += row[j] * vector[j]
    return total


@kernel(nb.boolean(nb.int64[::1], nb.int64, nb.int64, nb.int64))
def among(keys, first, last, key):
    """Report whether a key is in keys[first:last], which ascend."""
    end = last
    while first < last:
        middle = (first + last) // 2
        if keys[middle] < key:
            first = middle + 1
        else:
            last = middle
    return first < end and keys[first] == key


@inlined
def behind(score, key, other_score, other_key):
    return score < other_score or (score == other_score and key > other_key)


@kernel(nb.void(nb.float32[::1], nb.int64[::1], nb.int64, nb.float32, nb.int64))
def sift_down(scores, keys, size, score, key):
    """Put a row in the place of the root of a heap of `size` rows: products, float32 [k], and keys, int64 [k]."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and behind(scores[right], keys[right], scores[child], keys[child]):
            child = right
        if not behind(scores[child], keys[child], score, key):
            break
        scores[at], keys[at] = scores[child], keys[child]
        at = child
    scores[at], keys[at] = score, key


@kernel(nb.void(nb.float32[::1], nb.int64[::1], nb.int64, nb.float32, nb.int64))
def sift_up(scores, keys, size, score, key):
    """Add a row to a heap of `size` rows that has room."""
    at = size
    while at > 0:
        parent = (at - 1) // 2
        if not behind(score, key, scores[parent], keys[parent]):
            break
        scores[at], keys[at] = scores[parent], keys[parent]
        at = parent
    scores[at], keys[at] = score, key


@inlined
def key_at(place, file_keys, more_keys):
    return file_keys[place] if place < len(file_keys) else more_keys[place - len(file_keys)]


@kernel(nb.boolean(nb.int64, nb.int64, nb.int64, nb.int64, nb.float32[::1]))
def read_row(table, epoch, key, columns, row):
    """Read the first columns of a key's row, as of an epoch, into float32 [columns or more]; report if there is one."""
    ref = resolve(table, key, epoch)
    if ref < 0:
        return False
    dtype = load_i64(table + DTYPE) % TIERED
    copy_typed(dtype, np.int64(row.ctypes.data), row_at(table, ref), scale_at(table, ref), columns)
    return True


@kernel(
    nb.void(
        nb.float32[::1], nb.int64, nb.int64, nb.float32[:, ::1], nb.int64[::1], nb.int64[::1], nb.float32[:, ::1],
        nb.int64[:, ::1], nb.int64[::1],
    )
)  # fmt: skip
def offer(row, key, i, vectors, excluded, splits, scores, keys, sizes):
    """Offer a row to the heap of vector i."""
    score = product(row, vectors[i])
    if score != score:
        return
    size = sizes[i]
    if size == scores.shape[1] and not behind(scores[i, 0], keys[i, 0], score, key):
        return
    if among(excluded, splits[i], splits[i + 1], key):
        return
    if size < scores.shape[1]:
        sift_up(scores[i], keys[i], size, score, key)
        sizes[i] = size + 1
    else:
        sift_down(scores[i], keys[i], size, score, key)


@kernel(
    nb.int64(
        nb.int64[::1], nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64, nb.int64,
        nb.types.Array(nb.int64, 1, "C", readonly=True), nb.types.Array(nb.int64, 1, "C", readonly=True),
        nb.types.Array(nb.int8, 1, "C", readonly=True), nb.types.Array(nb.float32, 1, "C", readonly=True),
        nb.types.Array(nb.int64, 1, "C", readonly=True), nb.int16[:, ::1], nb.float32[::1], nb.float32[::1],
        nb.float32[:, ::1], nb.int64[::1], nb.int64[::1], nb.float32[:, ::1], nb.int64[:, ::1], nb.int64[::1],
    )
)  # fmt: skip
def scan_codes(
    table, epoch, first, last, allowed, origin, columns, file_keys, more_keys, codes, scales, stale,
    numbers, steps, slacks, vectors, excluded, splits, scores, keys, sizes,
):  # fmt: skip
    """Offer the rows of positions `first`, a multiple of WORD, to `last` to each vector's heap; return how many.

    `allowed` has one bit a position from `origin` on, a multiple of WORD: its row counts; empty if all do.
    """
    at, count, width = np.int64(table.ctypes.data), len(vectors), vectors.shape[1]
    row, parts, words = np.zeros(width, np.float32), np.int64(width // LANES), np.int64(stale.ctypes.data)
    code, number, looked = np.int64(codes.ctypes.data), np.int64(numbers.ctypes.data), 0
    passed = np.empty(count, np.uint64)
    for word in range(first // WORD, (last + WORD - 1) // WORD):
        # Codes are read after the bits that say whether they hold.
        hidden = np.uint64(load_acquire(words + 8 * word))
        begin, places = WORD * word, EVERY
        if last - begin < WORD:
            places = (np.uint64(1) << np.uint64(last - begin)) - np.uint64(1)
        looked += ones(places)
        if len(allowed) > 0:
            places &= np.uint64(allowed[word - origin // WORD])
            if places == 0:
                continue
            hidden &= places
        coded, union = places & ~hidden, places & hidden
        for i in range(count):
            # A heap that has room takes every row.
            passed[i] = coded
            if sizes[i] == scores.shape[1]:
                worst, step, slack, products = scores[i, 0], steps[i], slacks[i], number + 2 * width * i
                passed[i] = 0
                if coded == EVERY:
                    for j in range(WORD):
                        place = begin + j
                        total = np.float32(code_product(code + place * columns, products, parts))
                        # A bound that is no number says nothing.
                        good = not (scales[place] * (step * total + slack) < worst)
                        passed[i] |= np.uint64(good) << np.uint64(j)
                else:
                    left = coded
                    while left != 0:
                        j = lowest_bit(left)
                        left &= left - np.uint64(1)
                        place = begin + j
                        total = np.float32(code_product(code + place * columns, products, parts))
                        good = not (scales[place] * (step * total + slack) < worst)
                        passed[i] |= np.uint64(good) << np.uint64(j)
            union |= passed[i]
        while union != 0:
            j = lowest_bit(union)
            union &= union - np.uint64(1)
            place, bit = begin + j, np.uint64(1) << np.uint64(j)
            if hidden & bit == 0 and scales[place] < 0:
                continue
            key = key_at(place, file_keys, more_keys)
            if read_row(at, epoch, key, columns, row):
                for i in range(count):
                    if (passed[i] | hidden) & bit != 0:
                        offer(row, key, i, vectors, excluded, splits, scores, keys, sizes)
    return looked


@kernel(
    nb.void(
        nb.int64[::1], nb.int64, nb.int64, nb.int64[::1], nb.int64[::1], nb.float32[:, ::1], nb.int64[::1],
        nb.int64[::1], nb.float32[:, ::1], nb.int64[:, ::1], nb.int64[::1],
    )
)  # fmt: skip
def offer_keys(
    table, epoch, columns, allowed, allowed_splits, vectors, excluded, splits, scores, keys, sizes
):  # fmt: skip
    """Offer the rows of given keys to each vector's heap.

    Keys for vector i are allowed[allowed_splits[i]:allowed_splits[i + 1]], each once.
    """
    row = np.zeros(vectors.shape[1], np.float32)
    for i in range(len(vectors)):
        for j in range(allowed_splits[i], allowed_splits[i + 1]):
            if read_row(np.int64(table.ctypes.data), epoch, allowed[j], columns, row):
                offer(row, allowed[j], i, vectors, excluded, splits, scores, keys, sizes)


@kernel(
    nb.int64(
        nb.int64[::1], nb.int64, nb.int64, nb.int64, nb.int64, nb.int64,
        nb.types.Array(nb.int64, 1, "C", readonly=True), nb.int64[::1], nb.int8[::1], nb.float32[::1], nb.int64[::1],
    )
)  # fmt: skip
def refresh_codes(table, epoch, first, last, most, columns, file_keys, more_keys, codes, scales, stale):
    """Make codes of the stale positions of words `first` to `last`, and clear their bits.

    Returns the word to go on with: `last` if all were made, an earlier one after `most` positions.
    """
    at, words, computed = np.int64(table.ctypes.data), np.int64(stale.ctypes.data), 0
    row = np.zeros(columns, np.float32)
    for word in range(first, last):
        bits = stale[word]
        if bits == 0:
            continue
        if computed >= most:
            return word
        for place in range(WORD * word, WORD * word + WORD):
            if (bits >> (place & 63)) & 1 == 0:
                continue
            computed += 1
            key = key_at(place, file_keys, more_keys)
            if not read_row(at, epoch, key, columns, row):
                scales[place] = DEAD
                continue
            largest = np.float32(0.0)
            whole = True
            for j in range(columns):
                size = abs(row[j])
                whole = whole and size < np.inf
                largest = max(largest, size)
            if not whole:
                # Its bound is no number, so that its row is always read.
                scales[place] = np.nan
                continue
            scale = max(largest, FEWEST) / np.float32(TOP)
            scales[place] = scale
            for j in range(columns):
                codes[place * columns + j] = np.int8(np.rint(row[j] / scale))
        store_release(words + 8 * word, 0)
    return last


@kernel(nb.void(nb.int64[::1], nb.int64[::1]))
def mark(stale, positions):
    """Set the bit of each position, int64 [n], in words of 64."""
    at = np.int64(stale.ctypes.data)
    for place in positions:
        word = at + 8 * (place >> 6)
        store_release(word, load_i64(word) | (np.int64(1) << (place & 63)))


@kernel(nb.void(nb.int64[::1], nb.int64, nb.int64, nb.int64[::1], nb.float32[:, ::1], nb.boolean[::1]))
def read_rows(table, epoch, columns, keys, rows, present):
    """Read the rows of keys, int64 [n], into float32 [n, columns], and for which there is one into bool [n]."""
    for i in range(len(keys)):
        present[i] = read_row(np.int64(table.ctypes.data), epoch, keys[i], columns, rows[i])
