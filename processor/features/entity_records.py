"""Fill the inputs that a request leaves out from the records of a version's entities.

Such a request is bound with the entity's key alone: the sources of these inputs get the key's rows, no values, and the
most values of a record as stride (kernels.pool: BY_ENTITY). Whoever reads a bound request's values fills them in first,
as of the epoch that it reads rows at; so they are part of the generation, like every row.

Invariants
- Records are copied under the state of the batch, into memory of that one call. Values outlive it only for requests
  that ask for them (UsedRecords): whole records, under the same state.
- What a request sends is never replaced.
- A record holds what bind_inputs() would have made of the same values (processor.package.entities), so a request scores
  equal to the bit with and without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Strings
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.evaluation import Transforms
from freshet_serving.processor.features.input_reader import shaped
from freshet_serving.processor.features.late_values import LateFill
from freshet_serving.processor.kernels import records as kernels
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import (
    EntityEntry,
    Input,
    Manifest,
    Records,
    column_specs,
    derived,
    pack_records,
    record_layout,
    unpack_records,
)


def make_records(manifest: Manifest, entity: EntityEntry, columns: Mapping[str, Column], rows: int) -> Records:
    """Return the records of n keys, int32 [n, words]; raise BadInput if a column is missing or does not fit."""
    for spec in column_specs(manifest, entity):
        if spec.name not in columns:
            raise BadInput(f"entity {entity.name!r}: {spec.name!r} is missing")
    computed = Transforms(replace(manifest, transforms=derived(manifest, entity))).run(columns)
    return pack_records(manifest, entity, {**columns, **computed}, rows, hash_strings)


def missing_columns(specs: Iterable[Input], rows: int = 1) -> dict[str, Column]:
    """Return columns of values that stand for none, as training reads them: 0, "", NaN and empty lists."""
    columns: dict[str, Column] = {}
    for spec in specs:
        count = 0 if spec.ragged else rows * (spec.columns or 1)
        flat: Any = np.full(count, np.nan, np.float32) if spec.dtype == "float32" else np.zeros(count, np.int64)
        flat = Strings.of([""] * count) if spec.dtype == "string" else flat
        columns[spec.name] = shaped(spec, flat, rows, 0)
    return columns


class EntityRecords:
    """One entity of a plan.

    Attributes:
        unknown: What a row gets whose key has no record (processor.package.entities.UNKNOWN).
        counts: Values of a row by source: of its inputs and of the transforms derived of them.
        ids: Ids of a row by source, strings once a seed.
    """

    def __init__(self, manifest: Manifest, entity: EntityEntry, sources: Mapping[tuple[str, int], int]) -> None:
        """Lay out an entity; `sources` are the numbers of the plan's sources, by name and seed."""
        layout = record_layout(manifest, entity)
        fields = layout.sources
        self._manifest, self._entity, self._whole_words = manifest, entity, layout.words
        self.inputs, self.key, self.unknown = frozenset(entity.inputs), entity.key, entity.unknown
        self.transforms = derived(manifest, entity)
        table = manifest.table(entity.table)
        self._table = manifest.tables.index(table)
        key = manifest.input(entity.key)
        self._key = sources[entity.key, table.hash_seed if key.dtype == "string" else 0]
        self._words = words = layout.bound_words
        self.counts = dict.fromkeys((*entity.inputs, *(t.name for t in self.transforms)), 0)
        self.counts |= {f.source: f.count for f in fields}
        self.ids = dict.fromkeys(self.counts, 0)
        for f in fields:
            self.ids[f.source] += 0 if f.floats else f.count
        self._fields = np.array(
            [
                (sources[f.source, f.seed], 4 * f.offset, words if f.floats else words // 2, f.count if f.ragged else 0)
                for f in fields
            ],
            np.int64,
        )
        self._sources = frozenset(self._fields[:, kernels.FIELD_SOURCE].tolist())
        missing = missing_columns(column_specs(manifest, entity))
        self._default = np.ascontiguousarray(make_records(manifest, entity, missing, 1)[0])
        self._list_values = int(self._fields[:, kernels.FIELD_CAPACITY].sum())
        self._lists = int(np.count_nonzero(self._fields[:, kernels.FIELD_CAPACITY]))

    def feeds(self, sources: NDArray[np.int64]) -> bool:
        return not self._sources.isdisjoint(sources.tolist())

    def left_out(self, inputs: Collection[str]) -> frozenset[str]:
        """Return the inputs and derived transforms that it fills; BadInput if a transform would mix sent and filled."""
        left = {name for name in self.inputs if name not in inputs}
        if self.key not in inputs:
            return frozenset()
        for t in self.transforms:
            filled = [name for name in t.inputs if name in left]
            if filled and len(filled) < len(t.inputs):
                sent = first_of(name for name in t.inputs if name not in left)
                raise BadInput(f"input {sent!r}: expected {filled[0]!r} with it, or neither: the model combines them")
            if filled:
                left.add(t.name)
        return frozenset(left)

    def fill(self, view: BatchView, inputs: NDArray[np.int64]) -> LateFill:
        """Replace left-out sources by values, as LateValues.fill() does."""
        tables, epoch, bound, spans, counts = view
        rows = int(spans[:, 1].sum())
        records = np.empty(rows * self._words, np.int32)
        lists = np.empty(rows * self._list_values, np.int64)
        splits = np.empty((rows + len(spans)) * self._lists, np.int64)
        kernels.fill_inputs(
            tables, self._table, self._key, self._fields, inputs, spans, epoch, self._default.ctypes.data,
            self._words, records.ctypes.data, lists.ctypes.data, splits.ctypes.data, counts,
        )  # fmt: skip
        for n, request in enumerate(bound):
            if request.used is not None and (target := request.used.records.get(self)) is not None:
                self._keep(tables, epoch, inputs[n, self._key].tolist(), spans[n].tolist(), target)
        return LateFill((records, lists, splits))

    def _keep(
        self, tables: NDArray[np.int64], epoch: int, key: list[int], span: list[int], target: NDArray[np.int32]
    ) -> None:
        address, count, stride, *_ = key
        first, rows = (0, min(span[1], 1)) if count == 1 else span
        kernels.copy_records(
            tables, self._table, address + 8 * stride * first, stride, rows, epoch, self._default.ctypes.data,
            self._whole_words, target[first:].ctypes.data,
        )  # fmt: skip

    def record_nbytes(self, keys: int) -> int:
        """Return the bytes of so many records; 0 if they do not hold the columns as they were given."""
        return 0 if self._entity.text_nbytes < 0 else 4 * self._whole_words * keys

    def given(self, records: NDArray[np.int32], names: Collection[str]) -> dict[str, Column]:
        """Return columns of kept records as they were given; raise BadInput for records of another layout."""
        return unpack_records(self._manifest, self._entity, records, names)
