"""Requests of the model in tests.support.packages, in every dialect, as the bytes that go over the wire."""

from __future__ import annotations

import numpy as np

from freshet_serving.serving.codecs.messages import message
from loadtest.load.encoding import InputTensor, Signature, encode_kserve, encode_tfs

INFER, PREDICT = "/inference.GRPCInferenceService/ModelInfer", "/tensorflow.serving.PredictionService/Predict"
SIGNATURE = Signature(
    "small",
    (InputTensor("user", "INT64"), InputTensor("tags", "BYTES", ragged=True), InputTensor("floats", "FP32", 4)),
    ("score",),
)


def http_bodies(users, tags, floats):
    """(path, headers, body) by protocol: KServe v2 with binary tensors, TensorFlow Serving's rows."""
    columns = {"user": np.asarray(users), "tags": tags, "floats": np.asarray(floats, np.float32)}
    made = (encode_kserve(SIGNATURE, columns), encode_tfs(SIGNATURE, columns))
    return {request.protocol: (request.path, request.headers, request.body) for request in made}


def rpc_messages(users, tags, floats):
    """Serialized request by method."""
    users, floats = [int(user) for user in users], np.asarray(floats, np.float32)
    words = [tag.encode() for row in tags for tag in row]
    splits = np.cumsum([0] + [len(row) for row in tags]).tolist()
    infer = message("inference.ModelInferRequest")(model_name="small")
    infer.inputs.add(name="user", datatype="INT64", shape=[len(users)]).contents.int64_contents.extend(users)
    infer.inputs.add(name="tags", datatype="BYTES", shape=[len(words)]).contents.bytes_contents.extend(words)
    infer.inputs.add(name="tags.row_splits", datatype="INT64", shape=[len(splits)]).contents.int64_contents.extend(
        splits
    )
    infer.inputs.add(name="floats", datatype="FP32", shape=floats.shape).contents.fp32_contents.extend(floats.ravel())
    predict = message("tensorflow.serving.PredictRequest")()
    predict.model_spec.name = "small"
    for name, dtype, field, shape, values in (
        ("user", 9, "int64_val", [len(users)], users),
        ("tags", 7, "string_val", [len(words)], words),
        ("tags.row_splits", 9, "int64_val", [len(splits)], splits),
        ("floats", 1, "float_val", floats.shape, floats.ravel().tolist()),
    ):
        tensor = predict.inputs[name]
        tensor.dtype = dtype
        for size in shape:
            tensor.tensor_shape.dim.add(size=size)
        getattr(tensor, field).extend(values)
    return {INFER: infer.SerializeToString(), PREDICT: predict.SerializeToString()}
