"""Lookups: the served table against numpy.take, and after a delta against before."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.kernels.pool import KIND_ONE, PLAN_FIELDS, run
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

    wanted = random.integers(0, ROWS, BATCH)
    ids = np.ascontiguousarray(keys[wanted])
    out = np.empty((BATCH, DIM), np.float32)

    def of(table: ServedTable, epoch: int, ids: np.ndarray):
        call = kernel_call(table, epoch, ids)
        return lambda: call(out)

    return [
        Pair(
            "lookup: table / numpy.take",
            of(fresh, 0, ids),
            lambda: np.take(rows, wanted, axis=0, out=out),
            BATCH,
            "row",
        ),
        Pair("lookup: after a delta / before", of(stamped, 1, ids), of(fresh, 0, ids), BATCH, "row"),
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
