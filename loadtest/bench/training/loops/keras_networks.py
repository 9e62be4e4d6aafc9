"""Keras' networks: lookups of strings and integers, hashes, ids, and histories of free length."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import keras_rs

from loadtest.bench.training.loops.rows import CODES, FLOATS, FREE, IDS, TEXTS, WORDS, Column, codes_of, words_of

layers, ops = keras.layers, keras.ops
SIZE, DIM, WIDTH, LONGEST = 50, 8, 5, 64
USER, SHOP = Column("user", WORDS), Column("shop", WORDS)
CODE, BRAND = Column("code", CODES), Column("brand", CODES)
ITEM, HISTORY, PRICES = Column("item"), Column("history", FREE), Column("prices", FLOATS, width=WIDTH)
TAGS, LABELS = Column("tags", TEXTS), Column("labels", WORDS, width=3)


def adam():
    return keras.optimizers.Adam(0.01)


def adagrad():
    return keras.optimizers.Adagrad(0.1)


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def sgd():
    return keras.optimizers.SGD(0.2)


@dataclass(frozen=True)
class KerasNetwork:
    """A network, and how it is trained and exported.

    Attributes:
        name: Its name.
        make: Makes it with new weights.
        columns: Its inputs.
        optimizer: Makes its optimizer.
        as_file: Whether it is saved as a .keras file; otherwise it is exported as a SavedModel.
        takes_none: Whether it takes lists without an id.
    """

    name: str
    make: Callable[[], Any]
    columns: tuple[Column, ...]
    optimizer: Callable[[], Any] = adam
    as_file: bool = False
    takes_none: bool = False


def inputs_of(columns):
    dtypes = {IDS: "int64", FREE: "int64", CODES: "int64", WORDS: "string", TEXTS: "string", FLOATS: "float32"}
    shapes = {FREE: (None,), TEXTS: (None,), FLOATS: (WIDTH,)}
    return {
        c.name: keras.Input(shapes.get(c.kind, (c.width,) if c.width else ()), dtype=dtypes[c.kind], name=c.name)
        for c in columns
    }


def looked_up(column, tensor):
    """The lookup of a column, and its number of rows."""
    if column.kind == WORDS:
        return layers.StringLookup(vocabulary=words_of(column), name=f"{column.name}_lookup")(tensor), SIZE + 1
    if column.kind == CODES:
        return layers.IntegerLookup(vocabulary=codes_of(column), name=f"{column.name}_lookup")(tensor), SIZE + 1
    return tensor, SIZE


def rows_of(column, tensor):
    numbers, size = looked_up(column, tensor)
    return layers.Embedding(size, DIM, name=f"{column.name}_rows")(numbers)


def scored(x, name="score"):
    return layers.Dense(1, "sigmoid", name=name)(layers.Dense(16, "relu", name=f"{name}_hidden")(x))


def of_rows(columns, rest):
    """Make a network of the rows of all columns and the floats. rest: (rows, floats or None) -> outputs."""

    def make():
        inputs = inputs_of(columns)
        rows = [rows_of(column, inputs[column.name]) for column in columns if column.kind != FLOATS]
        return keras.Model(inputs, rest(rows, inputs.get(PRICES.name)))

    return make


def joined(rows, floats):
    return layers.Concatenate()([*rows, *([] if floats is None else [floats])])


def mlp(rows, floats):
    return scored(layers.BatchNormalization(name="norm")(joined(rows, floats)))


def mlp_of_hashes():
    inputs = inputs_of((USER, CODE, PRICES))
    hashed = layers.Hashing(40, name="user_hash")(inputs["user"])
    crossed = layers.HashedCrossing(30, name="cross")((inputs["user"], inputs["code"]))
    rows = [
        layers.Embedding(40, DIM, name="user_rows")(hashed),
        layers.Embedding(30, DIM, name="cross_rows")(crossed),
        rows_of(CODE, inputs["code"]),
    ]
    return keras.Model(inputs, scored(layers.LayerNormalization(name="norm")(joined(rows, inputs["prices"]))))


def deepfm():
    inputs = inputs_of((USER, CODE, ITEM))
    rows, firsts = [], []
    for column in (USER, CODE, ITEM):
        numbers, size = looked_up(column, inputs[column.name])
        rows.append(layers.Embedding(size, DIM, name=f"{column.name}_rows")(numbers))
        firsts.append(layers.Embedding(size, 1, name=f"{column.name}_first")(numbers))
    stacked = ops.stack(rows, axis=1)
    pairs = ops.square(ops.sum(stacked, 1)) - ops.sum(ops.square(stacked), 1)
    pairs = 0.5 * ops.sum(pairs, 1, keepdims=True)
    deep = layers.Dense(1, name="deep")(layers.Dense(16, "relu", name="deep_hidden")(joined(rows, None)))
    return keras.Model(inputs, layers.Activation("sigmoid", name="score")(layers.Add()([*firsts, pairs, deep])))


def dcn(rows, floats):
    x = joined(rows, floats)
    return scored(keras_rs.layers.FeatureCross(projection_dim=6)(x, keras_rs.layers.FeatureCross(projection_dim=6)(x)))


def dcn_full(rows, floats):
    x = joined(rows, floats)
    for number in range(2):
        x = layers.Add()([x, layers.Multiply()([x, layers.Dense(x.shape[1], name=f"cross_{number}")(x)])])
    return scored(x)


def dlrm(rows, floats):
    dense = layers.Dense(DIM, "relu", name="bottom")(floats)
    return scored(layers.Concatenate()([dense, keras_rs.layers.DotInteraction()([*rows, dense])]))


def two_towers():
    inputs = inputs_of((USER, CODE, ITEM, SHOP))
    user = joined([rows_of(USER, inputs["user"]), rows_of(CODE, inputs["code"])], None)
    item = joined([rows_of(ITEM, inputs["item"]), rows_of(SHOP, inputs["shop"])], None)
    towers = [tower("user", user), tower("item", item)]
    return keras.Model(inputs, layers.Dot(1, name="score")(towers))


def tower(name, x):
    x = layers.Dense(DIM, name=f"{name}_tower")(layers.Dense(16, "relu", name=f"{name}_hidden")(x))
    return layers.UnitNormalization()(x)


def mmoe(rows, floats):
    x = joined(rows, floats)
    experts = ops.stack([layers.Dense(8, "relu", name=f"expert_{n}")(x) for n in range(3)], axis=1)
    outputs = {}
    for task in ("click", "buy"):
        gate = layers.Dense(3, "softmax", name=f"{task}_gate")(x)
        outputs[task] = scored(ops.sum(ops.expand_dims(gate, 2) * experts, 1), task)
    return outputs


def shared():
    """One table for two columns of codes, by one lookup."""
    inputs = inputs_of((CODE, BRAND, USER))
    lookup = layers.IntegerLookup(vocabulary=codes_of(CODE), name="code_lookup")
    rows = layers.Embedding(SIZE + 1, DIM, name="code_rows")
    pair = [rows(lookup(inputs[name])) for name in ("code", "brand")]
    return keras.Model(inputs, scored(joined([*pair, rows_of(USER, inputs["user"])], None)))


def of_history(summarise, masked=False, columns=(ITEM, HISTORY, USER)):
    """Make a network of an item, a history by the same table, and a user. summarise: (row, steps) -> [n, DIM]."""

    def make():
        inputs = inputs_of(columns)
        table = layers.Embedding(SIZE, DIM, mask_zero=masked, name="items")
        row = table(inputs["item"])
        summary = summarise(row, table(inputs["history"]))
        return keras.Model(inputs, scored(layers.Concatenate()([row, summary, rows_of(USER, inputs["user"])])))

    return make


def din(row, steps):
    wide = ops.expand_dims(row, 1) + ops.zeros_like(steps)
    unit = layers.Dense(16, "relu", name="unit")(ops.concatenate([wide, steps, wide - steps, wide * steps], -1))
    return ops.sum(layers.Dense(1, name="weight")(unit) * steps, 1)


class Positions(layers.Layer):
    """Adds a learned row to each step of a history of any length."""

    def build(self, shape):
        self.rows = self.add_weight((LONGEST, shape[-1]), "random_normal", name="rows")

    def call(self, steps):
        return steps + self.rows[: ops.shape(steps)[1]]


def sasrec(row, steps):
    x = Positions(name="positions")(steps)
    for number in range(2):
        query = layers.LayerNormalization(name=f"norm_{number}")(x)
        attended = layers.MultiHeadAttention(2, DIM // 2, name=f"attention_{number}")(query, x, use_causal_mask=True)
        x = layers.Add()([x, attended])
        x = layers.Add()(
            [x, layers.Dense(DIM, name=f"feed_{number}")(layers.Dense(16, "relu", name=f"wide_{number}")(x))]
        )
    return layers.GlobalAveragePooling1D()(x)  # fmt: skip


def mean(row, steps):
    return layers.GlobalAveragePooling1D()(steps)


def gru(row, steps):
    return layers.GRU(DIM, name="gru")(steps)


def lstm(row, steps):
    return layers.LSTM(DIM, name="lstm")(steps)


def attention(row, steps):
    found = layers.Attention(use_scale=True, name="attention")([layers.Reshape((1, DIM))(row), steps])
    return layers.Reshape((DIM,))(found)


def words_gru():
    """A list of words, masked, by a GRU in both directions."""
    inputs = inputs_of((USER, TAGS))
    lookup = layers.StringLookup(vocabulary=words_of(TAGS), mask_token="", name="tags_lookup")
    steps = layers.Embedding(SIZE + 2, DIM, mask_zero=True, name="tags_rows")(lookup(inputs["tags"]))
    state = layers.Bidirectional(layers.GRU(DIM, name="gru"), name="both")(steps)
    return keras.Model(inputs, scored(layers.Concatenate()([state, rows_of(USER, inputs["user"])])))


def words_mean():
    """A list of words by its mean, and two rows for unknown users."""
    inputs = inputs_of((USER, TAGS))
    tags = layers.StringLookup(vocabulary=words_of(TAGS), name="tags_lookup")(inputs["tags"])
    tags = layers.GlobalAveragePooling1D()(layers.Embedding(SIZE + 1, DIM, name="tags_rows")(tags))
    user = layers.StringLookup(vocabulary=words_of(USER), num_oov_indices=2, name="user_lookup")(inputs["user"])
    return keras.Model(inputs, scored(joined([tags, layers.Embedding(SIZE + 2, DIM, name="user_rows")(user)], None)))


def ones():
    """One-hot lookups, buckets of floats, and floats scaled by what was adapted."""
    inputs = inputs_of((USER, CODE, PRICES))
    scale = layers.Normalization(name="scale", mean=0.25, variance=4.0)
    bucket = layers.Discretization([-1.0, 0.0, 1.0], name="buckets")(inputs["prices"][:, 0])
    parts = [
        layers.StringLookup(vocabulary=words_of(USER), output_mode="one_hot", name="user_lookup")(inputs["user"]),
        layers.IntegerLookup(vocabulary=codes_of(CODE), output_mode="one_hot", name="code_lookup")(inputs["code"]),
        layers.Embedding(4, DIM, name="bucket_rows")(bucket),
        scale(inputs["prices"]),
    ]
    return keras.Model(inputs, scored(layers.Concatenate()(parts)))


def labels():
    """Three words of one vocabulary, as several ones and as rows that a mask averages; rows of one length."""
    inputs = inputs_of((LABELS, USER))
    words = words_of(LABELS)
    several = layers.StringLookup(vocabulary=words, output_mode="multi_hot", name="several")(inputs["labels"])
    numbers = layers.StringLookup(vocabulary=words, mask_token="", name="numbers")(inputs["labels"])
    rows = layers.Embedding(SIZE + 2, DIM, mask_zero=True, embeddings_constraint="unit_norm", name="labels_rows")(
        numbers
    )
    mean = layers.Dropout(0.2)(layers.GlobalAveragePooling1D()(rows))
    return keras.Model(inputs, scored(layers.Concatenate()([several, mean, rows_of(USER, inputs["user"])])))


def next_item():
    """A GRU whose state scores all items by the table that its history reads."""
    inputs = inputs_of((HISTORY,))
    table = layers.Embedding(SIZE, DIM, name="items")
    state = layers.GRU(DIM, name="gru")(table(inputs["history"]))
    return keras.Model(inputs, Scores(table, name="scores")(state))


class Scores(layers.Layer):
    """The product with all rows of a table."""

    def __init__(self, table, **options):
        super().__init__(**options)
        self.table = table

    def call(self, state):
        return ops.sigmoid(ops.matmul(state, ops.transpose(self.table.embeddings)))


def nested():
    """A model of models: a tower for each side."""
    inputs = inputs_of((USER, ITEM, HISTORY))
    item = keras.Input((), dtype="int64", name="number")
    turned = layers.Dense(DIM, "relu", name="item_turn")(layers.Embedding(SIZE, DIM, name="items")(item))
    tower = keras.Model(item, turned, name="item_tower")
    user = keras.Input((), dtype="string", name="name")
    other = keras.Model(user, layers.Dense(DIM, name="user_turn")(rows_of(USER, user)), name="user_tower")
    both = layers.Multiply()([tower(inputs["item"]), other(inputs["user"])])
    past = layers.GlobalAveragePooling1D()(layers.Embedding(SIZE, DIM, name="past")(inputs["history"]))
    return keras.Model(inputs, scored(layers.Concatenate()([both, past])))


def normed(row, steps):
    x = layers.BatchNormalization(name="steps_norm")(steps)
    x = layers.Conv1D(DIM, 3, padding="same", activation="relu", name="conv")(x)
    return layers.GlobalMaxPooling1D()(x)


RICH = (USER, CODE, ITEM, PRICES)
WITH_HISTORY = (ITEM, HISTORY, USER)
NETWORKS = (
    KerasNetwork("keras-mlp", of_rows(RICH, mlp), RICH, sgd),
    KerasNetwork("keras-mlp-file", of_rows(RICH, mlp), RICH, as_file=True),
    KerasNetwork("keras-hashes", mlp_of_hashes, (USER, CODE, PRICES), adagrad, as_file=True),
    KerasNetwork("keras-deepfm", deepfm, (USER, CODE, ITEM), adagrad, as_file=True),
    KerasNetwork("keras-rs-dcn", of_rows(RICH, dcn), RICH),
    KerasNetwork("keras-dcn", of_rows(RICH, dcn_full), RICH, momentum, as_file=True),
    KerasNetwork("keras-rs-dlrm", of_rows(RICH, dlrm), RICH, momentum),
    KerasNetwork("keras-two-towers", two_towers, (USER, CODE, ITEM, SHOP)),
    KerasNetwork("keras-mmoe", of_rows(RICH, mmoe), RICH, as_file=True),
    KerasNetwork("keras-shared", shared, (CODE, BRAND, USER), sgd),
    KerasNetwork("keras-mean", of_history(mean, True), WITH_HISTORY),
    KerasNetwork("keras-din", of_history(din), WITH_HISTORY, adagrad, takes_none=True),
    KerasNetwork("keras-attention", of_history(attention), WITH_HISTORY, as_file=True),
    KerasNetwork("keras-gru", of_history(gru, True), WITH_HISTORY),
    KerasNetwork("keras-lstm", of_history(lstm), WITH_HISTORY, momentum),
    KerasNetwork("keras-sasrec", of_history(sasrec), WITH_HISTORY),
    KerasNetwork("keras-normed", of_history(normed), WITH_HISTORY, momentum),
    KerasNetwork("keras-words-gru", words_gru, (USER, TAGS)),
    KerasNetwork("keras-words-mean", words_mean, (USER, TAGS), adagrad),
    KerasNetwork("keras-ones", ones, (USER, CODE, PRICES), as_file=True),
    KerasNetwork("keras-labels", labels, (LABELS, USER), sgd),
    KerasNetwork("keras-next-item", next_item, (HISTORY,)),
    KerasNetwork("keras-nested", nested, (USER, ITEM, HISTORY)),
)  # fmt: skip
