"""Compute the keys and hash fields under which Feast stores features in Redis.

key     serialize_entity_key (version 3): the join keys sorted by name, then their values in that order; then the
        project's name
field   murmur3 (32 bits, seed 0) of "view:feature", four bytes little endian
        "_ts:view": when the view's features were true
value   a serialized feast.types.Value, see feast_values

A view served as version N > 0 is stored under the name "view_vN". Source: feast 0.67, key_encoding_utils.py, redis.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from freshet_serving.processor.extensions.online_features.value_types import VALUE_TYPES

STRING = 2
MASK = 0xFFFFFFFF


def murmur3_32(data: bytes, seed: int = 0) -> int:
    hashed, whole = seed, len(data) & ~3
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        hashed ^= _scrambled(block)
        hashed = (hashed << 13 | hashed >> 19) & MASK
        hashed = (hashed * 5 + 0xE6546B64) & MASK
    if whole < len(data):
        hashed ^= _scrambled(int.from_bytes(data[whole:], "little"))
    hashed ^= len(data)
    hashed ^= hashed >> 16
    hashed = hashed * 0x85EBCA6B & MASK
    hashed ^= hashed >> 13
    hashed = hashed * 0xC2B2AE35 & MASK
    return hashed ^ hashed >> 16


def _scrambled(block: int) -> int:
    block = block * 0xCC9E2D51 & MASK
    return (block << 15 | block >> 17) * 0x1B873593 & MASK


def feature_field(view: str, feature: str) -> bytes:
    return struct.pack("<I", murmur3_32(f"{view}:{feature}".encode()))


def timestamp_field(view: str) -> bytes:
    return f"_ts:{view}".encode()


def key_serializer(project: str, names: Sequence[str], types: Sequence[str]) -> Callable[[Sequence[bytes]], bytes]:
    """Return a function from the values of an entity's join keys, decoded as value_types says, to its Redis key.

    Names are those of the store, types of KEY_TYPES in the same order.
    """
    order = sorted(range(len(names)), key=lambda i: names[i])
    head = struct.pack("<I", len(names))
    for i in order:
        name = names[i].encode()
        head += struct.pack("<II", STRING, len(name)) + name
    numbers = [struct.pack("<I", VALUE_TYPES[types[i]].number) for i in order]
    tail = project.encode()

    def serialize(values: Sequence[bytes]) -> bytes:
        parts = [head]
        for i, number in zip(order, numbers):
            value = values[i]
            parts += (number, struct.pack("<I", len(value)), value)
        parts.append(tail)
        return b"".join(parts)

    return serialize
