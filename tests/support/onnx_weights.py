"""ONNX models of ours with the weights in them, for runs by ONNX Runtime alone."""

import numpy as np
import onnx

from freshet_serving.processor.backends.onnxruntime import WEIGHT_PREFIX


def with_values(model, weights):
    """The model with its weights, which a server would give it, as initialisers."""
    parsed = onnx.load_from_string(model)
    for tensor in parsed.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            value = weights[tensor.name.removeprefix(WEIGHT_PREFIX)]
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(value, order="C"), tensor.name))
    return parsed.SerializeToString(deterministic=True)
