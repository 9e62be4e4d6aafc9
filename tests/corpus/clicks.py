"""The rows that entries are trained on and asked about: clicks with every kind of column, drawn from a seed.

Requests hold what no row does, too: ids and strings that are in no table, NaN, empty and long lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from freshet_serving.models.data.source import Batch, Field, Schema, check_position
from freshet_serving.processor.columns import Column, Ragged, Strings
from tests.corpus.entry import column_document

KINDS = {
    "user": "id",
    "item": "id",
    "city": "string",
    "history": "ids",
    "tags": "strings",
    "price": "float",
    "age": "float",
    "time": "seconds",
    "seen_items": "ids",
    "seen_actions": "ids",
    "seen_seconds": "floats",
    "seen_ms": "ids",
}
CITIES = ["", "Zürich", "東京", "Oslo", "La Paz", "x" * 40]
USERS, ITEMS, TAGS = 60, 40, 24
START_S = 1_700_000_000
LIST_LENGTHS = [0, 1, 2, 3, 7]
ACTIONS = 4
EVENT_COUNTS = [0, 1, 2, 5, 7, 8, 9, 12]
"""Of the user's events in a row, in the columns seen_*: none, fewer than a recipe reads, just as many, more."""


class Clicks:
    """A source of so many rows, with columns of KINDS; labels "click" and, of two, "buy"."""

    def __init__(self, rows: int, columns: Sequence[str], labels: int = 1, seed: int = 1) -> None:
        fields = tuple(Field(name, KINDS[name]) for name in columns)
        self.schema = Schema(fields, names_of(labels), "time")
        self._batch = _batch(rows, columns, labels, seed)

    def count_rows(self) -> int:
        return len(self._batch)

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        check_position(rows, start)
        for first in range(start, len(self._batch), rows):
            yield self._batch.slice(first, min(first + rows, len(self._batch)))


def names_of(labels: int) -> str | tuple[str, ...]:
    return "click" if labels == 1 else ("click", "buy")


def inputs_of(rows: int, columns: Sequence[str], seed: int, once: Sequence[str] = ()) -> dict[str, Any]:
    """The inputs of a request; of the columns `once` there is one row for all."""
    random = np.random.default_rng([7, seed])
    columns_of = _columns(rows, random) | _events(rows, np.random.default_rng([13, seed]))
    strange = {"user": np.int64(-(2**63)), "item": np.int64(2**63 - 1)}
    for name, key in strange.items():
        column: Any = columns_of[name]
        column[-1] = key
    for name, key in {"seen_items": 2**63 - 1, "seen_actions": -1}.items():
        events: Any = columns_of[name]
        events.values[::11] = key
    columns_of["city"] = Strings.of([*columns_of["city"].tolist()[:-1], "nowhere"])  # type: ignore[union-attr]
    single = _columns(1, random) | _events(1, np.random.default_rng([17, seed]), EVENT_COUNTS[-1:])
    return {name: _document(single[name] if name in once else columns_of[name]) for name in columns}


def spread(numbers: Any) -> np.ndarray:
    """Distinct ids all over int64 for small whole numbers."""
    return (np.asarray(numbers).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def _batch(rows: int, columns: Sequence[str], labels: int, seed: int) -> Batch:
    random = np.random.default_rng([3, seed])
    columns_of, users, items = _columns(rows, random), random.integers(0, USERS, rows), random.integers(0, ITEMS, rows)
    columns_of |= {"user": spread(users), "item": spread(items), "time": START_S + np.arange(rows) * 600}
    columns_of |= _events(rows, np.random.default_rng([11, seed]))
    logit = np.where(users % 2, 2, -1.5) + np.where(items % 3, 1, -2)
    click = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    buy = click * (random.random(rows) < 0.4).astype(np.float32)
    label = np.stack([click, buy], axis=1) if labels > 1 else click
    time = START_S + np.arange(rows) * 600.0
    return Batch({name: columns_of[name] for name in columns}, label, time, 0)


def _columns(rows: int, random: np.random.Generator) -> dict[str, Column]:
    def lists() -> list[int]:
        return random.choice(LIST_LENGTHS, rows).tolist()

    history = [spread(random.integers(0, ITEMS, length)).tolist() for length in lists()]
    tags = [[f"tag {tag}" for tag in random.integers(0, TAGS, length)] for length in lists()]
    price = random.lognormal(2, 1, rows).astype(np.float32)
    age = np.where(random.random(rows) < 0.2, np.nan, random.normal(40, 12, rows)).astype(np.float32)
    return {
        "user": spread(random.integers(0, USERS, rows)),
        "item": spread(random.integers(0, ITEMS, rows)),
        "city": Strings.of([CITIES[n] for n in random.integers(0, len(CITIES), rows)]),
        "history": _ragged(history, lambda flat: np.array(flat, np.int64)),
        "tags": _ragged(tags, Strings.of),
        "price": price,
        "age": age,
        "time": START_S + random.integers(0, 10**7, rows),
    }


def _events(rows: int, random: np.random.Generator, counts: Sequence[int] = EVENT_COUNTS) -> dict[str, Column]:
    """The columns seen_*, oldest event first. They have numbers of their own, so that what other columns hold stays."""
    splits = np.zeros(rows + 1, np.int64)
    np.cumsum(random.permutation(np.resize(counts, rows)), out=splits[1:])
    total = int(splits[-1])
    seconds = np.where(random.random(total) < 0.2, np.nan, random.lognormal(3, 1, total)).astype(np.float32)
    times = [np.sort(random.integers(0, 10**9, n)) + START_S * 1000 for n in np.diff(splits)]
    return {
        "seen_items": Ragged(spread(random.integers(0, ITEMS, total)), splits),
        "seen_actions": Ragged(random.integers(0, ACTIONS, total), splits),
        "seen_seconds": Ragged(seconds, splits),
        "seen_ms": Ragged(np.concatenate(times), splits),
    }


def _ragged(rows: list[list[Any]], make: Any) -> Ragged:
    splits = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=splits[1:])
    return Ragged(make([value for row in rows for value in row]), splits)


def _document(column: Column) -> dict[str, Any]:
    if isinstance(column, Ragged):
        return {**_document(column.values), "row_splits": column.row_splits.tolist()}
    if isinstance(column, Strings):
        return column_document("string", [value.decode() for value in column.tolist()], [len(column)])
    return column_document(column.dtype.name, column.reshape(-1).tolist(), list(column.shape))
