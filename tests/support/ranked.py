"""A small model that ranks items, for tests without TensorFlow: its package, deltas, and the best items by plain numpy.

A user's vector is the sum of the rows of the newest LENGTH events, times a dense matrix; a score is its product with an
item's row. Each step has rows and a matrix of its own, so a mixture of two generations has other scores.

With filters, items have records of COLUMNS by step (columns_of).
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.models.publishing.entity_rows import entity_rows
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.extensions.top_items.section import item_ranking_note, source_entry
from freshet_serving.processor.package import (
    RECORD,
    SCORE,
    SEQUENCE,
    EntityEntry,
    Feature,
    GraphInput,
    Input,
    Manifest,
    Output,
    SequenceColumn,
    SequenceEntry,
    TableDelta,
    TableEntry,
    record_layout,
    undivided,
)
from freshet_serving.processor.package.delta import Delta
from freshet_serving.processor.repository import DENSE, VersionWriter, table_file
from freshet_serving.processor.tables.table import packed
from tests.processor.backends.artefacts import onnx
from tests.support.packages import executables, write_executables

DIM, LENGTH = 6, 8
WIDTH = (DIM + 1) * LENGTH
MODEL = "next"
COLUMNS = [
    Input("price", "float32"),
    Input("stock", "int64"),
    Input("category", "string"),
    Input("tags", "string", ragged=True),
    Input("sizes", "int64", ragged=True),
    Input("sellers", "int64", ragged=True, declared="uint64"),
]
RECORDS = "entities.item"
NUMBERS = "item_sources"
SOURCES = {"popular": source_entry(NUMBERS, 0, 2.0, -20.0), "new": source_entry(NUMBERS, 1, 4096.0, origin_s=1.7e9)}
SELLERS = (0, 7, 2**63 + 5, 2**64 - 1)


def with_filters(plain, records=0, columns=COLUMNS, text_nbytes=200):
    """The manifest with an entity of items for filters alone."""
    lists = {spec.name: 4 for spec in columns if spec.ragged and spec.dtype == "int64"}
    entity = EntityEntry("item", "item", [], lists, text_nbytes=text_nbytes, filters=list(columns))
    words = record_layout(plain, entity).words
    seed = plain.table("item").hash_seed if plain.input("item").dtype == "string" else 0
    table = TableEntry(RECORDS, words, records, RECORD, hash_seed=seed)
    return replace(plain, entities=[entity], tables=[*plain.tables, table])


def columns_of(keys, step):
    """What records have as a step publishes them: plain Python values by column, None for what is missing."""
    columns = {spec.name: [] for spec in COLUMNS}
    for key in keys:
        random = np.random.default_rng([3, step, key % 2**63])
        present = random.random(5) < 0.8
        columns["price"].append(float(np.float32(random.integers(0, 40) / 2)) if present[0] else None)
        columns["stock"].append(int(random.integers(0, 4)))
        columns["category"].append("abc"[random.integers(0, 3)] if present[2] else None)
        columns["tags"].append([f"t{n}" for n in random.integers(0, 6, random.integers(0, 4))] if present[3] else [])
        columns["sizes"].append(random.integers(-2, 3, random.integers(0, 5)).tolist() if present[4] else [])
        columns["sellers"].append([SELLERS[n] for n in random.integers(0, len(SELLERS), random.integers(0, 3))])
    return columns


def records_of(described, keys, step):
    return entity_rows(described, described.entities[0], columns_of(keys, step), len(keys), keys)


def manifest(items=0, dtype="float32", notes=None):
    column = SequenceColumn("history.item", "ids", "history.item", "item", 0, WIDTH)
    history = SequenceEntry("history", [column], LENGTH, WIDTH, ["history.item"])
    described = Manifest(
        model=MODEL,
        version=1,
        arch="sasrec_next",
        created_at=time.time(),
        inputs=[Input("item", "int64"), Input("history.item", "int64", ragged=True)],
        features=[Feature("item", "id", "item", side="item", table="item", offset=0, width=DIM)],
        tables=[TableEntry("item", DIM, items, dtype)],
        outputs=[Output(SCORE), Output("user_vector", DIM)],
        width=DIM,
        dense={"w": [DIM, DIM]},
        files={},
        executables=executables(["w"]),
        sequences=[history],
        notes=item_ranking_note("user_vector", "item") if notes is None else notes,
    )
    plain = undivided(described)
    graph = replace(plain, inputs=[*plain.inputs, GraphInput("history", ["rows", WIDTH], SEQUENCE)])
    return replace(described, graphs={SCORE: graph})


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
    rows = [np.random.default_rng([2, step, key % 2**63]).standard_normal(DIM) for key in same]
    return np.array(rows, np.float32).reshape(len(same), DIM)


def write_ranked(repository, items=range(40), dtype="float32", notes=None, recorded=None, numbers=None):
    """Commits a version with step 0's rows and matrix, and with filters if some items have records.

    Some items may have numbers that rank them for everybody: popularity and age, or rather youth (SOURCES).
    """
    keys = np.array(list(items), np.int64)
    with VersionWriter(Path(repository), MODEL, 1) as writer:
        writer.tensors(table_file("item"), packed(keys, rows_of(keys.tolist(), 0), dtype))
        writer.tensors(DENSE, {"w": matrix_of(0)})
        write_executables(writer, make_artefact())
        described = manifest(len(keys), dtype, notes)
        if recorded is not None:
            with_records = np.array(list(recorded), np.int64)
            described = with_filters(described, len(with_records))
            records = records_of(described, with_records.tolist(), 0)
            writer.tensors(table_file(RECORDS), packed(with_records, records, RECORD))
        if numbers is not None:
            entry = TableEntry(NUMBERS, 2, len(numbers))
            ranking = {**described.notes["item_ranking"], "sources": SOURCES}
            described = replace(described, tables=[*described.tables, entry], notes={"item_ranking": ranking})
            writer.tensors(table_file(NUMBERS), packed(*numbers_of(numbers), "float32"))
        return writer.commit(described)


def numbers_of(numbers):
    keys = np.array(sorted(numbers), np.int64)
    return keys, np.array([numbers[key] for key in keys.tolist()], np.float32).reshape(-1, 2)


def ranked_delta(step, items=(), removed=(), parent=None, recorded=None, unrecorded=()):
    """A delta with the step's rows of some items, and its matrix; with filters, with the step's records of some."""
    changes = {"item": TableDelta(np.array(items, np.int64), rows_of(items, step), np.array(removed, np.int64))}
    if recorded is not None:
        keys = np.array(sorted(recorded), np.int64)
        records = records_of(with_filters(manifest()), keys.tolist(), step)
        changes[RECORDS] = TableDelta(keys, records, np.array(sorted(unrecorded), np.int64))
    parent = step - 1 if parent is None else parent
    return Delta(MODEL, 1, step, parent, changes, {"w": matrix_of(step)}, published_at=time.time())


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
