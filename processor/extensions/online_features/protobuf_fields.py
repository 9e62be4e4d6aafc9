"""Read the fields of a serialized protobuf message without its definition, and write varints.

Invariants
- Whatever the bytes are, reading them takes time and memory in proportion to their number, and no recursion.
- Bytes that are no message raise MalformedMessage, nothing else. Groups, which proto3 does not have, count as such.

The messages read with it are Feast's registry and values, whose field numbers are fixed by their definitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.online_features.value_types import FIXED32, FIXED64, LENGTH, VARINT

MAX_VARINT_NBYTES = 10
MASK_64 = (1 << 64) - 1

Field = tuple[int, int, Any]
"""Number, wire type, and value: an integer of 64 bits without sign for a varint, else bytes."""


class MalformedMessage(Exception):
    """Bytes that are not the message that they should be."""


def read_fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message in their order; raise MalformedMessage if the bytes are none."""
    at, end = 0, len(data)
    while at < end:
        key, at = read_varint(data, at)
        number, wire = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise MalformedMessage("field number")
        if wire == VARINT:
            value, at = read_varint(data, at)
            yield number, wire, value
            continue
        if wire == LENGTH:
            nbytes, at = read_varint(data, at)
        elif wire == FIXED64:
            nbytes = 8
        elif wire == FIXED32:
            nbytes = 4
        else:
            raise MalformedMessage("wire type")
        if nbytes > end - at:
            raise MalformedMessage("a field ends after its message")
        yield number, wire, data[at : at + nbytes]
        at += nbytes


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint that begins at a place, 64 bits without sign, and where it ends."""
    value = shift = 0
    for i in range(at, min(at + MAX_VARINT_NBYTES, len(data))):
        byte = data[i]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & MASK_64, i + 1
        shift += 7
    raise MalformedMessage("varint")


def unpack_varints(data: bytes) -> NDArray[np.uint64]:
    """Decode varints that lie end to end; raise MalformedMessage if one is too long, or the last one does not end."""
    if not data:
        return np.empty(0, np.uint64)
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 0x80) + 1
    if not len(ends) or ends[-1] != len(octets):
        raise MalformedMessage("varint")
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    lengths = ends - starts
    if int(lengths.max()) > MAX_VARINT_NBYTES:
        raise MalformedMessage("varint")
    shifts = (np.arange(len(octets)) - np.repeat(starts, lengths)).astype(np.uint64) * np.uint64(7)
    parts = (octets & np.uint8(0x7F)).astype(np.uint64) << shifts
    unpacked: NDArray[np.uint64] = np.bitwise_or.reduceat(parts, starts)
    return unpacked


def encode_varint(value: int) -> bytes:
    """Encode a value of 64 bits without sign."""
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def pack_varints(values: NDArray[np.uint64]) -> tuple[bytes, NDArray[np.int64]]:
    """Encode uint64 [n]; return the varints end to end, and int64 [n + 1] where each begins."""
    shifts = np.arange(MAX_VARINT_NBYTES, dtype=np.uint64) * np.uint64(7)
    parts = values[:, None] >> shifts
    sent = parts != 0
    sent[:, 0] = True
    # Of all but a value's last byte the highest bit is set.
    octets = (parts & np.uint64(0x7F)).astype(np.uint8)
    octets[:, :-1] |= sent[:, 1:].astype(np.uint8) << 7
    starts = np.zeros(len(values) + 1, np.int64)
    np.cumsum(sent.sum(1), out=starts[1:])
    return octets[sent].tobytes(), starts
