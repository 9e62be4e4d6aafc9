"""Tables read into batches of columns for a program of one's own, whatever it learns with: numpy arrays, or tf.data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.models.data.formats import FORMATS, TABLES, DataConfig, format_of
from freshet_serving.models.data.open_data import default_features, open_source
from freshet_serving.models.data.shards import Shard, SplitRows
from freshet_serving.models.data.source import Batch, Field, Schema
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, nearest

KINDS = ("id", "float", "string", "ids", "strings", "seconds")


class Dataset:
    """Rows of a file, folder or glob as batches, again and again: `for batch in dataset`.

    A batch (models.data.source.Batch) has `columns` by name: int64 or float32 arrays [n], Strings, or Ragged rows;
    `label` float32 [n], [n, labels] where several are named, or [n, 0]; `weight` and `time` where they are named. Rows
    come in the order of files and rows; at most a few row groups are held, and what is not asked for is not read.

    With `readers`, each of them in a process of its own, reader i gets a range of the rows that no other gets: all rows
    are read, each once, however files and row groups divide. Loads differ by one row at most, and every reader gives
    as many batches as the others, so that steps that wait for each other end together; the last may then be one row
    shorter, and empty where there are fewer rows than readers.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        *,
        format: str = "",
        label: str | Sequence[str] = (),
        time: str = "",
        weight: str = "",
        batch_rows: int = 1024,
        reader: int = 0,
        readers: int = 1,
        shuffle_rows: int = 0,
        seed: int = 0,
        threads: int = 0,
    ) -> None:
        """columns: names, or name -> kind where the type in the file does not tell it (id, float, string, ids, strings,
        seconds); None: all. format: as [data] format says it; "": told by the path. label, time, weight: columns, none
        by default. shuffle_rows: rows that are mixed with each other, read so many at a time (0: the order of the
        files); seed: of that order, another one each time the dataset is gone through. threads: to read with; 0: the
        cores, up to 4. Raises BadInput in one line for what cannot be read so."""
        if batch_rows < 1 or shuffle_rows < 0:
            raise BadInput(f"batch_rows, shuffle_rows: 1 and 0 or more wanted, got {batch_rows} and {shuffle_rows}")
        labels = label if isinstance(label, str) else tuple(label)
        if columns is not None and not columns and not labels:
            raise BadInput("columns: at least one wanted, got none")
        if format and format not in FORMATS:
            raise BadInput(f"format: one of {', '.join(FORMATS)} wanted, got {format[:40]!r}{nearest(format, FORMATS)}")
        data = DataConfig(str(path), format or format_of(str(path)), labels, time, weight)
        if data.format not in TABLES and (data.labels or time or weight):
            raise BadInput(f"label, time, weight: wanted only for {', '.join(TABLES)}; {data.format} has its own")
        source = open_source(data, _fields(data, columns), threads)
        self.batch_rows = batch_rows
        self._source = SplitRows(source, Shard(reader, readers))
        self._window_rows = -(-shuffle_rows // batch_rows) * batch_rows
        self._seed, self._passes = seed, 0

    @property
    def schema(self) -> Schema:
        return self._source.schema

    @property
    def rows(self) -> int:
        """The rows of this reader. Counting those of a text file reads it through."""
        return self._source.count_rows()

    def __len__(self) -> int:
        """The batches of this reader, as many as of any other."""
        return self._source.count_batches(self.batch_rows)

    def __iter__(self) -> Iterator[Batch]:
        if not self._window_rows:
            return self._source.batches(self.batch_rows)
        self._passes += 1
        return self._shuffled(np.random.default_rng([self._seed, self._passes]))

    def _shuffled(self, random: np.random.Generator) -> Iterator[Batch]:
        given = 0
        for window in self._source.batches(self._window_rows):
            order = random.permutation(len(window))
            for first in range(0, max(1, len(window)), self.batch_rows):
                yield window.take(order[first : first + self.batch_rows])
                given += 1
        for _ in range(given, len(self)):
            yield window.slice(0, 0)

    def to_tf(self) -> Any:
        """The same batches as a tf.data.Dataset of (columns by name, label, weight), without what is not named; strings
        as tf.string, lists as tf.RaggedTensor. Needs TensorFlow."""
        from freshet_serving.compiler.frameworks import tf

        dtypes = {"id": tf.int64, "ids": tf.int64, "seconds": tf.int64, "float": tf.float32}
        labels = len(self.schema.labels)
        specs: list[Any] = [
            {
                f.name: tf.RaggedTensorSpec((None, None), dtypes.get(f.kind, tf.string), 1, tf.int64)
                if f.kind in ("ids", "strings")
                else tf.TensorSpec((None,), dtypes.get(f.kind, tf.string))
                for f in self.schema.fields
            }
        ]
        if labels:
            specs.append(tf.TensorSpec((None,) if labels == 1 else (None, labels), tf.float32))
        if self.schema.weight:
            specs.append(tf.TensorSpec((None,), tf.float32))

        def tensor(column: Column) -> Any:
            if isinstance(column, Ragged):
                return tf.RaggedTensor.from_row_splits(tensor(column.values), column.row_splits, validate=False)
            return tf.constant(column.tolist(), tf.string) if isinstance(column, Strings) else tf.constant(column)

        def batches() -> Iterator[Any]:
            for batch in self:
                given: list[Any] = [{name: tensor(column) for name, column in batch.columns.items()}]
                given += [batch.label] if labels else []
                given += [batch.weight] if self.schema.weight else []
                yield tuple(given) if len(given) > 1 else given[0]

        return tf.data.Dataset.from_generator(
            batches, output_signature=tuple(specs) if len(specs) > 1 else specs[0]
        ).apply(tf.data.experimental.assert_cardinality(len(self)))


def _fields(data: DataConfig, columns: Sequence[str] | Mapping[str, str] | None) -> list[Field]:
    if isinstance(columns, Mapping):
        for name, kind in columns.items():
            if kind not in KINDS:
                raise BadInput(f"columns[{name!r}]: one of {', '.join(KINDS)} wanted, got {str(kind)[:40]!r}")
        return [Field(name, kind) for name, kind in columns.items()]
    if isinstance(columns, str):
        raise BadInput(f"columns: a list of names wanted, got {columns[:40]!r}")
    if data.format not in TABLES:
        kinds = {name: section["kind"] for name, section in default_features(data.format, data.path).items()}
        kinds |= {data.clock: "seconds"}
        other = "float" if data.format == "libsvm" else ""
        return [Field(name, kinds.get(name, other)) for name in columns or ()]
    from freshet_serving.models.data.tabular import infer_fields

    return infer_fields(data, columns)
