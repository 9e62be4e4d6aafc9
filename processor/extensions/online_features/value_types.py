"""Define the types of online features: Feast's value types, and the column that each becomes.

A decoded value is bytes, so that it is small in a cache and becomes a column by one join: a number is its bytes in the
column's dtype (to the bit, NaN included), a list of numbers the bytes of all of them, a string its UTF-8, a list of
strings a tuple of these.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, nearest

DecodedValue = bytes | tuple[bytes, ...]

FLOAT32_END = 2.0**128 - 2.0**103
"""The smallest number that rounds to infinity as float32."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of values, by Feast's name in lower case, and its number in Feast's ValueType and of its field in Value.

    Lists include sets. `dtype` is that of numbers, None for strings and bytes; `is_text` must be UTF-8; `wire` is the
    wire type of one value.
    """

    name: str
    number: int
    dtype: np.dtype[Any] | None
    is_list: bool
    is_text: bool
    wire: int

    def fills(self, dtype: str, ragged: bool) -> bool:
        """Report whether its values can be those of an input of int64, float32 or string, ragged or not.

        Numbers of any kind fill float32.
        """
        if self.is_list != ragged:
            return False
        if self.dtype is None:
            return dtype == "string"
        return dtype == "float32" or (dtype == "int64" and self.dtype.kind in "ib")

    @property
    def empty(self) -> DecodedValue:
        """The value for which there is no default: 0, no string, an empty list."""
        if self.is_list:
            return b"" if self.dtype is not None else ()
        return bytes(self.dtype.itemsize) if self.dtype is not None else b""


_SCALARS: tuple[tuple[str, int, str, int], ...] = (
    ("bytes", 1, "", LENGTH),
    ("string", 2, "", LENGTH),
    ("int32", 3, "<i4", VARINT),
    ("int64", 4, "<i8", VARINT),
    ("double", 5, "<f8", FIXED64),
    ("float", 6, "<f4", FIXED32),
    ("bool", 7, "?", VARINT),
    ("unix_timestamp", 8, "<i8", VARINT),
)
_TEXTS = (("json", 32, 33, 0), ("uuid", 36, 38, 40), ("time_uuid", 37, 39, 41), ("decimal", 44, 45, 46))


def _types() -> dict[str, ValueType]:
    types = []
    for name, number, dtype, wire in _SCALARS:
        for suffix, offset in (("", 0), ("_list", 10), ("_set", 21)):
            numbers = np.dtype(dtype) if dtype else None
            types.append(ValueType(name + suffix, number + offset, numbers, bool(suffix), name == "string", wire))
    for name, *numbers_of in _TEXTS:
        for suffix, number in zip(("", "_list", "_set"), numbers_of):
            if number:
                types.append(ValueType(name + suffix, number, None, bool(suffix), True, LENGTH))
    return {t.name: t for t in types}


VALUE_TYPES = _types()
BY_NUMBER = {t.number: t for t in VALUE_TYPES.values()}
KEY_TYPES = ("bytes", "string", "int32", "int64", "unix_timestamp")
"""Types of join keys: those that Feast can serialize in a key."""

NOT_SERVED = {
    0: "invalid",
    19: "null",
    20: "map",
    21: "map_list",
    34: "struct",
    35: "struct_list",
    42: "value_list (a list of lists)",
    43: "value_set (a set of sets)",
    47: "scalar_map",
    48: "zoned_timestamp",
}
"""Feast's types that are no column of a model, by number."""


def value_type(name: str, where: str) -> ValueType:
    """Return the type with a name; raise BadInput if there is none."""
    kind = VALUE_TYPES.get(name)
    if kind is None:
        raise BadInput(
            f"{where}: expected a type such as int64, float, string, int64_list, got {name[:64]!r}"
            f"{nearest(name, VALUE_TYPES)}"
        )
    return kind


def value_type_numbered(number: int, where: str) -> ValueType:
    """Return the type with one of Feast's numbers; raise BadInput if its values are no column of a model."""
    kind = BY_NUMBER.get(number)
    if kind is None:
        raise BadInput(
            f"{where}: type {NOT_SERVED.get(number, f'number {number}')} cannot be a model's input; leave the feature "
            "out, or store it as numbers, strings or a list of these"
        )
    return kind


def encode_default(kind: ValueType, value: Any, where: str) -> DecodedValue:
    """Encode a number or string, or a sequence of these for a list, as a store's reader would decode it.

    Raises BadInput if it is no value of that type.
    """
    try:
        if kind.dtype is not None:
            array = np.asarray(value)
            if array.ndim != int(kind.is_list) or (array.size and array.dtype.kind not in "iufb"):
                raise TypeError
            with np.errstate(over="raise", invalid="raise"):
                encoded = array.astype(kind.dtype)
            if kind.dtype.kind == "i" and not np.array_equal(encoded, array):
                raise ValueError
            return encoded.tobytes()
        parts = tuple(_encoded_string(part) for part in (value if kind.is_list else (value,)))
        return parts if kind.is_list else parts[0]
    except (TypeError, ValueError, OverflowError, FloatingPointError):
        raise BadInput(f"{where}: expected a default of type {kind.name}, got {str(value)[:64]!r}") from None


def _encoded_string(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError


def is_finite(kind: ValueType, value: DecodedValue) -> bool:
    """Return True unless a number is infinite as float32, which no model accepts; NaN is a missing value."""
    if kind.dtype is None or kind.dtype.kind != "f" or isinstance(value, tuple):
        return True
    if not kind.is_list:
        (number,) = struct.unpack(f"<{kind.dtype.char}", value)
        return not abs(number) >= FLOAT32_END
    return not bool((np.abs(np.frombuffer(value, kind.dtype).astype(np.float64)) >= FLOAT32_END).any())


def build_column(kind: ValueType, values: Sequence[DecodedValue]) -> Column:
    """Build a column of decoded values, one for each row: an array [n] or Strings; for lists a Ragged of these."""
    if kind.dtype is None:
        if not kind.is_list:
            return Strings.of(list(values))  # type: ignore[arg-type]
        flat = [part for value in values for part in value]
        return Ragged(Strings.of(flat), _splits([len(value) for value in values]))  # type: ignore[arg-type]
    numbers = np.frombuffer(b"".join(values), kind.dtype)  # type: ignore[arg-type]
    if not kind.is_list:
        return numbers
    return Ragged(numbers, _splits([len(value) // kind.dtype.itemsize for value in values]))


def _splits(lengths: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits
