"""Share among the builders with TensorFlow: the way to score a signature, and SavedModels of Keras 2."""

from __future__ import annotations

import os

# DeepCTR, TensorFlow Recommenders and tf_keras stand on Keras 2.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

from pathlib import Path

import numpy as np
import tensorflow as tf

from loadtest.bench.foreign_models.builders.rows import random
from loadtest.bench.foreign_models.built import write_built


def fitted(array, spec):
    """Return an array with the signature's columns, where those have a fixed number."""
    dims = spec.shape[1:]
    return array if None in dims else np.reshape(array, (len(array), *dims))


def scored(folder, inputs):
    """Return what the SavedModel's own signature makes of the rows."""
    loaded = tf.saved_model.load(str(Path(folder) / "saved_model"))
    signature = loaded.signatures["serving_default"]
    specs = signature.structured_input_signature[1]
    given = {name: tf.constant(fitted(inputs[name], spec), spec.dtype) for name, spec in specs.items()}
    return {name: tensor.numpy() for name, tensor in signature(**given).items()}


def save_module(folder, module, signature, inputs, uses=()):
    """Write a tf.Module with one signature."""
    tf.saved_model.save(module, str(Path(folder) / "saved_model"), signatures=signature)
    write_built(Path(folder), inputs, scored(folder, inputs), uses)


def spread(model):
    """Draw rows of tables anew: many libraries begin with rows that hardly differ."""
    for variable in model.weights:
        if "embeddings" in getattr(variable, "path", variable.name):
            variable.assign(random.standard_normal(variable.shape) * 0.4)
    return model


def save_keras2(folder, model, inputs, uses=()):
    """Write a model of Keras 2 as Keras 2 does."""
    spread(model).save(str(Path(folder) / "saved_model"), save_format="tf")
    write_built(Path(folder), inputs, scored(folder, inputs), uses)
