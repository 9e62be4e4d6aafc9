"""The benchmark's DeepFM with half of its features on the user's side, twice: divided into parts, and not.

`python -m loadtest.bench.bench_useronce FOLDER --table-rows N` writes models once_<dim> and whole_<dim> for each of
DIMS, the width of a row, with the same rows and the same weights. They differ in one word: where the features of `once`
say that they are the user's, those of `whole` say context, so that nothing is divided. Both take the same requests: the
user's ids and floats once, the item's a row for each candidate.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from freshet_serving.models.bench import FLOATS, HIDDEN, LIMIT, TABLES
from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output, TableEntry
from freshet_serving.processor.repository.version import VersionReader
from loadtest.load.encoding import InputTensor, Signature, encode_kserve
from loadtest.load.payload import Payload, of_requests

DIMS = (32, 16)
KINDS = ("whole", "once")
IDS = {"user": TABLES // 2, "item": TABLES - TABLES // 2}
NUMBERS = {"user": FLOATS // 2, "item": FLOATS - FLOATS // 2}


def manifest(model: str, side: str, table_rows: int, dim: int) -> Manifest:
    """side: what the user's features are said to be."""
    features: list[Feature] = []
    offset = 0
    for kind, name, count, width in (("id", "ids", IDS, dim), ("float", "floats", NUMBERS, 1)):
        for owner, columns in count.items():
            for column in range(columns):
                table = f"c{len(features)}" if kind == "id" else ""
                said = side if owner == "user" else "item"
                source = f"{owner}_{name}"
                features.append(
                    Feature(f"{source}_{column}", kind, source, column, said, table, offset=offset, width=width)
                )
                offset += width
    inputs = [Input(f"{owner}_ids", "int64", columns=n) for owner, n in IDS.items()]
    inputs += [Input(f"{owner}_floats", "float32", columns=n) for owner, n in NUMBERS.items()]
    tables = [TableEntry(f"c{i}", dim, table_rows) for i in range(TABLES)]
    return Manifest(model, 1, "deepfm", 0.0, inputs, features, tables, [Output("score")], offset, {}, {})


def requests(candidates: int, count: int, table_rows: int) -> list[dict[str, np.ndarray]]:
    """Inputs of so many requests: one user and so many candidates each."""
    random = np.random.default_rng([7, candidates])
    rows = {"user": 1, "item": candidates}
    return [
        {f"{owner}_ids": random.integers(0, table_rows, (rows[owner], n)) for owner, n in IDS.items()}
        | {f"{owner}_floats": random.random((rows[owner], n), np.float32) for owner, n in NUMBERS.items()}
        for _ in range(count)
    ]


def repeated(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same request with the user in every row, as clients send it that cannot send one row for all."""
    candidates = len(inputs["item_ids"])
    return {n: a if n.startswith("item") else np.repeat(a, candidates, 0) for n, a in inputs.items()}


def payload(model: str, inputs: list[dict[str, np.ndarray]]) -> Payload:
    tensors = [InputTensor(f"{owner}_ids", "INT64", n) for owner, n in IDS.items()]
    tensors += [InputTensor(f"{owner}_floats", "FP32", n) for owner, n in NUMBERS.items()]
    signature = Signature(model, tuple(tensors), ("score",))
    return of_requests([encode_kserve(signature, one) for one in inputs])


def publish(
    repository: Path, draft: Manifest, hidden: tuple[int, ...] = HIDDEN, buckets: Sequence[int] = ()
) -> VersionReader:
    """Publish a model with the rows of its tables drawn by number. Needs the train extra."""
    from freshet_serving.compiler.building.compile import BUCKETS
    from freshet_serving.compiler.dense.dense_graph import DenseGraph
    from freshet_serving.models.training.publication import publish_version
    from freshet_serving.models.zoo.deepfm import build
    from freshet_serving.models.zoo.dense_input import DenseInput

    tables = {}
    for number, entry in enumerate(draft.tables):
        keys, rows = np.arange(entry.rows, dtype=np.int64), np.empty((entry.rows, entry.dim), np.float32)
        init_rows(keys, np.uint64(number), np.float32(LIMIT), rows)
        tables[entry.name] = keys, rows
    graph = DenseGraph.from_keras(build(DenseInput.from_features(draft.features), hidden, seed=0).scores)
    return publish_version(repository, draft, tables, graph, buckets or BUCKETS)


def write(repository: Path, table_rows: int) -> None:
    repository.mkdir(parents=True, exist_ok=True)
    for dim in DIMS:
        for kind in KINDS:
            publish(repository, manifest(f"{kind}_{dim}", "user" if kind == "once" else "context", table_rows, dim))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.bench_useronce", description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--table-rows", type=int, default=20_000)
    options = parser.parse_args()
    write(options.repository, options.table_rows)
