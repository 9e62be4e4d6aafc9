"""A small version as publishing leaves it, compiled again, and the scores that it gives."""

import numpy as np
import pytest

from freshet_serving.compiler.building.recompile import CompileOptions, compile_version
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.models.training.publication import publish_version
from freshet_serving.models.zoo import deepfm
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output, TableEntry

DIM, USERS = 4, 30


class Silent:
    """compiler.progress.Reporter that remembers."""

    def __init__(self):
        self.told = []

    def begin(self, what, total):
        self.told.append([what, total, 0])

    def advance(self, done):
        self.told[-1][2] += done


def draft():
    features = [
        Feature("user", "id", "user", table="user", side="user", width=DIM),
        Feature("tags", "ids", "tags", table="tag", combiner="mean", offset=DIM, width=DIM),
        Feature("a", "float", "floats", 0, offset=2 * DIM),
        Feature("b", "float", "floats", 1, offset=2 * DIM + 1),
    ]
    return Manifest(
        "ctr",
        1,
        "deepfm",
        1.7e9,
        [Input("user", "int64"), Input("tags", "int64", ragged=True), Input("floats", "float32", 2)],
        features,
        [TableEntry("user", DIM, USERS), TableEntry("tag", DIM, 5, "int8")],
        [Output("score")],
        2 * DIM + 2,
        {},
        {},
    )


def publish(root, hidden=(8, 4)):
    """A repository with version 1 of a small DeepFM, compiled as publishing does; returns it."""
    random, manifest = np.random.default_rng(3), draft()
    tables = {
        t.name: (np.arange(t.rows, dtype=np.int64), random.standard_normal((t.rows, DIM), np.float32) * np.float32(0.2))
        for t in manifest.tables
    }
    model = deepfm.build(DenseInput.from_features(manifest.features), hidden, seed=1)
    root.mkdir(exist_ok=True)
    publish_version(root, manifest, tables, DenseGraph.from_keras(model.scores), buckets=(1, 8))
    return root


def compiled(folder, backends=("onnxruntime",), **options):
    return compile_version(folder, CompileOptions(backends=backends, **options), Silent())


def given(n=5):
    """Inputs of n rows."""
    return {
        "user": np.arange(n, dtype=np.int64),
        "tags": Ragged.of([[i % 5, 77] for i in range(n)]),
        "floats": np.linspace(-1, 1, 2 * n, dtype=np.float32).reshape(n, 2),
    }


def scores(version, n=5):
    inputs, replica = given(n), version.replicas
    with replica.pinned(0) as state:
        bound = replica.plan.bind_inputs(inputs)
        undivided = replica.graphs.undivided.name
        bucket = next(b for b in sorted(state.executables[undivided]) if b >= n)
        x, out = np.zeros((bucket, replica.plan.width), np.float32), np.empty((bucket, 1), np.float32)
        counts = np.zeros((2, 2), np.int64)
        replica.plan.fill(BatchView(state.tables, state.epoch, [bound], np.array([[0, n]]), counts), x)
        state.executables[undivided][bucket].bind_buffers({"x": x}, {"score": out})()
    return out[:n, 0]


def parquet(path, **columns):
    pa = pytest.importorskip("pyarrow", reason="Parquet needs the train extra")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path
