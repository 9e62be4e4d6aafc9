"""A model and queries of DLRM-DCNv2's shape, as MLCommons' inference benchmark has it (recommendation/dlrm_v2).

13 floats and 26 features of several ids a row, summed up, of dim 128; a bottom MLP 512-256-128, a cross network of 3
layers of rank 512 over all of it (Wang et al., 2021), a top MLP 1024-1024-512-256-1: 16 million products a pair. A
query holds 100 to 700 pairs, in the shares of the reference's published trace of 100 queries.

Scaled down, and said on the page: tables of more than `most_rows` rows have so many; weights and ids are drawn, for the
benchmark's data are at nobody's hand; ids are uniform, so that caches are of as little help as they can be.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Ragged
from loadtest.load.encoding import InputTensor, Signature

MODEL = "dcnv2"
FLOATS, DIM = 13, 128
# Rows of the reference's tables, and ids a row of each.
ROWS = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10,
    2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)  # fmt: skip
HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
NAMES = tuple(f"c{t}" for t in range(len(ROWS)))
BOTTOM, CROSS_LAYERS, RANK, TOP = (512, 256, DIM), 3, 512, (1024, 1024, 512, 256)
# Pairs of a query: how many of 100 queries have so many.
PAIRS = {100: 10, 200: 60, 300: 10, 400: 4, 500: 7, 600: 3, 700: 6}
SIGNATURE = Signature(
    MODEL,
    (*(InputTensor(name, "INT64", ragged=True) for name in NAMES), InputTensor("floats", "FP32", FLOATS)),
    ("score",),
)
LIMIT = 0.05

Columns = dict[str, NDArray[Any]]


def write_model(repository: Path, most_rows: int) -> None:
    """Publishes version 1. Needs the train extra."""
    from freshet_serving.compiler.dense.dense_graph import DenseGraph
    from freshet_serving.models.training.publication import publish_version
    from freshet_serving.models.zoo.dense_input import DenseInput
    from freshet_serving.processor.kernels.hashing import init_rows
    from freshet_serving.processor.package.manifest import Manifest
    from freshet_serving.processor.package.manifest_entries import Feature, Input, Output, TableEntry

    rows = [min(count, most_rows) for count in ROWS]
    ids = [
        Feature(name, "ids", name, table=name, combiner="sum", offset=t * DIM, width=DIM)
        for t, name in enumerate(NAMES)
    ]
    floats = [Feature(f"i{j}", "float", "floats", column=j, offset=len(NAMES) * DIM + j) for j in range(FLOATS)]
    inputs = [*(Input(name, "int64", ragged=True) for name in NAMES), Input("floats", "float32", columns=FLOATS)]
    entries = [TableEntry(name, DIM, count) for name, count in zip(NAMES, rows)]
    width = len(NAMES) * DIM + FLOATS
    draft = Manifest(MODEL, 1, "dcnv2", time.time(), inputs, [*ids, *floats], entries, [Output("score")], width, {}, {})
    tables = {}
    for t, (name, count) in enumerate(zip(NAMES, rows)):
        keys, values = np.arange(count, dtype=np.int64), np.empty((count, DIM), np.float32)
        # A list's sum is as large as one row, however long the list is.
        init_rows(keys, np.uint64(t), np.float32(LIMIT / HOT[t] ** 0.5), values)
        tables[name] = (keys, values)
    repository.mkdir(parents=True, exist_ok=True)
    publish_version(
        repository, draft, tables, DenseGraph.from_keras(_network(DenseInput.from_features(draft.features)))
    )


def queries(most_rows: int, count: int, seed: int = 0) -> list[Columns]:
    """Inputs of so many queries, in the shares of PAIRS, shuffled."""
    random = np.random.default_rng(seed)
    sizes = [pairs for pairs, share in PAIRS.items() for _ in range(share)]
    return [columns(pairs, most_rows, random) for pairs in random.permutation(np.resize(sizes, count)).tolist()]


def columns(pairs: int, most_rows: int, random: np.random.Generator) -> Columns:
    """Inputs of one query: ids int64 [pairs, ids a row] of each feature, and the floats."""
    ids = {name: random.integers(0, min(rows, most_rows), (pairs, hot)) for name, rows, hot in zip(NAMES, ROWS, HOT)}
    return {**ids, "floats": random.random((pairs, FLOATS), np.float32)}


def ragged(made: Columns) -> dict[str, Ragged | NDArray[np.float32]]:
    """Inputs of one query as the engine takes them."""
    return {
        name: Ragged(column.ravel(), np.arange(len(column) + 1) * column.shape[1]) if name in NAMES else column
        for name, column in made.items()
    }


def write_deltas(folder: Path, most_rows: int, steps: range, rows: int) -> list[Path]:
    """Files of consecutive deltas of so many changed rows each, spread over the tables of most rows."""
    from freshet_serving.processor.kernels.hashing import init_rows
    from freshet_serving.processor.package.delta import SUFFIX, Delta, TableDelta, write_delta

    large = [t for t, count in enumerate(ROWS) if count >= most_rows]
    files = []
    for step in steps:
        random, tables = np.random.default_rng(step), {}
        for t in large:
            keys = np.sort(random.choice(most_rows, rows // len(large), replace=False)).astype(np.int64)
            values = np.empty((len(keys), DIM), np.float32)
            init_rows(keys, np.uint64(step * 1_000_003 + t), np.float32(LIMIT / HOT[t] ** 0.5), values)
            tables[NAMES[t]] = TableDelta(keys, values, np.empty(0, np.int64))
        files.append(folder / f"{step}{SUFFIX}")
        write_delta(files[-1], Delta(MODEL, 1, step, step - 1, tables, published_at=time.time()))
    return files


def _network(layout: Any) -> Any:
    from freshet_serving.compiler.frameworks import keras
    from freshet_serving.models.zoo import layers
    from freshet_serving.models.zoo.arch import Arch

    layer_factory = layers.LayerFactory(0)
    x = keras.Input((layout.width,), name="x")
    bottom = layer_factory.tower(layers.columns(x, layout.floats), BOTTOM, "bottom")
    first = layers.side_by_side([bottom, layers.embedding_columns(x, layout, layer_factory)])
    crossed = first
    for i in range(CROSS_LAYERS):
        down = layer_factory.dense(crossed, RANK, f"cross_{i}_down", bias=False)
        crossed = first * layer_factory.dense(down, first.shape[1], f"cross_{i}_up") + crossed
    top = layer_factory.tower(crossed, TOP, "top")
    return Arch.of(keras.Model(x, layer_factory.dense(top, 1, "out"), name=MODEL)).scores
