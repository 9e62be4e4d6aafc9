"""Convert a request's inputs to the tensors of a model's own graph, in NumPy.

An input of a package stands for one or more tensors of the model: a single one is "input/<name>"; ragged rows have
values and row_splits; a sparse tensor has indices, values and shape, and its rows are a ragged input too; a matrix with
any number of columns ("padded") is a ragged input with rows of equal length.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import MAX_RANK, Input

DENSE, RAGGED, SPARSE, PADDED = "dense", "ragged", "sparse", "padded"
COMPONENTS = {
    DENSE: ("",),
    PADDED: ("",),
    RAGGED: ("/values", "/row_splits"),
    SPARSE: ("/indices", "/values", "/shape"),
}

Feeds = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """One input of a foreign model.

    Attributes:
        kind: One of DENSE, RAGGED, SPARSE, PADDED.
        dtype: Type of the model's tensor (object for strings).
        dims: Dimensions of a row in the model's tensor.
        own: The name that the model itself gives it, if it differs.
    """

    name: str
    kind: str
    dtype: np.dtype[Any]
    dims: tuple[int, ...] = ()
    own: str = ""

    @property
    def input(self) -> Input:
        """The package's input: string, int64 for integers and booleans, or else float32, with the model's own type."""
        dtype = "float32" if self.floats else "string" if self.dtype.kind == "O" else "int64"
        declared = "" if dtype in ("string", self.dtype.name) else self.dtype.name
        if self.kind != DENSE:
            return Input(self.name, dtype, ragged=True, declared=declared)
        columns = int(np.prod(self.dims, dtype=np.int64))
        shape = None if self.dims in ((), (columns,)) and self.dims != (1,) else list(self.dims)
        dims = shape if len(self.dims) < MAX_RANK else None
        return Input(self.name, dtype, columns=0 if columns == 1 else columns, declared=declared, dims=dims)

    @property
    def floats(self) -> bool:
        """True if the model's tensor holds floats; NumPy knows bfloat16 by its name only."""
        return self.dtype.kind == "f" or self.dtype.name == "bfloat16"

    @property
    def nodes(self) -> list[str]:
        return [f"input/{self.name}{part}" for part in COMPONENTS[self.kind]]

    def feeds(self, column: Column, rows: int) -> Feeds:
        """Return the tensors to feed, by node; a single row is repeated. Raise BadInput for unacceptable values."""
        if isinstance(column, Ragged):
            return self._rows(column, rows)
        values = self._values(column).reshape(-1, *self.dims)
        return {self.nodes[0]: np.repeat(values, rows, axis=0) if len(values) == 1 < rows else values}

    def is_single(self, column: Column) -> bool:
        width = self.input.columns or 1
        return len(column) == (width if isinstance(column, Strings) else 1)

    def check(self, column: Column) -> None:
        """Raise BadInput for a column that the model cannot accept, whichever of its rows are fed together."""
        if isinstance(column, Ragged):
            lengths = np.diff(column.row_splits)
            if self.kind == PADDED and len(lengths) and (lengths != lengths[0]).any():
                raise BadInput(f"input {self.name!r}: expected rows of equal length")
            column = column.values
        if not isinstance(column, Strings):
            self._check_range(column)

    def _rows(self, column: Ragged, rows: int) -> Feeds:
        self.check(column)
        values, splits = self._values(column.values), np.asarray(column.row_splits, np.int64)
        if len(column) == 1 < rows:
            splits = np.arange(rows + 1, dtype=np.int64) * len(values)
            values = np.tile(values, rows)
        if self.kind == RAGGED:
            return dict(zip(self.nodes, (values, splits)))
        lengths = np.diff(splits)
        if self.kind == PADDED:
            return {self.nodes[0]: values.reshape(rows, int(lengths.max(initial=0)))}
        row = np.repeat(np.arange(rows, dtype=np.int64), lengths)
        indices = np.stack([row, np.arange(len(values), dtype=np.int64) - splits[:-1][row]], 1)
        shape = np.array([rows, lengths.max(initial=0)], np.int64)
        return dict(zip(self.nodes, (indices, values, shape)))

    def _values(self, column: NDArray[Any] | Strings) -> NDArray[Any]:
        if isinstance(column, Strings):
            values = np.empty(len(column), object)
            values[:] = column.tolist()
            return values
        if self.dtype.kind == "O":
            return np.empty(0, object)
        self._check_range(column)
        return np.asarray(column).astype(self.dtype, copy=False)

    def _check_range(self, column: NDArray[Any]) -> None:
        # The int64 of a uint64 carries its bits, so every one of them fits.
        if self.dtype.kind in "iu" and self.dtype != np.uint64 and column.dtype != self.dtype:
            limits = np.iinfo(self.dtype)
            if column.size and (column.min() < limits.min or column.max() > limits.max):
                raise BadInput(f"input {self.name!r}: expected values of {self.dtype.name}, got one that does not fit")


