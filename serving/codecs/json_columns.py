"""Convert JSON values to columns, with type checks as strict as TensorFlow Serving's.

int64 refuses 1.0 and true; float32 accepts 1. An input that a model declared as bool accepts true and false, and one of
a narrower type accepts the values that its type can hold.

null means what a null in training data means: NaN for a float, "" for a string, an empty list for a ragged input. It is
refused for an id (docs/reference/data.md).

There is no Python loop over values: one pass of struct.pack converts numbers and checks their types. It takes booleans
for numbers, so it is used only if the body has none (`plain`). On rows of 26 integers it takes a tenth of the time of
building the set of types and converting with numpy, which now only produces the error message.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Iterator
from itertools import chain, pairwise, starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, first_of, json_kind
from freshet_serving.processor.features.limits import RequestSize
from freshet_serving.processor.kernels.json_text import INFINITE, MEANT, NOT_A_NUMBER, has_boolean_letters
from freshet_serving.processor.package import Input
from freshet_serving.serving.codecs.tensor_types import declared, row_of, span, within
from freshet_serving.serving.codecs.wire import Body

FORMATS = {"int64": "q", "float32": "f", "uint64": "Q"}
# Declared types that hold whatever the engine's type holds.
WHOLE = ("", "uint64")
SHORT_NBYTES = 512
"""Bytes up to which Python finds two words sooner than it calls a kernel."""
PACKED_AT_ONCE = 1 << 16
"""Values that are packed without giving up Python's lock: a millisecond or two."""


def column(spec: Input, values: Any, plain: bool = False, extent: RequestSize | None = None) -> Column:
    """Convert one input's values, rows first, to the column that the manifest describes.

    With spec.columns 0 the values are [n], or [n, 1], which counts as [n]. With columns k they are [n, k] (strings
    flat, n * k of them). A ragged input is a list of n lists.

    Args:
        plain: The values hold no booleans.
        extent: Size account of the request; None if the values do not belong to a request.
    """
    if type(values) is not list:
        raise BadInput(f"{spec.name}: expected {_shape(spec)}, got {json_kind(values)}")
    if spec.ragged:
        return _ragged(spec, values, plain, extent)
    if extent is not None:
        extent.add(spec, len(values), len(values) * (spec.columns or 1))
    if spec.dims is not None and len(spec.dims) > 1:
        values = _unnested(spec, spec.dims, values)
    if plain and spec.columns and spec.dtype != "string":
        try:
            pack, rows = struct.Struct(f"={spec.columns}{_format(spec)}").pack, max(1, PACKED_AT_ONCE // spec.columns)
            packed = b"".join([b"".join(starmap(pack, part)) for part in _parts(values, rows)])
            return _fitting(spec, np.frombuffer(packed, spec.dtype)).reshape(-1, spec.columns)
        except (struct.error, OverflowError, TypeError):
            # The slower path below produces the error message.
            pass
    flat = _flatten(spec, values)
    if spec.dtype == "string":
        return Strings.of(strings(spec, flat))
    array = numbers(spec, flat, plain)
    return array.reshape(-1, spec.columns) if spec.columns else array


def _shape(spec: Input) -> str:
    if spec.ragged:
        return "a list of lists"
    return f"a list of shape [{', '.join(['n', *map(str, row_of(spec))])}]"


def _unnested(spec: Input, dims: list[int], rows: list[Any]) -> list[Any]:
    """Flatten rows of several dimensions to rows of columns; rows that are flat already stay unchanged."""
    if not rows or type(rows[0]) is not list or not rows[0] or type(rows[0][0]) is not list:
        return rows
    length = 1
    for size, inner in pairwise(dims):
        length *= size
        for at, row in enumerate(rows):
            nested = type(row) is list and len(row) == length and set(map(type, row)) == {list}
            if not (nested and set(map(len, row)) == {inner}):
                raise BadInput(f"{spec.name}: expected {_shape(spec)}, got another shape at item {at}")
        rows = [list(chain.from_iterable(row)) for row in rows]
    return rows


def _flatten(spec: Input, rows: list[Any]) -> list[Any]:
    if not rows:
        return []
    nested = type(rows[0]) is list
    if not nested and not spec.columns:
        return rows
    width = spec.columns or 1
    if set(map(type, rows)) != {list}:
        at = first_of(i for i, row in enumerate(rows) if type(row) is not list)
        raise BadInput(f"{spec.name}: expected {_shape(spec)}, got {json_kind(rows[at])} at item {at}")
    if set(map(len, rows)) != {width}:
        at = first_of(i for i, row in enumerate(rows) if len(row) != width)
        raise BadInput(
            f"{spec.name}: Encountered list at unexpected size: {len(rows[at])} at item {at} expected size: {width}"
        )
    return list(chain.from_iterable(rows))


def _ragged(spec: Input, rows: list[Any], plain: bool, extent: RequestSize | None) -> Ragged:
    if rows and (types := set(map(type, rows))) != {list}:
        if types - {list, type(None)}:
            at = first_of(i for i, row in enumerate(rows) if type(row) is not list and row is not None)
            raise BadInput(f"{spec.name}: expected {_shape(spec)}, got {json_kind(rows[at])} at item {at}")
        rows = [[] if row is None else row for row in rows]
    if extent is not None:
        extent.add(spec, len(rows), sum(map(len, rows)))
    flat = list(chain.from_iterable(rows))
    splits = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=splits[1:])
    if spec.dtype == "string":
        return Ragged(Strings.of(strings(spec, flat)), splits)
    return Ragged(numbers(spec, flat, plain), splits)


