"""Read tables in batches of columns for any training program: numpy arrays, or tf.data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.models.data.formats import FORMATS, TABLES, DataConfig, format_of
from freshet_serving.models.data.open_data import default_features, open_source
from freshet_serving.models.data.shards import SplitRows
from freshet_serving.models.data.source import LIST_SEPARATOR, ONE_OF, Batch, Field, Schema
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, option_hint

KINDS = ("id", "float", "string", "ids", "strings", "floats", "seconds")


class Dataset:
    """Rows of a file, folder or glob as batches; can be iterated repeatedly: `for batch in dataset`.

        >>> dataset = Dataset("examples/clicks.parquet", ["user_id", "price"], label="clicked", batch_rows=512)
        >>> batch = next(iter(dataset))
        >>> batch.columns["user_id"].dtype, batch.columns["price"].shape, batch.label.shape
        (dtype('int64'), (512,), (512,))

    A batch (models.data.source.Batch) has `columns` by name: int64 or float32 arrays [n], Strings, or Ragged rows, and
    uint64 for ids of such columns; `label` float32 [n], [n, labels] with several labels, or [n, 0] without; `weight`
    and `time` if configured. Rows come in the order of files and rows. At most a few row groups are in memory, and
    unused columns are not read.

    With several `readers`, each in its own process, every reader gets a range of the rows: all rows are read exactly
    once, regardless of the boundaries of files and row groups. Ranges differ by at most one row, and all readers yield
    the same number of batches, so that synchronised steps end together. The last batch may therefore be one row
    shorter, and is empty if there are fewer rows than readers.
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
        list_separator: str = LIST_SEPARATOR,
        batch_rows: int = 1024,
        reader: int = 0,
        readers: int = 1,
        shuffle_rows: int = 0,
        seed: int = 0,
        threads: int = 0,
    ) -> None:
        """Open the data.

        Args:
            path: File, folder or glob.
            columns: Names, or name -> kind if the file does not determine the type (id, float, string, ids, strings,
                seconds); None for all.
            format: Format as in [data]; "" to detect it from the path.
            label: Label columns; none by default.
            time: Time column; none by default.
            weight: Weight column; none by default.
            list_separator: What stands between the values of a list that is text.
            batch_rows: Rows of a batch.
            reader: Number of this reader, from 0.
            readers: Number of readers.
            shuffle_rows: Number of rows that are read and mixed at a time; 0 keeps the order of the files.
            seed: Seed of the shuffling, which differs for each pass over the dataset.
            threads: Reading threads; 0 for one a core, up to 4.

        Raises:
            BadInput: The arguments do not fit the data; the message is one line.
        """
        if not list_separator:
            raise BadInput("list_separator: expected at least one character, got none")
        if batch_rows < 1 or shuffle_rows < 0:
            raise BadInput(
                f"batch_rows, shuffle_rows: expected 1 or more and 0 or more, got {batch_rows} and {shuffle_rows}"
            )
        labels = label if isinstance(label, str) else tuple(label)
        if columns is not None and not columns and not labels:
            raise BadInput("columns: expected at least one, got none")
        if format and format not in FORMATS:
            hint = option_hint(format, FORMATS, "data.format")
            raise BadInput(f"format: expected one of {', '.join(FORMATS)}, got {format[:40]!r}{hint}")
        data = DataConfig(str(path), format or format_of(str(path)), labels, time, weight, list_separator)
        if data.format not in TABLES and (data.labels or time or weight):
            raise BadInput(f"label, time, weight: expected only for {', '.join(TABLES)}; {data.format} defines its own")
        source = open_source(data, _fields(data, columns), threads)
        self.batch_rows = batch_rows
        self._source = SplitRows(source, reader, readers)
        ids = {f.name for f in self._source.schema.fields if f.kind in ("id", "ids")}
        if ids:
            from freshet_serving.models.data.tabular import unsigned_columns

            ids &= unsigned_columns(data)
        self._unsigned = ids
        self._window_rows = -(-shuffle_rows // batch_rows) * batch_rows
        self._seed, self._passes = seed, 0

    @property
    def schema(self) -> Schema:
        return self._source.schema

    @property
    def rows(self) -> int:
        """Number of rows of this reader. Counting the rows of a text file reads all of it."""
        return self._source.count_rows()

    def __len__(self) -> int:
        """Return the number of batches of this reader, which is the same for every reader."""
        return self._source.count_batches(self.batch_rows)

    def __iter__(self) -> Iterator[Batch]:
        if not self._window_rows:
            return map(self._as_stored, self._source.batches(self.batch_rows))
        self._passes += 1
        return map(self._as_stored, self._shuffled(np.random.default_rng([self._seed, self._passes])))

    def _as_stored(self, batch: Batch) -> Batch:
        """Return a batch with unsigned ids as such; until here int64 carries their bits."""
        if not self._unsigned:
            return batch
        return replace(
            batch, columns=batch.columns | {name: _as_unsigned(batch.columns[name]) for name in self._unsigned}
        )

    def _shuffled(self, random: np.random.Generator) -> Iterator[Batch]:
        yielded = 0
        for window in self._source.batches(self._window_rows):
            order = random.permutation(len(window))
            for first in range(0, max(1, len(window)), self.batch_rows):
                yield window.take(order[first : first + self.batch_rows])
                yielded += 1
        for _ in range(yielded, len(self)):
            yield window.slice(0, 0)

    def to_tf(self) -> Any:
        """Return the same batches as a tf.data.Dataset of (columns by name, label, weight).

        Labels and weights that are not configured are omitted. Strings become tf.string, lists tf.RaggedTensor. Needs
        TensorFlow.
        """
        from freshet_serving.compiler.frameworks import tf

        dtypes = {"id": tf.int64, "ids": tf.int64, "seconds": tf.int64, "float": tf.float32, "floats": tf.float32}
        labels = len(self.schema.labels)

        def dtype(field: Field) -> Any:
            return tf.uint64 if field.name in self._unsigned else dtypes.get(field.kind, tf.string)

        specs: list[Any] = [
            {
                f.name: tf.RaggedTensorSpec((None, None), dtype(f), 1, tf.int64)
                if f.kind in ONE_OF
                else tf.TensorSpec((None,), dtype(f))
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
                parts: list[Any] = [{name: tensor(column) for name, column in batch.columns.items()}]
                parts += [batch.label] if labels else []
                parts += [batch.weight] if self.schema.weight else []
                yield tuple(parts) if len(parts) > 1 else parts[0]

        return tf.data.Dataset.from_generator(
            batches, output_signature=tuple(specs) if len(specs) > 1 else specs[0]
        ).apply(tf.data.experimental.assert_cardinality(len(self)))


def _as_unsigned(column: Any) -> Any:
    if isinstance(column, Ragged):
        return Ragged(_as_unsigned(column.values), column.row_splits)
    return column.view(np.uint64)


def _fields(data: DataConfig, columns: Sequence[str] | Mapping[str, str] | None) -> list[Field]:
    if isinstance(columns, Mapping):
        for name, kind in columns.items():
            if kind not in KINDS:
                raise BadInput(f"columns[{name!r}]: expected one of {', '.join(KINDS)}, got {str(kind)[:40]!r}")
        return [Field(name, kind, f"columns[{name!r}]") for name, kind in columns.items()]
    if isinstance(columns, str):
        raise BadInput(f"columns: expected a list of names, got {columns[:40]!r}")
    if data.format not in TABLES:
        kinds = {name: section["kind"] for name, section in default_features(data.format, data.path).items()}
        kinds |= {data.clock: "seconds"}
        return [Field(name, kinds.get(name, ""), f"columns[{name!r}]") for name in columns or ()]
    from freshet_serving.models.data.tabular import infer_fields

    return infer_fields(data, columns)
