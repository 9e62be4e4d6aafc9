"""Models that know nothing of Freshet: SavedModels and Keras files as people export them, each with requests for it.

A Foreign writes itself into a folder, makes up a request of n rows (by input, as a client would send it in JSON), and
says what TensorFlow's own signature makes of it.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.compiler.imports.foreign import open_source
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.repository.version import VersionReader

layers = keras.layers
WORDS = [f"w{i}" for i in range(12)]


@dataclass
class Foreign:
    """build: writes it, returns what to import. request: (random, n) -> JSON inputs. tensors: those as the signature
    takes them; by default one tensor each. tables: how many tables the package has; stage: whether it has one."""

    name: str
    build: Callable[[Path], Path]
    request: Callable[[np.random.Generator, int], dict[str, Any]]
    tensors: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    tables: int = 0
    stage: bool = False

    def reference(self, path: Path) -> Callable[[dict[str, Any]], dict[str, np.ndarray]]:
        """What TensorFlow makes of a request."""
        folder = path
        with without_deprecations():
            if path.is_file():
                folder = path.with_suffix("")
                exported(keras.saving.load_model(path, compile=False), folder)
            loaded = tf.saved_model.load(str(folder))
        signature = loaded.signatures["serving_default"]
        specs = signature.structured_input_signature[1]

        def run(request: dict[str, Any]) -> dict[str, np.ndarray]:
            given = self.tensors(request) if self.tensors else request
            cast = {k: v if tf.is_tensor(v) else tf.constant(v, specs[k].dtype) for k, v in given.items()}
            fitted = {
                k: tf.reshape(v, [-1, *specs[k].shape[1:]]) if specs[k].shape.rank else v for k, v in cast.items()
            }
            return {k: v.numpy() for k, v in signature(**fitted).items()}

        run.loaded = loaded  # type: ignore[attr-defined]
        return run


@contextmanager
def without_deprecations() -> Iterator[None]:
    """Keras and TensorFlow warn of numpy's future when they save and load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def exported(model: Any, folder: Path) -> Path:
    model.export(str(folder), format="tf_saved_model", verbose=False)
    return folder


def choose(random: np.random.Generator, values: list[Any], n: int) -> list[Any]:
    return [values[i] for i in random.integers(0, len(values), n)]


def lists(random: np.random.Generator, make: Callable[[int], list[Any]], n: int, least: int = 0) -> list[list[Any]]:
    """n rows of `least` to 5 values; the last row has two."""
    rows = [make(int(k)) for k in random.integers(least, 6, n)]
    rows[-1] = make(2)
    return rows


def floats(random: np.random.Generator, *shape: int) -> list[Any]:
    return np.round(random.standard_normal(shape), 3).astype(np.float32).tolist()


