"""Requests about a kept user over gRPC: KServe alone and in streams, and TensorFlow Serving."""

import grpc
import numpy as np
import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.serving.codecs.messages import message
from tests.serving.codecs.predict_requests import DT_FLOAT, DT_INT64, DT_STRING, predict_request
from tests.serving.rpc.live import WAIT_S, Live, refused, scores, tfs_predict
from tests.support.ranked import MODEL, write_ranked

ITEMS = [5, 6, 7]
DT_INT32 = 3


@pytest.fixture(scope="module", params=[{}, {"compute": "inline"}], ids=["threads", "inline"])
def live(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked")
    write_ranked(folder)
    config = ProcessorConfig(str(folder), sessions=1, user_state_mb=4, **request.param)
    with Processor.initialize(config) as processor, Live(processor.predictor) as live:
        yield live


def infer(history=None, items=(), **parameters):
    """A request: the history in one list, the candidates, and parameters by the choice of their type."""
    made = message("inference.ModelInferRequest")(model_name=MODEL)
    if history is not None:
        made.inputs.add(name="history.item", datatype="INT64", shape=[len(history)])
        made.inputs.add(name="history.row_splits", datatype="INT64", shape=[2])
        made.raw_input_contents.extend([np.array(n, np.int64).tobytes() for n in (history, [0, len(history)])])
    if len(items):
        made.inputs.add(name="item", datatype="INT64", shape=[len(items)])
        made.raw_input_contents.append(np.array(items, np.int64).tobytes())
    for name, value in parameters.items():
        choice = {bool: "bool_param", int: "int64_param", str: "string_param", float: "uint64_param"}[type(value)]
        setattr(made.parameters[name], choice, int(value) if type(value) is float else value)
    return made


def ask(live, *arguments, **parameters):
    return live.infer(infer(*arguments, **parameters), timeout=WAIT_S)


def test_verbs_follow_from_what_is_sent(live):
    assert scores(ask(live, [1, 2], sequence_id=7, sequence_start=True)) == []
    assert scores(ask(live, [3], sequence_id=7)) == []
    kept = scores(ask(live, None, ITEMS, sequence_id=7))
    assert kept == pytest.approx(scores(ask(live, [1, 2, 3], ITEMS)), rel=1e-5)
    # A number of either type, and its digits, are one id.
    for same in (7.0, "7"):
        assert scores(ask(live, None, ITEMS, sequence_id=same)) == kept
    assert scores(ask(live, None, ITEMS, sequence_id=7, sequence_end=True)) == kept
    error = refused(live.infer, infer(None, ITEMS, sequence_id=7))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.details().startswith("sequence_id: nothing is kept under it")


def test_reply_names_the_version_and_another_is_a_conflict(live):
    _, call = live.infer.with_call(infer([1], sequence_id=7, sequence_start=True), timeout=WAIT_S)
    version = int(dict(call.trailing_metadata())["x-sequence-version"])
    ask(live, [2], sequence_id=7, sequence_version=version)
    error = refused(live.infer, infer([2], sequence_id=7, sequence_version=version))
    assert error.code() is grpc.StatusCode.ABORTED


def test_wrong_parameter_is_refused_by_name(live):
    error = refused(live.infer, infer([1], sequence_id=7, sequence_start=1))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "parameters.sequence_start: expected a boolean, got a number"


def test_requests_of_a_stream_are_about_users(live):
    sent = [
        infer([1, 2], sequence_id=7, sequence_start=True),
        infer(None, ITEMS, sequence_id=7),
        infer(None, ITEMS, sequence_id=8),
    ]
    replies = [r for one in sent for r in live.stream(iter([one]), timeout=WAIT_S)]
    assert "sequence_version" in replies[1].infer_response.parameters
    found = np.frombuffer(replies[1].infer_response.raw_output_contents[0], np.float32).tolist()
    assert found == pytest.approx(scores(ask(live, [1, 2], ITEMS)), rel=1e-5)
    assert replies[2].error_message.startswith("sequence_id: nothing is kept under it")


def predict(signature="", history=None, items=(), sequence_id=b"7", version=None):
    numbers = {"history.item": [history] if history is not None else None, "item": list(items) or None}
    numbers["sequence_version"] = version and [version]
    arrays = {name: np.array(values, np.int64) for name, values in numbers.items() if values is not None}
    tensors = ((name, DT_INT64, array.shape, array.tobytes()) for name, array in arrays.items())
    made = predict_request(("sequence_id", DT_STRING, [1], [sequence_id]), *tensors, model=MODEL)
    made.model_spec.signature_name = signature
    return made


def test_tensorflow_serving_names_verbs_by_signatures(live):
    def told(*arguments, **more):
        reply = tfs_predict(live)(predict(*arguments, **more), timeout=WAIT_S)
        assert reply.model_spec.signature_name == "serving_default"
        return list(reply.outputs["score"].float_val)

    assert told("prepare", [1, 2]) == []
    assert told("append", [3]) == []
    kept = told("", None, ITEMS)
    assert kept == pytest.approx(scores(ask(live, [1, 2, 3], ITEMS)), rel=1e-5)
    assert kept == scores(ask(live, None, ITEMS, sequence_id=7))
    assert told("append", [4], ITEMS) == pytest.approx(scores(ask(live, [1, 2, 3, 4], ITEMS)), rel=1e-5)
    assert told("release") == []
    error = refused(tfs_predict(live), predict("", None, ITEMS))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_wrong_ids_of_tensorflow_serving_are_refused(live):
    both = predict("", None, ITEMS)
    both.inputs["sequence_id"].string_val.append(b"8")
    for made in (both, predict("", None, ITEMS, b"x" * 257), predict("", None, ITEMS, version=2**60)):
        error = refused(tfs_predict(live), made)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details().startswith("sequence_")


@pytest.mark.parametrize(
    ("name", "dtype", "content"),
    [
        ("sequence_id", DT_INT64, b"abc"),
        ("sequence_id", DT_FLOAT, b"\0" * 8),
        ("sequence_id", DT_INT32, b"\1\0\0\0" * 2),
        ("sequence_version", DT_INT64, b"abc"),
    ],
)
def test_bytes_that_are_no_int64_are_refused(live, name, dtype, content):
    made = predict("", None, ITEMS)
    made.inputs[name].Clear()
    made.inputs[name].dtype, made.inputs[name].tensor_content = dtype, content
    error = refused(tfs_predict(live), made)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(f"{name}: expected one value, an int64 or a string")
