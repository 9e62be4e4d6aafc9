"""Record a stream's segments in order, which gives each row a permanent number.

A stream has an order only once it is read: files arrive at any time, partitions in parallel. So the reader records each
segment before it passes on a row of it. From then on a checkpoint that refers to a row's number finds the same row
again, after any crash.

One line a segment: the CRC-32 of the rest of the line, and JSON with the number of its first row, its rows, and its
location. The first line is the header: the format, and the stream's identity.

Invariants
- One writer: the run whose checkpoints are in the same folder.
- A line is durable before rows of its segment are trained on; lines are appended and never changed. A partial line left
  by a crash is no segment: no consumer has had a row of it. Lines after an invalid line are ignored.
- After a failed write, memory and file say what they said before.
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
    def __init__(self, path: Path, identity: str, anew: bool = False, context: ErrorContext = TRAINING) -> None:
        """Open or create the journal of a stream; `anew` replaces an existing one.

        Raises BadInput if the file belongs to another stream, Corrupt if it is not a journal.
        """
        self._path, self._identity, self._context = path, identity, context
        # Each segment with its first row's number.
        self._known: list[tuple[int, Segment]] = []
        self._nbytes = self._load() if path.exists() and not anew else 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def segments(self) -> list[Segment]:
        return [segment for _, segment in self._known]

    @property
    def rows(self) -> int:
        return self._known[-1][0] + self._known[-1][1].rows if self._known else 0

    def copy_whole(self, path: Path) -> None:
        """Write a copy to another path, unless rows have been forgotten: without them it is of no use elsewhere."""
        if self._known and sum(segment.rows for segment in self.segments) == self.rows:
            StreamJournal(path, self._identity, anew=True, context=self._context).append(self.segments)

    def append(self, segments: Sequence[Segment]) -> None:
        """Record segments, which numbers their rows for good; after an OSError nothing is recorded."""
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
        """Yield the segments with rows from number `row` on, also those appended meanwhile, each with its first row.

        Raises BadInput if the row is forgotten.
        """
        while numbered := self._known:
            at = bisect.bisect_right(numbered, row, key=lambda each: each[0]) - 1
            if at < 0:
                raise BadInput(f"stream: row {row} is no longer in the journal: its first row is {numbered[0][0]}")
            start, segment = numbered[at]
            if start + segment.rows <= row:
                if at + 1 == len(numbered):
                    return
                raise BadInput(f"stream: row {row} is no longer in the journal: its next row is {numbered[at + 1][0]}")
            yield start, segment
            row = start + segment.rows

    def forget(self, row: int, can_forget: Callable[[Segment], bool]) -> None:
        """Drop segments without rows from number `row` on for which can_forget() returns True."""
        rest = [each for each in self._known if each[0] + each[1].rows > row or not can_forget(each[1])]
        # Keep the newest: it defines the next row's number.
        rest = rest or self._known[-1:]
        if len(rest) == len(self._known):
            return
        self._write(rest)
        self._known = rest

    def _write(self, numbered: Sequence[tuple[int, Segment]]) -> None:
        with atomic_file(self._path) as file:
            file.write(_line({"format": FORMAT, "stream": self._identity}))
            file.writelines(map(_segment_line, numbered))
            nbytes = file.tell()
        self._nbytes = nbytes

    def _load(self) -> int:
        nbytes = 0
        with open(self._path, "rb") as file:
            for n, line in enumerate(file):
                entry = _parsed(line)
                if n == 0:
                    self._check_head(entry)
                elif entry is None or not self._take(entry):
                    break
                nbytes += len(line)
        return nbytes

    def _check_head(self, head: dict[str, Any] | None) -> None:
        if head is None or head.get("format") != FORMAT:
            raise Corrupt(f"{self._path.name}: expected format {FORMAT!r}")
        if head.get("stream") != self._identity:
            raise BadInput(
                f"{self._context.field}: expected {str(head.get('stream'))[:200]}, which was read so far, got"
                f" {self._identity}; {self._context.anew} with another one"
            )

    def _take(self, entry: dict[str, Any]) -> bool:
        start, rows, where = entry.get("start"), entry.get("rows"), entry.get("where")
        if not (type(start) is int and type(rows) is int and isinstance(where, dict)):
            return False
        if start < self.rows or rows < 0:
            return False
        self._known.append((start, Segment(where, rows)))
        return True


def _segment_line(numbered: tuple[int, Segment]) -> bytes:
    start, segment = numbered
    return _line({"start": start, "rows": segment.rows, "where": segment.where})


def _line(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parsed(line: bytes) -> dict[str, Any] | None:
    if line[8:9] != b" " or not line.endswith(b"\n") or line[:8] != b"%08x" % zlib.crc32(line[9:-1]):
        return None
    try:
        entry = json.loads(line[9:-1])
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
