"""A small model that ranks items, for tests without TensorFlow: its package, deltas, and the best items by plain numpy.

A user's vector is the sum of the rows of the newest LENGTH events, times a dense matrix; a score is its product with an
item's row. Each step has rows and a matrix of its own, so a mixture of two generations has other scores.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.extensions.top_items.section import item_ranking_note
from freshet_serving.processor.package import (
    SCORE,
    SEQUENCE,
    ExecutableEntry,
    Feature,
    GraphInput,
    Input,
    Manifest,
    Output,
    SequenceColumn,
    SequenceEntry,
    TableDelta,
    TableEntry,
    undivided,
)
from freshet_serving.processor.package.delta import Delta
from freshet_serving.processor.repository.version import DENSE, table_file
from freshet_serving.processor.repository.version_writer import VersionWriter
from freshet_serving.processor.tables.table import packed
from tests.processor.backends.artefacts import onnx

DIM, LENGTH = 6, 8
WIDTH = (DIM + 1) * LENGTH
BUCKETS = (1, 4, 16)
MODEL = "next"


def manifest(version=1, items=0, dtype="float32", notes=None):
    column = SequenceColumn("history.item", "ids", "history.item", "item", 0, WIDTH)
    history = SequenceEntry("history", [column], LENGTH, WIDTH, ["history.item"])
    made = Manifest(
        model=MODEL,
        version=version,
        arch="sasrec_next",
        created_at=time.time(),
        inputs=[Input("item", "int64"), Input("history.item", "int64", ragged=True)],
        features=[Feature("item", "id", "item", side="item", table="item", offset=0, width=DIM)],
        tables=[TableEntry("item", DIM, items, dtype)],
        outputs=[Output(SCORE), Output("user_vector", DIM)],
        width=DIM,
        dense={"w": [DIM, DIM]},
        files={},
        executables=[
            ExecutableEntry("onnxruntime", "cpu", b, f"compiled/onnxruntime-cpu/b{b}.onnx", "test", ["w"])
            for b in BUCKETS
        ],
        sequences=[history],
        notes=item_ranking_note("user_vector", "item") if notes is None else notes,
    )
    plain = undivided(made)
    graph = replace(plain, inputs=[*plain.inputs, GraphInput("history", ["rows", WIDTH], SEQUENCE)])
    return replace(made, graphs={SCORE: graph})


def make_artefact() -> bytes:
    """user_vector = sum of the events' rows @ w; score = sum of user_vector * x."""
    helper, floats, whole = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    weight = onnx.TensorProto(name="weights/w", data_type=floats, dims=(DIM, DIM))
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights")
    numbers = {"start": [0], "stop": [DIM * LENGTH], "columns": [1], "shape": [-1, LENGTH, DIM]}
    constants = [helper.make_tensor(name, whole, [len(n)], n) for name, n in numbers.items()]
    nodes = [
        helper.make_node("Slice", ["history", "start", "stop", "columns"], ["events"]),
        helper.make_node("Reshape", ["events", "shape"], ["rows_of_events"]),
        helper.make_node("ReduceSum", ["rows_of_events", "columns"], ["met"], keepdims=0),
        helper.make_node("MatMul", ["met", "weights/w"], ["user_vector"]),
        helper.make_node("Mul", ["user_vector", "x"], ["products"]),
        helper.make_node("ReduceSum", ["products", "columns"], ["score"], keepdims=1),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("x", floats, ["rows", DIM]), info("history", floats, ["rows", WIDTH])]
    outputs = [info("score", floats, ["rows", 1]), info("user_vector", floats, ["rows", DIM])]
    graph = helper.make_graph(nodes, "dense", inputs, outputs, [weight, *constants])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=8, opset_imports=opset).SerializeToString()


def matrix_of(step):
    return np.random.default_rng([1, step]).standard_normal((DIM, DIM)).astype(np.float32)


def rows_of(keys, step):
    """Rows of items as a step publishes them; every seventh item has the row of the one before it."""
    same = [key - 1 if key % 7 == 1 else key for key in keys]
    made = [np.random.default_rng([2, step, key % 2**63]).standard_normal(DIM) for key in same]
    return np.array(made, np.float32).reshape(len(same), DIM)


def write_ranked(repository, items=range(40), version=1, dtype="float32", notes=None):
    """Commits a version with step 0's rows and matrix."""
    keys = np.array(list(items), np.int64)
    with VersionWriter(Path(repository), MODEL, version) as writer:
        writer.tensors(table_file("item"), packed(keys, rows_of(keys.tolist(), 0), dtype))
        writer.tensors(DENSE, {"w": matrix_of(0)})
        folder = writer.folder / "compiled" / "onnxruntime-cpu"
        folder.mkdir(parents=True)
        for bucket in BUCKETS:
            (folder / f"b{bucket}.onnx").write_bytes(make_artefact())
        return writer.commit(manifest(version, len(keys), dtype, notes))


def ranked_delta(step, items=(), removed=(), parent=None):
    """A delta with the step's rows of some items, and its matrix."""
    changes = TableDelta(np.array(items, np.int64), rows_of(items, step), np.array(removed, np.int64))
    parent = step - 1 if parent is None else parent
    return Delta(MODEL, 1, step, parent, {"item": changes}, {"w": matrix_of(step)}, published_at=time.time())


def best(contents, step, history, k):
    """The best items as (ids, scores), from the step of each item's row and that of the matrix."""
    keys = np.array(sorted(contents), np.int64)
    rows = np.array([rows_of([key], contents[key])[0] for key in keys.tolist()]).reshape(len(keys), DIM)
    by_key = dict(zip(keys.tolist(), rows))
    met = [by_key[key] for key in history[-LENGTH:] if key in by_key]
    vector = np.sum(met, axis=0, dtype=np.float32) @ matrix_of(step) if met else np.zeros(DIM, np.float32)
    # One product at a time: a matrix product may give equal rows other last bits.
    scores = np.array([np.dot(row, vector) for row in rows], np.float32)
    seen = np.isin(keys, history[-LENGTH:])
    keys, scores = keys[~seen], scores[~seen]
    order = np.lexsort((keys, -scores))[:k]
    return keys[order], scores[order]


def histories(*users):
    """The inputs of a request for the best items of users with these histories."""
    return {"history.item": Ragged.of([list(user) for user in users])}