def ragged(name: str, dtype: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """As TensorFlow flattens a ragged argument: <name> its values, <name>_1 its row splits."""

    def split(request: dict[str, Any]) -> dict[str, Any]:
        tensor = tf.ragged.constant(request[name], dtype, ragged_rank=1)
        rest = {k: v for k, v in request.items() if k != name}
        return {**rest, name: tensor.values, f"{name}_1": tensor.row_splits}

    return split


def sparse(name: str, dtype: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """As TensorFlow flattens a sparse argument: <name> its indices, <name>_1 its values, <name>_2 its shape."""

    def split(request: dict[str, Any]) -> dict[str, Any]:
        tensor = tf.ragged.constant(request[name], dtype, ragged_rank=1).to_sparse()
        rest = {k: v for k, v in request.items() if k != name}
        return {**rest, name: tensor.indices, f"{name}_1": tensor.values, f"{name}_2": tensor.dense_shape}

    return split


def refused(path: Path, error: type[FreshetError] = BadInput, **options: Any) -> str:
    """The message that a source is refused with."""
    with pytest.raises(error) as caught, open_source(path, **options):
        pass
    message = str(caught.value)
    assert "\n" not in message
    assert str(path.parent) not in message
    return message


def variable(seed: int, *shape: int, name: str) -> Any:
    return tf.Variable(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.3, name=name)


def saved(module: Any, folder: Path, function: Any) -> Path:
    tf.saved_model.save(module, str(folder), signatures=function)
    return folder


class ImportedOnce:
    """Functions of a model by name -> (repository, manifest, report) of each, imported when it is first asked for."""

    def __init__(self, folder: Path, module: Any) -> None:
        self._folder, self._module = folder, module
        self._imported: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        if name not in self._imported:
            source, repository = self._folder / f"{name}-saved", self._folder / name
            saved(self._module, source, getattr(self._module, name))
            done = import_model(source, repository, name, options=ImportOptions(buckets=(1, 2)))
            self._imported[name] = repository, VersionReader(done.folder).manifest, done.report
        return self._imported[name]


# Keras


def functional() -> Any:
    user = keras.Input((), dtype="string", name="user")
    item = keras.Input((1,), dtype="int64", name="item")
    history = keras.Input((4,), dtype="int64", name="history")
    city = keras.Input((1,), dtype="string", name="city")
    price = keras.Input((), dtype="float32", name="price")
    parts = [
        layers.Embedding(5, 4, name="user_rows")(layers.StringLookup(vocabulary=["ann", "bob", "eve", "dan"])(user)),
        layers.Flatten()(layers.Embedding(4, 3, name="item_rows")(layers.IntegerLookup(vocabulary=[11, 22, 33])(item))),
        layers.GlobalAveragePooling1D()(layers.Embedding(30, 4, mask_zero=True, name="history_rows")(history)),
        layers.Flatten()(layers.Embedding(16, 2, name="city_rows")(layers.Hashing(16)(city))),
        layers.CategoryEncoding(4, output_mode="one_hot")(layers.Discretization([-0.5, 0.0, 0.5])(price)),
    ]
    hidden = layers.Dense(8, activation="relu")(layers.Concatenate()(parts))
    return keras.Model([user, item, history, city, price], layers.Dense(1, activation="sigmoid", name="score")(hidden))


def keras_file(folder: Path) -> Path:
    keras.utils.set_random_seed(1)
    path = folder / "functional.keras"
    functional().save(path)
    return path


def functional_request(random: np.random.Generator, n: int) -> dict[str, Any]:
    history = random.integers(0, 30, (n, 4))
    history[:, 0] = random.integers(1, 30, n)
    return {
        "user": choose(random, ["ann", "bob", "eve", "dan", "who", ""], n),
        "item": choose(random, [11, 22, 33, 44, -1], n),
        "history": history.tolist(),
        "city": choose(random, WORDS, n),
        "price": floats(random, n),
    }


def keras_export(folder: Path) -> Path:
    keras.utils.set_random_seed(2)
    tag = keras.Input((3,), dtype="string", name="tags")
    genre = keras.Input((2,), dtype="int32", name="genres")
    age = keras.Input((2,), dtype="float32", name="ages")
    norm = layers.Normalization()
    norm.adapt(np.array([[1.0, 20.0], [3.0, 40.0]], np.float32))
    lookup = layers.StringLookup(vocabulary=WORDS, num_oov_indices=2, mask_token="")
    parts = [
        layers.GlobalMaxPooling1D()(layers.Embedding(16, 4, name="tag_rows")(lookup(tag))),
        layers.CategoryEncoding(6, output_mode="multi_hot")(genre),
        norm(age),
    ]
    hidden = layers.BatchNormalization()(layers.Dense(8, activation="gelu")(layers.Concatenate()(parts)))
    heads = {name: layers.Dense(1, activation="sigmoid", name=name)(hidden) for name in ("ctr", "cvr")}
    model = keras.Model([tag, genre, age], heads)
    return exported(model, folder / "export")


def keras_export_request(random: np.random.Generator, n: int) -> dict[str, Any]:
    tags = choose(random, [*WORDS, "x", "y", ""], 3 * n)
    return {
        "tags": [tags[3 * i : 3 * i + 3] for i in range(n)],
        "genres": random.integers(0, 6, (n, 2)).tolist(),
        "ages": floats(random, n, 2),
    }


def attention(folder: Path) -> Path:
    """DIN in small: the candidate attends to the history, masked."""
    keras.utils.set_random_seed(3)
    item, history = keras.Input((), dtype="int64", name="item"), keras.Input((6,), dtype="int64", name="history")
    rows = layers.Embedding(40, 4, name="rows")
    query, keys = layers.Reshape((1, 4))(rows(item)), rows(history)
    mask = keras.ops.cast(keras.ops.not_equal(history, 0), "float32")
    scores = keras.ops.sum(query * keys, axis=-1) - 1e4 * (1.0 - mask)
    pooled = keras.ops.sum(keras.ops.expand_dims(keras.ops.softmax(scores), -1) * keys, axis=1)
    hidden = layers.Dense(8, activation="relu")(layers.Concatenate()([layers.Flatten()(query), pooled]))
    model = keras.Model([item, history], layers.Dense(1, activation="sigmoid")(hidden))
    path = folder / "attention.keras"
    model.save(path)
    return path


def recurrent(folder: Path) -> Path:
    """A loop over time: no dense graph, so all of it stays in TensorFlow."""
    keras.utils.set_random_seed(4)
    history = keras.Input((5,), dtype="int64", name="history")
    hidden = layers.GRU(4)(layers.Embedding(20, 3)(history))
    model = keras.Model(history, layers.Dense(1, activation="sigmoid")(hidden))
    return exported(model, folder / "recurrent")


def dense_only(folder: Path) -> Path:
    keras.utils.set_random_seed(5)
    x = keras.Input((8,), name="values")
    hidden = layers.BatchNormalization()(layers.Dense(16, activation="tanh")(x))
    path = folder / "dense.keras"
    keras.Model(x, layers.Dense(3, activation="softmax")(hidden)).save(path)
    return path


# Plain TensorFlow


def incomplete_gamma(folder: Path) -> Path:
    """An operation that no backend has words for, between a lookup and a dense layer."""

    class Model(tf.Module):
        def __init__(self) -> None:
            self.rows = variable(1, 20, 4, name="rows")
            self.weights = variable(2, 4, 1, name="weights")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="user")])
        def score(self, user: Any) -> Any:
            return {"score": tf.math.igamma(0.5, tf.abs(tf.gather(self.rows, user))) @ self.weights}

    module = Model()
    return saved(module, folder / "gamma", module.score)


