"""Columns of one user as words of the arena, and back.

    word 0    the user's version
    word 1    bytes of JSON
    ...       JSON, filled up with zeros to a whole word: of each column [name, kind, type, shape or offsets]
    ...       the bytes of each column, each filled up to a whole word

kind is "numbers", "texts" or "list": a list is one row of numbers or texts. Offsets of texts are int32 before them.
Types are those of TYPES. The arena has checksums, so damage is an error of the program, not of a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings

Int64s = NDArray[np.int64]
TYPES: dict[str, np.dtype[Any]] = {
    "int64": np.dtype(np.int64),
    "float32": np.dtype(np.float32),
    "uint64": np.dtype(np.uint64),
}
TEXTS = "texts"
WORD = 8


def packed(version: int, columns: Mapping[str, Column]) -> Int64s:
    """Return a user's columns, of one row each, as words: numbers of TYPES, or texts."""
    described: list[list[Any]] = []
    parts: list[bytes] = []
    for name, column in columns.items():
        values: Any = column.values if isinstance(column, Ragged) else column
        if isinstance(values, Strings):
            lengths = np.diff(values.offsets).astype(np.int32)
            data = values.data[values.offsets[0] : values.offsets[-1]].tobytes()
            shape, kind, body = [len(values)], TEXTS, lengths.tobytes() + data
        else:
            shape, kind, body = list(values.shape), values.dtype.name, np.ascontiguousarray(values).tobytes()
        described.append([name, isinstance(column, Ragged), kind, shape, len(body)])
        parts.append(_filled(body))
    text = orjson.dumps(described)
    head = np.array([version, len(text)], np.int64).tobytes()
    return np.frombuffer(bytearray().join([head, _filled(text), *parts]), np.int64)


def version_of(words: Int64s) -> int:
    return int(words[0])


def unpacked(words: Int64s) -> dict[str, Column]:
    """Return a user's columns, views of the words."""
    data = words.view(np.uint8)
    at = 2 * WORD + int(words[1])
    described = orjson.loads(data[2 * WORD : at].tobytes())
    at = _whole(at)
    columns: dict[str, Column] = {}
    for name, in_list, kind, shape, nbytes in described:
        body, at = data[at : at + nbytes], _whole(at + nbytes)
        values: Any
        if kind == TEXTS:
            (count,) = shape
            offsets = np.zeros(count + 1, np.int64)
            np.cumsum(body[: 4 * count].view(np.int32), out=offsets[1:])
            values = Strings(body[4 * count :], offsets)
        else:
            values = body.view(TYPES[kind]).reshape(shape)
        columns[name] = Ragged(values, np.array([0, len(values)], np.int64)) if in_list else values
    return columns


def _whole(nbytes: int) -> int:
    return -(-nbytes // WORD) * WORD


def _filled(data: bytes) -> bytes:
    return data + bytes(_whole(len(data)) - len(data))
