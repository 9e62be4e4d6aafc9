"""Lookups over free lengths in TensorFlow and Keras models: cut out of the stage, equal scores, deltas in every use."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.retrained import read_retrained
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.repository import Repository
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.foreign import saved, variable, without_deprecations
from tests.compiler.imports.replies import replies, started

layers = keras.layers
ITEMS, DIM = 40, 4
A, B, OTHER = 7, 9, 3
SMALL = ImportOptions(buckets=(1, 16))


def attention(target, rows, mask):
    return layers.Attention()([target, rows], mask=[None, mask])


def heads(target, rows, mask):
    return layers.MultiHeadAttention(2, 3)(target, rows, attention_mask=mask[:, None, :])


def causal(target, rows, mask):
    """SASRec: the history attends to itself, and its last place counts."""
    return layers.MultiHeadAttention(2, 3)(rows, rows, use_causal_mask=True)[:, -1:]


def gru(target, rows, mask):
    return layers.GRU(DIM)(rows, mask=mask)


def lstm(target, rows, mask):
    return layers.Bidirectional(layers.LSTM(DIM))(layers.LSTM(DIM, return_sequences=True)(rows))


def highest(target, rows, mask):
    return layers.GlobalMaxPooling1D()(rows)


SUMMARIES = {"attention": (attention, heads), "places": (causal, highest), "recurrent": (gru, lstm)}


def ranker(summaries):
    """A ranker whose target and history share a table; the history's length is free, and 0 is padding."""
    keras.utils.set_random_seed(3)
    item = keras.Input((), dtype="int64", name="item")
    past = keras.Input((None,), dtype="int64", name="past")
    embedding = layers.Embedding(ITEMS, DIM, name="items", embeddings_initializer="random_normal")
    target = layers.Reshape((1, DIM))(embedding(item))
    rows, there = embedding(past), keras.ops.not_equal(past, 0)
    made = [summary(target, rows, there) for summary in summaries]
    parts = [target, *(one[:, 0] if len(one.shape) == 3 else one for one in made)]
    together = layers.Concatenate()([layers.Flatten()(part) for part in parts])
    return keras.Model([item, past], layers.Dense(1, name="out")(layers.Dense(8, activation="tanh")(together)))


def asked(processor, name, item, past):
    lists = Ragged(past.ravel(), np.arange(len(past) + 1) * past.shape[1])
    (scores,) = processor.process(PredictRequest(name, {"item": item, "past": lists})).outputs.values()
    return scores.ravel()


@pytest.mark.filterwarnings("ignore:[\\s\\S]*softmax over axis:UserWarning")
@pytest.mark.parametrize("name", SUMMARIES)
def test_free_lengths_score_as_in_keras_and_a_copied_row_alike_in_every_use(name, tmp_path):
    repository, random = tmp_path / "models", np.random.default_rng(0)
    with without_deprecations():
        model = ranker(SUMMARIES[name])
        model.get_layer("items").embeddings.assign(np.random.default_rng(5).standard_normal((ITEMS, DIM)))
        model.save(tmp_path / "model.keras")
    import_model(tmp_path / "model.keras", repository, name, options=SMALL)
    manifest = VersionReader(repository / name / "1").manifest
    assert manifest.copies == {}
    assert [t.rows for t in manifest.embeddings] == [ITEMS]
    with started(repository) as processor:
        # TensorFlow refuses loops over no events, and no events have neither a last place nor a highest row.
        for length in ((0,) if name == "attention" else ()) + (1, 7, 40):
            item, past = random.integers(1, ITEMS, 5), random.integers(1, ITEMS, (5, length))
            past[1, length // 2 + 1 :] = 0
            got = asked(processor, name, item, past)
            with without_deprecations():
                wanted = model([item, past]).numpy().ravel()
            np.testing.assert_allclose(got.ravel(), wanted, rtol=1e-5, atol=1e-5)
        pairs = [(np.array([item]), np.array([[OTHER, last]])) for item in (A, B) for last in (A, B)]
        before = [asked(processor, name, *pair).item() for pair in pairs]
        publisher = Publisher(repository, name)
        (table,) = (t.name for t in manifest.embeddings)
        _, rows = publisher.served().rows(table, np.array([B]))
        publisher.publish({table: (np.array([A]), rows)})
        processor.poll()
        after = [asked(processor, name, *pair).item() for pair in pairs]
    assert len({round(score, 4) for score in before}) == 4
    assert after == pytest.approx([before[3]] * 4, abs=1e-6)


class Tags(tf.Module):
    """Ragged strings, the highest of their rows."""

    def __init__(self):
        keys = tf.constant([f"w{i}" for i in range(9)])
        initializer = tf.lookup.KeyValueTensorInitializer(keys, tf.range(1, 10, dtype=tf.int64))
        self.words = tf.lookup.StaticHashTable(initializer, 0)
        self.rows = variable(1, 10, DIM, name="tags")

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.string, 1, tf.int64)])
    def serve(self, tags):
        found = tf.ragged.map_flat_values(lambda flat: tf.gather(self.rows, self.words.lookup(flat)), tags)
        return {"score": tf.reduce_sum(tf.reduce_max(found.to_tensor(default_value=-9.0), 1), 1)}


