"""Interface of every stream: segments as they arrive, and their rows as often as necessary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from freshet_serving.models.streams.stream_rows import RejectedRows, Rows
from freshet_serving.processor.errors import Corrupt


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a stream: a JSON-able location, by which it is read again, and its rows, invalid ones included."""

    where: Mapping[str, Any]
    rows: int


@dataclass(frozen=True, slots=True)
class StreamBacklog:
    """Unread rows behind the newest segment, and problems of a stream.

    Attributes:
        rows: Number of unread rows, as far as the stream knows.
        lost: Rows, or messages, deleted before they were read.
        trouble: Why the stream cannot be read now; "" if it can.
        aside: Number of files set aside because they cannot be read.
        why_aside: Reason of the last of them.
        looks: Number of times that the stream has checked for new data; None if every poll checks.
    """

    rows: int = 0
    lost: int = 0
    trouble: str = ""
    aside: int = 0
    why_aside: str = ""
    looks: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """Reader of a stream, for error messages: the option that names it, and how to start with another one."""

    field: str
    anew: str


TRAINING = ErrorContext("data.path", "--new-version --from-scratch starts")


class Stream(Protocol):
    """A stream that grows. Used by one thread at a time, which may vary."""

    @property
    def identity(self) -> str:
        """Identity of the stream, stored in its journal. Contains no password."""
        ...

    def begin(self, known: Sequence[Segment]) -> None:
        """Prepare for the first poll, given the segments in the journal; raise BadInput for an unreadable stream."""
        ...

    def poll(self, wait_s: float) -> list[Segment]:
        """Return the segments that arrived after the newest one, in order, waiting at most wait_s for one.

        [] if none arrived, or the stream temporarily cannot be read; BadInput if a retry would not help.
        """
        ...

    def read(self, segment: Segment) -> Iterator[Rows | RejectedRows]:
        """Yield the rows of a segment in order, the same each time; raise BadInput if they are gone or have changed."""
        ...

    def can_forget(self, segment: Segment) -> bool:
        """Return True if a segment whose rows are no longer needed can be dropped from the journal."""
        ...

    def backlog(self) -> StreamBacklog: ...

    def close(self) -> None: ...


def check_places(known: Sequence[Segment], **kinds: type) -> None:
    """Raise Corrupt unless the location of each segment of a journal has these fields, of these types."""
    for segment in known:
        for name, kind in kinds.items():
            if type(segment.where.get(name)) is not kind:
                raise Corrupt(f"stream's journal: expected {name} in each segment")
