"""A Keras model with every kind of table, its data, and the package that it was imported as."""

import numpy as np

USERS = [f"u{i}" for i in range(20)]
CODES = list(range(100, 120))


def make_model(regularised=False):
    """user: strings; code: integers of a vocabulary; item: row numbers; kind: hashed; seen: a list with a mask."""
    import keras
    from keras import layers

    user = keras.Input((1,), dtype="string", name="user")
    code = keras.Input((1,), dtype="int64", name="code")
    item = keras.Input((1,), dtype="int64", name="item")
    kind = keras.Input((1,), dtype="string", name="kind")
    seen = keras.Input((4,), dtype="int64", name="seen")
    price = keras.Input((2,), name="price")
    ridge = keras.regularizers.L2(0.01) if regularised else None
    parts = [
        layers.Embedding(21, 4, name="user_rows")(layers.StringLookup(vocabulary=USERS)(user)),
        layers.Embedding(21, 4, name="code_rows")(layers.IntegerLookup(vocabulary=CODES)(code)),
        layers.Embedding(30, 4, name="item_rows", embeddings_regularizer=ridge)(item),
        layers.Embedding(16, 4, name="kind_rows")(layers.Hashing(16)(kind)),
    ]
    pooled = layers.GlobalAveragePooling1D()(layers.Embedding(50, 4, mask_zero=True, name="seen_rows")(seen))
    x = layers.Concatenate()([*(layers.Flatten()(part) for part in parts), pooled, price])
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.Dense(8, activation="relu", name="hidden")(x)
    return keras.Model([user, code, item, kind, seen, price], layers.Dense(1, activation="sigmoid", name="score")(x))


def make_data(rows=64, seed=0, unknown=False):
    """(inputs by name, labels): every vocabulary's first half, and with `unknown` a user and a code out of it."""
    import tensorflow as tf

    draw = np.random.default_rng(seed)
    users = np.array([f"u{i}" for i in draw.integers(0, 10, rows)])
    if unknown:
        users[0] = "stranger"
    codes = draw.integers(100, 110, (rows, 1))
    if unknown:
        codes[0] = 7
    inputs = {
        "user": tf.constant(users[:, None]),
        "code": codes,
        "item": draw.integers(0, 15, (rows, 1)),
        "kind": tf.constant(np.array([f"k{i}" for i in draw.integers(0, 9, rows)])[:, None]),
        "seen": draw.integers(0, 20, (rows, 4)),
        "price": draw.standard_normal((rows, 2)).astype(np.float32),
    }
    return inputs, draw.integers(0, 2, (rows, 1)).astype(np.float32)


def parts_of(contents, manifest):
    """Every table's keys and rows and every dense weight of a version's contents, as bytes by name."""
    parts = {name: array.tobytes() for name, array in contents.dense.items()}
    for table in manifest.tables:
        parts[f"{table.name} keys"], parts[f"{table.name} rows"] = (a.tobytes() for a in contents.table(table.name))
    return parts


def assert_served_is(publisher, model):
    """What is served is what the model has now, to the bit."""
    contents = publisher.served()
    tables = {
        "user_rows": [publisher.ids("user_rows.embeddings", USERS), np.arange(1, 21)],
        "code_rows": [np.array(CODES), np.arange(1, 21)],
        "item_rows": [np.arange(30), np.arange(30)],
        "kind_rows": [np.arange(16), np.arange(16)],
        "seen_rows": [np.arange(50), np.arange(50)],
    }
    for name, (ids, at) in tables.items():
        keys, rows = contents.table(f"{name}.embeddings")
        known = keys != contents.base.manifest.table(f"{name}.embeddings").unknown_key
        keys, rows = keys[known], rows[known]
        order = np.argsort(ids)
        assert keys.tolist() == ids[order].tolist(), name
        assert rows.tobytes() == model.get_layer(name).embeddings.numpy()[at[order]].tobytes(), name
    weights = {v.path: v.numpy() for v in model.variables}
    assert len(contents.dense) == 8
    for name, value in contents.dense.items():
        assert value.tobytes() == weights[name].tobytes(), name