def sparse_lookups(folder: Path) -> Path:
    class Model(tf.Module):
        def __init__(self) -> None:
            self.rows = [variable(i, 20, 4, name=f"rows_{i}") for i in range(3)]
            self.weights = variable(9, 12, 1, name="weights")

        @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
        def score(self, ids: Any) -> Any:
            pooled = [
                tf.nn.embedding_lookup_sparse(rows, ids, None, combiner=combiner)
                for rows, combiner in zip(self.rows, ("sum", "mean", "sqrtn"))
            ]
            return {"score": tf.sigmoid(tf.concat(pooled, 1) @ self.weights)}

    module = Model()
    return saved(module, folder / "sparse", module.score)


def safe_lookup(folder: Path) -> Path:
    class Model(tf.Module):
        def __init__(self) -> None:
            self.rows = variable(1, 20, 4, name="rows")
            self.other = variable(2, 20, 4, name="other")
            self.weights = variable(3, 8, 1, name="weights")

        @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)])
        def score(self, ids: Any) -> Any:
            sparse_ids = ids.to_sparse()
            a = tf.nn.safe_embedding_lookup_sparse(self.rows, sparse_ids, combiner="mean", max_norm=0.5)
            b = tf.nn.safe_embedding_lookup_sparse(self.other, sparse_ids, combiner="sum", default_id=3)
            return {"score": tf.sigmoid(tf.concat([a, b], 1) @ self.weights)}

    module = Model()
    return saved(module, folder / "safe", module.score)


def ragged_strings(folder: Path) -> Path:
    class Model(tf.Module):
        def __init__(self) -> None:
            keys = tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(1, 13, dtype=tf.int64))
            self.table = tf.lookup.StaticHashTable(keys, 0)
            self.rows = variable(1, 13, 4, name="rows")
            self.weights = variable(2, 5, 1, name="weights")

        @tf.function(
            input_signature=[tf.RaggedTensorSpec([None, None], tf.string), tf.TensorSpec([None], name="price")]
        )
        def score(self, tags: Any, price: Any) -> Any:
            rows = tf.nn.embedding_lookup(self.rows, tf.ragged.map_flat_values(self.table.lookup, tags))
            pooled = tf.reduce_sum(rows, axis=1)
            return {"score": tf.sigmoid(tf.concat([pooled, price[:, None]], 1) @ self.weights)}

    module = Model()
    return saved(module, folder / "ragged", module.score)


