"""Record which rows a followed run learns in which step, so that a run over stored rows can repeat it.

A stream's steps depend on when its rows arrived. The text file `borders` beside the checkpoints has one entry a line:

    freshet-borders/1
    >20000      what follows begins at row 20000: the first entry, and after skipped rows
    64*3        three steps of 64 rows each
    17          one step of 17 rows
    =1.5        all of that is in generation 1.5: a full version (step 0) or a delta
    !           the weights are not those of the entries before alone: another writer's, or a lost file's

Invariants
- The file begins with the entries that count: the steps learned by the newest checkpoint. Its state has their mark:
  length in bytes, CRC-32, and the row after them.
- Entries are durable before the checkpoint with their mark. What follows the newest mark was lost by a kill or a
  rollback; the next entries replace it.
- Going back to a checkpoint goes back to its mark. If its bytes are gone, the file begins anew, with !.
- An entry never changes while it counts. Equal steps share one until the next checkpoint.
- At most MOST_NBYTES are written. The mark of a full file has row CLOSED, and stays.
- Steps of the first full version are not recorded: they are the same for every run over the same rows.

Cost: one fsync a checkpoint, and a few bytes a step of unusual length. Memory: the entries since the checkpoint before.

Rejected: entries within the checkpoints (full ones would repeat all of them); a chain of files (a rollback would have
to remove some).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import fsync_folder

BORDERS = "borders"
HEAD = b"freshet-borders/1\n"
MOST_NBYTES = 64 << 20
CLOSED = -1
LONGEST_LINE = 64

Mark = Sequence[int]
"""Bytes, their CRC-32, and the row after them; empty without entries."""


class Entry(NamedTuple):
    """A step of rows [first, end), or what happened between two steps (`end` is `first`): a generation or None."""

    first: int
    end: int
    generation: Generation | None = None


class BatchBorders:
    """The entries of one run. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Write nothing yet; `folder` is that of the checkpoints."""
        self._path = folder / BORDERS
        # Since the last checkpoint: entries in order, and the equal steps at the end (first row, rows, number).
        self._entries: list[bytes] = []
        self._steps = (0, 0, 0)
        self._first = self._row = CLOSED
        self._checked: list[int] = []

    def learned(self, first: int, end: int) -> None:
        """Note a step of rows [first, end)."""
        self._go_to(first)
        begin, rows, count = self._steps
        if count and rows == end - first:
            self._steps = begin, rows, count + 1
        else:
            self._end_steps()
            self._steps = first, end - first, 1
        self._row = end

    def published(self, row: int, generation: Generation) -> None:
        """Note that a generation has all rows before a row."""
        self._go_to(row)
        self._end_steps()
        self._entries.append(b"=%s\n" % str(generation).encode())

    def interrupted(self, row: int) -> None:
        """Note that the weights come from elsewhere at a row."""
        self._go_to(row)
        self._end_steps()
        self._entries.append(b"!\n")

    def forget(self) -> None:
        """Drop what was noted since the last checkpoint: the run goes back to it."""
        self._entries, self._steps, self._first, self._row = [], (0, 0, 0), CLOSED, CLOSED

    def commit(self, mark: Mark) -> list[int]:
        """Write what was noted since a checkpoint's mark; return the mark of the next one. An OSError loses nothing."""
        self._end_steps()
        if not self._entries or (mark and mark[2] == CLOSED):
            self.forget()
            return list(mark)
        lost = bool(mark) and not self._there(mark)
        nbytes, crc, row = (0, 0, CLOSED) if lost or not mark else mark
        entries = b"".join(self._entries)
        if lost:
            entries = b"!\n" + entries
        if self._first != row:
            entries = b">%d\n" % self._first + entries
        if not nbytes:
            entries = HEAD + entries
        if nbytes + len(entries) > MOST_NBYTES:
            self.forget()
            return [nbytes, crc, CLOSED]
        self._append(nbytes, entries)
        self._checked = [nbytes + len(entries), zlib.crc32(entries, crc), self._row]
        self.forget()
        return self._checked

    def _go_to(self, row: int) -> None:
        if self._first == CLOSED:
            self._first = row
        elif row != self._row:
            self._end_steps()
            self._entries.append(b">%d\n" % row)
        self._row = row

    def _end_steps(self) -> None:
        _, rows, count = self._steps
        if count:
            self._entries.append(b"%d\n" % rows if count == 1 else b"%d*%d\n" % (rows, count))
        self._steps = (0, 0, 0)

    def _there(self, mark: Mark) -> bool:
        """Return True if the file begins with the entries of a mark."""
        if list(mark) != self._checked:
            try:
                read_entries(self._path, mark)
            except (OSError, Corrupt):
                return False
        return True

    def _append(self, nbytes: int, entries: bytes) -> None:
        new = not self._path.exists()
        with open(self._path, "wb" if new else "r+b") as file:
            file.truncate(nbytes)
            file.seek(nbytes)
            file.write(entries)
            file.flush()
            os.fsync(file.fileno())
        if new:
            fsync_folder(self._path.parent)


def read_entries(path: Path, mark: Mark) -> bytes:
    """Return the entries that count after the first line; raise Corrupt if the mark's are not there."""
    nbytes, crc, _ = mark
    with open(path, "rb") as file:
        data = file.read(nbytes) if 0 < nbytes <= MOST_NBYTES else b""
    if len(data) != nbytes or zlib.crc32(data) != crc or not data.startswith(HEAD):
        raise Corrupt(f"{path.name}: expected the {nbytes:,} bytes that the newest checkpoint says, got others")
    return data[len(HEAD) :]


def parse_entries(entries: bytes) -> Iterator[Entry]:
    """Yield steps and generations in order; an entry with neither is where weights came from elsewhere."""
    row, at = 0, 0
    while at < len(entries):
        end = entries.find(b"\n", at, at + LONGEST_LINE)
        line, at = entries[at:end], end + 1
        if end < 0 or not line:
            raise Corrupt(f"{BORDERS}: expected entries, got {entries[at : at + LONGEST_LINE]!r}")
        try:
            if line == b"!":
                yield Entry(row, row)
            elif line.startswith(b"="):
                version, step = line[1:].split(b".")
                yield Entry(row, row, Generation(int(version), int(step)))
            elif line.startswith(b">"):
                row = int(line[1:])
            else:
                rows, _, count = line.partition(b"*")
                for _ in range(int(count or 1)):
                    yield Entry(row, row + int(rows))
                    row += int(rows)
        except ValueError:
            raise Corrupt(f"{BORDERS}: expected an entry, got {line!r}") from None
