"""A small model with two towers, for tests without TensorFlow: its package, deltas, and the best items by plain numpy.

Items are rows of table "item" or, with an entity, its records: up to two categories, and a price; of "filters" also a
stock that no network reads; of "texts" the same, by ids that are strings. Each step has rows,
records and matrices of its own, so vectors of two generations differ in all numbers.

    user_vector = [user's row] @ u      item_vector = [item's row, sum of its categories' rows, price] @ i
    score = sigmoid(scale * user_vector . item_vector + bias)
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.extensions.top_items.section import NOTE, vector_ranking_note
from freshet_serving.processor.features.entity_records import make_records
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import (
    RECORD,
    Delta,
    EntityEntry,
    Feature,
    Input,
    Manifest,
    Output,
    TableDelta,
    TableEntry,
    record_layout,
)
from freshet_serving.processor.repository import DENSE, VersionWriter, table_file
from freshet_serving.processor.tables.table import packed
from tests.processor.backends.artefacts import onnx
from tests.support.packages import executables, write_executables

DIM, COLUMNS, MODEL = 4, 5, "pair"
USERS, CATEGORIES = range(6), range(5)
ENTITY, CATALOGUE = "item", "entities.item"
SCALES = (0.5, 2.0, -1.0, 0.25)


@lru_cache(1 << 20)
def vector(*seed, size=DIM):
    return np.random.default_rng([n % 2**63 for n in seed]).standard_normal(size).astype(np.float32)


def dense_of(user, item, score, width):
    """Dense tensors by the steps that they are of."""
    return {
        "u": vector(1, user, size=(DIM, COLUMNS)) / 4,
        "i": vector(2, item, size=(width - DIM, COLUMNS)) / 4,
        "scale": np.array([[SCALES[score % len(SCALES)]]], np.float32),
        "bias": np.array([score / 8], np.float32),
    }


def note():
    return vector_ranking_note("user_vector", "item_vector", ["i"], "scale", "bias")[NOTE]


def manifest(entity=True, rows=None, notes=None):
    features = [
        Feature("user", "id", "user", side="user", table="user", offset=0, width=DIM),
        Feature("item", "id", "item", side="item", table="item", offset=DIM, width=DIM),
    ]
    inputs = [Input("user", "int64"), Input("item", "int64")]
    tables = [TableEntry("user", DIM, len(USERS)), TableEntry("item", DIM, 0)]
    entities, width = [], 2 * DIM
    if entity:
        features += [
            Feature("category", "ids", "category", side="item", table="category", offset=2 * DIM, width=DIM),
            Feature("price", "float", "price", side="item", offset=3 * DIM),
        ]
        inputs += [Input("category", "int64", ragged=True), Input("price", "float32")]
        tables += [TableEntry("category", DIM, len(CATEGORIES)), TableEntry(CATALOGUE, 8, 0, RECORD)]
        filters = [Input("stock", "int64")] if entity in ("filters", "texts") else []
        entities, width = [EntityEntry(ENTITY, "item", ["category", "price"], {"category": 2})], 3 * DIM + 1
        if filters:
            entities = [replace(entities[0], filters=filters, text_nbytes=0)]
        if entity == "texts":
            inputs[1] = Input("item", "string")
            features[1] = replace(features[1], kind="string")
            entities = [replace(entities[0], filters=[*filters, inputs[1]], text_nbytes=64)]
    weights = dense_of(0, 0, 0, width)
    described = Manifest(
        model=MODEL,
        version=1,
        arch="two_tower",
        created_at=time.time(),
        inputs=inputs,
        features=features,
        tables=[replace(t, rows=(rows or {}).get(t.name, t.rows)) for t in tables],
        outputs=[Output("score"), Output("user_vector", COLUMNS), Output("item_vector", COLUMNS)],
        width=width,
        dense={name: list(array.shape) for name, array in weights.items()},
        files={},
        executables=executables(weights),
        entities=entities,
        notes={NOTE: note()} if notes is None else notes,
    )
    if not entities:
        return described
    words = record_layout(described, entities[0]).words
    return replace(described, tables=[replace(t, dim=words) if t.dtype == RECORD else t for t in described.tables])


def key_of(item):
    return int(hash_strings(Strings.of([text_of(item)]), 0)[0])


def keys_of(entity, items):
    return np.array([key_of(item) if entity == "texts" else item for item in items], np.int64)


def text_of(item):
    return f"item {item}"


def stock_of(price):
    return int(price * 10) % 3


def make_artefact(width) -> bytes:
    helper, floats, whole = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    weights, at = [], 0
    for name, array in dense_of(0, 0, 0, width).items():
        weight = onnx.TensorProto(name=f"weights/{name}", data_type=floats, dims=array.shape)
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="weights")
        weight.external_data.add(key="offset", value=str(at))
        weight.external_data.add(key="length", value=str(array.nbytes))
        at += array.nbytes
        weights.append(weight)
    numbers = {"zero": [0], "middle": [DIM], "end": [width], "columns": [1]}
    constants = [helper.make_tensor(name, whole, [len(n)], n) for name, n in numbers.items()]
    nodes = [
        helper.make_node("Slice", ["x", "zero", "middle", "columns"], ["of_user"]),
        helper.make_node("Slice", ["x", "middle", "end", "columns"], ["of_item"]),
        helper.make_node("MatMul", ["of_user", "weights/u"], ["user_vector"]),
        helper.make_node("MatMul", ["of_item", "weights/i"], ["item_vector"]),
        helper.make_node("Mul", ["user_vector", "item_vector"], ["products"]),
        helper.make_node("ReduceSum", ["products", "columns"], ["product"], keepdims=1),
        helper.make_node("MatMul", ["product", "weights/scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "weights/bias"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["score"]),
    ]
    info = helper.make_tensor_value_info
    outputs = [info("score", floats, ["rows", 1])]
    outputs += [info(name, floats, ["rows", COLUMNS]) for name in ("user_vector", "item_vector")]
    inputs = [info("x", floats, ["rows", width])]
    graph = helper.make_graph(nodes, "dense", inputs, outputs, [*weights, *constants])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=8, opset_imports=opset).SerializeToString()


@dataclass
class World:
    """What one generation holds: the steps of rows and matrices, and records."""

    entity: bool
    items: dict = field(default_factory=dict)
    categories: dict = field(default_factory=dict)
    users: dict = field(default_factory=dict)
    records: dict = field(default_factory=dict)
    dense: tuple = (0, 0, 0)

    @classmethod
    def first(cls, items, entity=True):
        world = cls(entity, dict.fromkeys(items, 0), dict.fromkeys(CATEGORIES, 0), dict.fromkeys(USERS, 0))
        world.records = {key: record_of(key, 0) for key in items} if entity else {}
        return world

    def copy(self):
        return copy.deepcopy(self)

    @property
    def width(self):
        return 3 * DIM + 1 if self.entity else 2 * DIM

    @property
    def catalogue(self):
        return set(self.records if self.entity else self.items)

    @property
    def weights(self):
        return dense_of(*self.dense, self.width)

    def item_vector(self, key):
        x = [vector(3, self.items[key], key) if key in self.items else np.zeros(DIM, np.float32)]
        if self.entity:
            categories, price = self.records[key]
            rows = [vector(4, self.categories[c], c) for c in categories if c in self.categories]
            x += [np.sum(rows, axis=0) if rows else np.zeros(DIM), [price]]
        return np.concatenate(x).astype(np.float32) @ self.weights["i"]

    def user_vector(self, user):
        row = vector(5, self.users[user], user) if user in self.users else np.zeros(DIM, np.float32)
        return row @ self.weights["u"]


def record_of(key, step):
    rng = np.random.default_rng([7, step, key % 2**63])
    categories = rng.integers(0, len(CATEGORIES) + 1, int(rng.integers(0, 3)))
    return tuple(categories.tolist()), float(np.float32(rng.random()))


def records(described, contents, texts=None):
    columns = {
        "category": Ragged.of([list(categories) for categories, _ in contents]),
        "price": np.array([price for _, price in contents], np.float32),
    }
    if not contents:
        columns["category"] = Ragged(np.empty(0, np.int64), np.zeros(1, np.int64))
    if described.entities[0].filters:
        columns["stock"] = np.array([stock_of(price) for _, price in contents], np.int64)
    if texts is not None:
        columns["item"] = Strings.of([text_of(item) for item in texts])
    return make_records(described, described.entities[0], columns, len(contents))


def rows_of(table, keys, step):
    rows = [vector({"item": 3, "category": 4, "user": 5}[table], step, key) for key in keys]
    return np.array(rows, np.float32).reshape(len(keys), DIM)


def write_towers(repository, world, notes=None):
    """Commits a version with the rows of a world; returns its folder."""
    keys = {"user": sorted(world.users), "item": sorted(world.items)}
    if world.entity:
        keys |= {"category": sorted(world.categories), CATALOGUE: sorted(world.records)}
    described = manifest(world.entity, {name: len(members) for name, members in keys.items()}, notes)
    with VersionWriter(Path(repository), MODEL, 1) as writer:
        for name, members in keys.items():
            of_items = name in ("item", CATALOGUE)
            ids = keys_of(world.entity, members) if of_items else np.array(members, np.int64)
            if name == CATALOGUE:
                contents = [world.records[key] for key in members]
                tensors = packed(
                    ids, records(described, contents, members if world.entity == "texts" else None), RECORD
                )
            else:
                tensors = packed(ids, rows_of(name, members, 0))
            writer.tensors(table_file(name), tensors)
        writer.tensors(DENSE, world.weights)
        write_executables(writer, make_artefact(world.width))
        return writer.commit(described)


def change(world, step, items=(), categories=(), users=(), put=(), removed=(), dense=(), parent=None):
    """The world after a delta, and the delta.

    put: items whose record is the step's (without an entity: like items). removed: items that are removed. dense: which
    of "user", "item" and "score" get matrices of the step.
    """
    after, described = world.copy(), manifest(world.entity)
    items = sorted({*items, *(() if world.entity else put)})
    after.items |= dict.fromkeys(items, step)
    after.categories |= dict.fromkeys(categories, step)
    after.users |= dict.fromkeys(users, step)
    none = np.empty(0, np.int64)
    gone = keys_of(world.entity, sorted(removed))
    removed_rows = none if world.entity else gone
    tables = {"item": TableDelta(keys_of(world.entity, items), rows_of("item", items, step), removed_rows)}
    tables["user"] = TableDelta(np.array(users, np.int64), rows_of("user", users, step), none)
    if world.entity:
        category_keys = np.array(categories, np.int64)
        tables["category"] = TableDelta(category_keys, rows_of("category", categories, step), none)
        put = sorted(put)
        after.records |= {key: record_of(key, step) for key in put}
        rows = records(described, [after.records[key] for key in put], put if world.entity == "texts" else None)
        tables[CATALOGUE] = TableDelta(keys_of(world.entity, put), rows, gone)
        for key in removed:
            after.records.pop(key, None)
    else:
        for key in removed:
            after.items.pop(key, None)
    names = ("user", "item", "score")
    after.dense = tuple(step if name in dense else old for name, old in zip(names, world.dense))
    changed = {"user": ["u"], "item": ["i"], "score": ["scale", "bias"]}
    weights = {name: after.weights[name] for part in dense for name in changed[part]}
    tables = {name: t for name, t in tables.items() if len(t.keys) + len(t.removed)}
    parent = step - 1 if parent is None else parent
    return after, Delta(MODEL, 1, step, parent, tables, weights, published_at=time.time())


def scores(world, of, user):
    """Scores by item of a user, of the pinned generation, with items' vectors of another one."""
    scale, bias = world.weights["scale"][0, 0], world.weights["bias"][0]
    by_user = world.user_vector(user)
    keys = world.catalogue & of.catalogue
    return {key: float(1 / (1 + np.exp(-(scale * (by_user @ of.item_vector(key)) + bias)))) for key in keys}


def assert_best(ids, listed, world, of, user, k):
    """Check a list against all scores: exact up to ties."""
    expected = scores(world, of, user)
    assert len(ids) == len(set(ids.tolist())) == min(k, len(expected)), (len(ids), len(expected))
    best = np.sort(np.array(list(expected.values())))[::-1][:k]
    np.testing.assert_allclose(listed, best, atol=1e-5)
    np.testing.assert_allclose([expected[key] for key in ids.tolist()], listed, atol=1e-5)
