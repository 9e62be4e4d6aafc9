"""Rows of tables that an imported model's stage reads.

A stage is computed by its own library, but its embeddings need not be constants in it: the engine looks up their rows
under the state of each batch, so that a delta reaches them, and hands them to the stage as inputs. Each lookup is a
table and the keys to look up, and gives the stage a tensor float32 [values, dim]: the rows of all values of an input,
in their order, in whatever shape the stage's own tensor of keys is.

A weight inside the stage is a table too: its lookup names no keys and gives all rows of the version's file in their
order, so that a delta of rows changes the weight.

Rows never decide which rows are read, so a stage with lookups outputs floats alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.transforms import ColumnShape


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


def _want(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)
