"""What the tests of all readers share."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.models.data.source import Batch, Source
from freshet_serving.processor.columns import Column, Ragged, Strings

_BESIDE_REPOSITORY = Path(__file__).resolve().parents[4] / "shared" / "data"


def real_data(name: str) -> str:
    """The path of a real data set; skips the test where it is missing."""
    path = Path(os.environ.get("FRESHET_DATA", _BESIDE_REPOSITORY)) / name
    if not path.exists():
        pytest.skip(f"needs the real data set {name}")
    return str(path)


def plain(column: Column) -> list:
    """A column as Python lists; NaN as None, so that equal columns compare equal."""
    if isinstance(column, Strings):
        return column.tolist()
    if isinstance(column, Ragged):
        values, at = plain(column.values), column.row_splits.tolist()
        return [values[a:b] for a, b in pairwise(at)]
    return [None if v != v else v for v in column.tolist()]


def everything(batch: Batch) -> tuple:
    columns = {name: plain(c) for name, c in batch.columns.items()}
    time = None if batch.time is None else batch.time.tolist()
    return batch.start, columns, batch.label.tolist(), time


def joined(batches: list[Batch]) -> dict[str, list]:
    """Every column over all batches, with the label and the time as columns of those names."""
    rows: dict[str, list] = {}
    for batch in batches:
        named = {**batch.columns, "label": batch.label}
        for name, column in named.items() if batch.time is None else {**named, "time": batch.time}.items():
            rows.setdefault(name, []).extend(plain(column))
    return rows


def check_batches(source: Source, rows: int, total: int) -> None:
    """Sizes, positions, dtypes, and that a reader resumed after any batch yields what is left, unchanged."""
    whole = [everything(b) for b in source.batches(rows)]
    assert [start for start, *_ in whole] == list(range(0, total, rows))
    for batch in source.batches(rows):
        assert len(batch) == min(rows, total - batch.start)
        assert batch.end == batch.start + len(batch)
        assert list(batch.columns) == source.schema.names
        assert batch.label.dtype == np.float32
        assert batch.time is None or batch.time.dtype == np.float64
        for field in source.schema.fields:
            column = batch.columns[field.name]
            if field.kind in ("id", "float"):
                assert column.dtype == (np.int64 if field.kind == "id" else np.float32)
                assert len(column) == len(batch)
            else:
                assert isinstance(column, Strings if field.kind == "string" else Ragged)
                assert len(column) == len(batch)
    for done in range(len(whole) + 1):
        resumed = [everything(b) for b in source.batches(rows, min(done * rows, total))]
        assert resumed == whole[done:]
