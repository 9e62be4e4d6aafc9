"""Read the inputs of a request one by one: check each against the manifest, and make arrays that the kernel reads."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_uint8
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings, are_splits
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import Input, Manifest


class BoundInput(NamedTuple):
    """One checked input as the kernel reads it: value v of row r at values[r * stride + v], or by row_splits.

    The values are contiguous int64 (strings hashed) or float32; one row is broadcast; a dense input has no splits.
    """

    values: NDArray[Any]
    rows: int
    stride: int
    splits: NDArray[np.int64] | None


def bound_input(spec: Input, words: list[int]) -> BoundInput:
    """Return an input as the kernel reads it from its INPUT_FIELDS (kernels.pool); the memory must outlive it."""
    values, rows, stride, splits, _ = words
    bounds = _at(splits, rows + 1, np.int64) if splits else None
    count = int(bounds[-1]) if bounds is not None else (rows - 1) * stride + (spec.columns or 1)
    return BoundInput(_at(values, count, np.float32 if spec.dtype == "float32" else np.int64), rows, stride, bounds)


def _at(address: int, count: int, dtype: type[np.int64] | type[np.float32]) -> NDArray[Any]:
    memory: NDArray[Any] = np.ctypeslib.as_array((c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address))
    return memory.view(dtype)


class InputReader:
    """Reads one input: contiguous and typed as the manifest says, or BadInput."""

    def __init__(self, spec: Input, looked_up: bool, finite: bool, computed: bool = False) -> None:
        """Create a reader.

        Args:
            looked_up: True if a feature looks its values up in a table.
            finite: True if its values must be finite because not only the kernel reads them.
            computed: True for a transform's result, whose lists of ids are as the kernel reads them.
        """
        self.name = spec.name
        self.spec = spec
        self.looked_up, self.finite = looked_up, finite
        self._where = f"input {spec.name!r}"
        self.width = spec.columns or 1
        self.looks_at_values = spec.ragged or spec.dtype == "string"
        self._dtype = None if self.looks_at_values else np.dtype(spec.dtype)
        self._trusts_ids = computed and spec.ragged and spec.dtype == "int64"
        self._shapes = ((spec.columns,),) if spec.columns else ((), (1,))

    def __call__(self, column: Column, seed: int) -> BoundInput:
        if self._trusts_ids and isinstance(column, Ragged):
            splits = column.row_splits
            return BoundInput(column.values, len(splits) - 1, 1, splits)  # type: ignore[arg-type]
        # Check for None first: a float64 dtype equals None.
        if self._dtype is not None and type(column) is np.ndarray and column.dtype == self._dtype:
            shape = column.shape
            if shape and shape[0] and shape[1:] in self._shapes:
                values = column if column.flags.c_contiguous else np.ascontiguousarray(column)
                return BoundInput(values, shape[0], self.width, None)
        return self._ragged(column, seed) if self.spec.ragged else self._dense(column, seed)

    def _ragged(self, column: Column, seed: int) -> BoundInput:
        where = self._where
        if not isinstance(column, Ragged):
            raise BadInput(f"{where}: expected ragged rows, got {_describe(column)}")
        floats = self.spec.dtype == "float32"
        values = _floats(column.values, where) if floats else _ids(self.spec, column.values, seed, where)
        if not are_splits(column.row_splits, len(values)):
            raise BadInput(f"{where}: expected row_splits ascending from 0 to {len(values)} for at least one row")
        splits = np.ascontiguousarray(column.row_splits, np.int64)
        return BoundInput(values, len(splits) - 1, 1, splits)

    def _dense(self, column: Column, seed: int) -> BoundInput:
        spec, where, width = self.spec, self._where, self.width
        if isinstance(column, Ragged):
            raise BadInput(f"{where}: expected one value per row, got ragged rows")
        if isinstance(column, Strings):
            values = _ids(spec, column, seed, where)
            if len(values) == 0 or len(values) % width:
                raise BadInput(f"{where}: expected a multiple of {width} strings, got {len(values)}")
            return BoundInput(values, len(values) // width, width, None)
        if spec.dtype == "string":
            raise BadInput(f"{where}: expected strings, got {_describe(column)}")
        if column.ndim == 0 or column.shape[0] == 0 or column.shape[1:] not in self._shapes:
            raise BadInput(f"{where}: expected shape [n, {width}], got {list(column.shape)}")
        if column.dtype != self._dtype:
            raise BadInput(f"{where}: expected {spec.dtype}, got {column.dtype.name}")
        return BoundInput(np.ascontiguousarray(column), column.shape[0], width, None)


Reading = tuple[InputReader, list[int]]
"""An input, and the seeds that its strings are hashed with."""


def size_of(column: Column, width: int) -> tuple[int, int]:
    """Return rows and values of a column, whether or not it is valid; `width` is the values in a row of strings."""
    if isinstance(column, Ragged):
        return len(column.row_splits) - 1, len(column.values)
    if isinstance(column, Strings):
        return len(column) // width, len(column)
    return len(column) if column.ndim else 0, column.size


def _ids(spec: Input, values: NDArray[Any] | Strings, seed: int, where: str) -> NDArray[np.int64]:
    if isinstance(values, Strings):
        if spec.dtype != "string":
            raise BadInput(f"{where}: expected {spec.dtype}, got strings")
        hashed: NDArray[np.int64] = hash_strings(values, seed)
        return hashed
    if spec.dtype == "string" and len(values):
        raise BadInput(f"{where}: expected strings, got {values.dtype.name}")
    if values.dtype != np.int64 or values.ndim != 1:
        raise BadInput(f"{where}: expected int64 values, got {_describe(values)}")
    return np.ascontiguousarray(values)


def _floats(values: NDArray[Any] | Strings, where: str) -> NDArray[Any]:
    if isinstance(values, np.ndarray) and not values.size:
        # An empty list has no type of its own.
        return np.empty(0, np.float32)
    if isinstance(values, Strings) or values.dtype != np.float32 or values.ndim != 1:
        raise BadInput(f"{where}: expected float32 values, got {_describe(values)}")
    return np.ascontiguousarray(values)


def _describe(column: Column) -> str:
    if isinstance(column, Ragged):
        return "ragged rows"
    if isinstance(column, Strings):
        return "strings"
    return f"{column.dtype.name} of shape {list(column.shape)}"


def with_blank_row(manifest: Manifest, inputs: Mapping[str, Column]) -> dict[str, Column] | None:
    """Return the inputs of a request for no candidates with a blank row for these; None for any other request.

    What the request leaves out, for others to fill, is blank as well.
    """
    rows = {i.name: size_of(inputs[i.name], i.columns or 1)[0] for i in manifest.inputs if i.name in inputs}
    if 0 not in rows.values() or max(rows.values()) > 1:
        return None
    blank = blank_inputs(manifest)
    names = [name for name in blank if not rows.get(name, name not in manifest.fillers)]
    return {**inputs, **{name: blank[name] for name in names}}


def blank_inputs(manifest: Manifest) -> dict[str, Column]:
    """Return a request of one row: zeros and empty strings; one value in each ragged input."""
    inputs: dict[str, Column] = {}
    for spec in manifest.inputs:
        count = spec.columns or 1
        flat = Strings.of([""] * count) if spec.dtype == "string" else np.zeros(count, spec.dtype)
        inputs[spec.name] = shaped(spec, flat, 1, 1)
    return inputs


def shaped(spec: Input, values: Any, rows: int, length: int) -> Column:
    """Return the values of rows, end to end, as the column of an input; `length` is that of each list."""
    if spec.ragged:
        return Ragged(values, np.arange(rows + 1, dtype=np.int64) * length)
    column: Column = values.reshape(rows, spec.columns) if spec.columns and spec.dtype != "string" else values
    return column
