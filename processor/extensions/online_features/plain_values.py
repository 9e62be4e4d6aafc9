"""Decode and encode the values of plain Redis hashes: text, as redis-cli and every client write it.

Numbers in decimal, a whole one perhaps as 2.0; booleans as 0, 1, true or false; strings as they are; lists and sets as
a JSON array, whose numbers are written as a single one may be.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import orjson

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.feast_values import MAX_VALUES
from freshet_serving.processor.extensions.online_features.protobuf_fields import MalformedMessage
from freshet_serving.processor.extensions.online_features.value_types import DecodedValue, ValueType, encode_default

INTEGER = re.compile(rb"[-+]?\d{1,20}")
NUMBER = re.compile(
    rb"[-+]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][-+]?\d{1,4})?|[-+]?(nan|inf|infinity)", re.IGNORECASE
)
PACKERS = {code: struct.Struct(f"<{code}").pack for code in "iqQfd?"}
CODES = {"<i4": "i", "<i8": "q", "<u8": "Q", "<f4": "f", "<f8": "d", "|b1": "?"}
UNSIGNED = np.dtype("<u8")
EXACT = 2**53
"""Whole numbers up to here are the same as a double and as an integer."""
BOOLEANS = {b"false": False, b"true": True}
# What JSON counts as white space: a list may have it, and so may a number that a shell wrote.
SPACES = b" \t\r\n"


def decode_text(data: bytes, kind: ValueType, unsigned: bool = False) -> DecodedValue:
    """Decode the text of a value; raise MalformedMessage if it is none of that type.

    `unsigned`, here and below: the input declares uint64, whose bits an int64 carries.
    """
    try:
        if kind.dtype is None:
            return encode_default(kind, _strings(data, kind), "")
        dtype = UNSIGNED if unsigned and kind.dtype == np.int64 else kind.dtype
        return _numbers(data, dtype) if kind.is_list else _number(data, dtype)
    except (BadInput, OverflowError, ValueError, struct.error):
        raise MalformedMessage(f"expected {kind.name}") from None


def encode_lists(kind: ValueType, lists: Ragged, unsigned: bool = False) -> list[bytes]:
    """Encode lists, of strings or of numbers of 64 bits or floats, as JSON arrays, a missing number as nan."""
    ends = lists.row_splits.tolist()
    if isinstance(lists.values, Strings):
        texts = [text.decode(errors="replace") for text in lists.values.tolist()]
        return [orjson.dumps(texts[a:b]) for a, b in zip(ends, ends[1:])]
    assert kind.dtype is not None
    numbers = lists.values.astype(kind.dtype)
    if unsigned and kind.dtype == np.int64:
        numbers = numbers.view(UNSIGNED)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        # JSON has no word for them, but these lists have.
        words = [b"%a" % number for number in numbers.tolist()]
        return [b"[" + b",".join(words[a:b]) + b"]" for a, b in zip(ends, ends[1:])]
    return [orjson.dumps(numbers[a:b], option=orjson.OPT_SERIALIZE_NUMPY) for a, b in zip(ends, ends[1:])]


def _strings(data: bytes, kind: ValueType) -> Any:
    if not kind.is_list:
        if kind.is_text:
            data.decode()
        return data
    values = orjson.loads(data)
    if not isinstance(values, list) or len(values) > MAX_VALUES:
        raise MalformedMessage(f"expected a JSON array of at most {MAX_VALUES} values")
    return values


def _numbers(data: bytes, dtype: np.dtype[Any]) -> bytes:
    """Decode a list: each element is what the same text is as a value of its own."""
    text = data.strip(SPACES)
    if text[:1] != b"[" or text[-1:] != b"]" or text.count(b",") >= MAX_VALUES:
        raise MalformedMessage(f"expected a JSON array of at most {MAX_VALUES} values")
    try:
        # A tenth of the time of the way below, for what JSON's own writers write.
        values = orjson.loads(text)
        if set(map(type, values)) <= ({int} if dtype.kind in "iu" else {int, float} if dtype.kind == "f" else {bool}):
            return struct.pack(f"<{len(values)}{CODES[dtype.str]}", *values)
    except orjson.JSONDecodeError:
        pass
    return b"".join([_number(element, dtype) for element in text[1:-1].split(b",")])


def _number(data: bytes, dtype: np.dtype[Any]) -> bytes:
    text = data.strip(SPACES)
    pack = PACKERS[CODES[dtype.str]]
    if (value := BOOLEANS.get(text.lower())) is not None:
        return pack(value)
    if dtype.kind in "iu" and INTEGER.fullmatch(text):
        return pack(int(text))
    if not NUMBER.fullmatch(text):
        raise MalformedMessage("expected a number")
    number = float(text)
    if dtype.kind == "f":
        return pack(number)
    # 2.0 is 2: what writes a column with missing values writes floats.
    least, most = (0, 1) if dtype.kind == "b" else (-EXACT, EXACT)
    if not (number.is_integer() and least <= number <= most):
        raise MalformedMessage(f"expected a whole number from {least} to {most}")
    return pack(int(number))


def key_formatter(
    template: str, inputs: Sequence[str], types: Sequence[str], unsigned: Container[str] = ()
) -> Callable[[Sequence[bytes]], bytes]:
    """Return a function from the values of an entity's join keys, decoded as value_types says, to its Redis key.

    The template has the inputs' names in braces; types are of KEY_TYPES, in the order of the inputs.
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