def parsed(folder: Path) -> Path:
    spec = {
        "user": tf.io.FixedLenFeature([], tf.int64, default_value=0),
        "price": tf.io.FixedLenFeature([2], tf.float32),
        "tags": tf.io.VarLenFeature(tf.string),
        "history": tf.io.RaggedFeature(tf.int64),
    }

    class Model(tf.Module):
        def __init__(self) -> None:
            self.users = variable(1, 10, 4, name="users")
            self.tags = variable(2, 32, 4, name="tags")
            self.items = variable(3, 16, 4, name="items")
            self.weights = variable(4, 14, 1, name="weights")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def score(self, examples: Any) -> Any:
            features = tf.io.parse_example(examples, spec)
            tags = features["tags"]
            hashed = tf.SparseTensor(tags.indices, tf.strings.to_hash_bucket_fast(tags.values, 32), tags.dense_shape)
            parts = [
                tf.nn.embedding_lookup(self.users, features["user"]),
                tf.nn.safe_embedding_lookup_sparse(self.tags, hashed, combiner="sqrtn"),
                tf.reduce_sum(tf.nn.embedding_lookup(self.items, features["history"]), axis=1),
                features["price"],
            ]
            return {"score": tf.sigmoid(tf.concat(parts, 1) @ self.weights)}

    module = Model()
    return saved(module, folder / "parsed", module.score)


def example(random: np.random.Generator) -> bytes:
    def ints(values: Any) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    features = {
        "user": ints([int(random.integers(10))]),
        "price": tf.train.Feature(float_list=tf.train.FloatList(value=random.standard_normal(2))),
        "tags": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[w.encode() for w in choose(random, WORDS, int(random.integers(4)))])
        ),
        "history": ints(random.integers(0, 16, int(random.integers(5))).tolist()),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def parsed_request(random: np.random.Generator, n: int) -> dict[str, Any]:
    return {"examples": [{"b64": base64.b64encode(example(random)).decode()} for _ in range(n)]}


def asset_table(folder: Path) -> Path:
    vocabulary = folder / "words.txt"
    vocabulary.write_text("\n".join(WORDS))

    class Model(tf.Module):
        def __init__(self) -> None:
            lines = tf.lookup.TextFileInitializer(
                str(vocabulary),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            )
            self.table = tf.lookup.StaticVocabularyTable(lines, num_oov_buckets=3)
            self.names = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer([b"w1", b"w2"], [0.25, -1.5]), default_value=0.5
            )
            self.rows = variable(1, 15, 4, name="rows")
            self.weights = variable(2, 5, 1, name="weights")

        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.string, name="word")])
        def score(self, word: Any) -> Any:
            rows = tf.squeeze(tf.nn.embedding_lookup(self.rows, self.table.lookup(word)), 1)
            return {"score": tf.sigmoid(tf.concat([rows, self.names.lookup(word)], 1) @ self.weights)}

    module = Model()
    return saved(module, folder / "asset", module.score)


def partitioned(folder: Path) -> Path:
    class Model(tf.Module):
        def __init__(self) -> None:
            self.parts = [variable(i, n, 4, name=f"part_{i}") for i, n in enumerate((6, 6, 5))]
            self.weights = variable(9, 8, 1, name="weights")

        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.int64, name="user"), tf.TensorSpec([None], tf.int32, name="item")]
        )
        def score(self, user: Any, item: Any) -> Any:
            rows = [tf.nn.embedding_lookup(self.parts, ids) for ids in (user, item)]
            return {"score": tf.sigmoid(tf.concat(rows, 1) @ self.weights)}

    module = Model()
    return saved(module, folder / "partitioned", module.score)


def crossed(folder: Path) -> Path:
    """Strings joined, lowered and hashed; buckets; a double."""

    class Model(tf.Module):
        def __init__(self) -> None:
            self.rows = variable(1, 50, 4, name="rows")
            self.ages = variable(2, 4, 2, name="ages")
            self.weights = variable(3, 7, 1, name="weights")

        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.string, name="user"),
                tf.TensorSpec([None], tf.string, name="item"),
                tf.TensorSpec([None], tf.float64, name="age"),
            ]
        )
        def score(self, user: Any, item: Any, age: Any) -> Any:
            cross = tf.strings.to_hash_bucket_fast(tf.strings.lower(tf.strings.join([user, item], "_x_")), 50)
            small = tf.cast(age, tf.float32)
            buckets = tf.raw_ops.Bucketize(input=small, boundaries=[-0.5, 0.0, 0.5])
            parts = [tf.gather(self.rows, cross), tf.gather(self.ages, buckets), small[:, None]]
            return {"score": tf.sigmoid(tf.concat(parts, 1) @ self.weights), "bucket": buckets}

    module = Model()
    return saved(module, folder / "crossed", module.score)


