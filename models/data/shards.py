"""Divide a stream among several readers, so that each row belongs to exactly one reader.

Reader i of n gets rows [rows * i // n, rows * (i + 1) // n) of the unit that is divided, so loads differ by at most one
row, regardless of the boundaries of files and row groups.

SplitBatches  divides each batch. The n parts of a batch form the batch that a single reader would have had, so n
              processes that sum their gradients train exactly as one would, in stream order. Every reader reads the
              whole stream.
SplitRows     divides the whole stream: a reader gets a contiguous range of rows, and reads only its row groups. The
              order over all readers is not the stream's.

Both give every reader the same number of batches, for readers that synchronise at each batch: the last one may be a row
shorter than another's, and is empty if there are fewer rows than readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from freshet_serving.models.data.source import Batch, Source, check_position
from freshet_serving.processor.errors import BadInput, first_of


@dataclass(frozen=True, slots=True)
class Shard:
    """Reader `reader` of `readers`, counted from 0. Raises BadInput if `reader` is out of range."""

    reader: int
    readers: int

    def __post_init__(self) -> None:
        if not 0 <= self.reader < self.readers:
            raise BadInput(f"reader: expected 0 to readers - 1, got {self.reader} of {self.readers}")

    def part(self, rows: int) -> tuple[int, int]:
        """Return the range [first, end) of this reader out of `rows` rows."""
        return rows * self.reader // self.readers, rows * (self.reader + 1) // self.readers


class SplitBatches:
    """A reader's part of each batch of a source."""

    def __init__(self, source: Source, shard: Shard) -> None:
        self._source, self._shard, self.schema = source, shard, source.schema

    def count_rows(self) -> int | None:
        """Return the number of rows of the whole stream, in which positions count."""
        return self._source.count_rows()

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """Yield this reader's part of each batch of `rows`; Batch.start is the position of its own first row.

        To continue after batch i, `start` is start + (i + 1) * rows, the same for all readers.
        """
        for batch in self._source.batches(rows, start):
            yield batch.slice(*self._shard.part(len(batch)))


class SplitRows:
    """A reader's range of a source's rows, as a source of its own: positions count from the range's first row."""

    def __init__(self, source: Source, shard: Shard) -> None:
        """Compute the range; raise BadInput if the stream is endless."""
        total = source.count_rows()
        if total is None:
            raise BadInput("readers: a stream without an end cannot be split among readers")
        self._source, self.schema = source, source.schema
        self._first, self._last = shard.part(total)
        self._most = -(-total // shard.readers)

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
