"""An imported model's stage in a manifest: the rows of tables that it reads, and how much it computes.

Its own library computes a stage, but the engine looks up the embeddings under the state of each batch, so that a delta
reaches them, and hands them to the stage as inputs: for each lookup float32 [values, dim], the rows of all values of an
input in their order. A weight inside the stage is a table whose lookup names no keys and gives all rows of the
version's file. Rows never decide which rows are read, so a stage with lookups outputs floats alone.

Limits count what a request brings as a sum, but what a graph makes of it may be a product or a power: attention over a
history is quadratic in its length, and a list that is sent once is computed for every candidate. So a stage has a
growth, asked before each run: a polynomial in the rows of a run and the longest of its lists, in cells, values of four
bytes that operators write.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_POWER = 4
MAX_TERMS = 32
MAX_FACTOR = 1e15


@dataclass(frozen=True, slots=True)
class StageLookup:
    """One lookup of a stage, under a name among its inputs.

    Attributes:
        input: The tensor with the keys: an input of the request or a transform; "" for a weight, whose keys are the
            numbers of the table's rows.
        columns: Columns of the input that are looked up, in this order; [] for lists and for an input of shape [n].
    """

    name: str
    input: str
    table: str
    columns: list[int] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """True for a weight: the whole table is read."""
        return not self.input


def weight_rows(shape: Sequence[int]) -> tuple[int, int]:
    """Return the number and the length of a weight's rows as a table; a scalar is one row of one number."""
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


@dataclass(frozen=True, slots=True)
class GrowthTerm:
    """One term of the polynomial: cells * rows ** `rows` * length ** `length`."""

    rows: int
    length: int
    cells: float


@dataclass(frozen=True, slots=True)
class StageGrowth:
    """The cells of a run of a stage.

    `sized_by` are inputs whose values count as lengths, because the graph makes tensors as long: integers by their
    value, strings by their bytes.

    Example:
        >>> growth = StageGrowth([GrowthTerm(1, 1, 10.0), GrowthTerm(1, 2, 2.0)])
        >>> growth.cells(3, 100)
        63000
        >>> growth.rows_within(63_000, 100, 256)
        3
    """

    terms: list[GrowthTerm]
    sized_by: list[str] = field(default_factory=list)

    def cells(self, rows: int, length: int) -> int:
        """Return the cells of a run of so many rows; `length` is the longest list in it, 1 without lists."""
        return math.ceil(sum(t.cells * float(rows) ** t.rows * float(length) ** t.length for t in self.terms))

    def rows_within(self, cells: int, length: int, rows: int) -> int:
        """Return how many of a request's rows to run at once: as many as stay within `cells`, at least one."""
        least, most = 1, rows
        while least < most:
            middle = (least + most + 1) // 2
            if self.cells(middle, length) <= cells:
                least = middle
            else:
                most = middle - 1
        return least
