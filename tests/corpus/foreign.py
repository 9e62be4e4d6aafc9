"""Entries of models that were imported: with nothing left to TensorFlow, with a part of the graph, with all of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.models.publishing.publisher import Publisher
from tests.corpus.entry import column_document
from tests.corpus.story import MODEL, Story, requests_of

ROWS = 8
USERS, CITIES, TAGS, DIM = 20, 16, 12, 4
CITY_NAMES = ["Oslo", "La Paz", "", "Zürich", "東京", "oslo", "Łódź", "nowhere"]
TAG_NAMES = [f"tag {n}" for n in range(TAGS)]


def saved_model(story: Story) -> None:
    """Hashed strings, a vocabulary over ragged strings, ids and floats: tables, transforms and dense graph alone."""

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            vocabulary = tf.lookup.KeyValueTensorInitializer(TAG_NAMES, tf.range(1, TAGS + 1, dtype=tf.int64))
            self.vocabulary = tf.lookup.StaticHashTable(vocabulary, 0)
            self.users, self.cities = _variable(1, USERS, DIM, name="users"), _variable(2, CITIES, DIM, name="cities")
            self.tags = _variable(3, TAGS + 1, DIM, name="tags")
            self.hidden, self.out = _variable(4, 3 * DIM + 1, 8, name="hidden"), _variable(5, 8, 1, name="out")

        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.int64, name="user"),
                tf.TensorSpec([None], tf.string, name="city"),
                tf.RaggedTensorSpec([None, None], tf.string),
                tf.TensorSpec([None], tf.float32, name="price"),
            ]
        )
        def score(self, user: Any, city: Any, tags: Any, price: Any) -> Any:
            rows = tf.nn.embedding_lookup(self.tags, tf.ragged.map_flat_values(self.vocabulary.lookup, tags))
            parts = [
                tf.gather(self.users, user),
                tf.gather(self.cities, tf.strings.to_hash_bucket_fast(city, CITIES)),
                tf.reduce_sum(rows, axis=1),
                price[:, None],
            ]
            return {"score": tf.sigmoid(tf.nn.relu(tf.concat(parts, 1) @ self.hidden) @ self.out)}

    _import(story, Model(), ("user", "city", "tags", "price"), staged=False)
    _deltas(story, "users")


def flat(story: Story) -> None:
    """One output that is computed number by number, and one that is not."""

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.slope, self.shift = _variable(6, 1, name="slope"), _variable(7, 1, name="shift")

        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")])
        def score(self, x: Any) -> Any:
            each = x * self.slope + self.shift
            return {"each": each, "total": tf.reduce_sum(each, 1, keepdims=True)}

    _import(story, Model(), ("x",), staged=False)
    if [(o.name, o.flat) for o in story.version.manifest.outputs] != [("each", True), ("total", False)]:
        raise ValueError(f"expected one flat output, got {story.version.manifest.outputs}")
    story.moment("published")
    dense = {name: array + np.float32(0.25) for name, array in story.version.dense().items()}
    Publisher(story.repository, MODEL).publish(dense=dense)
    story.moment("delta 1")


def exact(story: Story) -> None:
    """Ids that pass through, labels of a lookup table, and an output with a name of its own in the signature."""

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            names = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 3], tf.int64), ["one", "three"])
            self.names, self.slope = tf.lookup.StaticHashTable(names, "other"), _variable(6, 1, name="slope")

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, 1], tf.float32, name="x"),
                tf.TensorSpec([None], tf.int64, name="user"),
            ]
        )
        def score(self, x: Any, user: Any) -> Any:
            return {"p:x": x * self.slope, "user_out": tf.identity(user), "label": self.names.lookup(user)}

    _import(story, Model(), ("x", "user"), staged=False)
    manifest = story.version.manifest
    exact_outputs = {o.name for o in manifest.outputs if o.exact}
    if exact_outputs != {"user_out", "label"} or "p:x" not in manifest.replies():
        raise ValueError(f"expected exact ids and labels, and names of the signature, got {manifest.outputs}")
    story.moment("published")
    Publisher(story.repository, MODEL).publish(
        dense={n: a + np.float32(0.25) for n, a in story.version.dense().items()}
    )
    story.moment("delta 1")


def fallback(story: Story) -> None:
    """A regular expression that the engine does not compute, before the lookup: TensorFlow makes the key."""

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.users, self.cities = _variable(1, USERS, DIM, name="users"), _variable(2, CITIES, DIM, name="cities")
            self.hidden, self.out = _variable(4, 2 * DIM + 1, 8, name="hidden"), _variable(5, 8, 1, name="out")

        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.int64, name="user"),
                tf.TensorSpec([None], tf.string, name="city"),
                tf.TensorSpec([None], tf.float32, name="price"),
            ]
        )
        def score(self, user: Any, city: Any, price: Any) -> Any:
            short = tf.strings.to_hash_bucket_fast(tf.strings.regex_replace(city, "[aeiou]", ""), CITIES)
            parts = [tf.gather(self.users, user), tf.gather(self.cities, short), price[:, None]]
            return {"score": tf.sigmoid(tf.nn.relu(tf.concat(parts, 1) @ self.hidden) @ self.out)}

    _import(story, Model(), ("user", "city", "price"), staged=True)
    _deltas(story, "cities")


def fallback_whole(story: Story) -> None:
    """A recurrent network: the whole model stays a TensorFlow function."""
    keras.utils.set_random_seed(4)
    history = keras.Input((5,), dtype="int64", name="history")
    hidden = keras.layers.GRU(4)(keras.layers.Embedding(USERS, 3)(history))
    model = keras.Model(history, keras.layers.Dense(1, activation="sigmoid", name="score")(hidden))
    with _source(story) as folder:
        model.export(str(folder), format="tf_saved_model", verbose=False)
        import_model(folder, story.repository, MODEL, options=ImportOptions(buckets=(ROWS,)))
    _check_stage(story, True)
    ids = np.random.default_rng(6).integers(0, USERS, (ROWS, 5))
    story.requests += requests_of(
        "rows", {"history": column_document("int64", ids.reshape(-1).tolist(), list(ids.shape))}
    )
    story.moment("published")


def from_onnx(story: Story) -> None:
    """Two columns of ids over two initialisers, and floats."""
    random = np.random.default_rng(8)
    weights = {
        "users.weight": random.standard_normal((USERS, DIM)),
        "items.weight": random.standard_normal((USERS, DIM)),
        "hidden.weight": random.standard_normal((2 * DIM + 2, 8)) / 2,
        "hidden.bias": random.standard_normal(8) / 2,
        "out.weight": random.standard_normal((8, 1)) / 2,
    }
    nodes = [
        helper.make_node("Gather", ["users.weight", "user"], ["u"]),
        helper.make_node("Gather", ["items.weight", "item"], ["i"]),
        helper.make_node("Concat", ["u", "i", "values"], ["x"], axis=1),
        helper.make_node("MatMul", ["x", "hidden.weight"], ["a"]),
        helper.make_node("Add", ["a", "hidden.bias"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "out.weight"], ["d"]),
        helper.make_node("Sigmoid", ["d"], ["score"]),
    ]
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch"]) for name in ("user", "item")]
    inputs.append(helper.make_tensor_value_info("values", onnx.TensorProto.FLOAT, ["batch", 2]))
    outputs = [helper.make_tensor_value_info("score", onnx.TensorProto.FLOAT, ["batch", 1])]
    initialisers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "ctr", inputs, outputs, initialisers)
    _import_onnx(story, graph, staged=False)
    _ask(story, ("user", "item", "values"))
    _deltas(story, "users.weight")


def lists_from_onnx(story: Story) -> None:
    """Ids in lists of free length and one beside them, in one initialiser: a stage of ONNX Runtime reads its rows."""
    random = np.random.default_rng(11)
    nodes = [
        helper.make_node("Gather", ["items.weight", "past"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Gather", ["items.weight", "item"], ["own"]),
        helper.make_node("Mul", ["mean", "own"], ["product"]),
        helper.make_node("ReduceSum", ["product", "axis"], ["sum"], keepdims=1),
        # An operator that is not translated, so that ONNX Runtime computes the graph as it is.
        helper.make_node("Shrink", ["sum"], ["same"], lambd=0.0),
        helper.make_node("Sigmoid", ["same"], ["score"]),
    ]
    _import_lists(story, nodes, {"items.weight": (USERS, DIM)}, random)
    _deltas(story, "items.weight")


def weights_from_onnx(story: Story) -> None:
    """A list of free length weighed by a product, whose matrix, bias and scale are weights of the stage."""
    random = np.random.default_rng(12)
    nodes = [
        helper.make_node("Gather", ["items.weight", "past"], ["rows"]),
        helper.make_node("MatMul", ["rows", "turn.weight"], ["turned"]),
        helper.make_node("Add", ["turned", "turn.bias"], ["moved"]),
        helper.make_node("Tanh", ["moved"], ["bent"]),
        helper.make_node("ReduceMax", ["bent"], ["most"], axes=[1], keepdims=0),
        helper.make_node("Gather", ["items.weight", "item"], ["own"]),
        helper.make_node("Mul", ["most", "own"], ["product"]),
        helper.make_node("ReduceSum", ["product", "axis"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["sum", "scale"], ["scaled"]),
        # An operator that is not translated, so that ONNX Runtime computes the graph as it is.
        helper.make_node("Shrink", ["scaled"], ["same"], lambd=0.0),
        helper.make_node("Sigmoid", ["same"], ["score"]),
    ]
    shapes = {"items.weight": (USERS, DIM), "turn.weight": (DIM, DIM), "turn.bias": (DIM,), "scale": ()}
    _import_lists(story, nodes, shapes, random)
    manifest = story.version.manifest
    if manifest.stage_weights != shapes.keys() - {"items.weight"}:
        raise ValueError(f"expected weights of the stage, got {manifest.stage_weights}")
    story.moment("published")
    for step in (1, 2):
        rows = {
            name: (
                np.arange(manifest.table(name).rows),
                random.standard_normal(shape).reshape(-1, manifest.table(name).dim),
            )
            for name, shape in shapes.items()
        }
        if step == 2:
            # One of the weights, and a few rows.
            rows = {"turn.weight": rows["turn.weight"], "items.weight": (np.arange(3), rows["items.weight"][1][:3])}
        Publisher(story.repository, MODEL).publish(rows=rows)
        story.moment(f"delta {step}")
    story.roll_back(1, "the second was a mistake")
    story.moment("rolled back to 1")


def _import_lists(
    story: Story, nodes: list[Any], shapes: dict[str, tuple[int, ...]], random: np.random.Generator
) -> None:
    """Import a graph of a list `past`, an id `item` and random weights; ask it for lists of three lengths."""
    inputs = [
        helper.make_tensor_value_info("past", onnx.TensorProto.INT64, ["batch", "events"]),
        helper.make_tensor_value_info("item", onnx.TensorProto.INT64, ["batch"]),
    ]
    outputs = [helper.make_tensor_value_info("score", onnx.TensorProto.FLOAT, ["batch", 1])]
    weights = {name: np.asarray(random.standard_normal(shape), np.float32) for name, shape in shapes.items()}
    initialisers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    initialisers.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    _import_onnx(story, helper.make_graph(nodes, "ctr", inputs, outputs, initialisers), staged=True)
    for length in (1, 3, 7):
        ids = random.integers(0, USERS, ROWS * length).tolist()
        splits = [n * length for n in range(ROWS + 1)]
        story.requests += requests_of(
            f"lists of {length}",
            {
                "past": column_document("int64", ids, [len(ids)], splits),
                "item": column_document("int64", random.integers(0, USERS, ROWS).tolist(), [ROWS]),
            },
        )


def _import_onnx(story: Story, graph: Any, staged: bool) -> None:
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with _source(story) as folder:
        folder.mkdir()
        path = folder / "ctr.onnx"
        path.write_bytes(proto.SerializeToString())
        import_model(path, story.repository, MODEL, options=ImportOptions(buckets=(ROWS,)))
    _check_stage(story, staged)


def _import(story: Story, module: Any, names: tuple[str, ...], staged: bool) -> None:
    with _source(story) as folder:
        tf.saved_model.save(module, str(folder), signatures=module.score)
        import_model(folder, story.repository, MODEL, options=ImportOptions(buckets=(ROWS,)))
    _check_stage(story, staged)
    _ask(story, names)


def _check_stage(story: Story, staged: bool) -> None:
    if (story.version.manifest.stage is not None) != staged:
        raise ValueError(f"expected {'a' if staged else 'no'} stage: {story.version.manifest.notes['import']}")


def _ask(story: Story, names: tuple[str, ...]) -> None:
    for seed in (1, 2):
        inputs = _inputs(seed)
        story.requests += requests_of(f"rows {seed}", {name: inputs[name] for name in names})


def _deltas(story: Story, table: str) -> None:
    """Two deltas, of rows and of all weights, the first one undone."""
    story.moment("published")
    manifest = story.version.manifest
    random = np.random.default_rng(9)
    keys = np.arange(0, 12)
    for step in (1, 2):
        rows = random.standard_normal((len(keys), manifest.table(table).dim)).astype(np.float32)
        dense = {name: array + np.float32(0.05 * step) for name, array in story.version.dense().items()}
        Publisher(story.repository, MODEL).publish(rows={table: (keys, rows)}, dense=dense)
        story.moment(f"delta {step}")
    story.roll_back(1, "the second was a mistake")
    story.moment("rolled back to 1")


def _inputs(seed: int) -> dict[str, dict[str, Any]]:
    """Every input, with ids and strings that the model does not know among them."""
    random = np.random.default_rng([10, seed])
    ids = {name: random.integers(0, USERS, ROWS) for name in ("user", "item")}
    ids["user"][-1] = USERS + 5
    lengths = random.integers(0, 4, ROWS)
    tags = [TAG_NAMES[n] if n < TAGS else "unknown" for n in random.integers(0, TAGS + 2, lengths.sum())]
    price, values = (
        random.standard_normal(ROWS).astype(np.float32),
        random.standard_normal((ROWS, 2)).astype(np.float32),
    )
    cities = [CITY_NAMES[n] for n in random.permutation(len(CITY_NAMES))]
    return {
        **{name: column_document("int64", column.tolist(), [ROWS]) for name, column in ids.items()},
        "city": column_document("string", cities, [ROWS]),
        "tags": column_document("string", tags, [len(tags)], [0, *np.cumsum(lengths).tolist()]),
        "price": column_document("float32", price.tolist(), [ROWS]),
        "values": column_document("float32", values.reshape(-1).tolist(), [ROWS, 2]),
        "x": column_document("float32", price.tolist(), [ROWS, 1]),
    }


def _variable(seed: int, *shape: int, name: str) -> Any:
    return tf.Variable(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.5, name=name)


@contextmanager
def _source(story: Story) -> Iterator[Path]:
    """A folder for what is imported. TensorFlow and Keras warn of numpy's future while they write there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield story.repository.parent / "source"
