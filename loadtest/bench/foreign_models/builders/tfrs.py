"""Models of TensorFlow Recommenders, after its tutorials."""

from __future__ import annotations

from functools import partial

from loadtest.bench.foreign_models.builders.tf_rows import save_module

# TensorFlow Recommenders imports Keras, which the import above has chosen.
import tensorflow_recommenders as tfrs  # isort: skip
import numpy as np
import tensorflow as tf
import tf_keras as keras

from loadtest.bench.foreign_models.builders.rows import DIM, ITEMS, USERS, floats, ids, random
from loadtest.bench.foreign_models.built import ROWS, TableUse

NAMES = ("user", "item", "city", "shop", "hour")
WORDS = [f"w{n}" for n in range(30)]


def embedding(rows):
    return keras.layers.Embedding(rows, DIM, embeddings_initializer=keras.initializers.RandomNormal(0, 0.4))


def ints(*names):
    return {name: tf.TensorSpec([None], tf.int64, name) for name in names}


class Tables(keras.Model):
    """Five tables, and what joins their rows."""

    def __init__(self, join):
        super().__init__()
        self.tables, self.join = {name: embedding(ITEMS) for name in NAMES}, join
        self.out = keras.layers.Dense(1)

    def call(self, columns):
        return self.out(self.join([self.tables[name](columns[name]) for name in NAMES]))


class Crosses(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.cross = tfrs.layers.dcn.Cross(projection_dim=8)

    def call(self, rows):
        return self.cross(tf.concat(rows, 1))


def build_tables(join, folder):
    model = Tables(join())
    call = tf.function(lambda **columns: {"score": tf.sigmoid(model(columns))})
    inputs = {name: ids(ROWS) for name in NAMES}
    model({name: tf.constant(array) for name, array in inputs.items()})
    uses = [TableUse(name, name) for name in NAMES]
    save_module(folder, model, call.get_concrete_function(**ints(*NAMES)), inputs, uses)


def tfrs_brute_force(folder):
    user = keras.Sequential([keras.layers.Input((), dtype=tf.int64), embedding(USERS)])
    index = tfrs.layers.factorized_top_k.BruteForce(user, k=10)
    index.index(tf.constant(floats(ITEMS, DIM)), tf.constant([f"item {n}" for n in range(ITEMS)]))
    inputs = {"user": ids(ROWS, below=USERS)}
    index(tf.constant(inputs["user"]))

    @tf.function(input_signature=list(ints("user").values()))
    def best(user):
        scores, found = index(user)
        return {"scores": scores, "items": found}

    save_module(folder, index, best, inputs, [TableUse("user", "user")])


class Towers(keras.Model):
    """A user's tower of ids and an item's of strings."""

    def __init__(self):
        super().__init__()
        self.user = keras.Sequential([embedding(USERS), keras.layers.Dense(DIM, "relu"), keras.layers.Dense(DIM)])
        self.item = keras.Sequential(
            [
                keras.layers.StringLookup(vocabulary=WORDS, mask_token=None),
                embedding(len(WORDS) + 1),
                keras.layers.Dense(DIM),
            ]
        )
        self.rating = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])

    def call(self, columns):
        user, item = self.user(columns["user"]), self.item(columns["item"])
        return tf.reduce_sum(user * item, 1, keepdims=True), self.rating(tf.concat([user, item], 1))


def build_towers(several, folder):
    towers = Towers()
    words = np.array([*WORDS, "unknown"])[random.integers(0, len(WORDS) + 1, ROWS)]
    inputs = {"user": ids(ROWS, below=USERS), "item": words}
    towers({name: tf.constant(array) for name, array in inputs.items()})

    @tf.function(input_signature=[*ints("user").values(), tf.TensorSpec([None], tf.string, "item")])
    def score(user, item):
        affinity, rating = towers({"user": user, "item": item})
        return {"affinity": affinity, "rating": rating} if several else {"affinity": affinity}

    # Rows of the item's table: one for unknown words, then the vocabulary.
    item = TableUse("item", "item", one="w1", other="w2", row_of_one=2, row_of_other=3)
    user = TableUse("user", "user", one=2, other=3, row_of_one=2, row_of_other=3)
    save_module(folder, towers, score, inputs, [user, item])


MODELS = {
    "tfrs_dcn": partial(build_tables, Crosses),
    "tfrs_dot": partial(build_tables, tfrs.layers.feature_interaction.DotInteraction),
    "tfrs_two_tower": partial(build_towers, False),
    "tfrs_multi_task": partial(build_towers, True),
}
