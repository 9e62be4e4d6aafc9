"""Write a source to one Parquet file that trains to the same batches: its columns, label, weight and time.

Row groups have GROUP_ROWS rows, or fewer that take GROUP_NBYTES in memory: enough groups to be read in parallel, each
long enough to amortise its header. The file appears whole under its name, or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from freshet_serving.compiler.progress import Reporter
from freshet_serving.models.data.source import Batch, Schema, Source
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import atomic_file, exclusive_file

GROUP_ROWS, GROUP_NBYTES = 131_072, 64 << 20
READ_ROWS = 8_192
SUFFIXES = (".parquet", ".pq")


def copy_to_parquet(source: Source, path: Path, reporter: Reporter, overwrite: bool = False, text: bool = True) -> int:
    """Write all rows of a source and return their number; a BadInput leaves nothing behind.

    With `text`, strings are written as UTF-8 text, which they must be; else as bytes.
    """
    total = source.count_rows()
    if total is None:
        raise BadInput("convert: the stream has no end")
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"convert: expected a file that ends in {' or '.join(SUFFIXES)}, got {path.name[:80]!r}")
    if not path.parent.is_dir():
        raise BadInput(f"convert: output directory does not exist: {str(path.parent)[:80]!r}")
    taken = f"{path.name} already exists; --overwrite replaces it"
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadInput(f"convert: expected a file, got the folder {path.name}" if path.is_dir() else taken)
    reporter.begin(f"writing {path.name}", total)
    try:
        with (atomic_file if overwrite else exclusive_file)(path) as file:
            rows = _write(source, file, reporter, text)
    except FileExistsError:
        raise BadInput(taken) from None
    except OSError as error:
        raise BadInput(f"{path.name}: cannot be written: {error.strerror}") from None
    return rows


def _write(source: Source, file: Any, reporter: Reporter, text: bool) -> int:
    writer: pyarrow.parquet.ParquetWriter | None = None
    held: list[pa.RecordBatch] = []
    rows = 0
    try:
        for batch in source.batches(READ_ROWS):
            held.append(record_batch(batch, source.schema, text))
            writer = writer or pyarrow.parquet.ParquetWriter(file, held[0].schema, compression="zstd")
            rows += len(batch)
            if sum(map(len, held)) >= GROUP_ROWS or sum(b.nbytes for b in held) >= GROUP_NBYTES:
                _write_group(writer, held)
                held = []
            reporter.advance(len(batch))
        if writer and held:
            _write_group(writer, held)
    finally:
        if writer:
            writer.close()
    return rows


def _write_group(writer: pyarrow.parquet.ParquetWriter, held: list[pa.RecordBatch]) -> None:
    writer.write_table(pa.Table.from_batches(held), sum(map(len, held)))


def record_batch(batch: Batch, schema: Schema, text: bool) -> pa.RecordBatch:
    """Convert a batch to Arrow with the column names of its schema; strings as UTF-8 if `text`, else as bytes."""
    # The exact time column also contains its whole seconds, so omit those.
    columns: dict[str, Any] = {n: _array(c, text) for n, c in batch.columns.items() if n != schema.time}
    labels = batch.label.reshape(len(batch), -1)
    columns |= {name: pa.array(np.ascontiguousarray(labels[:, i])) for i, name in enumerate(schema.labels)}
    if schema.weight:
        columns[schema.weight] = pa.array(batch.weight)
    if schema.time:
        columns[schema.time] = pa.array(batch.time)
    return pa.RecordBatch.from_pydict(columns)


def _array(column: Any, text: bool) -> pa.Array:
    if isinstance(column, Ragged):
        return pa.LargeListArray.from_arrays(pa.array(column.row_splits), _array(column.values, text))
    if not isinstance(column, Strings):
        return pa.array(np.ascontiguousarray(column))
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    buffers = [None, pa.py_buffer(column.offsets - first), pa.py_buffer(np.ascontiguousarray(column.data[first:last]))]
    return pa.Array.from_buffers(pa.large_string() if text else pa.large_binary(), len(column), buffers)
