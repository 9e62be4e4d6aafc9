"""The sparse graph as one kernel: transform, look up and pool every feature of every request of a batch.

All state arrives as flat int64 tables of addresses and sizes, so one call serves any number of tables, features and
requests, runs without the GIL and allocates nothing but blocks of 8 kB.

tables   int64 [T, TABLE_FIELDS]   see kernels.rows
plan     int64 [F, 9]      by name: KIND, SOURCE, COLUMN, TABLE, COMBINER, MAX_LENGTH, OFFSET, WIDTH, CODES
scaling  float32 [F, 4]    log1p (0 | 1), mean, scale of float features; the largest magnitude a value may have
inputs   int64 [R, S, 5]   per request and input, by name: VALUES, ROWS (1: broadcast), STRIDE in values, SPLITS
                           (row_splits; 0: none), FILLED_BY (SENT once it has values)
spans    int64 [R, 2]      per request: its first row in this call, number of rows
out      float32 [rows, width]   rows of the requests one after another; written
counts   int64 [T, 2]      lookups and misses, added to

Lookups are memory-bound, and one lookup is three dependent cache misses (index, row, perhaps a version chain). So work
is first written down as operations and then executed a block at a time: the index lines of a block are prefetched while
it is written, its rows while it is resolved, and only then are they moved. A block runs across rows, features and
tables, so a single candidate with 26 features overlaps its misses just as well as 64 candidates do.

Floats of a block are copied unchanged, without the transform of single float features; a list of floats, a sequence's
column, is transformed and fills WIDTH places, zeros where it is shorter. Each resulting float is compared with its
largest magnitude while it is in a register, which costs nothing measurable; if one exceeds it, run() reports that there
is one, and find_non_finite() finds it (a NaN is a missing value and never exceeds it).

Rows of another type than float32 are converted as they are moved, 8 elements at a time (kernels.conversion).

Pooling adds rows in the order of the list, in float32, and divides once: training calls this very kernel, so pooled
embeddings are equal to the bit. An empty list pools to zeros; an unseen id counts with the table's default row.
Without a combiner the rows of a list are laid out one after another (package.manifest.Feature).

A value of a hashed table (package.transforms) is CODES consecutive keys, whose rows add up to the value's; of any
other table it is one key. MAX_LENGTH counts keys; combiners and places count values.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.conversion import FLOAT32, copy_row, copy_typed
from freshet_serving.processor.kernels.index import ABSENT, home, probe_from
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.known_sums import KNOWN_NBYTES, add_known
from freshet_serving.processor.kernels.list_sums import BLOCK_NBYTES, BY_HEAD, add_up, clear, take_list
from freshet_serving.processor.kernels.lookup_notes import note, sampled
from freshet_serving.processor.kernels.pointers import (
    load_acquire,
    load_f32,
    load_f32_anywhere,
    load_i64,
    load_i64_anywhere,
    prefetch,
    store_f32,
    store_i64,
)
from freshet_serving.processor.kernels.row_sums import add_rows
from freshet_serving.processor.kernels.rows import (
    BASE,
    BASE_ROWS,
    CAPACITY,
    CHANGED,
    DEFAULT,
    DTYPE,
    FILTER,
    HEADS,
    INDEX,
    META,
    NUMBERED,
    ROW_NBYTES,
    TABLE_NBYTES,
    TIERED,
    UNKNOWN_KEY,
    prefetch_row,
    row_at,
    scale_at,
    unchanged,
    unknown_ref,
    visible,
)
from freshet_serving.processor.package import DIVIDED_SUMS, NOT_COMBINED, ROOT_DIVIDED_SUMS, SCALED

# MORE: a list whose first part has already been added up in `out`.
KIND_FLOAT, KIND_ONE, KIND_MANY, KIND_BLOCK, KIND_MORE, KIND_FLOATS = 0, 1, 2, 3, 4, 5
PLAN_FIELDS, SCALING_FIELDS, INPUT_FIELDS = 9, 4, 5
KIND, SOURCE, COLUMN, TABLE, COMBINER, MAX_LENGTH, OFFSET, WIDTH, CODES = range(PLAN_FIELDS)
VALUES, ROWS, STRIDE, SPLITS, FILLED_BY = range(INPUT_FIELDS)
# What fills an input: the request; the records of an entity, a stage that reads rows, an extension; nothing, because
# nothing reads it. An input that is not SENT has no values: its stride is the most values that a row may get.
SENT, BY_ENTITY, BY_STAGE, BY_EXTENSION, UNREAD = range(5)
# Where a sent input has row_splits, one of an entity has the address of an int64 for each row of its key, or 0: it is
# set to 1 if the key has no record, else to 0.
FLAGS = SPLITS
LARGEST = np.finfo(np.float32).max

# An operation is six int64: what, a, b, start, target address, width. For COPY and ADD, a is the table's number, b a
# key and start the key's home, BY_NUMBER if the key is the number of its row, BY_HEAD if its head is in `heads`; once
# resolved, b is the row's address, start the address of its scale, and TYPED * the row's type is added to what. Blocks
# and tables are walked by address, because numpy indexing and arguments with array headers cost as much as the lookup
# itself (134 ns instead of 82 ns for a row of 16 floats).
COPY, ADD, CLEAR, REPEAT = 0, 1, 2, 3
TYPED = 8
BLOCK, OP_NBYTES = 32, 48
BY_NUMBER = -2


@inlined
def transform(value, log1p, mean, scale):
    """Return the value of one float feature: signed log1p if requested, standardised, 0 where missing (NaN)."""
    if np.isnan(value):
        return np.float32(0.0)
    if log1p != 0:
        size = np.float32(np.log1p(np.float64(abs(value))))
        value = size if value >= 0 else -size
    return (value - mean) * scale


@kernel(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64), boundscheck=False, error_model="numpy")
def carry_out(count, block, tables, epoch, counts):
    """Execute the first `count` operations of a block: find all rows, then move them, in order."""
    for op in range(block, block + count * OP_NBYTES, OP_NBYTES):
        if load_i64(op) <= ADD:
            number = load_i64(op + 8)
            table = tables + number * TABLE_NBYTES
            ref, start = load_i64(op + 16), load_i64(op + 24)
            if start != BY_NUMBER:
                index, base_rows = load_i64(table + INDEX), load_i64(table + BASE_ROWS)
                head = load_i64(table + HEADS) + 8 * ref
                if start != BY_HEAD:
                    e = probe_from(index, load_i64(table + CAPACITY), ref, start)
                    head = index + 16 * e + 8 if e >= 0 else np.int64(0)
                ref = np.int64(ABSENT)
                if head != 0:
                    ref = visible(load_acquire(head), base_rows, load_i64(table + META), epoch)
            tally = counts + 16 * number
            store_i64(tally, load_i64(tally) + 1)
            if ref < 0:
                store_i64(tally + 8, load_i64(tally + 8) + 1)
                ref = unknown_ref(table, epoch)
                store_i64(op + 16, load_i64(table + UNKNOWN_KEY))
            if ref < 0:
                row = load_i64(table + DEFAULT)
            else:
                row = row_at(table, ref)
                special = load_i64(table + DTYPE)
                if special != FLOAT32:
                    dtype = special % TIERED
                    if special >= TIERED and sampled(load_i64(tally)):
                        note(table, load_i64(op + 16), ref)
                    if dtype != FLOAT32:
                        store_i64(op, load_i64(op) + TYPED * dtype)
                    if dtype >= SCALED:
                        scale = scale_at(table, ref)
                        prefetch(scale)
                        store_i64(op + 24, scale)
            if start != BY_NUMBER:
                prefetch_row(row, load_i64(table + ROW_NBYTES))
            store_i64(op + 16, row)
    op, end = block, block + count * OP_NBYTES
    while op < end:
        what, a, b = load_i64(op), load_i64(op + 8), load_i64(op + 16)
        target, width = load_i64(op + 32), load_i64(op + 40)
        here = op
        op += OP_NBYTES
        if what == COPY:
            copy_row(target, b, width)
        elif what % TYPED == ADD:
            while op < end and load_i64(op) == what and load_i64(op + 32) == target:
                op += OP_NBYTES
            add_rows(what // TYPED, target, here + 16, OP_NBYTES, (op - here) // OP_NBYTES, width, 1)
        elif what >= TYPED:
            copy_typed(what // TYPED, target, b, load_i64(here + 24), width)
        elif what == CLEAR:
            for j in range(width):
                store_f32(target + 4 * j, np.float32(0.0))
        else:
            for k in range(1, a):
                copy_row(target + k * b, target, width)


@inlined
def push(what, a, b, target, width, count, block, tables, epoch, counts):
    """Append an operation to a block, executing the block first if it is full; return the new number of operations.

    `a` is the table's number of COPY and ADD, the number of rows of REPEAT; `b` the key of COPY and ADD, the bytes
    between rows of REPEAT.
    """
    if count == BLOCK:
        carry_out(count, block, tables, epoch, counts)
        count = 0
    op = block + count * OP_NBYTES
    if what <= ADD:
        table = tables + a * TABLE_NBYTES
        start, numbered = np.int64(BY_NUMBER), load_i64(table + NUMBERED)
        if unchanged(numbered, load_i64(table + CHANGED), b):
            row_nbytes = load_i64(table + ROW_NBYTES)
            prefetch_row(load_i64(table + BASE) + b * row_nbytes, row_nbytes)
        elif np.uint64(b) < np.uint64(numbered):
            start = np.int64(BY_HEAD)
            prefetch(load_i64(table + HEADS) + 8 * b)
        else:
            start = home(b, load_i64(table + CAPACITY))
            prefetch(load_i64(table + INDEX) + 16 * start)
        store_i64(op + 24, start)
    store_i64(op, what)
    store_i64(op + 8, a)
    store_i64(op + 16, b)
    store_i64(op + 32, target)
    store_i64(op + 40, width)
    return count + 1


@kernel(
    nb.int64(
        nb.int64[:, ::1],
        nb.int64[:, ::1],
        nb.float32[:, ::1],
        nb.int64[:, :, ::1],
        nb.int64[:, ::1],
        nb.int64,
        nb.float32[:, ::1],
        nb.int64[:, ::1],
    ),
    boundscheck=False,
    error_model="numpy",
)
def run(tables, plan, scaling, inputs, spans, epoch, out, counts):
    """Fill out[:sum of rows, :] for all requests as of one epoch; return 1 if a float exceeds its magnitude, else 0.

    The module's head describes the arrays.
    """
    scratch = np.empty((BLOCK * OP_NBYTES + BLOCK_NBYTES + KNOWN_NBYTES) // 8, np.int64)
    block, state, tally = np.int64(scratch.ctypes.data), np.int64(tables.ctypes.data), np.int64(counts.ctypes.data)
    summed = block + BLOCK * OP_NBYTES
    noted = summed + BLOCK_NBYTES
    clear(summed)
    pitch = out.shape[1] * 4
    count, non_finite = 0, 0
    for f in range(plan.shape[0]):
        kind, source, column, table = plan[f, KIND], plan[f, SOURCE], plan[f, COLUMN], plan[f, TABLE]
        combiner, max_length, width = plan[f, COMBINER], plan[f, MAX_LENGTH], plan[f, WIDTH]
        target, largest = np.int64(out.ctypes.data) + 4 * plan[f, OFFSET], scaling[f, 3]
        for r in range(inputs.shape[0]):
            values, stride, splits = inputs[r, source, VALUES], inputs[r, source, STRIDE], inputs[r, source, SPLITS]
            first, rows = spans[r, 0], spans[r, 1]
            computed = rows
            if inputs[r, source, ROWS] == 1:
                first, computed = 0, 1
            here, listed = target, computed
            if kind == KIND_MANY and combiner != NOT_COMBINED and load_i64(state + table * TABLE_NBYTES + FILTER):
                divides, root = np.int64(combiner in DIVIDED_SUMS), np.int64(combiner in ROOT_DIVIDED_SUMS)
                descriptor, looked = state + table * TABLE_NBYTES, tally + 16 * table
                add_known(
                    values,
                    splits,
                    first,
                    computed,
                    max_length,
                    target,
                    pitch,
                    width,
                    divides,
                    root,
                    plan[f, CODES],
                    noted,
                    descriptor,
                    epoch,
                    looked,
                )
                listed = 0
            for i in range(first, first + listed):
                if kind == KIND_FLOAT:
                    value = load_f32_anywhere(values + 4 * (i * stride + column))
                    value = transform(value, scaling[f, 0], scaling[f, 1], scaling[f, 2])
                    non_finite |= not abs(value) <= largest
                    store_f32(here, value)
                elif kind == KIND_ONE:
                    key = load_i64_anywhere(values + 8 * (i * stride + column))
                    count = push(COPY, table, key, here, width, count, block, state, epoch, tally)
                elif kind == KIND_BLOCK:
                    for j in range(width):
                        value = load_f32_anywhere(values + 4 * (i * stride + column + j))
                        non_finite |= abs(value) > largest
                        store_f32(here + 4 * j, value)
                elif kind == KIND_FLOATS:
                    start = load_i64(splits + 8 * i)
                    length = min(load_i64(splits + 8 * (i + 1)) - start, width)
                    for j in range(length):
                        value = load_f32_anywhere(values + 4 * (start + j))
                        value = transform(value, scaling[f, 0], scaling[f, 1], scaling[f, 2])
                        non_finite |= not abs(value) <= largest
                        store_f32(here + 4 * j, value)
                    for j in range(length, width):
                        store_f32(here + 4 * j, np.float32(0.0))
                else:
                    start, stop = load_i64(splits + 8 * i), load_i64(splits + 8 * (i + 1))
                    if max_length > 0:
                        stop = min(stop, start + max_length)
                    length, codes = stop - start, plan[f, CODES]
                    if codes > 1:
                        length //= codes
                    if combiner == NOT_COMBINED:
                        # The width of one row, the bytes from one row to the next, and the address of the mask after
                        # the places.
                        places = max_length // codes
                        each = width // places - 1
                        step = 4 * each
                        mask = here + step * places
                        for place in range(places):
                            present = np.float32(1.0) if place < length else np.float32(0.0)
                            store_f32(mask + 4 * place, present)
                        if length < places:
                            empty, empty_width = here + step * length, (places - length) * each
                            count = push(CLEAR, 0, 0, empty, empty_width, count, block, state, epoch, tally)
                        op, at, left = COPY, here, codes
                        for v in range(start, stop):
                            key = load_i64_anywhere(values + 8 * v)
                            count = push(op, table, key, at, each, count, block, state, epoch, tally)
                            op = ADD
                            left -= 1
                            if left == 0:
                                op, left = COPY, codes
                                at += step
                    elif start == stop:
                        for j in range(width):
                            store_f32(here + 4 * j, np.float32(0.0))
                    else:
                        share = length if combiner in DIVIDED_SUMS and length > 1 else 0
                        more = np.int64(kind == KIND_MORE)
                        take_list(
                            values,
                            start,
                            stop,
                            table,
                            here,
                            width,
                            more,
                            share,
                            np.int64(combiner in ROOT_DIVIDED_SUMS),
                            summed,
                            state,
                            epoch,
                            tally,
                        )
                here += pitch
            if computed < rows:
                if kind == KIND_FLOAT:
                    for k in range(1, rows):
                        store_f32(target + k * pitch, load_f32(target))
                else:
                    add_up(summed, state, epoch, tally)
                    count = push(REPEAT, rows, pitch, target, width, count, block, state, epoch, tally)
            target += rows * pitch
    carry_out(count, block, state, epoch, tally)
    add_up(summed, state, epoch, tally)
    # Numba frees an array after its last use by name, and the block is used only by address.
    scratch[0] = 0
    return non_finite


@inlined
def floats_of(planned, source, row):
    """Return where the floats of a feature lie in a row: the row's first value, the feature's first and last + 1."""
    if planned[KIND] == KIND_FLOATS:
        first = load_i64(source[SPLITS] + 8 * row)
        return first, 0, min(load_i64(source[SPLITS] + 8 * (row + 1)) - first, planned[WIDTH])
    return row * source[STRIDE], planned[COLUMN], planned[COLUMN] + planned[WIDTH]


@inlined
def model_value(kind, scaling, source, at):
    """Return value `at` of an input as the graph receives it: unchanged in a block, else transformed."""
    value = load_f32_anywhere(source[VALUES] + 4 * at)
    return value if kind == KIND_BLOCK else transform(value, scaling[0], scaling[1], scaling[2])


@kernel(
    nb.types.UniTuple(nb.int64, 3)(nb.int64[:, ::1], nb.float32[:, ::1], nb.int64[:, ::1]),
    boundscheck=False,
    error_model="numpy",
)
def find_non_finite(plan, scaling, inputs):
    """Find a float of one request, whose inputs are int64 [S, 5], that exceeds its largest magnitude.

    Returns the feature, and the row and column of its input; the feature is -1 if there is no such float.
    """
    for f in range(plan.shape[0]):
        kind, source = plan[f, KIND], plan[f, SOURCE]
        if kind in (KIND_FLOAT, KIND_BLOCK, KIND_FLOATS):
            for i in range(inputs[source, ROWS]):
                row, first, last = floats_of(plan[f], inputs[source], i)
                for j in range(first, last):
                    value = model_value(kind, scaling[f], inputs[source], row + j)
                    # In a block a NaN is a missing value. Elsewhere a missing value is already 0, so a NaN there is an
                    # overflow.
                    if abs(value) > scaling[f, 3] or (kind != KIND_BLOCK and np.isnan(value)):
                        return f, i, j
    return -1, 0, 0


@kernel(nb.float32(nb.int64[:, ::1], nb.float32[:, ::1], nb.int64[:, ::1]), boundscheck=False, error_model="numpy")
def largest(plan, scaling, inputs):
    """Return the largest magnitude of one request's floats after their transform, 0 if it has none."""
    most = np.float32(0.0)
    for f in range(plan.shape[0]):
        kind, source = plan[f, KIND], plan[f, SOURCE]
        if kind in (KIND_FLOAT, KIND_BLOCK, KIND_FLOATS):
            for i in range(inputs[source, ROWS]):
                row, first, last = floats_of(plan[f], inputs[source], i)
                for j in range(first, last):
                    value = model_value(kind, scaling[f], inputs[source], row + j)
                    if abs(value) > most:
                        most = abs(value)
    return most
