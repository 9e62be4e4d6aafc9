"""Models of hash buckets, crosses and buckets, as people write them: the engine's own transforms, and no stage."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.compiler.imports.foreign import open_source
from freshet_serving.compiler.imports.importer import Importer
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.foreign import exported, saved, variable, without_deprecations
from tests.compiler.imports.replies import replies

layers = keras.layers
WORD = tf.TensorSpec([None], tf.string, name="word")
ID = tf.TensorSpec([None], tf.int64, name="id")
PAIR = tf.TensorSpec([None, 2], tf.string, name="words")
PRICE = tf.TensorSpec([None], tf.float32, name="price")
TAGS = tf.RaggedTensorSpec([None, None], tf.string)
NUMBERS = tf.RaggedTensorSpec([None, None], tf.int64)


@pytest.fixture
def drafted(tmp_path):
    """(transforms by op, why the stage computes something) of a function of (rows float32 [64, 4], inputs)."""

    def of(function, *specs):
        class Model(tf.Module):
            def __init__(self):
                self.rows = variable(1, 64, 4, name="rows")

            @tf.function(input_signature=list(specs), autograph=False)
            def score(self, *inputs):
                return {"score": tf.reduce_sum(function(self.rows, *inputs), -1)}

        module = Model()
        with open_source(saved(module, tmp_path / "model", module.score)) as source:
            importer = Importer(source)
            draft = importer.draft(importer.cutter.cut())
        return [t.op for t in draft.transforms], list(draft.staged.values())

    return of


def fast(values):
    return tf.strings.to_hash_bucket_fast(values, 64)


@pytest.mark.parametrize(
    ("function", "specs", "ops"),
    [
        (lambda rows, w: tf.gather(rows, fast(w)), [WORD], ["farm"]),
        (lambda rows, w: tf.gather(rows, tf.strings.to_hash_bucket(w, 64)), [WORD], ["murmur"]),
        (lambda rows, w: tf.gather(rows, tf.strings.to_hash_bucket_strong(w, 64, [1, 2])), [WORD], ["sip"]),
        (lambda rows, i: tf.gather(rows, fast(tf.as_string(i))), [ID], ["text", "farm"]),
        (lambda rows, p: tf.gather(rows, fast(tf.as_string(p, precision=1))), [PRICE], ["text", "farm"]),
        (
            lambda rows, w, i: tf.gather(rows, fast(tf.strings.join(["u", w, tf.as_string(i)], "_"))),
            [WORD, ID],
            ["text", "join", "farm"],
        ),
        (
            lambda rows, w: tf.gather(rows, fast(tf.strings.upper(tf.strings.strip(w)))),
            [WORD],
            ["strip", "upper", "farm"],
        ),
        (lambda rows, w: tf.gather(rows, fast(w[:, 1])), [PAIR], ["pick", "farm"]),
        (
            lambda rows, w: tf.gather(rows, fast(w[:, 0] + "-" + w[:, 1])),
            [PAIR],
            ["pick", "join", "pick", "join", "farm"],
        ),
        (lambda rows, i: tf.gather(rows, (i * 7 + 3) % 64), [ID], ["multiply", "add", "floor_modulo"]),
        (lambda rows, i: tf.gather(rows, tf.cast(i, tf.int32) // 3 % 64), [ID], None),
        (
            lambda rows, p: tf.gather(rows, tf.raw_ops.Bucketize(input=p, boundaries=[-0.5, 0.5])),
            [PRICE],
            ["bucketize"],
        ),
        (
            lambda rows, t: tf.nn.safe_embedding_lookup_sparse(
                rows, tf.ragged.map_flat_values(fast, t).to_sparse(), combiner="mean"
            ),
            [TAGS],
            ["farm", "drop_below", "empty", "fill"],
        ),
        (
            lambda rows, t, n: tf.nn.embedding_lookup_sparse(
                rows, tf.sparse.cross_hashed([t.to_sparse(), n.to_sparse()], 64), None, combiner="sum"
            ),
            [TAGS, NUMBERS],
            ["cross"],
        ),
    ],
)
def test_computed_key_becomes_an_engine_transform(function, specs, ops, drafted):
    found, staged = drafted(function, *specs)
    assert staged == []
    assert ops is None or sorted(found) == sorted(ops)


@pytest.mark.parametrize(
    ("function", "specs", "why"),
    [
        (lambda rows, w: tf.gather(rows, tf.strings.length(w) % 64), [WORD], "StringLength is not one of the engine's"),
        (lambda rows, w: tf.gather(rows, fast(tf.strings.lower(w, encoding="utf-8"))), [WORD], "of non-ASCII letters"),
        (lambda rows, i: tf.gather(rows, tf.bitwise.bitwise_and(i, 63)), [ID], "BitwiseAnd is not one of the engine's"),
        (
            lambda rows, w: tf.gather(rows, fast(tf.where(tf.equal(w, ""), "unknown", w))),
            [WORD],
            "b'unknown' is not an integer",
        ),
        (
            lambda rows, i: tf.gather(
                rows, tf.cast(tf.where(tf.equal(i, 0), -np.inf, tf.cast(i, tf.float32)), tf.int64) % 64
            ),
            [ID],
            "-inf is not an integer",
        ),
    ],
)
def test_unsupported_key_is_left_to_the_stage_with_its_reason(function, specs, why, drafted):
    _, staged = drafted(function, *specs)
    assert any(why in reason for reason in staged)


def test_transform_that_differs_in_an_edge_case_is_not_used(drafted):
    """Of the empty string alone the model makes another one: no sample has it, the probes do."""

    def odd(rows, words):
        return tf.gather(rows, tf.where(tf.equal(words, ""), tf.zeros_like(words, tf.int64), fast(words)))

    found, staged = drafted(odd, WORD)
    assert sorted(found) == ["farm", "mask"]
    assert staged == []


def crossing_model():
    city, age, tags = (
        keras.Input((1,), dtype=dtype, name=name)
        for dtype, name in (("string", "city"), ("int64", "age"), ("string", "tag"))
    )
    price = keras.Input((1,), name="price")
    rows = [
        layers.Embedding(40, 3, name="cities")(layers.Hashing(40)(city)),
        layers.Embedding(30, 3, name="salted")(layers.Hashing(30, salt=[3, 5])(age)),
        layers.Embedding(20, 3, name="masked")(layers.Hashing(20, mask_value="")(tags)),
        layers.Embedding(50, 3, name="crossed")(layers.HashedCrossing(50)((city, age))),
        layers.Embedding(4, 3, name="prices")(layers.Discretization([-0.5, 0.0, 0.5])(price)),
    ]
    columns = [layers.Flatten()(part) for part in rows]
    columns += [layers.HashedCrossing(6, output_mode="one_hot")((tags, city))]
    columns += [layers.Hashing(5, output_mode="multi_hot")(tags)]
    return keras.Model([city, age, tags, price], layers.Dense(1, name="score")(layers.Concatenate()(columns)))


def request(rows, seed):
    random = np.random.default_rng(seed)
    words = ["", "Rome", "Wien", "x" * 70, "Zürich", "a b"]
    return {
        "city": [words[i] for i in random.integers(0, 6, rows)],
        "age": random.integers(-3, 2**40, rows),
        "tag": [words[i] for i in random.integers(0, 6, rows)],
        "price": random.standard_normal(rows).astype(np.float32),
    }


def columns_of(given):
    return {k: Strings.of(v) if isinstance(v, list) else v for k, v in given.items()}


def test_keras_hash_and_cross_layers_score_like_keras(tmp_path):
    keras.utils.set_random_seed(1)
    model = crossing_model()
    with without_deprecations():
        source = exported(model, tmp_path / "model")
    imported = import_model(source, tmp_path / "repository", "crossing", options=ImportOptions(buckets=(8,)))
    manifest = VersionReader(imported.folder).manifest

    assert manifest.stage is None
    assert imported.report["staged"] == []
    assert [t.name.split(".")[0].split("_")[0] for t in manifest.tables] != []
    assert {"farm", "sip", "mask", "cross", "bucketize", "one_hot", "tally"} <= {t.op for t in manifest.transforms}
    given = request(40, 2)
    got = replies(tmp_path / "repository", "crossing", columns_of(given))
    tensors = {k: tf.constant(v)[:, None] for k, v in given.items()}
    np.testing.assert_allclose(next(iter(got.values())), model(tensors).numpy(), rtol=1e-5, atol=1e-5)


def test_cross_of_user_inputs_alone_is_in_the_user_part(tmp_path):
    """A transform of the user's inputs alone is the user's; one of both is not."""

    class Model(tf.Module):
        def __init__(self):
            self.rows, self.weights = variable(1, 64, 4, name="rows"), variable(2, 8, 1, name="weights")

        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.string, name="user"),
                tf.TensorSpec([None], tf.string, name="item"),
            ]
        )
        def score(self, user, item):
            parts = [tf.gather(self.rows, fast(user)), tf.gather(self.rows, fast(tf.strings.join([user, item])))]
            return {"score": tf.concat(parts, 1) @ self.weights}

    module = Model()
    source = saved(module, tmp_path / "model", module.score)
    options = ImportOptions(buckets=(8,), user=("user",))
    imported = import_model(source, tmp_path / "repository", "joined", options=options)
    manifest = VersionReader(imported.folder).manifest

    hashed = {t.name: t.inputs[0] for t in manifest.transforms if t.op == "farm"}
    assert {hashed[f.input]: f.side for f in manifest.features} == {"user": "user", "join.user": "context"}
    items = ["a", "b", "", "dd"]
    inputs = {"user": Strings.of(["ann"]), "item": Strings.of(items)}
    got = replies(tmp_path / "repository", "joined", inputs)["score"]
    np.testing.assert_allclose(got, module.score(tf.constant(["ann"] * 4), tf.constant(items))["score"], atol=1e-5)


def test_empty_ragged_rows_score_like_tensorflow(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.rows, self.weights = variable(1, 64, 4, name="rows"), variable(2, 4, 1, name="weights")

        @tf.function(input_signature=[TAGS])
        def score(self, tags):
            hashed = tf.ragged.map_flat_values(fast, tags).to_sparse()
            return {"score": tf.nn.safe_embedding_lookup_sparse(self.rows, hashed, combiner="mean") @ self.weights}

    module = Model()
    source = saved(module, tmp_path / "model", module.score)
    imported = import_model(source, tmp_path / "repository", "tags", options=ImportOptions(buckets=(8,)))
    rows = [["a", "b"], [], ["", "ccc", "a"], []]
    assert VersionReader(imported.folder).manifest.stage is None
    got = replies(tmp_path / "repository", "tags", {"tags": Ragged.of(rows)})["score"]
    np.testing.assert_allclose(got, module.score(tf.ragged.constant(rows, tf.string))["score"], atol=1e-5)
