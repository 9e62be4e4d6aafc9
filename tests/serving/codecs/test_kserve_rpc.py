import numpy as np
import pytest

from freshet_serving.processor.columns import PackedColumns, Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.serving.codecs import kserve_rpc
from freshet_serving.serving.codecs.kserve_header import RequestedOutput
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.codecs.templates import Templates
from tests.serving.fakes import FLAT, PACKED, RAGGED, TWO_OUTPUTS, manifest_of

Request = message("inference.ModelInferRequest")
Response = message("inference.ModelInferResponse")
IDS = np.arange(6, dtype=np.int64).reshape(2, 3)
FLOATS = np.arange(4, dtype=np.float32).reshape(2, 2)


def request(ids=IDS, floats=FLOATS, **more):
    made = Request(model_name="ctr", **more)
    for name, datatype, array in (("ids", "INT64", ids), ("floats", "FP32", floats)):
        made.inputs.add(name=name, datatype=datatype, shape=array.shape)
        made.raw_input_contents.append(array.tobytes())
    return made


def decode(made, manifest=PACKED, templates=None):
    return kserve_rpc.InferDecoder(made.SerializeToString(), templates or Templates()).columns(manifest)


def refusal(made, manifest=PACKED):
    with pytest.raises(BadInput) as caught:
        decode(made, manifest)
    return str(caught.value)


def test_raw_tensors_become_columns():
    inputs, params = decode(request(model_version="3", id="q"))
    np.testing.assert_array_equal(inputs["ids"], IDS)
    np.testing.assert_array_equal(inputs["floats"], FLOATS)
    assert (params.model, params.version, params.id, params.outputs) == (
        "ctr",
        3,
        "q",
        (RequestedOutput("score", True),),
    )


def test_typed_contents_become_columns():
    made = Request(model_name="ctr")
    made.inputs.add(name="user", datatype="INT64", shape=[2]).contents.int64_contents.extend([7, -8])
    made.inputs.add(name="price", datatype="FP32", shape=[2, 1]).contents.fp32_contents.extend([0.5, 2])
    made.inputs.add(name="city", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"a", b"\xff"])
    inputs, _ = decode(made, FLAT)
    assert inputs["user"].tolist() == [7, -8]
    assert inputs["price"].tolist() == [0.5, 2.0]
    assert inputs["city"].tolist() == [b"a", b"\xff"]
    made.inputs[0].contents.fp32_contents.append(1)
    assert "inputs[user].contents: expected int64_contents, got int64_contents, fp32_contents" in refusal(made, FLAT)


def test_ragged_input_is_two_tensors():
    made = Request(model_name="ctr")
    made.inputs.add(name="user", datatype="INT64", shape=[2]).contents.int64_contents.extend([1, 2])
    made.inputs.add(name="seen", datatype="INT64", shape=[3]).contents.int64_contents.extend([4, 5, 6])
    made.inputs.add(name="seen.row_splits", datatype="INT64", shape=[3]).contents.int64_contents.extend([0, 1, 3])
    made.inputs.add(name="tags", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"x")
    made.inputs.add(name="tags.row_splits", datatype="INT64", shape=[3]).contents.int64_contents.extend([0, 0, 1])
    inputs, _ = decode(made, RAGGED)
    assert isinstance(inputs["seen"], Ragged)
    assert isinstance(inputs["tags"].values, Strings)
    assert inputs["seen"].row_splits.tolist() == [0, 1, 3]


def test_request_like_an_earlier_one_is_read_in_place():
    templates = Templates()
    first, _ = decode(request(), templates=templates)
    assert not (isinstance(first, PackedColumns) and first.buffer.startswith(b"\n\x03ctr"))
    data = request(IDS + 100, FLOATS - 1).SerializeToString()
    again = kserve_rpc.InferDecoder(data, templates)
    inputs, params = again.columns(PACKED)
    assert isinstance(inputs, PackedColumns)
    assert inputs.buffer is data
    np.testing.assert_array_equal(inputs["ids"], IDS + 100)
    np.testing.assert_array_equal(inputs["floats"], FLOATS - 1)
    assert params.outputs == (RequestedOutput("score", True),)


def test_similar_request_for_a_different_manifest_is_decoded_again():
    templates = Templates()
    decode(request(), templates=templates)
    other = manifest_of([Input("ids", "int64", 3), Input("floats", "float32", 3)])
    with pytest.raises(BadInput, match=r"inputs\[floats\].shape: expected \[n, 3\]"):
        kserve_rpc.InferDecoder(request().SerializeToString(), templates).columns(other)


@pytest.mark.parametrize(
    ("change", "message_part"),
    [
        (lambda r: r.raw_input_contents.pop(), "raw_input_contents: expected one per input, got 1"),
        (lambda r: r.raw_input_contents.append(b""), "raw_input_contents: expected 2, one per input, got 3"),
        (lambda r: r.inputs[0].contents.int64_contents.append(1), "expected none together with raw_input_contents"),
        (lambda r: r.inputs[0].shape.append(1), "inputs[ids].shape: expected [n, 3]"),
        (lambda r: setattr(r.inputs[0], "datatype", "FP64"), "inputs[ids].datatype: expected INT64, got 'FP64'"),
        (lambda r: setattr(r.inputs[0], "name", "other"), "expected one of ids, floats, each once"),
        (lambda r: r.inputs.pop(), "raw_input_contents: expected 1"),
        (lambda r: r.outputs.add(name="other"), "outputs[0]: expected one of score, each once"),
        (lambda r: r.parameters["timeout"].MergeFrom(message("inference.InferParameter")(int64_param=-1)), "timeout"),
        (
            lambda r: (
                r.outputs.add(name="score")
                .parameters["classification"]
                .MergeFrom(message("inference.InferParameter")(int64_param=2))
            ),
            "classification: not served",
        ),
    ],
)
def test_malformed_request_is_refused_by_name(change, message_part):
    made = request()
    change(made)
    assert message_part in refusal(made)


def test_version_is_a_number():
    with pytest.raises(BadInput, match="model_version: expected a whole number, got 'latest'"):
        decode(request(model_version="latest"))


def test_reply_equals_the_protobuf_runtime_encoding():
    outputs = {"click": np.array([[0.25], [0.5]], np.float32), "topic": np.arange(4, dtype=np.float32).reshape(2, 2)}
    params = kserve_rpc.InferParams(
        "ctr", None, outputs=(RequestedOutput("topic", True), RequestedOutput("click", True))
    )
    for request_id in ("", "q7"):
        reply = Response.FromString(kserve_rpc.encode(outputs, params._replace(id=request_id), 3))
        assert (reply.model_name, reply.model_version, reply.id) == ("ctr", "3", request_id)
        assert [(o.name, o.datatype, list(o.shape)) for o in reply.outputs] == [
            ("topic", "FP32", [2, 2]),
            ("click", "FP32", [2, 1]),
        ]
        assert list(reply.raw_output_contents) == [outputs["topic"].tobytes(), outputs["click"].tobytes()]
    empty = {"click": np.empty((0, 1), np.float32), "topic": np.empty((0, 2), np.float32)}
    assert list(Response.FromString(kserve_rpc.encode(empty, params, 3)).raw_output_contents) == [b"", b""]


def test_only_requested_outputs_are_returned():
    made = Request(model_name="ctr")
    made.inputs.add(name="user", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
    made.outputs.add(name="topic")
    _, params = decode(made, TWO_OUTPUTS)
    assert params.outputs == (RequestedOutput("topic", True),)
