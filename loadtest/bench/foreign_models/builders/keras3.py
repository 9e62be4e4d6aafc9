"""Models of Keras 3 and keras-rs: .keras files, and SavedModels by `export`."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "0"

from functools import partial
from pathlib import Path

import keras
import keras_rs

from loadtest.bench.foreign_models.builders.rows import DIM, ITEMS, floats, ids, padded
from loadtest.bench.foreign_models.builders.tf_rows import scored, spread
from loadtest.bench.foreign_models.built import ROWS, TableUse, write_built

layers, ops = keras.layers, keras.ops
STEPS = 10
NAMES = ("user", "item", "city", "shop")
BOTH = [TableUse("item", "item"), TableUse("item", "history", 0)]


def column(name, dtype="int64", shape=()):
    return keras.Input(shape, dtype=dtype, name=name)


def save(folder, model, inputs, uses, as_file=False):
    spread(model)
    if as_file:
        model.save(str(Path(folder) / "model.keras"))
        found = model({name: ops.convert_to_tensor(array) for name, array in inputs.items()})
        expected = {model.output_names[0]: ops.convert_to_numpy(found)}
    else:
        model.export(str(Path(folder) / "saved_model"), format="tf_saved_model", verbose=False)
        expected = scored(folder, inputs)
    write_built(Path(folder), inputs, expected, uses)


def score(x):
    return layers.Dense(1, "sigmoid", name="score")(layers.Dense(16, "relu")(x))


def with_history(summary, folder, as_file=False):
    """A model of an item and a history of free length, by one table. summary: (row, steps) -> [n, DIM]."""
    item, history = column("item"), column("history", shape=(None,))
    table = layers.Embedding(ITEMS, DIM, name="items")
    row = table(item)
    x = layers.Concatenate()([row, summary(row, table(history))])
    model = keras.Model({"item": item, "history": history}, score(x))
    save(folder, model, {"item": ids(ROWS), "history": ids(ROWS, STEPS)}, BOTH, as_file)


def keras3_sasrec(folder):
    history = column("history", shape=(STEPS,))
    table = layers.Embedding(ITEMS, DIM, name="items")
    x = positions(table(history))
    for _ in range(2):
        attended = layers.MultiHeadAttention(2, DIM // 2)(layers.LayerNormalization()(x), x, use_causal_mask=True)
        x = layers.Add()([x, attended])
        x = layers.Add()([x, layers.Dense(DIM)(layers.Dense(16, "relu")(layers.LayerNormalization()(x)))])
    item = column("item")
    logit = layers.Dot(1)([layers.GlobalAveragePooling1D()(x), table(item)])
    model = keras.Model({"item": item, "history": history}, layers.Activation("sigmoid", name="score")(logit))
    save(folder, model, {"item": ids(ROWS), "history": padded(ROWS, STEPS)}, BOTH, as_file=True)


def positions(x):
    return layers.Add()([x, layers.Embedding(STEPS, DIM, name="positions")(ops.arange(STEPS))[None]])


def attend(row, steps):
    return layers.Reshape((DIM,))(layers.Attention()([layers.Reshape((1, DIM))(row), steps]))


def keras_rs_embed_reduce(folder):
    tags = column("tags", shape=(STEPS,))
    model = keras.Model({"tags": tags}, score(keras_rs.layers.EmbedReduce(ITEMS, DIM, combiner="mean")(tags)))
    save(folder, model, {"tags": ids(ROWS, STEPS)}, [TableUse("tags", "tags", 0)])


def four_tables(rest, folder):
    columns = {name: column(name) for name in NAMES}
    price = column("price", "float32", (3,))
    rows = [layers.Embedding(ITEMS, DIM, name=f"table_{name}")(tensor) for name, tensor in columns.items()]
    model = keras.Model(columns | {"price": price}, score(rest(rows, layers.Dense(DIM, "relu")(price))))
    inputs = {name: ids(ROWS) for name in NAMES} | {"price": floats(ROWS, 3)}
    save(folder, model, inputs, [TableUse(name, name) for name in NAMES])


def crosses(rows, dense):
    x = layers.Concatenate()([*rows, dense])
    return keras_rs.layers.FeatureCross(projection_dim=8)(x, keras_rs.layers.FeatureCross(projection_dim=8)(x))


MODELS = {
    "keras3_gru": partial(with_history, lambda row, steps: layers.GRU(DIM)(steps)),
    "keras3_average": partial(with_history, lambda row, steps: layers.GlobalAveragePooling1D()(steps), as_file=True),
    "keras3_attention": partial(with_history, attend),
    "keras_rs_dcn": partial(four_tables, crosses),
    "keras_rs_dot": partial(four_tables, lambda rows, dense: keras_rs.layers.DotInteraction()([*rows, dense])),
}
