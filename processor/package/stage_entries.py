"""An imported model's stage in a manifest: the rows of tables that it reads, and how much it computes.

A stage is computed by its own library, but its embeddings need not be constants in it: the engine looks up their rows
under the state of each batch, so that a delta reaches them, and hands them to the stage as inputs. Each lookup is a
table and the keys to look up, and gives the stage a tensor float32 [values, dim]: the rows of all values of an input,
in their order, in whatever shape the stage's own tensor of keys is.

A weight inside the stage is a table too: its lookup names no keys and gives all rows of the version's file in their
order, so that a delta of rows changes the weight.

Rows never decide which rows are read, so a stage with lookups outputs floats alone.

The growth of a stage is how much it computes for a request, by the request's shape; it is asked before each run. Limits
count what a request brings as a sum; what a graph makes of it may be a product or a power: attention over a history is
quadratic in its length, and a list that is sent once is computed for every candidate. So a stage's growth is a
polynomial in the rows of a run and the longest of its lists, in cells: values of four bytes that operators write.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.transforms import ColumnShape

MAX_POWER = 4
MAX_TERMS = 32
MAX_FACTOR = 1e15


@dataclass(frozen=True, slots=True)
class StageLookup:
    """One lookup of a stage.

    Attributes:
        name: Its name among the stage's inputs.
        input: The tensor with the keys: an input of the request or a transform; "" for a weight, whose keys are the
            numbers of the table's rows.
        table: The table.
        columns: Columns of the input that are looked up, in this order; [] for lists and for an input of shape [n].
    """

    name: str
    input: str
    table: str
    columns: list[int] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Return whether it reads a weight: the whole table."""
        return not self.input


def weight_rows(shape: Sequence[int]) -> tuple[int, int]:
    """Return the number of rows that a weight of this shape has as a table, and their length: its last dimension.

    A scalar has one row of one number.
    """
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


class TensorType(Protocol):
    """An output of a stage as far as its type goes (processor.package.manifest.Input)."""

    @property
    def dtype(self) -> str: ...


def validate_stage_lookups(
    lookups: Sequence[StageLookup],
    outputs: Sequence[TensorType],
    shapes: Mapping[str, ColumnShape],
    tables: Collection[str],
) -> None:
    """Raise BadInput unless a stage's lookups agree with inputs and tables.

    Args:
        lookups: The lookups.
        outputs: The stage's outputs.
        shapes: Shapes of the request's inputs and the transforms, by name.
        tables: Names of the tables.
    """
    names = [lookup.name for lookup in lookups]
    floats = all(output.dtype == "float32" for output in outputs)
    _want(not lookups or floats, "manifest.stage.outputs: expected float32 of a stage with lookups")
    for lookup in lookups:
        where = f"manifest.stage.lookups[{lookup.name[:64]}]"
        _want(bool(lookup.name) and names.count(lookup.name) == 1, f"{where}: expected a name of its own")
        _want(lookup.table in tables, f"{where}.table: {lookup.table[:64]!r} is not among manifest.tables")
        if lookup.whole:
            _want(not lookup.columns, f"{where}.columns: expected none of a weight")
            continue
        _want(lookup.input in shapes, f"{where}.input: {lookup.input[:64]!r} is not an input or a transform")
        shape, columns = shapes[lookup.input], lookup.columns
        _want(shape.dtype != "float32", f"{where}.input: expected int64 or string, got float32")
        inside = bool(columns) == bool(shape.columns) and all(0 <= column < shape.columns for column in columns)
        _want(inside, f"{where}.columns: expected columns of {lookup.input!r}, which has {shape.columns}")


@dataclass(frozen=True, slots=True)
class GrowthTerm:
    """One term of the polynomial: cells * rows ** `rows` * length ** `length`."""

    rows: int
    length: int
    cells: float


@dataclass(frozen=True, slots=True)
class StageGrowth:
    """The cells of a run of a stage.

    Attributes:
        terms: The polynomial's terms.
        sized_by: Inputs whose values count as lengths, because the graph makes tensors as long: integers by their
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
        """Return the cells of a run.

        Args:
            rows: Rows of the run.
            length: The longest list in it; 1 without lists.
        """
        return math.ceil(sum(t.cells * float(rows) ** t.rows * float(length) ** t.length for t in self.terms))

    def rows_within(self, cells: int, length: int, rows: int) -> int:
        """Return how many rows of a request to run at once: as many as stay within `cells`, at least one.

        Args:
            cells: Most cells of a run.
            length: The longest list.
            rows: Rows of the request.
        """
        least, most = 1, rows
        while least < most:
            middle = (least + most + 1) // 2
            if self.cells(middle, length) <= cells:
                least = middle
            else:
                most = middle - 1
        return least


def validate_growth(growth: StageGrowth, inputs: Collection[str]) -> None:
    """Raise BadInput for a growth that is no polynomial with positive factors.

    Args:
        growth: The growth.
        inputs: Names of the request's inputs.
    """
    where = "manifest.stage.growth"
    _want(0 < len(growth.terms) <= MAX_TERMS, f"{where}.terms: expected 1 to {MAX_TERMS}, got {len(growth.terms)}")
    for term in growth.terms:
        powers = 0 <= term.rows <= MAX_POWER and 0 <= term.length <= MAX_POWER
        _want(powers, f"{where}.terms: expected powers from 0 to {MAX_POWER}, got {term.rows} and {term.length}")
        _want(0 < term.cells <= MAX_FACTOR, f"{where}.terms: expected factors above 0, got {term.cells}")
    for name in growth.sized_by:
        _want(name in inputs, f"{where}.sized_by: {name[:64]!r} is not an input")


def _want(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)
