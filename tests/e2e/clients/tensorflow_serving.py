"""The stubs of tensorflow-serving-api: every call of PredictionService and ModelService."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.example.example_pb2 import Example
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.e2e.clients.probe import check, read, refusal

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


def request(probe, content=True):
    made = predict_pb2.PredictRequest()
    made.model_spec.name = "small"
    arrays = {"user": probe.user, "tags": probe.tag_values, "tags.row_splits": probe.tag_splits, "floats": probe.floats}
    for name, array in arrays.items():
        tensor = tf.make_tensor_proto(array if content else array.tolist(), shape=array.shape)
        if name in ("user", "tags.row_splits"):
            tensor = tf.make_tensor_proto(array, np.int64, array.shape)
            if not content:
                tensor.ClearField("tensor_content")
                tensor.int64_val.extend(array.tolist())
        made.inputs[name].CopyFrom(tensor)
    return made


def examples(probe, into):
    for user, tags, floats in zip(probe.user, probe.tags, probe.floats):
        features = into.example_list.examples.add().features.feature
        features["user"].int64_list.value.append(user)
        features["tags"].bytes_list.value.extend(tag.encode() for tag in tags)
        features["floats"].float_list.value.extend(floats)


def predict(stub, probe):
    for content in (True, False):
        reply, call = stub.Predict.with_call(request(probe, content), timeout=30)
        check(probe, tf.make_ndarray(reply.outputs["score"]))
        assert reply.model_spec.name == "small"
        assert reply.model_spec.version.value == 1
        assert ("x-model-generation", probe.generation) in call.trailing_metadata()
    chosen = request(probe)
    chosen.model_spec.version.value = 1
    chosen.model_spec.signature_name = "serving_default"
    chosen.output_filter.append("score")
    reply = stub.Predict(chosen, compression=grpc.Compression.Gzip)
    assert reply.model_spec.signature_name == "serving_default"
    check(probe, list(reply.outputs["score"].float_val))
    chosen.model_spec.version_label = "1"
    check(probe, list(stub.Predict(chosen).outputs["score"].float_val))
    futures = [stub.Predict.future(request(probe)) for _ in range(8)]
    for future in futures:
        check(probe, list(future.result(30).outputs["score"].float_val))


def refuse(stub, probe):
    def code(change, call=stub.Predict, **options):
        changed = request(probe)
        change(changed)
        error = refusal(grpc.RpcError, call, changed, **options)
        return error.code().name, error.details()

    name, details = code(lambda r: setattr(r.model_spec, "name", "other"))
    assert (name, details) == ("NOT_FOUND", "Servable not found for request: Latest(other); the repository holds small")
    name, details = code(lambda r: setattr(r.model_spec.version, "value", 9))
    assert (name, details) == ("NOT_FOUND", "Servable not found for request: Specific(small, 9); small has version 1")
    name, details = code(lambda r: setattr(r.model_spec, "version_label", "canary"))
    assert (name, details) == ("INVALID_ARGUMENT", "Unrecognized servable version label: canary; small has no label")
    assert code(lambda r: r.inputs.pop("user"))[0] == "INVALID_ARGUMENT"
    assert code(lambda r: r.output_filter.append("x"))[0] == "INVALID_ARGUMENT"
    assert code(lambda r: setattr(r.model_spec, "signature_name", "x"))[0] == "INVALID_ARGUMENT"


def from_examples(stub, probe):
    classify = classification_pb2.ClassificationRequest()
    regress = regression_pb2.RegressionRequest()
    both = inference_pb2.MultiInferenceRequest()
    for made in (classify, regress):
        made.model_spec.name = "small"
    for made in (classify, regress, both):
        examples(probe, made.input)
    for method in (CLASSIFY, REGRESS):
        task = both.tasks.add(method_name=method)
        task.model_spec.name = "small"
    reply = stub.Classify(classify)
    check(probe, [c.classes[0].score for c in reply.result.classifications])
    assert reply.model_spec.version.value == 1
    check(probe, [r.value for r in stub.Regress(regress).result.regressions])
    results = stub.MultiInference(both).results
    check(probe, [c.classes[0].score for c in results[0].classification_result.classifications])
    check(probe, [r.value for r in results[1].regression_result.regressions])
    shared = regression_pb2.RegressionRequest()
    shared.model_spec.name = "small"
    given = shared.input.example_list_with_context
    given.context.features.feature["user"].int64_list.value.append(probe.user[1])
    given.context.features.feature["tags"].bytes_list.value.extend(tag.encode() for tag in probe.tags[1])
    given.examples.add().features.feature["floats"].float_list.value.extend(probe.floats[1])
    np.testing.assert_allclose(stub.Regress(shared).result.regressions[0].value, probe.scores[1], atol=1e-5)
    classify.input.example_list.examples.append(Example())
    assert refusal(grpc.RpcError, stub.Classify, classify).code() == grpc.StatusCode.INVALID_ARGUMENT
    both.tasks[0].method_name = "tensorflow/serving/predict"
    assert refusal(grpc.RpcError, stub.MultiInference, both).code() == grpc.StatusCode.INVALID_ARGUMENT
    both.tasks[0].method_name = CLASSIFY
    both.tasks[0].model_spec.name = "other"
    assert refusal(grpc.RpcError, stub.MultiInference, both).code() == grpc.StatusCode.INVALID_ARGUMENT


def describe(stub, models):
    asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    asked.model_spec.name = "small"
    reply = stub.GetModelMetadata(asked)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert reply.metadata["signature_def"].Unpack(signatures)
    signature = signatures.signature_def["serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert signature.inputs["user"].dtype == tf.int64.as_datatype_enum
    assert [d.size for d in signature.inputs["floats"].tensor_shape.dim] == [-1, 4]
    assert reply.model_spec.version.value == 1
    asked.metadata_field[0] = "other"
    assert refusal(grpc.RpcError, stub.GetModelMetadata, asked).code() == grpc.StatusCode.INVALID_ARGUMENT
    status = get_model_status_pb2.GetModelStatusRequest()
    assert "Missing ModelSpec" in refusal(grpc.RpcError, models.GetModelStatus, status).details()
    status.model_spec.name = "small"
    (version,) = models.GetModelStatus(status).model_version_status
    assert (version.version, version.state, version.status.error_code) == (1, version.AVAILABLE, 0)
    status.model_spec.name = "other"
    error = refusal(grpc.RpcError, models.GetModelStatus, status)
    words = "Could not find any versions of model other; the repository holds small"
    assert (error.code().name, error.details()) == ("NOT_FOUND", words)


def reload(models, stub, probe):
    wanted = model_management_pb2.ReloadConfigRequest()
    wanted.config.model_config_list.SetInParent()
    assert models.HandleReloadConfigRequest(wanted).status.error_code == 0
    assert refusal(grpc.RpcError, stub.Predict, request(probe)).code() in (
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNAVAILABLE,
    )
    config = wanted.config.model_config_list.config.add(name="small", base_path="small", model_platform="tensorflow")
    config.version_labels["stable"] = 1
    assert models.HandleReloadConfigRequest(wanted, timeout=60).status.error_code == 0
    labelled = request(probe)
    labelled.model_spec.version_label = "stable"
    check(probe, list(stub.Predict(labelled).outputs["score"].float_val))
    del config.version_labels["stable"]
    config.version_labels["next"] = 1
    assert models.HandleReloadConfigRequest(wanted, timeout=60).status.error_code == 0
    assert refusal(grpc.RpcError, stub.Predict, labelled).code() == grpc.StatusCode.NOT_FOUND
    for base_path in ("/etc", "../small", "other", ""):
        config.base_path = base_path
        error = refusal(grpc.RpcError, models.HandleReloadConfigRequest, wanted)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, base_path
        assert "expected the model's own folder" in error.details()
    config.base_path = "small"
    config.model_version_policy.specific.versions.append(9)
    assert refusal(grpc.RpcError, models.HandleReloadConfigRequest, wanted).code() == grpc.StatusCode.NOT_FOUND
    check(probe, list(stub.Predict(request(probe)).outputs["score"].float_val))


def main():
    probe = read()
    with grpc.insecure_channel(probe.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        predict(stub, probe)
        refuse(stub, probe)
        from_examples(stub, probe)
        describe(stub, models)
        reload(models, stub, probe)
    print("done")


if __name__ == "__main__":
    main()
