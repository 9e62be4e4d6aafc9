"""Messages known by their bytes: what the runtime made of one, kept for those that differ only in their tensors.

A client sends the same bytes around its tensors with every request of one size: names, shapes, tags and lengths. When a
message of the same length has the same bytes in the same places, it means the same, and its tensors lie where those of
the first lay. Only places of fixed width are holes (raw bytes, packed floats), and a message is learned only when what
lies in its holes is what the protobuf runtime read there. So nothing is decided here about protobuf's rules; what is
unknown goes by the runtime.

Measured, 26 ids and 13 floats for 64 candidates: 0.4 us to recognise a request, 9 to 11 us to have it parsed and its
parts copied.

Bounded: MAX_KEPT messages in all, MAX_ALIKE of one length.
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
    """A hole of a template, where a tensor lies. content: what the runtime read there."""

    start: int
    content: bytes


class Template(NamedTuple, Generic[A]):
    """A message without its tensors. asked: what the message says besides. literals: (start, stop, bytes)."""

    params: A
    manifest: Manifest
    places: BufferLayout
    literals: tuple[tuple[int, int, bytes], ...]


class Templates(Generic[A]):
    """Templates of one kind of message, known by the bytes that are no tensors. Found from one event loop, learned by
    whatever thread reads for it."""

    def __init__(self) -> None:
        self._learning = threading.Lock()
        self._by_length: dict[int, list[Template[A]]] = {}
        self._count = 0

    def find(self, data: bytes) -> Template[A] | None:
        """The template of a message, if one is known."""
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
        """Keeps a message that was read, if its tensors lie in its holes. columns: how each is read, offsets unset."""
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
        # Nothing is asked of `nbytes` but of bodies whose tensors end with them.
        template = Template(params, manifest, BufferLayout(tuple(places), 0), tuple(literals))
        with self._learning:
            if self._count >= MAX_KEPT:
                self._by_length.clear()
                self._count = 0
            alike = self._by_length.setdefault(len(data), [])
            if len(alike) >= MAX_ALIKE:
                self._count -= len(alike)
                alike.clear()
            alike.append(template)
            self._count += 1


def fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(number, start, stop) of each length-delimited field of a message that the runtime has parsed; for a group, which
    none of ours has, it ends early."""
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
    """A serialized message around the one tensor in it that holds the filler."""
    before, found, after = data.partition(filler)
    assert found, "the filler was put there"
    return before, after


def filler(nbytes: int) -> bytes:
    """So many bytes that occur in no name (they are not UTF-8) and in no length that is allowed."""
    return b"\xff\xfe\xfd\x7e" * (nbytes // 4)