def test_strings_of_ragged_rows_are_looked_up(tmp_path):
    model = Tags()
    import_model(saved(model, tmp_path / "tags", model.serve), tmp_path / "models", "tags", options=SMALL)
    manifest = VersionReader(tmp_path / "models" / "tags" / "1").manifest
    assert [(one.input, one.table) for one in manifest.stage.lookups] == [("tags", "tags")]
    lists = [["w0"], ["w3", "?", "w8"], ["w1"] * 7, []]
    wanted = model.serve(tf.ragged.constant(lists, row_splits_dtype=tf.int64))["score"].numpy()
    flat = Strings.of([word for one in lists for word in one])
    ragged = Ragged(flat, np.cumsum([0, *map(len, lists)]))
    got = replies(tmp_path / "models", "tags", {"tags": ragged})["score"]
    np.testing.assert_allclose(got.ravel(), wanted, rtol=1e-5, atol=1e-5)


class Loop(tf.Module):
    """A recurrent network whose kernel is read before its loop, as Keras 2's masked GRU reads it."""

    def __init__(self):
        self.items = variable(2, ITEMS, DIM, name="items")
        self.kernel = variable(3, DIM, DIM, name="kernel")

    @tf.function(input_signature=[tf.TensorSpec([None, 5], tf.int64, name="past")])
    def serve(self, past):
        rows, kernel = tf.gather(self.items, past), self.kernel.read_value()
        first = tf.zeros_like(rows[:, 0])
        step = lambda i, state: (i + 1, tf.tanh(state @ kernel + tf.gather(rows, i, axis=1)))  # noqa: E731
        return {"score": tf.while_loop(lambda i, state: i < 5, step, [0, first])[1]}


def test_loop_may_take_a_weight_as_a_value_and_follows_its_retrained_model(tmp_path):
    model = Loop()
    import_model(saved(model, tmp_path / "loop", model.serve), tmp_path / "models", "loop", options=SMALL)
    manifest = VersionReader(tmp_path / "models" / "loop" / "1").manifest
    assert [(one.table, one.whole) for one in manifest.stage.lookups] == [("items", False), ("kernel", True)]
    check_loop(model, tmp_path / "models")

    # Retrained rows and weights of the stage are published.
    model.items.assign(model.items * 2)
    model.kernel.assign(model.kernel * 2)
    version = Repository(tmp_path / "models").version("loop")
    export = read_retrained(saved(model, tmp_path / "second", model.serve), version, ImportOptions())
    Publisher(tmp_path / "models", "loop").publish_difference(export.tables, export.dense, hashed=True)
    check_loop(model, tmp_path / "models")


def check_loop(model, repository):
    past = np.random.default_rng(1).integers(0, ITEMS, (9, 5))
    got = replies(repository, "loop", {"past": past})["score"]
    np.testing.assert_allclose(got, model.serve(past)["score"].numpy(), rtol=1e-5, atol=1e-5)
