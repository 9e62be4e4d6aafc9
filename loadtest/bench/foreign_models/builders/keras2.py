"""Models of Keras 2 (tf_keras), saved as SavedModels."""

from __future__ import annotations

import numpy as np
import tf_keras as keras

from loadtest.bench.foreign_models.builders.rows import DIM, ITEMS, USERS, floats, ids, padded, random
from loadtest.bench.foreign_models.builders.tf_rows import save_keras2
from loadtest.bench.foreign_models.built import ROWS, TableUse

layers = keras.layers
STEPS = 10


def column(name, dtype="int64", shape=()):
    return keras.Input(shape, dtype=dtype, name=name)


def keras2_hashing(folder):
    city, price = column("city", "string", (1,)), column("price", "float32", (3,))
    row = layers.Flatten()(layers.Embedding(30, DIM)(layers.Hashing(30)(city)))
    x = layers.BatchNormalization()(layers.PReLU()(layers.Dense(16)(layers.Concatenate()([row, price]))))
    model = keras.Model([city, price], layers.Dense(1, "sigmoid", name="score")(x))
    words = np.array([f"city {n}" for n in range(60)])[random.integers(0, 60, (ROWS, 1))]
    hashed = layers.Hashing(30)(np.array(["city 1", "city 2"])).numpy().tolist()
    use = TableUse("city", "city", 0, "city 1", "city 2", *hashed)
    save_keras2(folder, model, {"city": words, "price": floats(ROWS, 3)}, [use])


def keras2_vocabulary(folder):
    words = [f"w{n}" for n in range(20)]
    word, genres = column("word", "string"), column("genres", "int64", (4,))
    row = layers.Embedding(21, DIM)(layers.StringLookup(vocabulary=words, mask_token=None)(word))
    many = layers.CategoryEncoding(12, output_mode="multi_hot")(genres)
    x = layers.Dense(16, "relu")(layers.Concatenate()([row, many]))
    model = keras.Model([word, genres], layers.Dense(1, "sigmoid", name="score")(x))
    inputs = {"word": np.array([*words, "unknown"])[random.integers(0, 21, ROWS)], "genres": ids(ROWS, 4, below=12)}
    use = TableUse("word", "word", None, "w1", "w2", 2, 3)
    save_keras2(folder, model, inputs, [use])


def keras2_wide_deep(folder):
    user, item, price = column("user"), column("item"), column("price", "float32", (2,))
    rows = [layers.Embedding(USERS, DIM)(user), layers.Embedding(ITEMS, DIM)(item), price]
    deep = layers.Dense(1)(layers.Dense(16, "relu")(layers.Concatenate()(rows)))
    wide = layers.Add()([layers.Embedding(USERS, 1)(user), layers.Embedding(ITEMS, 1)(item)])
    model = keras.Model([user, item, price], layers.Activation("sigmoid", name="score")(layers.Add()([deep, wide])))
    inputs = {"user": ids(ROWS, below=USERS), "item": ids(ROWS), "price": floats(ROWS, 2)}
    save_keras2(folder, model, inputs, [TableUse("user", "user"), TableUse("item", "item")])


def keras2_gru(folder):
    history = column("history", "int64", (STEPS,))
    x = layers.GRU(8)(layers.Embedding(ITEMS, DIM, mask_zero=True)(history))
    model = keras.Model(history, layers.Dense(1, "sigmoid", name="score")(x))
    save_keras2(folder, model, {"history": padded(ROWS, STEPS)}, [TableUse("item", "history", 0)])


def keras2_average(folder):
    item, history = column("item"), column("history", "int64", (None,))
    table = layers.Embedding(ITEMS, DIM, mask_zero=True)
    mean = layers.GlobalAveragePooling1D()(table(history))
    x = layers.Dense(16, "relu")(layers.Concatenate()([layers.Flatten()(table(item)), mean]))
    model = keras.Model([item, history], layers.Dense(1, "sigmoid", name="score")(x))
    inputs = {"item": ids(ROWS), "history": padded(ROWS, STEPS)}
    save_keras2(folder, model, inputs, [TableUse("item", "item"), TableUse("item", "history", 0)])
