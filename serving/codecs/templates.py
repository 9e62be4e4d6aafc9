"""Recognise a message by its bytes and reuse what the protobuf runtime parsed from an earlier one like it.

A client sends the same bytes around its tensors with every request of one size: names, shapes, tags and lengths. A
message of the same length with the same bytes in the same places means the same, and its tensors lie at the same
offsets. Only fields of fixed width may vary (raw bytes, packed floats). A message is learned only if the bytes at these
offsets equal what the protobuf runtime read there, so protobuf's rules are not reimplemented here.

Measured, 26 ids and 13 floats for 64 candidates: 0.4 us to recognise a request, 9 to 11 us to parse it and copy its
parts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from freshet_serving.processor.columns import BufferLayout, ColumnLayout
from freshet_serving.processor.package import Manifest

MAX_KEPT = 512
MAX_ALIKE = 8
MAX_LITERAL_NBYTES = 4096
VARINT, FIXED64, LEN, FIXED32 = 0, 1, 2, 5

A = TypeVar("A")


class Placeholder(NamedTuple):
    """The place of a tensor in a template: its offset in the message, and the bytes that the runtime read there."""

    start: int
    content: bytes


class Template(NamedTuple, Generic[A]):
    """A message without its tensors; `literals` are the bytes between these: (start, stop, bytes)."""

    params: A
    manifest: Manifest
    places: BufferLayout
    literals: tuple[tuple[int, int, bytes], ...]


class Templates(Generic[A]):
    """Templates of one kind of message, found by the bytes around the tensors.

    One event loop calls find(); any thread that decodes for it may call learn().
    """

    def __init__(self) -> None:
        self._learning = threading.Lock()
        self._by_length: dict[int, list[Template[A]]] = {}
        self._count = 0

    def find(self, data: bytes) -> Template[A] | None:
        for template in self._by_length.get(len(data), ()):
            for start, stop, literal in template.literals:
                if data[start:stop] != literal:
                    break
            else:
                return template
        return None

    def learn(
        self,
        data: bytes,
        params: A,
        manifest: Manifest,
        columns: Mapping[str, ColumnLayout],
        placeholders: Mapping[str, Placeholder],
    ) -> None:
        """Store a parsed message as a template, if each of its tensors lies at its placeholder."""
        ordered = sorted(
            ((placeholders[name], place) for name, place in columns.items() if name in placeholders), key=lambda h: h[0]
        )
        if len(ordered) != len(columns):
            return
        places, literals, at = [], [], 0
        for (start, content), place in ordered:
            stop = start + len(content)
            expected = place.rows * (place.columns or 1) * place.dtype.itemsize
            if start < at or data[start:stop] != content or len(content) != expected:
                return
            literals.append((at, start, data[at:start]))
            places.append(replace(place, offset=start))
            at = stop
        literals.append((at, len(data), data[at:]))
        if sum(stop - start for start, stop, _ in literals) > MAX_LITERAL_NBYTES:
            return
        # `nbytes` is 0 because it is read only for bodies that end with their tensors.
        template = Template(params, manifest, BufferLayout(tuple(places), 0), tuple(literals))
        with self._learning:
            if self._count >= MAX_KEPT:
                self._by_length.clear()
                self._count = 0
            same_length = self._by_length.setdefault(len(data), [])
            if len(same_length) >= MAX_ALIKE:
                self._count -= len(same_length)
                same_length.clear()
            same_length.append(template)
            self._count += 1


def fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, stop) of each length-delimited field of a message that the runtime has parsed.

    Ends early at a group; none of our messages has one.
    """
    while start < stop:
        key, start = _varint(data, start)
        number, wire = key >> 3, key & 7
        if wire == LEN:
            nbytes, start = _varint(data, start)
            yield number, start, start + nbytes
            start += nbytes
        elif wire == VARINT:
            _, start = _varint(data, start)
        elif wire in (FIXED64, FIXED32):
            start += 8 if wire == FIXED64 else 4
        else:
            return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def cut(data: bytes, filler: bytes) -> tuple[bytes, bytes]:
    """Split a serialized message around the one tensor in it that holds the filler."""
    before, separator, after = data.partition(filler)
    assert separator, "the filler was put there"
    return before, after


def filler(nbytes: int) -> bytes:
    """Return nbytes bytes that occur in no name (they are not UTF-8) and in no length that is allowed."""
    return b"\xff\xfe\xfd\x7e" * (nbytes // 4)