def weighted(folder: Path) -> Path:
    class Model(tf.Module):
        def __init__(self) -> None:
            self.rows = variable(1, 20, 4, name="rows")
            self.weights = variable(2, 4, 1, name="weights")

        @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
        def score(self, ids: Any) -> Any:
            counts = ids.with_values(1.0 / (1.0 + tf.cast(ids.values, tf.float32)))
            pooled = tf.nn.embedding_lookup_sparse(self.rows, ids, counts, combiner="mean")
            return {"score": tf.sigmoid(pooled @ self.weights)}

    module = Model()
    return saved(module, folder / "weighted", module.score)


def first_generation(folder: Path) -> Path:
    """As TensorFlow 1 exported: a session, placeholders, reference variables, collections."""
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default(), v1.Session(graph=graph) as session:
        v1.set_random_seed(1)
        word, user = v1.placeholder(tf.string, [None], name="word"), v1.placeholder(tf.int64, [None], name="user")
        values = v1.placeholder(tf.float32, [None, 3], name="values")
        keep = v1.placeholder_with_default(1.0, (), name="keep")
        keys = tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(12, dtype=tf.int64))
        table = tf.lookup.StaticVocabularyTable(keys, 2)
        make = v1.get_variable
        words = make("words", [14, 4], use_resource=False)
        users = make("users", [10, 4], partitioner=v1.fixed_size_partitioner(3), use_resource=True)
        x = tf.concat([tf.gather(words, table.lookup(word)), v1.nn.embedding_lookup(users, user), values * keep], 1)
        hidden = tf.nn.relu(x @ make("hidden/kernel", [11, 6]) + make("hidden/bias", [6]))
        score = tf.sigmoid(hidden @ make("out/kernel", [6, 1]))
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        v1.saved_model.simple_save(
            session,
            str(folder / "first"),
            {"word": word, "user": user, "values": values},
            {"score": score},
            legacy_init_op=v1.tables_initializer(),
        )
    return folder / "first"


MODELS = [
    Foreign("functional", keras_file, functional_request, tables=5),
    Foreign("export", keras_export, keras_export_request, tables=1, stage=True),
    Foreign(
        "attention",
        attention,
        lambda r, n: {"item": r.integers(0, 40, n).tolist(), "history": r.integers(0, 40, (n, 6)).tolist()},
        tables=2,
    ),
    Foreign("recurrent", recurrent, lambda r, n: {"history": r.integers(0, 20, (n, 5)).tolist()}, tables=1, stage=True),
    Foreign("gamma", incomplete_gamma, lambda r, n: {"user": r.integers(0, 20, n).tolist()}, tables=1, stage=True),
    Foreign("dense", dense_only, lambda r, n: {"values": floats(r, n, 8)}),
    Foreign(
        "sparse",
        sparse_lookups,
        lambda r, n: {"ids": lists(r, lambda k: r.integers(0, 20, k).tolist(), n)},
        sparse("ids", tf.int64),
        tables=3,
    ),
    Foreign(
        "safe",
        safe_lookup,
        lambda r, n: {"ids": lists(r, lambda k: r.integers(-3, 20, k).tolist(), n)},
        ragged("ids", tf.int64),
        tables=2,
    ),
    Foreign(
        "ragged",
        ragged_strings,
        lambda r, n: {"tags": lists(r, lambda k: choose(r, [*WORDS, "?"], k), n), "price": floats(r, n)},
        ragged("tags", tf.string),
        tables=1,
    ),
    Foreign(
        "parsed",
        parsed,
        parsed_request,
        lambda request: {"examples": tf.constant([base64.b64decode(e["b64"]) for e in request["examples"]])},
        tables=3,
        stage=True,
    ),
    Foreign("asset", asset_table, lambda r, n: {"word": choose(r, [*WORDS, "no", "nn"], n)}, tables=2, stage=True),
    Foreign(
        "partitioned",
        partitioned,
        lambda r, n: {"user": r.integers(0, 17, n).tolist(), "item": r.integers(0, 17, n).tolist()},
        tables=1,
    ),
    Foreign(
        "crossed",
        crossed,
        lambda r, n: {"user": choose(r, WORDS, n), "item": choose(r, ["A", "B"], n), "age": floats(r, n)},
        tables=2,
    ),
    Foreign(
        "weighted",
        weighted,
        lambda r, n: {"ids": lists(r, lambda k: r.integers(0, 20, k).tolist(), n)},
        sparse("ids", tf.int64),
        stage=True,
    ),
    Foreign(
        "first",
        first_generation,
        lambda r, n: {
            "word": choose(r, [*WORDS, "no"], n),
            "user": r.integers(0, 10, n).tolist(),
            "values": floats(r, n, 3),
        },
        tables=2,
        stage=True,
    ),
]
