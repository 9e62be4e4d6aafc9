"""What the stream tests share: a schema, rows of it in every form, and a stream that is a list."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.models.data.canonical import CanonicalColumns
from freshet_serving.models.data.source import Field, Schema
from freshet_serving.models.streams.stream import Segment, StreamBacklog
from freshet_serving.models.streams.stream_rows import TableRows
from freshet_serving.processor.columns import Ragged, Strings

FIELDS = (Field("user", "id"), Field("price", "float"), Field("city", "string"), Field("tags", "ids"))
SCHEMA = Schema(FIELDS, "clicked", "ts")


def rows_of(first, count):
    """`count` rows from number `first` on, as JSON has them."""
    return [
        {"user": n, "price": n / 4, "city": f"c{n % 3}", "tags": list(range(n % 4)), "clicked": n % 2, "ts": 1e9 + n}
        for n in range(first, first + count)
    ]


def table_of(first, count):
    types = {"user": pa.int64(), "price": pa.float64(), "city": pa.string(), "tags": pa.list_(pa.int64())}
    types |= {"clicked": pa.int64(), "ts": pa.float64()}
    return pa.Table.from_pylist(rows_of(first, count), pa.schema(list(types.items())))


def write_parquet(path, first, count, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.tmp")
    pq.write_table(table_of(first, count), hidden, **options)
    hidden.rename(path)


def cells_of(row):
    """A row as cells of text."""
    return {
        key.encode(): "|".join(map(str, v)).encode() if key == "tags" else str(v).encode() for key, v in row.items()
    }


def plain(column):
    if isinstance(column, Ragged):
        at = column.row_splits
        return [plain(column.values)[a:b] for a, b in zip(at, at[1:])]
    return [word.decode() for word in column.tolist()] if isinstance(column, Strings) else column.tolist()


def said(batch):
    """A batch's rows as rows_of() gives them."""
    columns = {name: plain(column) for name, column in batch.columns.items()}
    columns |= {"clicked": batch.label.tolist(), "ts": batch.time.tolist()}
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def users(batches):
    """(number of the row, user) of every row, which are the same where nothing was left out."""
    return [(batch.start + n, user) for batch in batches for n, user in enumerate(batch.columns["user"].tolist())]


class ListStream:
    """A stream of rows 0, 1, 2 ... in segments that a test says have come."""

    identity = "a list"

    def __init__(self, bad=()):
        self.come, self.bad, self.polls = [], set(bad), 0
        self._next = self._taken = 0
        self.closed = False

    def send(self, *counts):
        for count in counts:
            self.come.append(Segment({"first": self._next}, count))
            self._next += count

    def begin(self, known):
        self._taken = len(known)

    def poll(self, wait_s):
        self.polls += 1
        found, self._taken = self.come[self._taken : self._taken + 1], min(len(self.come), self._taken + 1)
        return found

    def read(self, segment):
        columns = CanonicalColumns(SCHEMA, text=False)
        first, made = segment.where["first"], table_of(segment.where["first"], segment.rows)
        users = [None if first + n in self.bad else first + n for n in range(segment.rows)]
        made = made.set_column(0, "user", pa.array(users, pa.int64()))
        for batch in made.to_batches(max_chunksize=7):
            yield TableRows(batch, columns, "list", 0)

    def can_forget(self, segment):
        return True

    def backlog(self):
        return StreamBacklog(sum(segment.rows for segment in self.come[self._taken :]))

    def close(self):
        self.closed = True
