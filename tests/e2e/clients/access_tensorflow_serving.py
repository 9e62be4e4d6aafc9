"""tensorflow-serving-api's stubs against a server that asks for keys and speaks TLS: `... given.json`."""

import json
import sys
from pathlib import Path

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)


def code_of(call, *arguments, **options):
    """The status of a call that is refused."""
    try:
        call(*arguments, **options)
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def main():
    given = json.loads(Path(sys.argv[1]).read_text())
    credentials = grpc.ssl_channel_credentials(Path(given["ca"]).read_bytes())
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "small"
    arrays = {
        "user": np.array([3], np.int64),
        "tags": np.array([b"a"], object),
        "tags.row_splits": np.array([0, 1], np.int64),
        "floats": np.full((1, 4), 0.5, np.float32),
    }
    for name, array in arrays.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "small"
    with grpc.secure_channel(given["grpc"], credentials) as channel:
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        states = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus
        key = [("authorization", given["predict"])]
        reply = predict(request, metadata=key, timeout=30)
        assert tf.make_ndarray(reply.outputs["score"]).shape[0] == 1
        assert states(status, metadata=key, timeout=30).model_version_status[0].version == 1
        assert code_of(predict, request, timeout=30) == "UNAUTHENTICATED"
        assert (
            code_of(predict, request, metadata=[("authorization", given["metrics"])], timeout=30) == "PERMISSION_DENIED"
        )
    print("done")


if __name__ == "__main__":
    main()
