"""Evaluate a version's transforms (processor.package.transforms): hash buckets, joins, crosses of inputs.

Every op is a kernel or a few calls of numpy on whole columns. A column of one row stays one row until it is joined or
crossed with longer ones, which broadcasts it. What a request can expand to is limited before it is allocated: joined
strings by MAX_NBYTES, crosses by MAX_CROSSED values per row and MAX_VALUES in all. The ids that crosses with lists make
are counted before any is made, and a request may make max_ids of them (limits).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings, equal_strings, take_rows
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.crosses import combinations, cross, equal, pair_crosses, within_limit
from freshet_serving.processor.features.flat_columns import FlatColumn, check_count, named, rows_of
from freshet_serving.processor.features.key_codes import CODES
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.kernels import texts
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.kernels.string_hashes import FARM, MURMUR, SIP, fingerprints
from freshet_serving.processor.package import HASHES, ColumnShape, Manifest, Transform, codes_a_value

MAX_NBYTES = 256 << 20
INT32 = np.int64(2**32), np.int64(2**31)


class Transforms:
    def __init__(self, manifest: Manifest) -> None:
        shapes = manifest.shapes
        self._pairs, unneeded = pair_crosses(manifest.transforms, {f.input for f in manifest.lookups})
        self._steps = [(t, OPS[t.op], shapes[t.name]) for t in manifest.transforms if t.name not in unneeded]
        self._shapes = {name: shapes[name] for group in self._pairs.values() for name in group.names}
        self._read = {name: shapes[name].width for t in manifest.transforms for name in t.inputs}

    def run(
        self, inputs: Mapping[str, Column], left_out: Collection[str] = (), limits: RequestLimits | None = None
    ) -> dict[str, Column]:
        """Return the columns of all transforms, by name, for inputs that were checked against the manifest.

        Events that only crosses read are no column of their own. Transforms that are left out are not computed.

        Raises:
            BadInput: A column would exceed its limit.
            TooLarge: The crosses make more ids than `limits` allow.
        """
        crossed = 0
        sent = {name: width for name, width in self._read.items() if name in inputs}
        flat = {name: _flat(inputs[name], width) for name, width in sent.items()}
        columns: dict[str, Column] = {}
        for transform, op, shape in self._steps:
            if transform.name in left_out:
                continue
            if (group := self._pairs.get(transform.name)) is not None:
                computed, crossed = group.run([flat[name] for name in group.inputs], crossed, limits)
                for name, column in zip(group.names, computed):
                    flat[name], columns[name] = column, _column(column, self._shapes[name])
                continue
            input_columns = [flat[name] for name in transform.inputs]
            if limits is not None and transform.op == "cross" and any(f.splits is not None for f in input_columns):
                crossed = within_limit(transform, crossed + combinations(transform, input_columns), limits)
            flat[transform.name] = result = op(transform, input_columns)
            columns[transform.name] = _column(result, shape)
        return columns


def _flat(column: Column, width: int) -> FlatColumn:
    if isinstance(column, Ragged):
        return FlatColumn(column.values, len(column), 1, np.ascontiguousarray(column.row_splits, np.int64))
    if isinstance(column, Strings):
        return FlatColumn(column, len(column) // width, width)
    return FlatColumn(np.ascontiguousarray(column).reshape(-1), len(column), width)


def _column(flat: FlatColumn, shape: ColumnShape) -> Column:
    if flat.splits is not None:
        return Ragged(flat.values, flat.splits)
    if isinstance(flat.values, Strings) or not shape.columns:
        column: Column = flat.values
        return column
    matrix: NDArray[Any] = flat.values.reshape(flat.rows, shape.columns)
    return matrix


Op = Callable[[Transform, Sequence[FlatColumn]], FlatColumn]


def _hash(how: int) -> Op:
    def run(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
        buckets, *key = t.integers
        hashes = fingerprints(columns[0].values, how, (key[0], key[1]) if key else (0, 0))
        return columns[0].like((hashes % np.uint64(buckets)).view(np.int64))

    return run


def _text(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    (form,), values = t.texts, columns[0].values
    if form == "%d":
        data, offsets = np.empty(texts.DIGITS * len(values), np.uint8), np.empty(len(values) + 1, np.int64)
        nbytes = texts.write_numbers(values, data, offsets)
        return columns[0].like(Strings(data[:nbytes], offsets))
    signs = np.zeros(len(values), np.bool_)
    if values.dtype.kind == "f":
        values = _normal(values)
        # C and Python print the sign of a NaN differently, so a signed NaN is formatted as -inf, which has the same
        # width.
        signs = np.isnan(values) & np.signbit(values)
        values = np.where(signs, -np.inf, values)
    written = [form % value for value in values.tolist()]
    return columns[0].like(Strings.of([s.replace("inf", "nan") if sign else s for s, sign in zip(written, signs)]))


def _join(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    rows, width = rows_of(t, columns), max(f.width for f in columns)
    splits = columns[0].splits
    count = len(columns[0].values) if splits is not None else rows * width
    parts: list[tuple[Strings, NDArray[np.int64]]] = []
    for i, piece in enumerate(t.texts):
        if piece:
            parts.append((Strings.of([piece]), np.zeros(count, np.int64)))
        if i < len(columns):
            parts.append((columns[i].values, _places(columns[i], count, width)))
    lengths = np.zeros(count, np.int64)
    for strings, picks in parts:
        lengths += np.diff(strings.offsets)[picks]
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > MAX_NBYTES:
        raise BadInput(f"{named(t)}: expected at most {MAX_NBYTES} bytes of joined strings, got {offsets[-1]}")
    data, ends = np.empty(int(offsets[-1]), np.uint8), offsets[:-1].copy()
    for strings, picks in parts:
        texts.append(strings.data, strings.offsets, picks, ends, data)
    return FlatColumn(Strings(data, offsets), rows, width, splits)


def _places(flat: FlatColumn, count: int, width: int) -> NDArray[np.int64]:
    """Return the index of the column's value at each of `count` places in rows of `width`."""
    if flat.splits is not None or count == len(flat.values):
        return np.arange(count, dtype=np.int64)
    row, column = np.divmod(np.arange(count, dtype=np.int64), width)
    at: NDArray[np.int64] = np.zeros(count, np.int64)
    at += row * flat.width if flat.rows > 1 else 0
    at += column if flat.width > 1 else 0
    return at


