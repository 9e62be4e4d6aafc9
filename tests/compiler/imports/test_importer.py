"""Imported graphs go through the passes, and through the user-once division where inputs are said to be the user's."""

import numpy as np
import pytest

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.foreign import saved, variable
from tests.compiler.imports.replies import declared_replies, replies, started

DIM, ROWS, HIDDEN = 8, 12, 32
SMALL = ImportOptions(buckets=(1, 16))


class Ranker(tf.Module):
    """Two lookups and a price, three dense layers."""

    def __init__(self):
        self.users = variable(1, ROWS, DIM, name="users")
        self.items = variable(2, ROWS, DIM, name="items")
        self.first = variable(3, 2 * DIM + 1, HIDDEN, name="first")
        self.last = variable(4, HIDDEN, 1, name="last")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, name="user"),
            tf.TensorSpec([None], tf.int64, name="item"),
            tf.TensorSpec([None, 1], tf.float32, name="price"),
        ]
    )
    def score(self, user, item, price):
        x = tf.concat([tf.gather(self.users, user), tf.gather(self.items, item), price], 1)
        return {"score": tf.sigmoid(tf.nn.relu(tf.matmul(x, self.first)) @ self.last)}


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    """(module, SavedModel)."""
    module = Ranker()
    return module, saved(module, tmp_path_factory.mktemp("ranker") / "model", module.score)


def test_user_inputs_are_computed_once_per_request_with_equal_scores(ranker, tmp_path):
    module, source = ranker
    options = ImportOptions(buckets=(1, 16, 64), user=("user",))
    imported = import_model(source, tmp_path, "ranker", options=options)
    manifest = VersionReader(imported.folder).manifest

    assert {f.name: f.side for f in manifest.features}["user"] == "user"
    assert [o.dims for o in manifest.graphs["user"].outputs] == [["requests", HIDDEN]]
    assert {e.subgraph for e in manifest.executables} == {"whole", "user", "score"}
    assert any(line.startswith("user-once: ") for line in imported.passes)
    random = np.random.default_rng(0)
    with started(tmp_path) as processor:
        processor.predictor.replica("ranker").graphs.pays = lambda parts, rows: True
        for rows in (1, 7, 64, 130):
            user, item = random.integers(0, ROWS, 1), random.integers(0, ROWS, rows)
            price = random.standard_normal((rows, 1)).astype(np.float32)
            reply = processor.process(PredictRequest("ranker", {"user": user, "item": item, "price": price[:, 0]}))
            wanted = module.score(np.repeat(user, rows), item, price)["score"]
            np.testing.assert_allclose(reply.outputs["score"], wanted, atol=1e-5)
        assert processor.host.group_stats()["default"].work.user_once == 4


def test_unknown_user_input_is_refused(ranker, tmp_path):
    with pytest.raises(BadInput, match="user: expected one of the inputs item, price, user, got 'age'"):
        import_model(ranker[1], tmp_path, "ranker", options=ImportOptions(user=("age",)))


def test_passes_change_an_imported_graph_but_not_its_scores(tmp_path):
    """Reshapes there and back are left out; without inputs of the user's nothing is split."""

    class Reshaped(Ranker):
        @tf.function(input_signature=Ranker.score.input_signature)
        def score(self, user, item, price):
            x = tf.concat([tf.gather(self.users, user), tf.gather(self.items, item), price], 1)
            x = tf.reshape(tf.reshape(x, (-1, 1, 2 * DIM + 1)), (-1, 2 * DIM + 1))
            return {"score": tf.nn.relu(tf.matmul(x, self.first)) @ self.last}

    module = Reshaped()
    source = saved(module, tmp_path / "model", module.score)
    imported = import_model(source, tmp_path / "repository", "reshaped", options=SMALL)
    manifest = VersionReader(imported.folder).manifest

    assert any("changes" in line for line in manifest.notes["passes"])
    assert manifest.graphs == {}
    assert {e.subgraph for e in manifest.executables} == {"score"}
    assert not any("user-once" in line for line in imported.passes)
    random = np.random.default_rng(1)
    user, item = random.integers(0, ROWS, 9), random.integers(0, ROWS, 9)
    price = random.standard_normal((9, 1)).astype(np.float32)
    outputs = replies(tmp_path / "repository", "reshaped", {"user": user, "item": item, "price": price[:, 0]})
    np.testing.assert_allclose(outputs["score"], module.score(user, item, price)["score"], atol=1e-5)


def test_dense_part_that_cannot_be_run_is_left_to_tensorflow(ranker, tmp_path, monkeypatch):
    run, failures = DenseGraph.run, [ValueError("Dimensions must be equal"), None]

    def first_fails(graph, inputs, weights=None):
        if failures and (error := failures.pop(0)):
            raise error
        return run(graph, inputs, weights)

    monkeypatch.setattr(DenseGraph, "run", first_fails)
    imported = import_model(ranker[1], tmp_path, "ranker", options=ImportOptions(buckets=(1,)))
    said = "graph: TensorFlow does not compute its dense part: Dimensions must be equal"
    assert f"the whole model runs in TensorFlow: {said}" in imported.report["notes"]


