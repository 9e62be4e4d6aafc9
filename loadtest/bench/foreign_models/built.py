"""The files that a builder leaves in a folder; needs only numpy, since it runs in every framework's environment.

model.onnx | saved_model/ | model.keras     the model, as the framework writes it
inputs.npz      200 rows of every input; a ragged one as NAME and NAME:row_splits
expected.npz    what the framework makes of them
uses.json       where the model looks up which table
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS = 200
SPLITS = ":row_splits"
SOURCES = ("model.onnx", "saved_model", "model.keras")
Arrays = dict[str, NDArray[Any]]


BYTES, END = ".bytes", b"\x01"
"""Suffix of the name of an array of bytes in a file, and what each of them ends with there."""


@dataclass(frozen=True, slots=True)
class TableUse:
    """One place where a model looks up a table: the row-copy check replaces the ids there by `one` and `other`.

    Attributes:
        table: Name for the table; uses of the same table have the same.
        input: Name of the input that the ids come from.
        column: Column of the input, None for an input without columns; of a ragged input the first value is replaced.
        one, other: Two values of the input that the model looks up in this table.
        row_of_one, row_of_other: Numbers of their rows in the framework's table.
    """

    table: str
    input: str
    column: int | None = None
    one: Any = 1
    other: Any = 2
    row_of_one: int = 1
    row_of_other: int = 2


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model as its builder left it.

    Attributes:
        source: The model's file or folder.
        inputs: 200 rows of every input.
        expected: What the framework makes of them, by output.
        uses: Where the model looks up which table.
    """

    source: Path
    inputs: Arrays
    expected: Arrays
    uses: list[TableUse]


def write_built(
    folder: Path, inputs: Mapping[str, Any], expected: Mapping[str, Any], uses: Sequence[TableUse] = ()
) -> None:
    """Write everything but the model itself. uses.json comes last: a folder that has it is complete."""
    np.savez(folder / "inputs.npz", **_stored(inputs))  # type: ignore[arg-type]
    np.savez(folder / "expected.npz", **_stored(expected))  # type: ignore[arg-type]
    (folder / "uses.json").write_text(json.dumps([asdict(use) for use in uses]))


def read_built(folder: Path) -> BuiltModel | None:
    """Return what lies in a folder, or None if it is not complete."""
    found = [folder / name for name in SOURCES if (folder / name).exists()]
    if not found or not (folder / "uses.json").exists():
        return None
    uses = [TableUse(**use) for use in json.loads((folder / "uses.json").read_text())]
    return BuiltModel(found[0], _arrays(folder / "inputs.npz"), _arrays(folder / "expected.npz"), uses)


def _stored(arrays: Mapping[str, Any]) -> Arrays:
    """Return arrays as a file without pickles holds them; NumPy's own bytes lose zeros at their end."""
    found: Arrays = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        if array.dtype != object:
            found[name] = array
        elif all(isinstance(each, bytes) for each in array.ravel()):
            found[name + BYTES] = np.array([each + END for each in array.ravel()], "S").reshape(array.shape)
        else:
            found[name] = array.astype(str)
    return found


def _arrays(path: Path) -> Arrays:
    found: Arrays = {}
    with np.load(path, allow_pickle=False) as kept:
        for name in kept.files:
            array = kept[name]
            if name.endswith(BYTES):
                ended, array = array, np.empty(array.shape, object)
                array.ravel()[:] = [each.removesuffix(END) for each in ended.ravel().tolist()]
            found[name.removesuffix(BYTES)] = array
    return found


def with_value(inputs: Mapping[str, NDArray[Any]], use: TableUse, value: Any) -> Arrays:
    """Return the inputs with a use's ids replaced in all rows; of a ragged input, in all rows that have any."""
    changed = dict(inputs)
    old = inputs[use.input]
    new = old.astype(np.result_type(old.dtype, np.asarray(value).dtype)) if old.dtype.kind == "U" else old.copy()
    splits = inputs.get(use.input + SPLITS)
    if splits is not None:
        new[splits[:-1][np.diff(splits) > 0]] = value
    elif use.column is None:
        new[:] = value
    else:
        new[:, use.column] = value
    changed[use.input] = new
    return changed
