"""Twenty random small tables: 1,000 to 50,000 rows, base rates of 0.1 to 50 %, columns and signal drawn by seed.

Rows do not drift: every row, of the full version and of the stream behind it, is drawn from the same distribution. So a
delta that moves the mean score far is the trainer's fault, not the data's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.data.source import Batch, Field, Schema, check_position
from loadtest.bench.labelled_tables import click_shares

TABLES = 20
FEWEST_ROWS, MOST_ROWS = 1_000, 50_000
LOWEST_RATE, HIGHEST_RATE = 0.001, 0.5
SPANS = 4
"""A table has so many times the rows of its full version: deltas and rows to measure on come from the others."""

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TableShape:
    """How a random table is drawn.

    Attributes:
        rows: of the full version.
        base_rate: mean label.
        ids: by column of ids: (different ids, exponent of their Zipf distribution, deviation of the logit that an id
            adds).
        floats: by column of numbers: the logit that one deviation adds.
        pairs: deviation of the logit that pairs of ids of the first two columns add.
    """

    seed: int
    rows: int
    base_rate: float
    ids: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    floats: dict[str, float] = field(default_factory=dict)
    pairs: float = 0.0

    @property
    def name(self) -> str:
        columns = f"{len(self.ids)} + {len(self.floats)} columns"
        return f"{self.seed}: {self.rows:,} rows, {self.base_rate:.2g} ones, {columns}"


def draw_shape(seed: int, tables: int = TABLES) -> TableShape:
    """Draw the shape of table `seed`.

    Args:
        seed: number of the table, from 0.
        tables: how many tables there are: their sizes are spread evenly in the logarithm.

    Returns:
        The shape. Base rates lie evenly in the logarithm too, in an order that has nothing to do with the sizes.
    """
    random = np.random.default_rng([29, seed])
    place = seed / max(1, tables - 1)
    rows = round(FEWEST_ROWS * (MOST_ROWS / FEWEST_ROWS) ** place)
    shuffled = (seed * 7 + 3) % tables / max(1, tables - 1)
    rate = LOWEST_RATE * (HIGHEST_RATE / LOWEST_RATE) ** shuffled
    ids = {
        f"id{n}": (
            round(math.exp(random.uniform(math.log(3), math.log(rows)))),
            float(random.uniform(0, 1.3)),
            float(random.uniform(0, 1.2)),
        )
        for n in range(random.integers(2, 13))
    }
    floats = {f"float{n}": float(random.normal(0, 0.4)) for n in range(random.integers(0, 5))}
    return TableShape(seed, rows, rate, ids, floats, float(random.choice([0.0, 0.5, 1.0])))


class RandomTable:
    """The rows of a shape, in memory. truth: float64 [n], each row's probability of a label of 1."""

    def __init__(self, shape: TableShape) -> None:
        self.shape = shape
        fields = [*(Field(name, "id") for name in shape.ids), *(Field(name, "float") for name in shape.floats)]
        self.schema = Schema(tuple(fields), "label")
        rows, random = shape.rows * SPANS, np.random.default_rng([31, shape.seed])
        logit = np.zeros(rows)
        self.columns: dict[str, Any] = {}
        for name, (count, uneven, says) in shape.ids.items():
            shares = np.cumsum(1 / np.arange(1, count + 1) ** uneven)
            drawn = np.searchsorted(shares, random.random(rows) * shares[-1]).astype(np.int64)
            self.columns[name] = drawn
            logit += (random.standard_normal(count) * says)[drawn]
        for name, says in shape.floats.items():
            drawn = random.standard_normal(rows)
            self.columns[name] = drawn.astype(np.float32)
            logit += drawn * says
        if shape.pairs:
            first, second = (self.columns[name] % 16 for name in list(shape.ids)[:2])
            logit += (random.standard_normal((16, 16)) * shape.pairs)[first, second]
        self.truth: Float64s = click_shares(logit, shape.base_rate)
        self.label = (random.random(rows) < self.truth).astype(np.float32)

    def config(self) -> TrainConfig:
        """A training file that says nothing of [train]."""
        features = {name: {"kind": "id"} for name in self.shape.ids} | {
            name: {"kind": "float"} for name in self.shape.floats
        }
        data = {"path": "x.csv", "label": "label"}
        return parse_config({"model": {"name": "table"}, "data": data, "features": features})

    def count_rows(self) -> int:
        return len(self.label)

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        check_position(rows, start)
        for first in range(start, len(self.label), rows):
            yield self.rows(first, first + rows)

    def rows(self, first: int, last: int) -> Batch:
        """Rows [first, last) of the table."""
        cut = slice(first, last)
        return Batch({name: column[cut] for name, column in self.columns.items()}, self.label[cut], None, first)
