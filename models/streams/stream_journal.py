"""Record a stream's segments in order, which gives each row a permanent number.

A stream has an order only once it is read: files arrive at any time, partitions in parallel. So the reader records each
segment before it passes on a row of it. From then on a row's number is a position like any other: a checkpoint that
refers to it finds the same row again, after any crash.

One line a segment: the CRC-32 of the rest of the line, and JSON with the number of its first row, its rows, and its
location. The first line is the header: the format, and the stream's identity.

Invariants
- One writer: the run whose checkpoints are in the same folder.
- A line is durable before rows of its segment are trained on; lines are appended and never changed. A partial line left
  by a crash is no segment: no consumer has had a row of it. Lines after an invalid line are ignored.
- What cannot be written is not known: after an error, memory and file say what they said before.
- Row numbers increase from line to line without a gap, except for segments dropped by forget().
- forget() rewrites the file atomically. It may run while since() iterates, in another thread or between two segments:
  the known segments are one list, which is replaced as a whole.

Cost: one fsync for each poll that finds something, and about 300 bytes of memory for each segment not forgotten.
"""

from __future__ import annotations

import bisect
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from freshet_serving.models.streams.stream import TRAINING, ErrorContext, Segment
from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.package import atomic_file

FORMAT = "freshet-stream/1"


class StreamJournal:
    """The segments of one stream in the order of their rows."""

    def __init__(self, path: Path, identity: str, anew: bool = False, context: ErrorContext = TRAINING) -> None:
        """Open or create the journal of a stream.

        Args:
            identity: The stream's identity.
            anew: Replace an existing journal.
            context: Reader of the stream, for messages.

        Raises:
            BadInput: The file belongs to another stream.
            Corrupt: The file is not a journal.
        """
        self._path, self._identity, self._context = path, identity, context
        # Each segment with its first row's number.
        self._known: list[tuple[int, Segment]] = []
        self._nbytes = self._load() if path.exists() and not anew else 0

    def __len__(self) -> int:
        """Return the number of known segments."""
        return len(self._known)

    @property
    def segments(self) -> list[Segment]:
        """The known segments."""
        return [segment for _, segment in self._known]

    @property
    def rows(self) -> int:
        """Number of the next row."""
        return self._known[-1][0] + self._known[-1][1].rows if self._known else 0

    def copy_whole(self, path: Path) -> None:
        """Write a copy to another path, unless rows have been forgotten: without them it is of no use elsewhere."""
        if self._known and sum(segment.rows for segment in self.segments) == self.rows:
            StreamJournal(path, self._identity, anew=True, context=self._context).append(self.segments)

    def append(self, segments: Sequence[Segment]) -> None:
        """Record segments, which numbers their rows for good.

        Raises:
            OSError: The file cannot be written, and nothing is recorded.
        """
        numbered, start = [], self.rows
        for segment in segments:
            numbered.append((start, segment))
            start += segment.rows
        if not self._nbytes:
            self._write(numbered)
        else:
            with open(self._path, "r+b") as file:
                # Remove a partial line left by a crash or a full disk.
                file.truncate(self._nbytes)
                file.seek(self._nbytes)
                file.writelines(map(_segment_line, numbered))
                file.flush()
                os.fsync(file.fileno())
                nbytes = file.tell()
            self._nbytes = nbytes
        self._known.extend(numbered)

    def since(self, row: int) -> Iterator[tuple[int, Segment]]:
        """Yield the segments with rows from number `row` on, each with its first row's number.

        Segments appended meanwhile are included.

        Raises:
            BadInput: The row is forgotten.
        """
        while known := self._known:
            at = bisect.bisect_right(known, row, key=lambda each: each[0]) - 1
            if at < 0:
                raise BadInput(f"stream: row {row} is no longer in the journal: its first row is {known[0][0]}")
            start, segment = known[at]
            if start + segment.rows <= row:
                if at + 1 == len(known):
                    return
                raise BadInput(f"stream: row {row} is no longer in the journal: its next row is {known[at + 1][0]}")
            yield start, segment
            row = start + segment.rows

    def forget(self, row: int, can_forget: Callable[[Segment], bool]) -> None:
        """Drop segments.

        Args:
            row: Segments are kept if they have rows from this number on.
            can_forget: Segments are kept unless it returns True.
        """
        kept = [each for each in self._known if each[0] + each[1].rows > row or not can_forget(each[1])]
        # Keep the newest: it defines the next row's number.
        kept = kept or self._known[-1:]
        if len(kept) == len(self._known):
            return
        self._write(kept)
        self._known = kept

    def _write(self, numbered: Sequence[tuple[int, Segment]]) -> None:
        """Write the file anew, atomically."""
        with atomic_file(self._path) as file:
            file.write(_line({"format": FORMAT, "stream": self._identity}))
            file.writelines(map(_segment_line, numbered))
            nbytes = file.tell()
        self._nbytes = nbytes

    def _load(self) -> int:
        """Read the valid lines; return their size in bytes."""
        nbytes = 0
        with open(self._path, "rb") as file:
            for n, line in enumerate(file):
                said = _said(line)
                if n == 0:
                    self._check_head(said)
                elif said is None or not self._take(said):
                    break
                nbytes += len(line)
        return nbytes

    def _check_head(self, said: dict[str, Any] | None) -> None:
        if said is None or said.get("format") != FORMAT:
            raise Corrupt(f"{self._path.name}: expected format {FORMAT!r}")
        if said.get("stream") != self._identity:
            raise BadInput(
                f"{self._context.field}: expected {str(said.get('stream'))[:200]}, which was read so far, got"
                f" {self._identity}; {self._context.anew} with another one"
            )

    def _take(self, said: dict[str, Any]) -> bool:
        start, rows, where = said.get("start"), said.get("rows"), said.get("where")
        if not (type(start) is int and type(rows) is int and isinstance(where, dict)):
            return False
        if start < self.rows or rows < 0:
            return False
        self._known.append((start, Segment(where, rows)))
        return True


def _segment_line(numbered: tuple[int, Segment]) -> bytes:
    start, segment = numbered
    return _line({"start": start, "rows": segment.rows, "where": segment.where})


def _line(said: dict[str, Any]) -> bytes:
    text = json.dumps(said, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _said(line: bytes) -> dict[str, Any] | None:
    """Parse a line; None if it is damaged or incomplete."""
    if line[8:9] != b" " or not line.endswith(b"\n") or line[:8] != b"%08x" % zlib.crc32(line[9:-1]):
        return None
    try:
        said = json.loads(line[9:-1])
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None
