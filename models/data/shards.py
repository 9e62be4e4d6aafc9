"""Which rows are whose where several readers share one stream: each row is one reader's, whatever the numbers are.

Reader i of n has rows [rows * i // n, rows * (i + 1) // n) of what is shared, so that loads differ by one row at most
and nothing is left over, however files and row groups divide.

SplitBatches  each batch is shared. The n parts of a batch are the batch that one reader alone would have had, so n
              processes that add up their gradients learn what one would, in the order of the stream. Every reader reads
              the whole stream.
SplitRows     the whole stream is shared: a reader has a range of rows that follow each other, and reads the row groups
              that hold them and what a reader reads ahead. The order over all readers is not the stream's.

Both give every reader the same number of batches, for readers that wait for each other at each one: the last may be
shorter than another's by a row, and is empty where there are fewer rows than readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from freshet_serving.models.data.source import Batch, Source, check_position
from freshet_serving.processor.errors import BadInput


@dataclass(frozen=True, slots=True)
class Shard:
    """Reader `reader` of `readers`, from 0. Raises BadInput for one that there is not."""

    reader: int
    readers: int

    def __post_init__(self) -> None:
        if not 0 <= self.reader < self.readers:
            raise BadInput(f"reader: 0 to readers - 1 wanted, got {self.reader} of {self.readers}")

    def part(self, rows: int) -> tuple[int, int]:
        """The first of so many rows that is this reader's, and the one behind its last."""
        return rows * self.reader // self.readers, rows * (self.reader + 1) // self.readers


class SplitBatches:
    """A reader's part of each batch of a source."""

    def __init__(self, source: Source, shard: Shard) -> None:
        self._source, self._shard, self.schema = source, shard, source.schema

    def count_rows(self) -> int | None:
        """Of the whole stream, in which positions count."""
        return self._source.count_rows()

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """rows: of the batch that the readers share. start: a position of the stream; to continue behind batch i,
        start + (i + 1) * rows, the same for all readers. Batch.start is that of the reader's own first row."""
        for batch in self._source.batches(rows, start):
            yield batch.slice(*self._shard.part(len(batch)))


class SplitRows:
    """A reader's range of a source's rows, as a source of its own: positions count from the range's first row."""

    def __init__(self, source: Source, shard: Shard) -> None:
        """Raises BadInput for a stream without an end."""
        total = source.count_rows()
        if total is None:
            raise BadInput("readers: a stream with an end wanted to be shared as ranges of rows")
        self._source, self.schema = source, source.schema
        self._first, self._last = shard.part(total)
        self._most = -(-total // shard.readers)

    def count_rows(self) -> int:
        return self._last - self._first

    def count_batches(self, rows: int, start: int = 0) -> int:
        """How many batches of so many rows come from a position on: as many for every reader."""
        return max(0, -(-(self._most - start) // rows))

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """As Source.batches; behind the last row an empty batch where another reader has one row more."""
        check_position(rows, start)
        given, length = 0, self.count_rows()
        for batch in self._source.batches(rows, self._first + start) if start < length else ():
            if batch.start >= self._last:
                break
            batch = replace(batch, start=batch.start - self._first)
            yield batch.slice(0, min(len(batch), length - batch.start))
            given += 1
            if batch.end >= length:
                break
        for _ in range(given, self.count_batches(rows, start)):
            yield replace(next(iter(self._source.batches(1))).slice(0, 0), start=length)
