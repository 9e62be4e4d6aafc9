"""Freshet's kernel on one thread, as a server calls it: ids found, their rows summed up. Argument: row type."""

from __future__ import annotations

import sys

import numpy as np

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.package.manifest import Feature, Input, Manifest, Output, TableEntry
from freshet_serving.processor.tables.table import ServedTable, descriptors, packed
from loadtest.bench.training.turns import serve
from loadtest.bench.verdict.lookup_shape import BATCH_ROWS, DIM, ROWS, TABLES, lists


def main() -> None:
    kind, names = sys.argv[1], [f"t{t}" for t in range(TABLES)]
    features = [
        Feature(name, "ids", name, table=name, combiner="sum", offset=t * DIM, width=DIM)
        for t, name in enumerate(names)
    ]
    entries = [TableEntry(name, DIM, ROWS, kind) for name in names]
    inputs = [Input(name, "int64", ragged=True) for name in names]
    manifest = Manifest("m", 1, "", 0.0, inputs, features, entries, [Output("score")], TABLES * DIM, {}, {})
    keys = np.arange(ROWS, dtype=np.int64)
    tables = []
    for t, entry in enumerate(entries):
        rows = np.empty((ROWS, DIM), np.float32)
        init_rows(keys, np.uint64(t), np.float32(0.1), rows)
        tables.append(ServedTable(entry, packed(keys, rows, kind)))
    plan, (ids, splits) = SparsePlan(manifest), lists()
    bound = plan.bind_inputs({name: Ragged(i, s) for name, i, s in zip(names, ids, splits)})
    described = descriptors([table.descriptor() for table in tables])
    x, counts, spans = (
        np.zeros((BATCH_ROWS, TABLES * DIM), np.float32),
        np.zeros((TABLES, 2), np.int64),
        np.array([[0, BATCH_ROWS]]),
    )

    def look_up(times: int) -> float:
        for _ in range(times):
            plan.fill(described, 0, [bound], spans, x, counts)
        return float(x[0, 0])

    serve(look_up)


if __name__ == "__main__":
    main()
