"""Decode Feast's serialized values and timestamps, field by field, and encode lists as Feast does.

Invariants
- A value decodes to what Feast's own message would hold, to the bit, or to None where Feast has null (no field of the
  oneof, or null_val), or raises MalformedMessage: it has another type than the registry said, is not a message, is not
  UTF-8 where it must be, or has more than MAX_VALUES elements.
- Nothing is nested deeper than a list in a value: the types that are (maps, structs, lists of lists) are refused when a
  group is loaded (value_types), so no depth needs to be bounded here.

Rejected: the protobuf runtime with generated messages. It would need Feast's definitions in the process, where another
library's copy of them may be registered, and takes longer for thirty values of a user than Redis takes to answer.
"""

from __future__ import annotations

import struct

import numpy as np

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.extensions.online_features.protobuf_fields import (
    MalformedMessage,
    encode_varint,
    pack_varints,
    read_fields,
    read_varint,
    unpack_varints,
)
from freshet_serving.processor.extensions.online_features.value_types import (
    BY_NUMBER,
    FIXED32,
    FIXED64,
    LENGTH,
    NOT_SERVED,
    VARINT,
    DecodedValue,
    ValueType,
)

MAX_VALUES = 1 << 14
"""Values of one list."""
NULL = 19
ONEOF = frozenset(BY_NUMBER) | frozenset(NOT_SERVED) - {0}
"""Numbers of the fields of which a value has one."""


def decode_value(data: bytes, kind: ValueType) -> DecodedValue | None:
    """Decode a serialized Value; None if it is null. Raises MalformedMessage if it is no value of that type."""
    if not data:
        return None
    if not kind.is_list and kind.number < 16 and data[0] == kind.number << 3 | kind.wire:
        # What Feast writes: one field. Anything else takes the longer way to the same result.
        if kind.wire == VARINT:
            value, at = read_varint(data, 1)
            if at == len(data):
                return _number(value, kind)
        elif kind.wire == LENGTH:
            nbytes, at = read_varint(data, 1)
            if at + nbytes == len(data):
                return _text(data[at:], kind)
        elif len(data) == (9 if kind.wire == FIXED64 else 5):
            return data[1:]
    chosen = 0
    lists: list[bytes] = []
    decoded: DecodedValue | None = None
    for number, wire, field in read_fields(data):
        if number not in ONEOF:
            continue
        # The last field of a oneof wins; lists of the same field add up.
        if number != chosen:
            chosen, lists = number, []
        if number == kind.number:
            if wire != (LENGTH if kind.is_list else kind.wire):
                raise MalformedMessage("wire type")
            if kind.is_list:
                lists.append(field)
            else:
                decoded = _scalar(field, kind)
    if chosen in (0, NULL):
        return None
    if chosen != kind.number:
        raise MalformedMessage(f"expected {kind.name}")
    return _list(b"".join(lists), kind) if kind.is_list else decoded


def decode_timestamp(data: bytes) -> float:
    """Decode a serialized google.protobuf.Timestamp to seconds since 1970; MalformedMessage if it is none."""
    seconds = nanos = 0
    for number, wire, value in read_fields(data):
        if number in (1, 2):
            if wire != VARINT:
                raise MalformedMessage("wire type")
            signed = value - (1 << 64) if value >> 63 else value
            seconds, nanos = (signed, nanos) if number == 1 else (seconds, signed)
    return seconds + nanos / 1e9


def encode_lists(kind: ValueType, lists: Ragged) -> list[bytes]:
    """Encode lists, of strings or of numbers of 64 bits or floats, as serialized Values of that type."""
    ends = lists.row_splits.tolist()
    if isinstance(lists.values, Strings):
        texts = [_field(1, text) for text in lists.values.tolist()]
        contents = [b"".join(texts[a:b]) for a, b in zip(ends, ends[1:])]
    else:
        assert kind.dtype is not None
        numbers = lists.values.astype(kind.dtype)
        if kind.wire == VARINT:
            packed, starts = pack_varints(numbers.view(np.uint64))
            ends = starts[lists.row_splits].tolist()
        else:
            packed, ends = numbers.tobytes(), (lists.row_splits * kind.dtype.itemsize).tolist()
        contents = [_field(1, packed[a:b]) if b > a else b"" for a, b in zip(ends, ends[1:])]
    return [_field(kind.number, content) for content in contents]


def encode_timestamp(seconds: int) -> bytes:
    """Encode whole seconds since 1970 as a google.protobuf.Timestamp."""
    return b"\x08" + encode_varint(seconds & (1 << 64) - 1) if seconds else b""


def _field(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | LENGTH) + encode_varint(len(content)) + content


def _scalar(field: int | bytes, kind: ValueType) -> bytes:
    if isinstance(field, int):
        return _number(field, kind)
    return _text(field, kind) if kind.wire == LENGTH else field


def _number(value: int, kind: ValueType) -> bytes:
    """Return a varint's value in the type's bytes: protobuf cuts off what an int32 has no room for."""
    assert kind.dtype is not None
    if kind.dtype.kind == "b":
        return b"\1" if value else b"\0"
    if kind.dtype.itemsize == 4:
        return struct.pack("<I", value & 0xFFFFFFFF)
    return struct.pack("<Q", value)


def _text(value: bytes, kind: ValueType) -> bytes:
    if kind.is_text and not value.isascii():
        try:
            value.decode()
        except UnicodeDecodeError:
            raise MalformedMessage("not UTF-8") from None
    return value


def _list(content: bytes, kind: ValueType) -> DecodedValue:
    """Decode a message whose field 1 is a repeated value, packed or not."""
    texts: list[bytes] = []
    numbers: list[bytes] = []
    count = 0
    for number, wire, field in read_fields(content):
        if number != 1:
            continue
        if kind.wire == LENGTH and wire == LENGTH:
            texts.append(_text(field, kind))
            count += 1
        elif kind.dtype is not None and wire in (LENGTH, kind.wire):
            packed = _packed(field, kind) if wire == LENGTH else _scalar(field, kind)
            numbers.append(packed)
            count += len(packed) // kind.dtype.itemsize
        else:
            raise MalformedMessage("wire type")
        if count > MAX_VALUES:
            raise MalformedMessage(f"more than {MAX_VALUES} values")
    return tuple(texts) if kind.dtype is None else b"".join(numbers)


def _packed(data: bytes, kind: ValueType) -> bytes:
    assert kind.dtype is not None
    if kind.wire in (FIXED32, FIXED64):
        if len(data) % kind.dtype.itemsize:
            raise MalformedMessage("a packed value ends after its list")
        return data
    values = unpack_varints(data)
    if kind.dtype.kind == "b":
        packed = (values != 0).tobytes()
    elif kind.dtype.itemsize == 4:
        packed = values.astype(np.uint32).tobytes()
    else:
        packed = values.tobytes()
    return bytes(packed)
