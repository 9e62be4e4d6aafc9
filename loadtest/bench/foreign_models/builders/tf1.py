"""Graphs of TensorFlow 1: placeholders, sessions, builder's SavedModels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from loadtest.bench.foreign_models.builders.rows import DIM, ITEMS, USERS, floats, ids, random
from loadtest.bench.foreign_models.built import ROWS, TableUse, write_built

v1 = tf.compat.v1
CROSSES = 97


def save(folder, inputs, score, rows, uses=(), tables=False):
    """Write the default graph with its signature, and what its session gives. rows: by input; inputs: placeholders."""
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        if tables:
            session.run(v1.tables_initializer())
        feeds = {inputs[name]: array for name, array in rows.items()}
        expected = session.run(score, feeds)
        v1.saved_model.simple_save(
            session, str(Path(folder) / "saved_model"), inputs, {"score": score},
            legacy_init_op=v1.tables_initializer() if tables else None,
        )  # fmt: skip
    write_built(Path(folder), rows, {"score": expected}, uses)


def table(name, rows, width=DIM, **options):
    return v1.get_variable(name, [rows, width], initializer=v1.random_normal_initializer(stddev=0.4, seed=3), **options)


def mlp(x, width):
    hidden = tf.nn.relu(x @ v1.get_variable("w1", [width, 16]) + v1.get_variable("b1", [16]))
    return hidden @ v1.get_variable("w2", [16, 1])


def wide_and_deep(user, item, price):
    deep = mlp(tf.concat([tf.gather(table("user", USERS), user), tf.gather(table("item", ITEMS), item), price], 1), 17)
    crossed = tf.strings.join([tf.strings.as_string(user), tf.strings.as_string(item)], separator="_X_")
    wide = tf.gather(table("crosses", CROSSES, 1), tf.strings.to_hash_bucket_fast(crossed, CROSSES))
    return tf.sigmoid(deep + wide)


def bucket(user, item):
    return int(tf.strings.to_hash_bucket_fast([f"{user}_X_{item}"], CROSSES)[0])


USES = [TableUse("user", "user"), TableUse("item", "item")]
# A user's crosses have rows of their own; other places have 2 in the check.
CROSSED = [
    TableUse("crosses", "user", row_of_one=bucket(1, 2), row_of_other=bucket(2, 2)),
    TableUse("crosses", "item", row_of_one=bucket(2, 1), row_of_other=bucket(2, 2)),
]


def tf1_wide_deep(folder):
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        inputs = {name: v1.placeholder(tf.int64, [None], name) for name in ("user", "item")}
        inputs["price"] = v1.placeholder(tf.float32, [None, 1], "price")
        rows = {"user": ids(ROWS, below=USERS), "item": ids(ROWS), "price": floats(ROWS, 1)}
        save(folder, inputs, wide_and_deep(**inputs), rows, USES + CROSSED)


def example(user, item, price):
    features = {
        "user": tf.train.Feature(int64_list=tf.train.Int64List(value=[user])),
        "item": tf.train.Feature(int64_list=tf.train.Int64List(value=[item])),
        "price": tf.train.Feature(float_list=tf.train.FloatList(value=[price])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def uses_of_examples():
    """Return uses by whole examples: small numbers and a price of 0 are ASCII, as JSON needs them."""
    uses = []
    for name, pair in {"user": ((1, 5), (2, 5)), "item": ((5, 1), (5, 2))}.items():
        one, other = (example(*ids, 0).decode("ascii") for ids in pair)
        uses.append(TableUse(name, "examples", None, one, other))
        uses.append(TableUse("crosses", "examples", None, one, other, *(bucket(*ids) for ids in pair)))
    return uses


def tf1_examples(folder):
    example_uses = uses_of_examples()
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        examples = v1.placeholder(tf.string, [None], "examples")
        spec = {name: tf.io.FixedLenFeature([], tf.int64) for name in ("user", "item")}
        parsed = tf.io.parse_example(examples, spec | {"price": tf.io.FixedLenFeature([1], tf.float32)})
        given = zip(ids(ROWS, below=USERS), ids(ROWS), floats(ROWS))
        rows = {"examples": np.array([example(*row) for row in given], object)}
        save(folder, {"examples": examples}, wide_and_deep(**parsed), rows, example_uses)


def tf1_sparse(folder):
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        inputs = {
            "indices": v1.placeholder(tf.int64, [None, 2], "indices"),
            "values": v1.placeholder(tf.int64, [None], "values"),
            "shape": v1.placeholder(tf.int64, [2], "shape"),
        }
        sparse = tf.SparseTensor(*inputs.values())
        pooled = tf.nn.safe_embedding_lookup_sparse(table("tags", ITEMS), sparse, combiner="mean")
        lengths = random.integers(1, 5, ROWS)
        splits = np.concatenate([[0], np.cumsum(lengths)])
        at = [(row, i) for row, n in enumerate(lengths) for i in range(n)]
        rows = {"indices": np.array(at), "values": ids(len(at)), "shape": np.array([ROWS, 4])}
        save(folder, inputs, tf.sigmoid(mlp(pooled, DIM)), rows)
        ragged = {"tags": rows["values"], "tags:row_splits": splits}
        write_built(Path(folder), ragged, dict(np.load(Path(folder) / "expected.npz")), [TableUse("tags", "tags")])
        (Path(folder) / "arguments.json").write_text('["--sparse", "tags=indices,values,shape"]')


def tf1_partitioned(folder):
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        inputs = {name: v1.placeholder(tf.int32, [None], name) for name in ("user", "item")}
        parts = table("user", USERS, partitioner=v1.fixed_size_partitioner(3))
        user = v1.nn.embedding_lookup(parts, inputs["user"], partition_strategy="div")
        item = v1.nn.embedding_lookup(table("item", ITEMS), inputs["item"])
        rows = {"user": ids(ROWS, below=USERS, dtype=np.int32), "item": ids(ROWS, dtype=np.int32)}
        save(folder, inputs, tf.sigmoid(mlp(tf.concat([user, item], 1), 2 * DIM)), rows, USES)


def tf1_vocabulary(folder):
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        city = v1.placeholder(tf.string, [None], "city")
        words = [f"city {n}" for n in range(20)]
        lookup = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(words, np.arange(20, dtype=np.int64)), num_oov_buckets=5
        )
        score = tf.sigmoid(mlp(tf.gather(table("city", 25), lookup.lookup(city)), DIM))
        rows = {"city": np.array([f"city {n}" for n in ids(ROWS, below=30)])}
        use = TableUse("city", "city", one="city 1", other="city 2")
        save(folder, {"city": city}, score, rows, [use], tables=True)
