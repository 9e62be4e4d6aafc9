"""Convert Arrow arrays to columns, in two steps.

`canonical` checks an array of any acceptable type and casts it to the one type of its kind; errors name column and row.
`column` views a canonical array as a numpy array, Strings or Ragged: buffers are shared, only the offsets are rebased.

    kind     accepted                                                canonical
    id       whole numbers of any type that holds them to the bit    int64
             (below); no null
    float    any number or bool; null is NaN; no infinity            float32
    string   string or binary of any layout; null is ""; a UUID is   large_binary
             its text, as clients send it
    ids      lists of ids, or text; a null list is empty             large_list<int64>
    strings  lists of strings, or text; a null list is empty         large_list<large_binary>
    floats   lists of numbers, or text; a null list is empty         large_list<float32>
    label    any number or bool, 0 to 1; no null                     float32
    weight   any number, 0 or more, finite; no null                  float32
    time     timestamp, date or number (Unix seconds below 1e12, so  float64, Unix seconds
             milliseconds of any day since 2001 are refused); no
             null
    seconds  as time                                                 int64, whole Unix seconds, rounded down
Dictionaries are decoded, extension types read as their storage.

An id is an integer, a bool, a decimal or a float without a fraction. A uint64 from 2**63 on is carried as the int64 of
the same bits, as in requests. A float that may stand for several integers is refused: its id is lost already.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from freshet_serving.models.data.source import ONE_OF
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import MAX_TIME_S

Where = Callable[[int], str]
"""Name of a row of the current array for an error message: 'row 17 of clicks.parquet'."""

ARROW_TYPES = {
    "id": pa.int64(),
    "float": pa.float32(),
    "string": pa.large_binary(),
    "ids": pa.large_list(pa.int64()),
    "strings": pa.large_list(pa.large_binary()),
    "floats": pa.large_list(pa.float32()),
    "label": pa.float32(),
    "weight": pa.float32(),
    "time": pa.float64(),
    "seconds": pa.int64(),
}
TEXT_ID = pa.decimal128(21, 1)
"""What ids in text are parsed as: decimal digits only, as many as 64 bits have, and '.0', which exporters write."""
ROLES = ("label", "weight", "time")
"""Kinds that features cannot have."""

_WANTS = {
    "id": "integers",
    "float": "numbers",
    "string": "strings",
    "ids": "lists of integers",
    "strings": "lists of strings",
    "floats": "lists of numbers",
    "label": "numbers from 0 to 1",
    "weight": "numbers of 0 or more",
    "time": "timestamps or numbers (Unix seconds)",
    "seconds": "timestamps or numbers (Unix seconds)",
}

_TICKS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FINER_UNITS = (("nanoseconds", 10**9, 1e17), ("microseconds", 10**6, 1e14), ("milliseconds", 10**3, 0.0))
"""Units of times that are too large for seconds: name, ticks a second, and from which number on."""


_UUID_LENGTH = 36
_UUID_DIGITS = [place for place in range(_UUID_LENGTH) if place not in (8, 13, 18, 23)]

EXACT = {2: 2**11, 4: 2**24, 8: 2**53}
"""The whole numbers below which a float of so many bytes stands for one integer."""


def is_text(t: pa.DataType) -> bool:
    t = _stored(t)
    views = pt.is_string_view(t) or pt.is_binary_view(t) or pt.is_fixed_size_binary(t)
    return bool(views or pt.is_string(t) or pt.is_large_string(t) or pt.is_binary(t) or pt.is_large_binary(t))


def _is_list(t: pa.DataType) -> bool:
    views = pt.is_list_view(t) or pt.is_large_list_view(t)
    return bool(views or pt.is_list(t) or pt.is_large_list(t) or pt.is_fixed_size_list(t))


def _is_number(t: pa.DataType) -> bool:
    return bool(pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t))


def _stored(t: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(t):
        return _stored(t.value_type)
    return _stored(t.storage_type) if isinstance(t, pa.BaseExtensionType) else t


def is_unsigned(t: pa.DataType) -> bool:
    """Return whether a type is uint64, or lists of these."""
    t = _stored(t)
    return bool(pt.is_uint64(t)) or (_is_list(t) and is_unsigned(t.value_type))


def _fits(t: pa.DataType, kind: str) -> bool:
    t = _stored(t)
    if pt.is_null(t):
        return True
    if kind in ONE_OF:
        return _is_list(t) and _fits(t.value_type, ONE_OF[kind])
    if kind == "string":
        return is_text(t)
    if kind in ("time", "seconds"):
        return _is_number(t) or pt.is_timestamp(t) or pt.is_date(t)
    return _is_number(t) or pt.is_boolean(t)


def _suggests(t: pa.DataType, kind: str) -> bool:
    """Return whether a type is read as a kind by default: whole numbers as ids, to the bit."""
    t = _stored(t)
    if kind in ONE_OF:
        return _is_list(t) and _suggests(t.value_type, ONE_OF[kind])
    if kind == "id":
        return bool(pt.is_integer(t) or (pt.is_decimal(t) and t.scale <= 0))
    return _fits(t, kind)


def check_type(t: pa.DataType, kind: str, name: str, where: str = "") -> None:
    """Raise BadInput unless a column can be read as `kind`; the error suggests a kind that fits.

    It begins with `where`, the place that asks for the column; "" for a feature of its name.
    """
    where = where or f"features.{name}"
    if _fits(t, kind):
        return
    if kind in ROLES:
        raise BadInput(f"data.{kind}: expected a column of {_WANTS[kind]}, got {name!r} of type {t}")
    other = next((k for k in ("id", "string", "float", "ids", "strings") if _suggests(t, k)), "")
    if kind == "ids" and other == "float":
        # As floats, ids from 2**24 on would merge.
        other = "id"
    hint = f" (kind = {other!r} fits)" if other else ""
    if kind in ONE_OF and is_text(t):
        hint += "; text such as 'a|b' is a list in CSV alone: split it into a column of lists"
    if kind == "seconds":
        raise BadInput(f"{where}: expected {_WANTS[kind]} for hour and weekday, got {name!r} of type {t}")
    column = "a column" if where == f"features.{name}" else f"column {name!r}"
    raise BadInput(f"{where}: expected {_WANTS[kind]} for kind {kind!r}, got {column} of type {t}{hint}")


def infer_kind(t: pa.DataType, name: str) -> str:
    """Return the kind that fits a column; raise BadInput, with its name, if none does."""
    if pt.is_timestamp(t) or pt.is_date(t):
        return "seconds"
    kind = next((k for k in ("id", "string", "float", *ONE_OF) if _suggests(t, k)), "")
    if not kind or pt.is_null(t):
        raise BadInput(f"column {name!r}: expected numbers, strings or lists of them, got a column of type {t}")
    return kind


def canonical(array: pa.Array, kind: str, name: str, where: Where) -> pa.Array:
    """Check an array and cast it to ARROW_TYPES[kind]. Raises BadInput."""
    check_type(array.type, kind, name)
    array = _plain(array)
    if kind in ONE_OF:
        return _lists(array, ONE_OF[kind], name, where)
    if kind == "string":
        return array.cast(pa.large_binary()).fill_null(b"")
    if kind == "id":
        return _ids(array, name, where)
    if kind == "time":
        return _times(array, name, where)
    if kind == "seconds":
        return _seconds(array, name, where)
    return _floats(array, kind, name, where)


def _refuse(bad: np.ndarray, array: pa.Array, expected: str, name: str, where: Where) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise BadInput(f"column {name!r}: expected {expected}, got {str(array[row].as_py())[:40]} at {where(row)}")


def _refuse_nulls(array: pa.Array, expected: str, name: str, where: Where) -> None:
    if array.null_count:
        row = int(_numpy(array.is_null()).argmax())
        raise BadInput(f"column {name!r}: expected {expected}, got a null at {where(row)}")


def _numpy(array: pa.Array) -> np.ndarray:
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values


def _ids(array: pa.Array, name: str, where: Where) -> pa.Array:
    _refuse_nulls(array, "an id", name, where)
    if pt.is_floating(array.type):
        values = _numpy(array)
        limit = EXACT[array.type.bit_width // 8]
        _refuse(values != np.floor(values), array, "an id, a whole number (kind = 'float' reads others)", name, where)
        _refuse(~(np.abs(values) < limit), array, f"an id that floats hold, below {limit}", name, where)
        return array.cast(pa.int64())
    if pt.is_uint64(array.type):
        return array.view(pa.int64())
    return _decimals(array, name, where) if pt.is_decimal(array.type) else array.cast(pa.int64())


def _decimals(array: pa.Array, name: str, where: Where) -> pa.Array:
    for whole in (pa.int64(), pa.uint64()):
        with suppress(pa.ArrowInvalid):
            return array.cast(whole).view(pa.int64())
    values = array.to_pylist()
    bad = [value != int(value) or not -(2**63) <= value < 2**64 for value in values]
    _refuse(np.array(bad), array, f"an id, a whole number from {-(2**63)} to {2**64 - 1}", name, where)
    wide = [value >= 2**63 for value in values]
    _refuse(np.array(wide), array, "an id below 2**63, as others are negative", name, where)
    raise AssertionError("they fit one of the types")


def _plain(array: pa.Array) -> pa.Array:
    if pt.is_dictionary(array.type):
        return _plain(array.dictionary_decode())
    if not isinstance(array.type, pa.BaseExtensionType):
        return array
    return _uuid_texts(array.storage) if array.type.extension_name == "arrow.uuid" else _plain(array.storage)


def _uuid_texts(array: pa.FixedSizeBinaryArray) -> pa.Array:
    """Write UUIDs as their text: 00000000-0000-0000-0000-000000000005."""
    nbytes = array.type.byte_width
    stored = memoryview(array.buffers()[1])[nbytes * array.offset : nbytes * (array.offset + len(array))]
    texts = np.full((len(array), _UUID_LENGTH), ord("-"), np.uint8)
    texts[:, _UUID_DIGITS] = np.frombuffer(stored.hex().encode(), np.uint8).reshape(len(array), 2 * nbytes)
    ends = np.arange(len(array) + 1, dtype=np.int64) * _UUID_LENGTH
    full = pa.LargeStringArray.from_buffers(len(array), pa.py_buffer(ends), pa.py_buffer(texts))
    return pc.if_else(array.is_valid(), full, None)


def _floats(array: pa.Array, kind: str, name: str, where: Where) -> pa.Array:
    if kind in ROLES:
        _refuse_nulls(array, f"a {kind}", name, where)
    # Not a safe cast: integers beyond 2**24 should round, as everywhere in float32.
    floats = array.cast(pa.float32(), safe=False).fill_null(float("nan"))
    values = floats.to_numpy()
    if kind == "label":
        _refuse(~((values >= 0) & (values <= 1)), array, "a label from 0 to 1", name, where)
    if kind == "weight":
        _refuse(~(values >= 0), array, "a weight of 0 or more", name, where)
    _refuse(np.isinf(values), array, "a number within float32", name, where)
    return floats


def _times(array: pa.Array, name: str, where: Where) -> pa.Array:
    _refuse_nulls(array, "a time", name, where)
    if pt.is_date(array.type):
        array = array.cast(pa.timestamp("ms"))
    if pt.is_timestamp(array.type):
        # Divide whole seconds and the remainder separately: nanoseconds since 1970 do not fit a float64.
        whole, rest = np.divmod(array.cast(pa.int64()).to_numpy(), _TICKS_PER_S[array.type.unit])
        return pa.array(whole + rest / _TICKS_PER_S[array.type.unit])
    seconds = array.cast(pa.float64(), safe=False)
    values = seconds.to_numpy()
    _refuse(~np.isfinite(values), array, "a time", name, where)
    # A published delta contains this time, and servers reject times beyond the limit (processor.package.delta).
    beyond = np.abs(values) >= MAX_TIME_S
    if beyond.any():
        row = int(beyond.argmax())
        unit, ticks = next((u, t) for u, t, least in _FINER_UNITS if abs(values[row]) >= least)
        raise BadInput(
            f"column {name!r}: expected a time in seconds since 1970, got {str(array[row].as_py())[:40]} at"
            f" {where(row)}; {unit}? Divide by {ticks:,}, or store timestamps"
        )
    return seconds


def _seconds(array: pa.Array, name: str, where: Where) -> pa.Array:
    if pt.is_integer(array.type):
        _refuse_nulls(array, "a time", name, where)
        if pt.is_uint64(array.type):
            _refuse(_numpy(array) >= np.uint64(2**63), array, "a time", name, where)
        return array.cast(pa.int64())
    seconds = np.floor(_times(array, name, where).to_numpy())
    _refuse(np.abs(seconds) > 2.0**53, array, "a time", name, where)
    return pa.array(seconds.astype(np.int64))


def _lists(array: pa.Array, kind: str, name: str, where: Where) -> pa.Array:
    if pt.is_null(array.type):
        array = array.cast(pa.large_list(ARROW_TYPES[kind]))
    # flatten() honours a slice's offset and drops values under null lists, so lengths must count those as 0.
    lengths = _numpy(pc.fill_null(pc.list_value_length(array), 0))
    splits = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])

    def where_value(i: int) -> str:
        return where(int(np.searchsorted(splits, i, side="right")) - 1)

    values = canonical(array.flatten(), kind, name, where_value)
    return pa.LargeListArray.from_arrays(pa.array(splits), values)


def split_text(array: pa.Array, kind: str, name: str, where: Where, separator: str) -> pa.Array:
    """Split text such as 'a|b|c' into lists ("ids", "strings" or "floats"); empty text and null become empty ones.

    Raises BadInput for an id that is not a whole number, or a float that is no number.
    """
    array = _plain(array).cast(pa.large_binary())
    if kind == "strings":
        return _split(array, separator.encode())
    numbers, value_type = ("integers", TEXT_ID) if kind == "ids" else ("numbers", pa.float64())

    def parsed(cells: pa.Array) -> pa.Array:
        return _split(cells.cast(pa.large_string()), separator).cast(pa.large_list(value_type))

    try:
        return parsed(array)
    except pa.ArrowInvalid:
        for row in range(len(array)):
            try:
                parsed(array.slice(row, 1))
            except pa.ArrowInvalid:
                text = array[row].as_py().decode(errors="replace")
                hint = "" if separator in text else "; data.list_separator names another separator"
                place = f"{where(row)}{hint}"
                raise BadInput(
                    f"column {name!r}: expected {numbers} between {separator!r}, got {text[:40]!r} at {place}"
                ) from None
        raise


def _split(array: pa.Array, separator: str | bytes) -> pa.Array:
    return pc.split_pattern(pc.if_else(pc.equal(array, separator[:0]), None, array), separator)


def column(array: pa.Array, kind: str) -> Column:
    """View a canonical array, of ARROW_TYPES[kind], as a column without copying values."""
    if kind == "string":
        return _strings(array)
    if kind in ONE_OF:
        at = _offsets(array)
        inner = array.values.slice(at[0], at[-1] - at[0])
        return Ragged(_strings(inner) if kind == "strings" else inner.to_numpy(), at - at[0])
    values: np.ndarray = array.to_numpy()
    return values


def _offsets(array: pa.Array) -> np.ndarray:
    if not len(array):
        return np.zeros(1, np.int64)
    buffer = array.buffers()[1]
    return np.frombuffer(buffer, np.int64, len(array) + 1, array.offset * 8)


def _strings(array: pa.Array) -> Strings:
    at, data = _offsets(array), array.buffers()[2]
    if data is None or at[0] == at[-1]:
        return Strings(np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64))
    # Cut the view to these rows, so that code that scans the bytes reads no other rows.
    return Strings(np.frombuffer(data, np.uint8, at[-1] - at[0], at[0]), at - at[0])
