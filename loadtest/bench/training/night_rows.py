"""The rows of good and of bad nights.

A night has a window of a stream that is held in memory. A fault changes those rows as a broken pipeline would; what the
package itself has wrong is in loadtest.bench.training.night_packages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.source import Batch, Schema, Source, join_batches

OTHER_SEED = 0x5DEECE66D
READ_ROWS = 1 << 14

Change = Callable[[Batch], Batch]


class NightRows:
    """Rows in memory as a source that ends."""

    def __init__(self, schema: Schema, rows: Batch) -> None:
        """Take the rows.

        Args:
            schema: Their schema.
            rows: The rows.
        """
        self.schema, self._rows = schema, dataclasses.replace(rows, start=0)

    def count_rows(self) -> int:
        return len(self._rows)

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches of consecutive rows (Source.batches)."""
        for first in range(start, len(self._rows), rows):
            yield self._rows.slice(first, min(first + rows, len(self._rows)))


def read_rows(source: Source, first: int, count: int) -> Batch:
    """Read rows of a stream, fewer if it ends before.

    Args:
        source: The stream.
        first: The first of them.
        count: Number of rows.
    """
    parts, read = [], 0
    for batch in source.batches(READ_ROWS, first):
        parts.append(batch.slice(0, min(len(batch), count - read)))
        read += len(parts[-1])
        if read >= count:
            break
    return dataclasses.replace(join_batches(parts), start=0)


def _labels(change: Callable[[Any], Any]) -> Change:
    return lambda rows: dataclasses.replace(rows, label=change(rows.label).astype(np.float32))


def _shuffled(labels: Any) -> Any:
    return np.random.default_rng(len(labels)).permutation(labels)


def _first_column(kind: str, change: Callable[[Any], Any]) -> Change:
    """Change the first column of whole numbers ("i") or of floats ("f")."""

    def changed(rows: Batch) -> Batch:
        columns: dict[str, Any] = dict(rows.columns)
        name = next(n for n, c in columns.items() if isinstance(c, np.ndarray) and c.dtype.kind == kind)
        return dataclasses.replace(rows, columns=columns | {name: change(columns[name])})

    return changed


ROW_FAULTS: Mapping[str, Change] = {
    "labels 0": _labels(np.zeros_like),
    "labels inverted": _labels(lambda labels: 1 - labels),
    "labels shuffled": _labels(_shuffled),
    "ids by another seed": _first_column("i", lambda ids: ids ^ OTHER_SEED),
    "a feature in other units": _first_column("f", lambda values: values * 1000),
    "a feature lost": _first_column("f", np.zeros_like),
    "a tenth of the rows": lambda rows: rows.slice(len(rows) - len(rows) // 10, len(rows)),
}


def twice(rows: Batch, newest: int) -> Batch:
    """Return a window whose newest rows are there twice, in place of its oldest.

    Args:
        rows: The window.
        newest: Number of newest rows.
    """
    count = len(rows)
    at: NDArray[np.int64] = np.sort(np.concatenate([np.arange(newest, count), np.arange(count - newest, count)]))
    return rows.take(at)
