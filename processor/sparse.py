"""The sparse graph of a model: a request's named inputs in, the dense graph's input matrix out.

A SparsePlan is made once from the manifest. bind() checks a request against it and turns it into addresses; fill()
runs the fused kernel over the bound requests of a batch. Bounds are checked in bind() and only there: the kernel
trusts what bind() returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from processor.columns import Column, Ragged, Strings
from processor.errors import BadInput
from processor.kernels import pool
from processor.kernels.hashing import hash_strings
from processor.package.manifest import Input, Manifest

COMBINERS = {"sum": pool.SUM, "mean": pool.MEAN, "sqrtn": pool.SQRTN, "none": pool.NONE}


@dataclass(frozen=True, slots=True)
class Slot:
    """One checked input as the kernel reads it: value v of row r at values[r * stride + v], or by row_splits.

    values: int64 (strings hashed) or float32, contiguous; rows of 1 are broadcast.
    """

    values: NDArray[Any]
    rows: int
    stride: int
    splits: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class Bound:
    """A checked request. rows: candidates. inputs: int64 [slots, 4], addresses into `keep`, which must outlive it."""

    rows: int
    inputs: NDArray[np.int64]
    keep: tuple[Slot, ...]


class SparsePlan:
    """What to read, look up and pool for one model, in which columns of the dense input."""

    def __init__(self, manifest: Manifest) -> None:
        self.width = manifest.width
        self._inputs = {i.name: i for i in manifest.inputs}
        tables = {t.name: (n, t) for n, t in enumerate(manifest.tables)}
        self._slots: dict[tuple[str, int], int] = {}
        for name in self._inputs:
            seeds = {tables[f.table][1].hash_seed for f in manifest.features if f.input == name and f.table}
            for seed in sorted(seeds) if self._inputs[name].dtype == "string" else [0]:
                self._slots[name, seed] = len(self._slots)
        self._reads = [
            (name, spec, [(seed, slot) for (owner, seed), slot in self._slots.items() if owner == name])
            for name, spec in self._inputs.items()
        ]
        self.plan = np.zeros((len(manifest.features), pool.PLAN_FIELDS), np.int64)
        self.scaling = np.zeros((len(manifest.features), 3), np.float32)
        for row, f in enumerate(manifest.features):
            table, seed = -1, 0
            if f.table:
                table = tables[f.table][0]
                seed = tables[f.table][1].hash_seed if self._inputs[f.input].dtype == "string" else 0
            kind = {"float": pool.KIND_FLOAT, "id": pool.KIND_ONE, "string": pool.KIND_ONE}.get(f.kind, pool.KIND_MANY)
            slot = self._slots[f.input, seed]
            self.plan[row] = (
                kind,
                slot,
                max(f.column, 0),
                table,
                COMBINERS[f.combiner],
                f.max_length,
                f.offset,
                f.width,
            )
            self.scaling[row] = (f.log1p, f.mean, f.scale)

    def bind(self, inputs: Mapping[str, Column]) -> Bound:
        """Checks names, dtypes, shapes and rows; raises BadInput naming the input, the wanted and the got.

        Inputs of one row are broadcast to the rows of the others.
        """
        for name in inputs:
            if name not in self._inputs:
                raise BadInput(f"input {name[:64]!r} is not one of the model's: {', '.join(self._inputs)}")
        slots = np.zeros((len(self._slots), pool.INPUT_FIELDS), np.int64)
        keep: list[Slot] = []
        rows = 1
        for name, spec, seeds in self._reads:
            if name not in inputs:
                raise BadInput(f"input {name!r} is missing")
            for seed, number in seeds:
                slot = _read(spec, inputs[name], seed)
                keep.append(slot)
                splits = 0 if slot.splits is None else slot.splits.ctypes.data
                slots[number] = (slot.values.ctypes.data, slot.rows, slot.stride, splits)
                if slot.rows != 1 and rows not in (1, slot.rows):
                    raise BadInput(f"input {name!r}: {rows} rows (or 1) wanted, got {slot.rows}")
                rows = max(rows, slot.rows)
        return Bound(rows, slots, tuple(keep))

    def fill(
        self,
        tables: NDArray[np.int64],
        epoch: int,
        bound: Sequence[Bound],
        spans: NDArray[np.int64],
        out: NDArray[np.float32],
        counts: NDArray[np.int64],
    ) -> None:
        """Writes rows spans[i] of each bound request, one request after another, into `out` [rows, width]."""
        inputs = bound[0].inputs[None] if len(bound) == 1 else np.stack([b.inputs for b in bound])
        pool.run(tables, self.plan, self.scaling, inputs, spans, epoch, out, counts)


def _read(spec: Input, column: Column, seed: int) -> Slot:
    """One input, contiguous and typed as the manifest says; raises BadInput."""
    where = f"input {spec.name!r}"
    if spec.ragged:
        if not isinstance(column, Ragged):
            raise BadInput(f"{where}: ragged rows wanted, got {_describe(column)}")
        values = _ids(spec, column.values, seed, where)
        whole = column.row_splits.dtype.kind in "iu" and column.row_splits.ndim == 1
        splits = np.ascontiguousarray(column.row_splits, np.int64) if whole else np.empty(0, np.int64)
        # Neighbours are compared, not subtracted: a difference can wrap around to a positive one.
        if len(splits) < 2 or splits[0] != 0 or splits[-1] != len(values) or (splits[1:] < splits[:-1]).any():
            raise BadInput(f"{where}: row_splits ascending from 0 to {len(values)} wanted, for at least one row")
        return Slot(values, len(splits) - 1, 1, splits)
    if isinstance(column, Ragged):
        raise BadInput(f"{where}: one value a row wanted, got ragged rows")
    width = spec.columns or 1
    if isinstance(column, Strings):
        values = _ids(spec, column, seed, where)
        if len(values) == 0 or len(values) % width:
            raise BadInput(f"{where}: a multiple of {width} strings wanted, got {len(values)}")
        return Slot(values, len(values) // width, width, None)
    if spec.dtype == "string":
        raise BadInput(f"{where}: strings wanted, got {_describe(column)}")
    shapes = ((spec.columns,),) if spec.columns else ((), (1,))
    if column.ndim == 0 or column.shape[0] == 0 or column.shape[1:] not in shapes:
        raise BadInput(f"{where}: shape [n, {width}] wanted, got {list(column.shape)}")
    if column.dtype != np.dtype(spec.dtype):
        raise BadInput(f"{where}: {spec.dtype} wanted, got {column.dtype.name}")
    return Slot(np.ascontiguousarray(column), column.shape[0], width, None)


def _ids(spec: Input, values: NDArray[np.int64] | Strings, seed: int, where: str) -> NDArray[np.int64]:
    if isinstance(values, Strings):
        if spec.dtype != "string":
            raise BadInput(f"{where}: {spec.dtype} wanted, got strings")
        hashed: NDArray[np.int64] = hash_strings(values, seed)
        return hashed
    if spec.dtype == "string" and len(values):
        raise BadInput(f"{where}: strings wanted, got {values.dtype.name}")
    if values.dtype != np.int64 or values.ndim != 1:
        raise BadInput(f"{where}: int64 values wanted, got {_describe(values)}")
    return np.ascontiguousarray(values)


def _describe(column: Column) -> str:
    if isinstance(column, Ragged):
        return "ragged rows"
    if isinstance(column, Strings):
        return "strings"
    return f"{column.dtype.name} of shape {list(column.shape)}"
