"""Divide a stream among several readers, so that each row belongs to exactly one reader.

Reader i of n gets rows [rows * i // n, rows * (i + 1) // n), so loads differ by at most one row, regardless of the
boundaries of files and row groups, and reads only the row groups that hold them. The order over all readers is not the
stream's.

Every reader has the same number of batches, for readers that synchronise at each batch: the last one may be a row
shorter than another's, and is empty if there are fewer rows than readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from freshet_serving.models.data.source import Batch, Source, check_position
from freshet_serving.processor.errors import BadInput, first_of


class SplitRows:
    """A reader's range of a source's rows, as a source of its own: positions count from the range's first row."""

    def __init__(self, source: Source, reader: int, readers: int) -> None:
        """Compute the range of a reader, counted from 0; raise BadInput if it is none, or the stream is endless."""
        if not 0 <= reader < readers:
            raise BadInput(f"reader: expected 0 to readers - 1, got {reader} of {readers}")
        total = source.count_rows()
        if total is None:
            raise BadInput("readers: a stream without an end cannot be split among readers")
        self._source, self.schema = source, source.schema
        self._first, self._last = total * reader // readers, total * (reader + 1) // readers
        self._most = -(-total // readers)

    def count_rows(self) -> int:
        return self._last - self._first

    def count_batches(self, rows: int, start: int = 0) -> int:
        """Return the number of batches from row `start` on, the same for every reader."""
        return max(0, -(-(self._most - start) // rows))

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches as Source.batches does, then an empty batch if another reader has one row more."""
        check_position(rows, start)
        yielded, length = 0, self.count_rows()
        for batch in self._source.batches(rows, self._first + start) if start < length else ():
            if batch.start >= self._last:
                break
            batch = replace(batch, start=batch.start - self._first)
            yield batch.slice(0, min(len(batch), length - batch.start))
            yielded += 1
            if batch.end >= length:
                break
        for _ in range(yielded, self.count_batches(rows, start)):
            yield replace(first_of(self._source.batches(1)).slice(0, 0), start=length)
