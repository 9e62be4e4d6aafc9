"""Keras' side of the training loops: exports, fits with the callback, and scores."""

# mypy: ignore-errors

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from freshet_serving import Publisher
from loadtest.bench.training.loops.keras_networks import NETWORKS
from loadtest.bench.training.loops.rows import TRAINED_LENGTHS, draw_all, request_lengths
from loadtest.bench.training.loops.side import serve

BATCHES, ROWS, REQUEST_ROWS, SEED = 2, 32, 7, 5
# A delta is published at the end of each fit.
NEVER = 1_000_000


class KerasSide:
    def build(self, network, folder):
        keras.backend.clear_session()
        keras.utils.set_random_seed(SEED)
        self.network = {one.name: one for one in NETWORKS}[network]
        self.random = np.random.default_rng(SEED)
        self.model, self.callbacks = self.network.make(), []
        self.model.compile(self.network.optimizer(), "mse")
        if self.network.as_file:
            path = Path(folder) / "model.keras"
            self.model.save(path)
        else:
            path = Path(folder) / "saved_model"
            self.model.export(path, format="tf_saved_model", verbose=False)
        return path

    def attach(self, repository, model):
        self.callbacks = [Publisher(repository, model).keras(every_batches=NEVER)]

    def learn(self):
        length = int(self.random.choice(TRAINED_LENGTHS))
        rows = draw_all(self.network.columns, BATCHES * ROWS, length, self.random, request=False)
        widths = {name: output.shape[1] for name, output in zip(self.model.output_names, self.model.outputs)}
        labels = {
            name: self.random.integers(0, 2, (BATCHES * ROWS, width)).astype(np.float32)
            for name, width in widths.items()
        }
        if len(labels) == 1:
            (labels,) = labels.values()
        self.model.fit(tensors(rows), labels, ROWS, verbose=0, shuffle=False, callbacks=self.callbacks)
        return str(self.callbacks[0].generation)

    def scored(self):
        for length in request_lengths(self.network.columns, self.network.takes_none):
            rows = draw_all(self.network.columns, REQUEST_ROWS, length, self.random, request=True)
            outputs = self.model(tensors(rows), training=False)
            named = outputs if isinstance(outputs, dict) else {self.model.output_names[0]: outputs}
            yield rows, {name: keras.ops.convert_to_numpy(output) for name, output in named.items()}


def tensors(rows):
    return {name: tf.constant(array.tolist() if array.dtype.kind == "U" else array) for name, array in rows.items()}


if __name__ == "__main__":
    serve(KerasSide())
