"""Run a stage that reads rows of tables: with each batch, once a request, on rows as of the batch's epoch.

The state of its lookups (package.stage_lookups) is not known when a request is bound, so its outputs are bound as
sources without values, and filled here.

Invariants
- Rows are looked up at the epoch at which the batch reads all rows, so a request's scores are of one generation.
- A run has the rows of one request only: lengths and padding of other requests cannot change its results. They are the
  rows that this call fills, or one row if all inputs that the stage reads have one (stage_runs).
- What can be refused by looking at a request is refused when it is bound, all rows at once.
- A request that the model refuses later does not keep the others from being filled: its outputs are NaN, and whoever
  reads them raises the refusal once all rows are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_int64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, join_columns
from freshet_serving.processor.errors import Expired, FreshetError
from freshet_serving.processor.features.bound_request import BatchView, BoundRequest
from freshet_serving.processor.features.input_reader import InputReader
from freshet_serving.processor.features.late_values import LateFill
from freshet_serving.processor.features.stage_runs import StageRuns
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package import Manifest, StageLookup

FLOAT_NBYTES = 4


class StageRows:
    """The stage of one plan; `strides` are the values of a row of each source that it fills."""

    def __init__(
        self, manifest: Manifest, stage: StageRuns, sources: Mapping[str, int], lookups: NDArray[np.int64]
    ) -> None:
        """Lay out the stage, from the sources of its outputs and the plan of its lookups (kernels.pool), in order."""
        assert manifest.stage is not None, "the manifest has a stage"
        self._stage = stage
        self._readers = [(InputReader(o, False, False), sources[o.name]) for o in manifest.stage.outputs]
        self.strides = {sources[o.name]: o.columns or 1 for o in manifest.stage.outputs}
        self._lookups: list[_Rows] = []
        self._weights: list[_Weight] = []
        numbers = {table.name: number for number, table in enumerate(manifest.tables)}
        at = 0
        for lookup in manifest.stage_lookups:
            if lookup.whole:
                entry = manifest.table(lookup.table)
                self._weights.append(_Weight(lookup.name, numbers[lookup.table], entry.rows, entry.dim))
                continue
            count = len(manifest.rows_of(lookup))
            once = lookup.input in stage.single
            self._lookups.append(_Rows(lookup, lookups[at : at + count], manifest.table(lookup.table).dim, once))
            at += count

    def feeds(self, sources: NDArray[np.int64]) -> bool:
        return not self.strides.keys().isdisjoint(sources.tolist())

    def fill(self, view: BatchView, inputs: NDArray[np.int64]) -> LateFill:
        """Run the stage for each request and fill its outputs in, as LateValues.fill() does."""
        kept: list[Any] = []
        refusal = None
        weights = {weight.name: weight.rows(view.tables, view.epoch) for weight in self._weights}
        for number, request in enumerate(view.bound):
            first, rows, total, read = self._read(request, *view.spans[number].tolist())
            request_inputs = inputs[number : number + 1]
            try:
                pieces = []
                for start, count in self._stage.pieces(read, first, rows):
                    piece = view._replace(spans=np.array([[start, count]], np.int64))
                    looked_up = {lookup.name: lookup.rows(piece, request_inputs) for lookup in self._lookups} | weights
                    part = self._stage.part(read, start, count, total)
                    pieces.append(self._stage.run_piece(part, count, looked_up, request.limit))
                outputs = {r.name: join_columns([piece[r.name] for piece in pieces]) for r, _ in self._readers}
            except FreshetError as error:
                # A session takes EndedRun for the end of the whole batch; this is one request's.
                refusal = Expired(str(error)) if isinstance(error, Expired) else error
                outputs = {
                    r.name: np.full((rows, r.width) if r.spec.columns else rows, np.nan, np.float32)
                    for r, _ in self._readers
                }
            for reader, source in self._readers:
                values, _, stride, _ = reader(outputs[reader.name], 0)
                # The kernel counts rows from the request's first, outputs begin with the span's.
                start = values.ctypes.data - FLOAT_NBYTES * stride * first
                inputs[number, source] = start, total, stride, 0, pool.SENT
                kept.append(values)
        return LateFill(kept, refusal)

    def _read(self, request: BoundRequest, first: int, rows: int) -> tuple[int, int, int, Mapping[str, Column]]:
        """Return first row, rows and inputs of the runs, and the rows that their outputs stand for."""
        assert request.columns is not None, "bound for a stage that runs with the batch"
        read = {name: request.columns[name] for name in self._stage.reads}
        if self._stage.shared(read):
            return 0, 1, 1, read
        return first, rows, request.rows, read


class _Weight:
    """A weight of a stage: all rows of a table."""

    def __init__(self, name: str, table: int, rows: int, dim: int) -> None:
        self.name = name
        self._keys, self._dim = np.arange(rows), dim
        self._plan = np.zeros((1, pool.PLAN_FIELDS), np.int64)
        self._plan[0, [pool.KIND, pool.TABLE, pool.WIDTH, pool.CODES]] = pool.KIND_ONE, table, dim, 1
        self._scaling = np.ones((1, pool.SCALING_FIELDS), np.float32)

    def rows(self, tables: NDArray[np.int64], epoch: int) -> NDArray[np.float32]:
        """Return the weight as of an epoch, float32 [rows, dim]."""
        count = len(self._keys)
        weight = np.empty((count, self._dim), np.float32)
        read = np.array([[[self._keys.ctypes.data, count, 1, 0, pool.SENT]]], np.int64)
        # These are no lookups of a request, so nobody counts them.
        uncounted = np.zeros((len(tables), 2), np.int64)
        pool.run(tables, self._plan, self._scaling, read, np.array([[0, count]]), epoch, weight, uncounted)
        return weight


class _Rows:
    """One lookup of a stage."""

    def __init__(self, lookup: StageLookup, plan: NDArray[np.int64], dim: int, once: bool) -> None:
        self.name, self._once = lookup.name, once
        self._source, self._dim = int(plan[0, pool.SOURCE]), dim
        self._lists = plan[0, pool.KIND] == pool.KIND_MANY
        self._plan = plan.copy()
        if self._lists:
            # All values of a list, one row of the table each: read as a column of their own.
            self._plan[0, [pool.KIND, pool.SOURCE, pool.OFFSET]] = pool.KIND_ONE, 0, 0
        self._scaling = np.ones((len(plan), pool.SCALING_FIELDS), np.float32)

    def rows(self, view: BatchView, inputs: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows of all values of the view's one span, float32 [values, dim]; `inputs` are one request's."""
        tables, epoch, _, span, counts = view
        first, rows = span[0].tolist()
        if not self._lists:
            read = np.empty((rows, len(self._plan) * self._dim), np.float32)
            pool.run(tables, self._plan, self._scaling, inputs, span, epoch, read, counts)
            return read.reshape(-1, self._dim)
        values, count, _, splits, _ = inputs[0, self._source].tolist()
        last = 1 if count == 1 else first + rows
        begin, end = (c_int64.from_address(splits + 8 * n).value for n in (0 if count == 1 else first, last))
        read = np.empty((end - begin, self._dim), np.float32)
        if end > begin:
            column = np.array([[[values + 8 * begin, end - begin, 1, 0, pool.SENT]]], np.int64)
            whole = np.array([[0, end - begin]], np.int64)
            pool.run(tables, self._plan, self._scaling, column, whole, epoch, read, counts)
        return np.tile(read, (rows, 1)) if count == 1 < rows and not self._once else read