def _case(first: bytes, last: bytes, by: int) -> Op:
    def run(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
        strings = columns[0].values
        start, stop = int(strings.offsets[0]), int(strings.offsets[-1])
        data = strings.data[start:stop].copy()
        texts.shift_letters(data, first[0], last[0], by)
        return columns[0].like(Strings(data, strings.offsets - start))

    return run


def _strip(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    strings = columns[0].values
    data, offsets = np.empty(int(strings.offsets[-1] - strings.offsets[0]), np.uint8), np.empty_like(strings.offsets)
    nbytes = texts.strip(strings.data, strings.offsets, data, offsets)
    return columns[0].like(Strings(data[:nbytes], offsets))


def _normal(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace denormal numbers by 0 with their sign, as TensorFlow does."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)


def _bucketize(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    buckets = np.searchsorted(np.array(t.floats, np.float32), _normal(columns[0].values), side="right")
    return columns[0].like(buckets.astype(np.int64))


def _arithmetic(function: Callable[..., Any]) -> Op:
    def run(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
        a = columns[0]
        with np.errstate(over="ignore"):
            if len(columns) == 1:
                operand = np.array(t.integers, np.int64)
                return a.like(np.ascontiguousarray(function(a.values.reshape(-1, len(operand)), operand).reshape(-1)))
            rows, width = rows_of(t, columns), max(f.width for f in columns)
            pair = (f.values[_places(f, rows * width, width)] for f in columns)
            return FlatColumn(function(*pair), rows, width)

    return run


def _int32(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    return columns[0].like(columns[0].values.astype(np.int32).astype(np.int64))


def _pick(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    f, picked = columns[0], np.array(t.integers, np.int64)
    places = (np.arange(f.rows, dtype=np.int64)[:, None] * f.width + picked).reshape(-1)
    return FlatColumn(take_rows(f.values, places), f.rows, len(picked))


def _side_by_side(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    rows, width = rows_of(t, columns), sum(f.width for f in columns)
    starts = np.cumsum([0, *(len(f.values) for f in columns)])
    places = [
        start + np.broadcast_to(np.arange(len(f.values)).reshape(f.rows, f.width), (rows, f.width))
        for f, start in zip(columns, starts)
    ]
    values = [f.values for f in columns]
    if isinstance(values[0], Strings):
        whole: Any = Strings.of([s for strings in values for s in strings.tolist()])
    else:
        whole = np.concatenate(values)
    return FlatColumn(take_rows(whole, np.concatenate(places, 1).reshape(-1).astype(np.int64)), rows, width)


def _selected(f: FlatColumn, keep: NDArray[np.bool_]) -> FlatColumn:
    """Return the values to keep as ragged rows."""
    before = np.zeros(len(keep) + 1, np.int64)
    np.cumsum(keep, out=before[1:])
    return FlatColumn(take_rows(f.values, np.flatnonzero(keep)), f.rows, 1, before[f.bounds])


def _equal(values: Any, t: Transform) -> NDArray[np.bool_]:
    """Return a mask of the values that equal the transform's first text or number."""
    if isinstance(values, Strings):
        return equal_strings(values, t.texts[0].encode())
    same: NDArray[np.bool_] = values == np.int64(t.integers[0])
    return same


def _mask(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    tested, f = columns
    if tested.rows != f.rows:
        raise BadInput(f"{named(t)}: expected columns with equal numbers of rows, got {tested.rows} and {f.rows}")
    return f.like(np.where(_equal(tested.values, t), np.int64(t.integers[-1]), f.values))


def _to_whole(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    with np.errstate(invalid="ignore"):
        return columns[0].like(columns[0].values.astype(f"int{t.integers[0]}").astype(np.int64))


def _one_hot(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    f, (size,) = columns[0], t.integers
    check_count(t, len(f.values) * size)
    hot = (f.values[:, None] == np.arange(size)).astype(np.float32)
    return FlatColumn(hot.reshape(-1), f.rows, f.width * size)


def _tally(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    f, (size, once) = columns[0], t.integers
    check_count(t, f.rows * size)
    if f.values.min(initial=0) < 0:
        raise BadInput(f"{named(t)}: expected whole numbers of 0 or more, got {f.values.min()}")
    counts = np.zeros((f.rows, size), np.float32)
    row, in_range = np.repeat(np.arange(f.rows), f.width), f.values < size
    np.add.at(counts, (row[in_range], f.values[in_range]), np.float32(1.0))
    return FlatColumn(np.minimum(counts, 1.0 if once else np.inf).reshape(-1), f.rows, size)


def _drop(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    return _selected(columns[0], ~_equal(columns[0].values, t))


def _within(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    values, (low, high, otherwise) = columns[0].values, (np.int64(n) for n in t.integers)
    return columns[0].like(np.where((values < low) | (values >= high), otherwise, values))


def _fill(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    f, lengths = columns[0], np.diff(columns[0].bounds)
    splits = np.zeros(f.rows + 1, np.int64)
    np.cumsum(np.maximum(lengths, 1), out=splits[1:])
    values = np.full(int(splits[-1]), t.integers[0], np.int64)
    values[np.repeat(lengths > 0, np.maximum(lengths, 1))] = f.values
    return FlatColumn(values, f.rows, 1, splits)


def _newest(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    f, (skip, most) = columns[0], t.integers
    # 1 for a row's last value, 2 for the one before it.
    back = np.repeat(f.bounds[1:], np.diff(f.bounds)) - np.arange(len(f.values), dtype=np.int64)
    return _selected(f, (back > skip) & (back <= skip + most))


def _aged(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    f, times = columns
    if not np.array_equal(f.bounds, times.bounds):
        raise BadInput(f"{named(t)}: expected lists of equal lengths")
    lengths = np.diff(times.bounds)
    filled = lengths > 0
    # Lists may be in any order. Ages of times far apart exceed int64, but not uint64, whose difference wraps to them.
    newest = np.maximum.reduceat(times.values, times.bounds[:-1][filled]) if filled.any() else times.values
    ages = np.repeat(newest, lengths[filled]).view(np.uint64) - times.values.view(np.uint64)
    youngest, oldest = (np.uint64(age) for age in t.integers)
    return _selected(f, (ages >= youngest) & (ages < oldest))


def _where(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    f, *conditions = columns
    keep, integers, strings = np.ones(len(f.values), np.bool_), iter(t.integers), iter(t.texts)
    for tested in conditions:
        if not np.array_equal(f.bounds, tested.bounds):
            raise BadInput(f"{named(t)}: expected lists of equal lengths")
        if isinstance(tested.values, Strings):
            keep &= equal_strings(tested.values, next(strings).encode())
        else:
            keep &= tested.values == np.int64(next(integers))
    return _selected(f, keep)


def _empty(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    return FlatColumn((np.diff(columns[0].bounds) == 0).astype(np.float32), columns[0].rows)


def _codes(t: Transform, columns: Sequence[FlatColumn]) -> FlatColumn:
    f, (seed, *sizes) = columns[0], t.integers
    check_count(t, len(f.values) * codes_a_value(t))
    ids = hash_strings(f.values, seed) if isinstance(f.values, Strings) else f.values
    keys = CODES[t.op](ids, *sizes)
    return FlatColumn(keys.reshape(-1), f.rows, 1, f.bounds * keys.shape[1])


OPS: dict[str, Op] = {
    "farm": _hash(FARM),
    "murmur": _hash(MURMUR),
    "sip": _hash(SIP),
    "text": _text,
    "join": _join,
    "lower": _case(b"A", b"Z", 32),
    "upper": _case(b"a", b"z", -32),
    "strip": _strip,
    "bucketize": _bucketize,
    "add": _arithmetic(np.add),
    "multiply": _arithmetic(np.multiply),
    "floor_divide": _arithmetic(np.floor_divide),
    "floor_modulo": _arithmetic(np.mod),
    "int32": _int32,
    "pick": _pick,
    "side_by_side": _side_by_side,
    "rows": lambda t, columns: FlatColumn(columns[0].values, columns[0].rows, 1, columns[0].bounds),
    "within": _within,
    "drop": _drop,
    "drop_below": lambda t, columns: _selected(columns[0], columns[0].values >= np.int64(t.integers[0])),
    "fill": _fill,
    "newest": _newest,
    "aged": _aged,
    "where": _where,
    "empty": _empty,
    "float32": lambda t, columns: columns[0].like(columns[0].values.astype(np.float32)),
    "whole": _to_whole,
    "one_hot": _one_hot,
    "tally": _tally,
    "mask": _mask,
    "cross": cross,
    "equal": equal,
    **dict.fromkeys(HASHES, _codes),
}
