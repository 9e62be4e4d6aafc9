"""Keras fit: an Embedding a feature, one optimizer for all, tf.data that reads ahead.

Arguments: batch rows, table rows, threads, optimizer, whether to compile by XLA, steps a call.
"""

# mypy: ignore-errors

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from freshet_serving.compiler.frameworks import keras, tf
from loadtest.bench.training.turns import DENSE_RATE, DIM, FEATURES, HIDDEN, RATE, RaceShape, serve


def network(table_rows):
    ids = keras.Input((FEATURES,), dtype="int64")
    initial = keras.initializers.RandomUniform(-0.01, 0.01)
    vectors = [keras.layers.Embedding(table_rows, DIM, initial)(ids[:, f]) for f in range(FEATURES)]
    x = keras.layers.Concatenate()(vectors)
    stacked = keras.ops.reshape(x, (-1, FEATURES, DIM))
    total = keras.ops.sum(stacked, axis=1)
    pairs = keras.ops.sum(total * total - keras.ops.sum(stacked * stacked, axis=1), axis=1, keepdims=True) * 0.5
    h = x
    for units in HIDDEN:
        h = keras.layers.Dense(units, "relu")(h)
    logit = keras.layers.Dense(1)(x) + keras.layers.Dense(1, use_bias=False)(h) + pairs
    return keras.Model(ids, logit)


def main():
    batch_rows, table_rows, threads = (int(word) for word in sys.argv[1:4])
    optimizer, compiled, steps_a_call = sys.argv[4], bool(int(sys.argv[5])), int(sys.argv[6])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    keras.utils.set_random_seed(0)
    shape = RaceShape(batch_rows, table_rows)
    model = network(table_rows)
    made = keras.optimizers.Adagrad(RATE) if optimizer == "adagrad" else keras.optimizers.Adam(DENSE_RATE)
    model.compile(
        made,
        keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=compiled,
        steps_per_execution=steps_a_call,
    )
    rows = tf.data.Dataset.from_tensor_slices(shape.rows())
    batches = rows.batch(batch_rows, drop_remainder=True).repeat().prefetch(tf.data.AUTOTUNE)

    def learn(steps):
        # fit makes an iterator anew each time it is called, so a turn is one call.
        history = model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0)
        return float(history.history["loss"][-1])

    serve(learn)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
