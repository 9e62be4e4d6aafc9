"""Freshet's kernel on one thread, as a server calls it: ids found, their rows summed up.

Arguments: row type, by (number | hash). By number the tables' keys are 0 to ROWS - 1, by hash they are spread over all
int64. DELTAS deltas have changed DELTAS * DELTA_ROWS rows of each table: all but the newest are settled, and the newest
can still be undone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.package import TableDelta, map_file, parse_tensors, write_tensors
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output, TableEntry
from freshet_serving.processor.tables.table import ServedTable, descriptors, packed
from loadtest.bench.training.turns import serve
from loadtest.bench.verdict.lookup_shape import BATCH_ROWS, DIM, ROWS, TABLES, lists

DELTAS, DELTA_ROWS = 10, ROWS // 100
SPREAD = 0x9E3779B97F4A7C1
"""Odd, so that all keys are distinct."""


def mapped_table(entry: TableEntry, keys: NDArray[np.int64], rows: NDArray[np.float32]) -> ServedTable:
    """Return a table over a mapped file, as a server has it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.safetensors")
        with open(path, "wb") as file:
            write_tensors(file, packed(keys, rows, entry.dtype), {})
        return ServedTable(entry, parse_tensors(map_file(path), entry.name).arrays)


def change(table: ServedTable, keys: NDArray[np.int64], rows: NDArray[np.float32], seed: int) -> None:
    """Apply the deltas to a table; their rows have other values, of the same size."""
    changed = np.random.default_rng(seed).permutation(ROWS)[: DELTAS * DELTA_ROWS].reshape(DELTAS, DELTA_ROWS)
    for epoch, which in enumerate(changed, start=1):
        versions = table.apply(TableDelta(keys[which], rows[which[::-1]], np.empty(0, np.int64)), epoch)
        if epoch < DELTAS:
            table.retire(versions, epoch)
            table.reclaim(epoch, epoch + 1, ROWS)


def main() -> None:
    kind, by = sys.argv[1:3]
    names = [f"t{t}" for t in range(TABLES)]
    features = [
        Feature(name, "ids", name, table=name, combiner="sum", offset=t * DIM, width=DIM)
        for t, name in enumerate(names)
    ]
    entries = [TableEntry(name, DIM, ROWS, kind) for name in names]
    inputs = [Input(name, "int64", ragged=True) for name in names]
    manifest = Manifest("m", 1, "", 0.0, inputs, features, entries, [Output("score")], TABLES * DIM, {}, {})
    keys = np.arange(ROWS, dtype=np.int64)
    if by == "hash":
        keys = keys * SPREAD
    tables = []
    for t, entry in enumerate(entries):
        rows = np.empty((ROWS, DIM), np.float32)
        init_rows(keys, np.uint64(t), np.float32(0.1), rows)
        tables.append(mapped_table(entry, keys, rows))
        change(tables[-1], keys, rows, t)
    plan, (ids, splits) = SparsePlan(manifest), lists()
    bound = plan.bind_inputs({name: Ragged(keys[i], s) for name, i, s in zip(names, ids, splits)})
    described = descriptors([table.descriptor() for table in tables])
    x, counts, spans = (
        np.zeros((BATCH_ROWS, TABLES * DIM), np.float32),
        np.zeros((TABLES, 2), np.int64),
        np.array([[0, BATCH_ROWS]]),
    )

    def look_up(times: int) -> float:
        for _ in range(times):
            plan.fill(BatchView(described, DELTAS, [bound], spans, counts), x)
        return float(x[0, 0])

    serve(look_up)


if __name__ == "__main__":
    main()