class Typed(tf.Module):
    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int32, name="hour"),
            tf.TensorSpec([None], tf.bool, name="flag"),
            tf.TensorSpec([None], tf.float64, name="price"),
        ]
    )
    def serve(self, hour, flag, price):
        score = tf.cast(price, tf.float32) + tf.cast(flag, tf.float32)
        grid = tf.reshape(tf.stack([score] * 4, 1), [-1, 2, 2])
        return {"score": score, "column": score[:, None], "grid": grid, "label": tf.cast(hour, tf.int64) * 2}


def test_types_and_ranks_are_kept_as_declared_by_the_model(tmp_path):
    model = Typed()
    imported = import_model(saved(model, tmp_path / "typed", model.serve), tmp_path, "served", options=SMALL)
    manifest = VersionReader(imported.folder).manifest
    assert {i.name: (i.dtype, i.declared) for i in manifest.inputs} == {
        "hour": ("int64", "int32"), "flag": ("int64", "bool"), "price": ("float32", "float64"),
    }  # fmt: skip
    assert {o.name: (o.columns, o.dims, o.dtype) for o in manifest.outputs} == {
        "score": (1, [], "float32"), "column": (1, None, "float32"),
        "grid": (4, [2, 2], "float32"), "label": (3, [], "int64"),
    }  # fmt: skip
    assert [o.name for o in manifest.outputs if o.exact] == ["label"]
    assert not any("computed as float32" in note for note in imported.report["notes"])


class Halves(tf.Module):
    """Three outputs of one column: each number by itself, the columns' sum, and a whole number as it is."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 1], tf.float32, name="x"), tf.TensorSpec([None, 1], tf.int64, name="id"),
        ]
    )  # fmt: skip
    def serve(self, x, id):
        return {"each": x / 2, "total": tf.reduce_sum(x, 1, keepdims=True), "same": tf.identity(id)}


def test_outputs_computed_number_by_number_follow_the_rank(tmp_path):
    model = Halves()
    imported = import_model(saved(model, tmp_path / "halves", model.serve), tmp_path, "served", options=SMALL)
    kept = VersionReader(imported.folder).manifest
    assert {o.name: (o.dims, o.exact, o.flat) for o in kept.outputs} == {
        "each": (None, False, True), "total": (None, False, False), "same": ([1], True, True),
    }  # fmt: skip


class Selecting(tf.Module):
    """Ids beside scores: passed through, reshaped, the ids of the best scores, gathered from constants."""

    def __init__(self):
        self.items = tf.Variable([2**40 + n for n in range(5)], dtype=tf.int64, trainable=False)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.int64, name="ids"),
            tf.TensorSpec([None], tf.int32, name="user"),
            tf.TensorSpec([None, 3], tf.float32, name="price"),
        ]
    )
    def score(self, ids, user, price):
        values, places = tf.math.top_k(price * 2.0, 2)
        return {
            "score": values, "place": places, "same": tf.identity(ids), "user_out": tf.expand_dims(user, 1),
            "best": tf.gather(ids, places, batch_dims=1), "gathered": tf.gather(self.items, places),
        }  # fmt: skip


def test_whole_numbers_that_need_no_arithmetic_keep_type_and_bits(tmp_path):
    module = Selecting()
    import_model(saved(module, tmp_path / "model", module.score), tmp_path / "r", "m", options=SMALL)
    ids = np.array([[2**24 + 1, -(2**24) - 1, 3], [2**63 - 1, -(2**63), 2**62 + 1]])
    inputs = {"ids": ids, "user": np.array([2**31 - 1, -(2**24) - 1]), "price": np.array([[1, 3, 2], [3, 1, 2]], "f")}
    found = declared_replies(tmp_path / "r", "m", inputs)
    own = module.score(ids, tf.constant(inputs["user"], tf.int32), inputs["price"])
    for name, tensor in own.items():
        assert (found[name].dtype, found[name].tolist()) == (tensor.numpy().dtype, tensor.numpy().tolist()), name


class Chosen(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="price")])
    def score(self, price):
        best = tf.where(price > 0.5, tf.constant(2**40 + 1, tf.int64), tf.constant(7, tf.int64))
        return {"score": price * 2.0, "best": best}


def test_constant_whole_numbers_above_24_bits_are_exact(tmp_path):
    module = Chosen()
    import_model(saved(module, tmp_path / "model", module.score), tmp_path / "r", "m", options=SMALL)
    found = declared_replies(tmp_path / "r", "m", {"price": np.array([0.25, 0.75], np.float32)})
    assert found["best"].tolist() == [7, 2**40 + 1]