def plain(name: str) -> str:
    """Replace characters of `name` that a package's names may not contain."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".-")[:128] or "input"


def own_names_of(fed: Iterable[FeedSpec]) -> dict[str, str]:
    """Return the inputs whose names the model spells otherwise, by the model's spelling."""
    return {spec.own: spec.name for spec in fed if spec.own}


def by_input(given: Mapping[str, Any] | None, fed: Iterable[FeedSpec]) -> dict[str, Any] | None:
    """Return what a user gave, by either name of each input, by the package's names; None for nothing."""
    names = own_names_of(fed)
    return None if given is None else {names.get(name, name): value for name, value in given.items()}


def user_inputs(names: Iterable[str], fed: Iterable[FeedSpec]) -> frozenset[str]:
    """Return the user's inputs by the package's names, given either name of each; raise BadInput if one is no input."""
    by_name = {spec.name: spec for spec in fed}
    own_names = own_names_of(by_name.values())
    users = frozenset(own_names.get(name, name) for name in names)
    for name in sorted(users - by_name.keys()):
        raise BadInput(f"user: expected one of the inputs {', '.join(sorted(by_name))[:200]}, got {name[:64]!r}")
    return users


def feeds_of(
    fed: Mapping[str, FeedSpec], columns: Mapping[str, Column], rows: int, single: Collection[str] = ()
) -> Feeds:
    """Return all tensors to feed, by node; one row of `single` inputs is not repeated for the rows of others."""
    feeds: Feeds = {}
    for name, spec in fed.items():
        column = columns[name]
        feeds |= spec.feeds(column, 1 if name in single and spec.is_single(column) else rows)
    return feeds


def repeated_rows(fed: FeedSpec, values: Any, rows: int) -> Column:
    """Return that many rows of an input, repeating rows as in a JSON request; raise BadInput if they do not fit it."""
    if not isinstance(values, list) or not values:
        raise BadInput(f"samples: expected a list of rows for input {fed.name!r}")
    chosen = [values[i % len(values)] for i in range(rows)]
    try:
        if fed.kind != DENSE:
            return Ragged.of(chosen) if fed.dtype != np.uint64 else _unsigned_rows(chosen)
        if fed.dtype.kind == "O":
            return Strings.of(np.array(chosen, object).ravel().tolist())
        columns = fed.input.columns
        shape = (rows, columns) if columns else (rows,)
        if fed.dtype == np.uint64:
            return np.array(chosen, np.uint64).view(np.int64).reshape(shape)
        dtype: np.dtype[Any] = np.dtype(np.float32 if fed.floats else np.int64)
        return np.array(chosen, dtype).reshape(shape)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise BadInput(
            f"samples: expected {fed.input.declared or fed.input.dtype} values for input {fed.name!r}"
        ) from None


def _unsigned_rows(rows: list[Any]) -> Ragged:
    splits = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Ragged(np.array([value for row in rows for value in row], np.uint64).view(np.int64), splits)
