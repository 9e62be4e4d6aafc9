"""Decode the values of plain Redis hashes: text, as redis-cli and every client write it.

Numbers in decimal, booleans as 0, 1, true or false, strings as they are, lists and sets as a JSON array.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import orjson

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.online_features.feast_values import MAX_VALUES
from freshet_serving.processor.online_features.protobuf_fields import MalformedMessage
from freshet_serving.processor.package.value_types import DecodedValue, ValueType, encode_default

INTEGER = re.compile(rb"-?\d{1,20}")
NUMBER = re.compile(
    rb"[-+]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][-+]?\d{1,4})?|[-+]?(nan|inf|infinity)", re.IGNORECASE
)
# One number, in a tenth of the time of encode_default(), which takes anything that Python's users write.
PACKERS = {
    name: struct.Struct(f"<{code}").pack
    for name, code in (("int32", "i"), ("int64", "q"), ("float", "f"), ("double", "d"))
}
BOOLEANS = {b"0": False, b"1": True, b"false": False, b"true": True}


def decode_text(data: bytes, kind: ValueType, unsigned: bool = False) -> DecodedValue:
    """Decode the text of a value.

    Args:
        data: The text.
        kind: The type that the feature has.
        unsigned: The input that it fills declares uint64; an int64 then carries the bits.

    Raises:
        MalformedMessage: The text is not a value of that type.
    """
    pack = PACKERS.get(kind.name)
    try:
        if unsigned and kind.dtype == np.int64:
            numbers = _value(data, kind) if kind.is_list else [_value(data, kind)]
            return struct.pack(f"<{len(numbers)}Q", *numbers)
        return encode_default(kind, _value(data, kind), "") if pack is None else pack(_value(data, kind))
    except (BadInput, OverflowError, struct.error):
        raise MalformedMessage(f"expected {kind.name}") from None


def _value(data: bytes, kind: ValueType) -> Any:
    if kind.is_list:
        try:
            values = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise MalformedMessage("expected a JSON array") from None
        if not isinstance(values, list) or len(values) > MAX_VALUES:
            raise MalformedMessage(f"expected a JSON array of at most {MAX_VALUES} values")
        return values
    if kind.dtype is None:
        if kind.is_text:
            try:
                data.decode()
            except UnicodeDecodeError:
                raise MalformedMessage("not UTF-8") from None
        return data
    if kind.dtype.kind == "f":
        if NUMBER.fullmatch(data):
            return float(data)
    elif kind.dtype.kind == "b":
        if (value := BOOLEANS.get(data.lower())) is not None:
            return value
    elif INTEGER.fullmatch(data):
        return int(data)
    raise MalformedMessage(f"expected {kind.name}")


def key_formatter(
    template: str, inputs: Sequence[str], types: Sequence[str], unsigned: Container[str] = ()
) -> Callable[[Sequence[bytes]], bytes]:
    """Return a function from the values of an entity's join keys to its Redis key.

    Args:
        template: The key, with the inputs' names in braces.
        inputs: Names of the inputs.
        types: Their types, of KEY_TYPES, in the same order.
        unsigned: Inputs that declare uint64, whose values carry its bits.

    Returns:
        A function of the values, decoded as value_types says, in that order.
    """
    parts: list[bytes | int] = []
    for i, part in enumerate(re.split(r"\{([^{}]*)\}", template)):
        parts.append(inputs.index(part) if i % 2 else part.encode())
    is_text = [kind in ("bytes", "string") for kind in types]
    is_signed = [name not in unsigned for name in inputs]

    def format_key(values: Sequence[bytes]) -> bytes:
        texts = [
            value if text else b"%d" % int.from_bytes(value, "little", signed=signed)
            for value, text, signed in zip(values, is_text, is_signed)
        ]
        return b"".join(texts[part] if isinstance(part, int) else part for part in parts)

    return format_key
