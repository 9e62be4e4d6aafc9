"""Write the benchmark's model and its deltas without training: `freshet bench model`, `freshet bench deltas`.

Model `bench`: DeepFM over 26 ids packed as input `ids` int64 [n, 26] and 13 floats as `floats` float32 [n, 13], one
table a feature of dim 16 with ids 0 .. rows - 1, MLP 1024-512-256-1, output `score`. Rows are a function of (table,
id), deltas of (step, id), so the generation behind a score can be recomputed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.models.training.publication import publish_version
from freshet_serving.processor.errors import BadInput, NotFound
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.package import (
    ROW_TYPES,
    SUFFIX,
    Delta,
    Feature,
    Input,
    Manifest,
    Output,
    TableDelta,
    TableEntry,
    write_delta,
)
from freshet_serving.processor.repository import ChangeLog, open_repository

MODEL = "bench"
TABLES, FLOATS, DIM = 26, 13, 16
HIDDEN = (1024, 512, 256)
LIMIT = 0.05


def bench_manifest(rows: int, dtype: str = "float32") -> Manifest:
    """Return the draft of the manifest, with so many rows, of a row type, in each table."""
    ids = [
        Feature(
            f"c{i}", "id", "ids", column=i, table=f"c{i}", offset=i * DIM, width=DIM, side="item" if i % 2 else "user"
        )
        for i in range(TABLES)
    ]
    floats = [Feature(f"i{j}", "float", "floats", column=j, offset=TABLES * DIM + j) for j in range(FLOATS)]
    return Manifest(
        model=MODEL,
        version=1,
        arch="deepfm",
        created_at=0.0,
        inputs=[Input("ids", "int64", columns=TABLES), Input("floats", "float32", columns=FLOATS)],
        features=ids + floats,
        tables=[TableEntry(f"c{i}", DIM, rows, dtype) for i in range(TABLES)],
        outputs=[Output("score")],
        width=TABLES * DIM + FLOATS,
        dense={},
        files={},
    )


def write_model(repository: Path | str, rows: int, seed: int = 0, dtype: str = "float32") -> Generation:
    """Publish the benchmark's model as the next version; needs the train extra. Raises BadInput."""
    from freshet_serving.compiler.dense.dense_graph import DenseGraph
    from freshet_serving.models.zoo.arch import Arch
    from freshet_serving.models.zoo.deepfm import build
    from freshet_serving.models.zoo.dense_input import DenseInput

    if not 1 <= rows < 2**31:
        raise BadInput(f"rows: expected 1 to 2**31-1, got {rows}")
    if dtype not in ROW_TYPES:
        raise BadInput(f"dtype: expected one of {', '.join(ROW_TYPES)}, got {dtype[:40]!r}")
    opened = open_repository(repository, create=True)
    draft = bench_manifest(rows, dtype)
    version = max(opened.versions(MODEL), default=0) + 1
    keys = np.arange(rows, dtype=np.int64)
    tables = {}
    for i, table in enumerate(draft.tables):
        values = np.empty((rows, DIM), np.float32)
        init_rows(keys, np.uint64(seed * 1000 + i), np.float32(LIMIT), values)
        tables[table.name] = (keys, values)
    arch = Arch.of(build(DenseInput.from_features(draft.features), hidden=HIDDEN, seed=seed))
    draft = replace(draft, version=version, created_at=time.time())
    publish_version(opened, draft, tables, DenseGraph.from_keras(arch.scores))
    return Generation(version, 0)


def write_deltas(repository: Path | str, rows: int, count: int, out: Path) -> Iterator[Path]:
    """Write chained deltas of `rows` rows each on top of the newest version's newest delta; yield each file.

    Rows are spread evenly over the tables, over the ids that the table has.
    """
    store = open_repository(repository)
    if not store.versions(MODEL):
        raise NotFound(f"model {MODEL!r} does not exist in the repository: run `freshet bench model` first")
    if rows < 1 or count < 1:
        raise BadInput(f"rows and count: expected 1 or more, got {rows} and {count}")
    version = store.version(MODEL)
    history = ChangeLog.of(version).history
    parent, first = history.head.step, history.top + 1
    out.mkdir(parents=True, exist_ok=True)
    for step in range(first, first + count):
        path = out / f"{step}{SUFFIX}"
        write_delta(path, bench_delta(version.manifest, step, rows, parent))
        parent = step
        yield path


def bench_delta(manifest: Manifest, step: int, rows: int, parent_step: int | None = None) -> Delta:
    """Return one delta of `rows` rows, a function of the step alone; its parent is by default the step before."""
    random = np.random.default_rng(step)
    share, rest = divmod(rows, len(manifest.tables))
    tables = {}
    for i, table in enumerate(manifest.tables):
        size = share + (i < rest)
        if size > table.rows:
            raise BadInput(f"rows: expected at most {table.rows * len(manifest.tables)} for this model, got {rows}")
        if not size:
            continue
        keys = np.sort(random.choice(table.rows, size, replace=False)).astype(np.int64)
        values = np.empty((size, table.dim), np.float32)
        init_rows(keys, np.uint64(step * 1_000_003 + i), np.float32(LIMIT), values)
        tables[table.name] = TableDelta(keys, values, np.empty(0, np.int64))
    return Delta(
        model=manifest.model,
        version=manifest.version,
        step=step,
        parent_step=step - 1 if parent_step is None else parent_step,
        tables=tables,
        published_at=time.time(),
    )
