import pytest

from freshet_serving.serving.codecs.messages import POOL, message


def test_clients_with_equally_named_messages_share_the_process():
    triton = pytest.importorskip("tritonclient.grpc.service_pb2")
    theirs, ours = triton.ModelInferRequest, message("inference.ModelInferRequest")
    assert theirs is not ours
    sent = theirs(model_name="m", id="q")
    sent.inputs.add(name="x", datatype="FP32", shape=[2])
    sent.parameters["timeout"].int64_param = 7
    read = ours.FromString(sent.SerializeToString())
    assert (read.model_name, read.inputs[0].name, read.parameters["timeout"].int64_param) == ("m", "x", 7)


def test_field_numbers_equal_those_of_triton():
    triton = pytest.importorskip("tritonclient.grpc.service_pb2")
    config = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    for name, kind in POOL.FindFileByName("inference.proto").message_types_by_name.items():
        theirs = getattr(triton, name, None) or getattr(config, name)
        same(kind, theirs.DESCRIPTOR)


def same(ours, theirs):
    for field in ours.fields:
        assert theirs.fields_by_name[field.name].number == field.number, field.full_name
        assert theirs.fields_by_name[field.name].type == field.type, field.full_name
    for name, nested in ours.nested_types_by_name.items():
        same(nested, theirs.nested_types_by_name[name])


def test_field_numbers_equal_those_of_tensorflow_serving():
    pytest.importorskip("tensorflow_serving")
    from tensorflow.core.example import example_pb2, feature_pb2
    from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2
    from tensorflow.core.protobuf import meta_graph_pb2
    from tensorflow_serving import apis, config
    from tensorflow_serving.apis import (
        classification_pb2,
        get_model_metadata_pb2,
        get_model_status_pb2,
        inference_pb2,
        input_pb2,
        model_management_pb2,
        model_pb2,
        predict_pb2,
        regression_pb2,
        status_pb2,
    )  # fmt: skip
    from tensorflow_serving.config import file_system_storage_path_source_pb2, model_server_config_pb2

    assert apis is not config
    modules = [
        classification_pb2, get_model_metadata_pb2, get_model_status_pb2, inference_pb2, input_pb2, model_pb2,
        model_management_pb2, predict_pb2, regression_pb2, status_pb2, file_system_storage_path_source_pb2,
        model_server_config_pb2, tensor_pb2, tensor_shape_pb2, example_pb2, feature_pb2, meta_graph_pb2,
    ]  # fmt: skip
    for file in ("tensorflow.proto", "tensorflow_serving.proto"):
        for name, kind in POOL.FindFileByName(file).message_types_by_name.items():
            theirs = next(getattr(m, name) for m in modules if hasattr(m, name))
            assert theirs.DESCRIPTOR.full_name == kind.full_name
            same(kind, theirs.DESCRIPTOR)
