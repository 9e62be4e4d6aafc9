"""Lookups: the served table against numpy.take, and row versions by stamped chains against an overlay index."""

# mypy: ignore-errors

from __future__ import annotations

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.kernels.index import EMPTY, build, capacity_for, empty_index, probe
from freshet_serving.processor.kernels.pointers import load_f32, load_i64
from freshet_serving.processor.kernels.pool import KIND_ONE, PLAN_FIELDS, run
from freshet_serving.processor.kernels.rows import DEFAULT, resolve, row_at
from freshet_serving.processor.package.delta import TableDelta
from freshet_serving.processor.package.manifest_entries import TableEntry
from freshet_serving.processor.tables.table import ServedTable, packed
from loadtest.bench.pairs import Pair

DIM = 16
ROWS = 1_000_000
CHANGED = 100_000
BATCH = 4096


def pairs() -> list[Pair]:
    random = np.random.default_rng(0)
    keys = random.permutation(4 * ROWS)[:ROWS].astype(np.int64)
    rows = np.empty((ROWS, DIM), np.float32)
    init_rows(keys, np.uint64(1), np.float32(0.1), rows)
    changed = random.choice(ROWS, CHANGED, replace=False)
    new_rows = rows[changed] + 1
    delta = TableDelta(keys[changed], new_rows, np.empty(0, np.int64))

    fresh = ServedTable(TableEntry("t", DIM, ROWS), packed(keys, rows))
    stamped = ServedTable(TableEntry("t", DIM, ROWS), packed(keys, rows))
    stamped.apply(delta, 1)
    overlay = Overlay(keys, rows, keys[changed], new_rows)

    wanted = random.integers(0, ROWS, BATCH)
    ids = np.ascontiguousarray(keys[wanted])
    unseen = ids + np.int64(1 << 40)
    out = np.empty((BATCH, DIM), np.float32)

    def of(table: ServedTable, epoch: int, ids: np.ndarray):
        call = kernel_call(table, epoch, ids)
        return lambda: call(out)

    def chain(ids: np.ndarray):
        return lambda: _stamped_lookup(np.array(stamped.descriptor()), 1, ids, out)

    return [
        Pair(
            "lookup: table / numpy.take",
            of(fresh, 0, ids),
            lambda: np.take(rows, wanted, axis=0, out=out),
            BATCH,
            "row",
        ),
        Pair("lookup: after a delta / before", of(stamped, 1, ids), of(fresh, 0, ids), BATCH, "row"),
        Pair("lookup: stamped chain / overlay", chain(ids), lambda: overlay.lookup(ids, out), BATCH, "row"),
        Pair(
            "lookup of unseen ids: stamped chain / overlay",
            chain(unseen),
            lambda: overlay.lookup(unseen, out),
            BATCH,
            "row",
        ),
    ]


def kernel_call(table: ServedTable, epoch: int, ids: np.ndarray):
    """The sparse graph of one id feature over one table, as a function of its output."""
    tables = np.array([table.descriptor()], np.int64)
    plan = np.zeros((1, PLAN_FIELDS), np.int64)
    plan[0] = (KIND_ONE, 0, 0, 0, 0, 0, 0, DIM, 1)
    scaling, counts = np.zeros((1, 4), np.float32), np.zeros((1, 2), np.int64)
    inputs = np.array([[[ids.ctypes.data, len(ids), 1, 0]]], np.int64)
    spans = np.array([[0, len(ids)]], np.int64)
    keep = (ids, table)
    return lambda out: run(tables, plan, scaling, inputs, spans, epoch, out, counts) or keep


class Overlay:
    """The design that was refused: changed rows in a second index that is asked first."""

    def __init__(self, keys: np.ndarray, rows: np.ndarray, changed: np.ndarray, new_rows: np.ndarray) -> None:
        self._base, self._rows = self._index(keys), rows
        self._over, self._new = self._index(changed), new_rows
        self._default = np.zeros(DIM, np.float32)

    @staticmethod
    def _index(keys: np.ndarray) -> np.ndarray:
        index = empty_index(capacity_for(len(keys)))
        assert build(index.ctypes.data, len(index), keys) == EMPTY
        return index

    def lookup(self, ids: np.ndarray, out: np.ndarray) -> None:
        _overlay_lookup(
            self._over.ctypes.data, len(self._over), self._new.ctypes.data, self._base.ctypes.data, len(self._base),
            self._rows.ctypes.data, self._default.ctypes.data, ids, out,
        )  # fmt: skip


@nb.njit(cache=True, nogil=True)
def _stamped_lookup(t, epoch, ids, out):
    for i in range(len(ids)):
        ref = resolve(t.ctypes.data, ids[i], epoch)
        address = row_at(t.ctypes.data, ref) if ref >= 0 else t[DEFAULT // 8]
        for j in range(out.shape[1]):
            out[i, j] = load_f32(address + 4 * j)


@nb.njit(cache=True, nogil=True)
def _overlay_lookup(over, over_capacity, new, base, base_capacity, rows, default, ids, out):
    dim = out.shape[1]
    for i in range(len(ids)):
        e = probe(over, over_capacity, ids[i])
        if e >= 0:
            address = new + load_i64(over + 16 * e + 8) * dim * 4
        else:
            e = probe(base, base_capacity, ids[i])
            address = rows + load_i64(base + 16 * e + 8) * dim * 4 if e >= 0 else default
        for j in range(dim):
            out[i, j] = load_f32(address + 4 * j)
