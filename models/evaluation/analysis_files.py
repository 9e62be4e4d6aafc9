"""Write summaries and rows of tables as Parquet files, which appear whole under their names.

tables   one line for each bin or saving: table, measure, value, rows, lookups. measure is frequency, age or norm, and
         value the lower edge of the bin; or measure is admit_after, evict_after_steps or evict_below_norm, value the
         setting, and rows and lookups what it would remove. lookups is null if they were not counted
rows     one line for each row: table, id, frequency, last_step, age, norm. A table of more than MOST_ROWS rows is
         sampled by a hash of the id, so every run picks the same ids; the file's metadata has the share as share.TABLE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from freshet_serving.models.embedding.variable import norms
from freshet_serving.models.evaluation.row_layers import RowChunk
from freshet_serving.models.evaluation.table_summary import TableSummary, norm_edge
from freshet_serving.processor.package import atomic_file

MOST_ROWS = 4_000_000
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LINES = pa.schema(
    [
        ("table", pa.string()),
        ("measure", pa.string()),
        ("value", pa.float64()),
        ("rows", pa.int64()),
        ("lookups", pa.int64()),
    ]
)
_ROWS = pa.schema(
    [
        ("table", pa.dictionary(pa.int32(), pa.string())),
        ("id", pa.int64()),
        ("frequency", pa.int64()),
        ("last_step", pa.int64()),
        ("age", pa.int64()),
        ("norm", pa.float32()),
    ]
)


class RowsFile:
    """Writer of rows.parquet; a context manager that leaves no file after an error."""

    def __init__(self, path: Path) -> None:
        self._path, self._stack = path, ExitStack()
        self._name, self._steps, self._of = "", 0, 1

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            file = stack.enter_context(atomic_file(self._path))
            self._writer = stack.enter_context(pq.ParquetWriter(file, _ROWS, compression="zstd"))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def begin(self, name: str, rows: int, steps: int) -> None:
        self._name, self._steps, self._of = name, steps, -(-rows // MOST_ROWS) or 1
        self._writer.add_key_value_metadata({f"share.{name}": str(1 / self._of)})

    def tee(self, pieces: Iterable[RowChunk]) -> Iterator[RowChunk]:
        for piece in pieces:
            self._write(piece)
            yield piece

    def _write(self, piece: RowChunk) -> None:
        sampled = slice(None) if self._of == 1 else _hashed(piece.keys) % np.uint64(self._of) == 0
        keys = piece.keys[sampled]
        unknown = np.zeros(len(keys), np.int64)
        counts = unknown if piece.counts is None else piece.counts[sampled]
        steps = unknown if piece.last_step is None else piece.last_step[sampled]
        names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(keys), np.int32)), pa.array([self._name]))
        columns = [keys, counts, steps, self._steps - steps, norms(piece.rows[sampled]).astype(np.float32)]
        self._writer.write_table(pa.Table.from_arrays([names, *map(pa.array, columns)], schema=_ROWS))


def write_summaries(path: Path, summaries: Iterable[TableSummary]) -> None:
    lines: list[dict[str, Any]] = []
    for s in summaries:
        for measure, rows, lookups, edge in (
            ("frequency", s.rows_by_frequency, s.lookups_by_frequency, _doubled),
            ("age", s.rows_by_age, s.lookups_by_age, _doubled),
            ("norm", s.rows_by_norm, s.lookups_by_norm, norm_edge),
        ):
            for i in np.flatnonzero(rows).tolist():
                counted = int(lookups[i]) if s.counted else None
                lines.append(_line(s.name, measure, edge(i), int(rows[i]), counted))
        for saving in s.savings():
            lost = round(saving.lookups * s.lookups) if s.counted else None
            lines.append(_line(s.name, saving.key, saving.value, saving.rows, lost))
    with atomic_file(path) as file:
        pq.write_table(pa.Table.from_pylist(lines, _LINES), file)


def _line(table: str, measure: str, value: float, rows: int, lookups: int | None) -> dict[str, Any]:
    return {"table": table, "measure": measure, "value": float(value), "rows": rows, "lookups": lookups}


def _doubled(i: int) -> float:
    return 2.0 ** (i - 1) if i else 0.0


def _hashed(keys: NDArray[np.int64]) -> NDArray[np.uint64]:
    mixed = np.ascontiguousarray(keys).view(np.uint64) * _GOLDEN
    return (mixed ^ (mixed >> np.uint64(32))) * _GOLDEN >> np.uint64(32)