def has_booleans(body: Body) -> bool:
    """Return whether a body may contain true or false: the words, or two of their letters, maybe in a name."""
    if len(body) <= SHORT_NBYTES and type(body) is bytes:
        return b"true" in body or b"false" in body
    return bool(has_boolean_letters(np.frombuffer(body, np.uint8)))


def numbers(spec: Input, flat: list[Any], plain: bool = False) -> NDArray[Any]:
    """Convert flat values, `plain` if none is a boolean, to an int64 or float32 array; raises BadInput."""
    if plain:
        try:
            form = _format(spec)
            packed = b"".join([struct.pack(f"={len(part)}{form}", *part) for part in _parts(flat, PACKED_AT_ONCE)])
            return _fitting(spec, np.frombuffer(packed, spec.dtype))
        except (struct.error, OverflowError):
            # The slower path below produces the error message.
            pass
    types = set(map(type, flat))
    if spec.dtype == "int64":
        accepted = (int, bool) if spec.declared == "bool" else (int,)
        if types.difference(accepted):
            raise _type_error(spec, flat, accepted)
        return _whole_numbers(spec, flat)
    if type(None) in types:
        flat = [math.nan if value is None else value for value in flat]
        types = types - {type(None)} | {float}
    if types - {int, float}:
        raise _type_error(spec, flat, (int, float))
    try:
        wide = np.array(flat, np.float64)
        # Nulls are NaN by now, which fmax() passes over.
        if len(wide) and np.fmax.reduce(np.abs(wide)) in (NOT_A_NUMBER, INFINITE):
            for number, meant in MEANT.items():
                wide[wide == number] = meant
        with np.errstate(over="raise"):
            return wide.astype(np.float32)
    except (OverflowError, FloatingPointError):
        raise BadInput(f"{spec.name}: Cannot convert JSON value to float without loss of precision") from None


def _fitting(spec: Input, values: NDArray[Any]) -> NDArray[Any]:
    return values if spec.declared in WHOLE else within(spec, values)


def _parts(values: list[Any], length: int) -> Iterator[list[Any]]:
    """Yield the values in lists of at most so many; a short list is yielded itself."""
    if len(values) <= length:
        yield values
        return
    for at in range(0, len(values), length):
        yield values[at : at + length]


def _format(spec: Input) -> str:
    return FORMATS["uint64" if spec.declared == "uint64" else spec.dtype]


def _whole_numbers(spec: Input, flat: list[int]) -> NDArray[np.int64]:
    wide = np.dtype(np.uint64 if spec.declared == "uint64" else np.int64)
    try:
        return within(spec, np.array(flat, wide).view(np.int64))
    except OverflowError:
        low, high = span(wide)
        value = first_of(v for v in flat if not low <= v <= high)
    kind = declared(spec)
    assert kind.dtype is not None, "numbers"
    least, most = span(kind.dtype)
    raise BadInput(f"{spec.name}: expected {kind.dt}, got {_digits(value)} which is out of range ({least} to {most})")


def strings(spec: Input, flat: list[Any]) -> list[bytes | str]:
    """Return strings as they are, and the decoded bytes of {"b64": ...} objects; raises BadInput."""
    types = set(map(type, flat))
    if type(None) in types:
        flat = ["" if value is None else value for value in flat]
        types = types - {type(None)} | {str}
    if types - {str, dict}:
        raise _type_error(spec, flat, (str, dict))
    return [_base64(spec, v) if type(v) is dict else v for v in flat] if dict in types else flat


def is_base64(value: Any) -> bool:
    """Return whether a JSON value is an object whose only key is "b64" and holds a string."""
    return type(value) is dict and len(value) == 1 and type(value.get("b64")) is str


def _base64(spec: Input, value: dict[str, Any]) -> bytes:
    if not is_base64(value):
        raise BadInput(f"{spec.name}: JSON Value: an object not formatted correctly for base64 data")
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError):
        raise BadInput(f"{spec.name}: Unable to base64 decode") from None


def _digits(value: int) -> str:
    # Do not print a number of thousands of digits: converting it takes time quadratic in its length.
    return str(value) if value.bit_length() <= 128 else "a longer number"


def _type_error(spec: Input, flat: list[Any], accepted: tuple[type, ...]) -> BadInput:
    at, value = first_of((i, v) for i, v in enumerate(flat) if type(v) not in accepted)
    shown = "" if type(value) in (list, dict) else f" {_shown(value)}"
    shown_value = f"JSON Value:{shown} ({json_kind(value)}, value {at})"
    missing = "; null means a missing float, string or list, but an id cannot be missing" if value is None else ""
    return BadInput(f"{spec.name}: {shown_value} is not of expected type: {declared(spec).dt}{missing}")


def _shown(value: Any) -> str:
    if type(value) is int:
        return _digits(value)
    if type(value) is float:
        value = MEANT.get(value, value)
    return json.dumps(value[:64] if type(value) is str else value)
