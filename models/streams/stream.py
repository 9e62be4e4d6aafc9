"""What every stream gives: pieces that have come, and their rows, as often as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from freshet_serving.models.streams.stream_rows import RejectedRows, Rows
from freshet_serving.processor.errors import Corrupt


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a stream. where: what finds it again, JSON-able; rows: how many it has, those that are not sound
    included."""

    where: Mapping[str, Any]
    rows: int


@dataclass(frozen=True, slots=True)
class StreamBacklog:
    """What waits behind the newest segment. rows: as far as the stream knows. lost: rows, or messages, that were gone
    before they could be read. trouble: why nothing can be read now, "" where it can. aside: files that were set aside
    because they cannot be read, and why the last one was. looks: how often the stream has looked for what is new; None
    where it looks with each poll."""

    rows: int = 0
    lost: int = 0
    trouble: str = ""
    aside: int = 0
    why_aside: str = ""
    looks: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """Who reads a stream, as messages have it. field: what names the stream; anew: how to begin with another."""

    field: str
    anew: str


TRAINING = ErrorContext("data.path", "--new-version --from-scratch begins")


class Stream(Protocol):
    """A stream that grows. Used by one thread at a time, whichever it is."""

    @property
    def identity(self) -> str:
        """What a journal of it is a journal of. Holds no password."""
        ...

    def begin(self, known: Sequence[Segment]) -> None:
        """Before the first poll. known: the segments that its journal has. Raises BadInput where it cannot be read."""
        ...

    def poll(self, wait_s: float) -> list[Segment]:
        """What has come behind the newest segment, in its order; [] where nothing has within wait_s, or where, until
        it can be read again, it cannot. Raises BadInput for what will not pass by itself."""
        ...

    def read(self, segment: Segment) -> Iterator[Rows | RejectedRows]:
        """The rows of a segment in order, the same each time. Raises BadInput where they are gone or have changed."""
        ...

    def can_forget(self, segment: Segment) -> bool:
        """Whether a segment need not be known any more whose rows nobody needs."""
        ...

    def backlog(self) -> StreamBacklog: ...

    def close(self) -> None: ...


def check_places(known: Sequence[Segment], **kinds: type) -> None:
    """Raises Corrupt unless the place of each segment of a journal says these things, each of its kind."""
    for segment in known:
        for name, kind in kinds.items():
            if type(segment.where.get(name)) is not kind:
                raise Corrupt(f"stream's journal: a {name} of each piece wanted")
