import numpy as np
import pytest

from freshet_serving.processor.columns import PackedColumns
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.serving.codecs import tfs_rpc
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.codecs.templates import Templates
from tests.serving.codecs.predict_requests import DT_FLOAT, DT_INT64, DT_STRING, predict_request
from tests.serving.fakes import FLAT, FOLLOWING, PACKED, RAGGED, TWO_OUTPUTS

Response = message("tensorflow.serving.PredictResponse")
IDS = np.arange(6, dtype=np.int64).reshape(2, 3)
FLOATS = np.arange(4, dtype=np.float32).reshape(2, 2)


def request(ids=IDS, floats=FLOATS, content=True):
    arrays = (("ids", DT_INT64, ids), ("floats", DT_FLOAT, floats))
    return predict_request(*((n, d, a.shape, a.tobytes() if content else a.ravel()) for n, d, a in arrays))


def decode(made, manifest=PACKED, templates=None):
    return tfs_rpc.PredictDecoder(made.SerializeToString(), templates or Templates()).columns(manifest)


def refusal(made, manifest=PACKED):
    with pytest.raises(BadInput) as caught:
        decode(made, manifest)
    return str(caught.value)


@pytest.mark.parametrize("content", [True, False])
def test_tensors_arrive_as_content_or_as_values(content):
    inputs = decode(request(content=content))
    np.testing.assert_array_equal(inputs["ids"], IDS)
    np.testing.assert_array_equal(inputs["floats"], FLOATS)


def test_missing_values_repeat_the_last_one():
    made = predict_request(
        ("user", DT_INT64, [3], [7]), ("price", DT_FLOAT, [3, 1], [1, 2]), ("city", DT_STRING, [3], [b"a", b"bc"])
    )
    inputs = decode(made, FLAT)
    assert inputs["user"].tolist() == [7, 7, 7]
    assert inputs["price"].tolist() == [1, 2, 2]
    assert inputs["city"].tolist() == [b"a", b"bc", b"bc"]
    made.inputs["user"].tensor_shape.dim[0].size = 2**31 - 1
    with pytest.raises(TooLarge, match="max_rows: expected at most 65536 rows per request, got 2147483647 in user"):
        decode(made, FLAT)
    made.inputs["user"].tensor_shape.dim[0].size = 3
    made.inputs["city"].tensor_shape.dim[0].size = 65536
    made.inputs["city"].string_val[1] = b"x" * 2000
    with pytest.raises(TooLarge, match=r"max_body_bytes: .* of repeated values, got 131592292 with city;"):
        decode(made, FLAT)
    made.inputs["city"].tensor_shape.dim[0].size = 3
    for name, field in (("user", "int64_val"), ("price", "float_val"), ("city", "string_val")):
        made.inputs[name].ClearField(field)
    inputs = decode(made, FLAT)
    assert inputs["user"].tolist() == inputs["price"].tolist() == [0, 0, 0]
    assert inputs["city"].tolist() == [b""] * 3


def test_values_in_the_field_of_another_type_are_refused():
    made = predict_request(("user", DT_INT64, [2], []), ("price", DT_FLOAT, [1], [1]), ("city", DT_STRING, [1], [b"a"]))
    made.inputs["user"].int_val.extend([3, 4])
    with pytest.raises(BadInput, match="user: expected int64_val or tensor_content, got int_val"):
        decode(made, FLAT)
    made.inputs["user"].int64_val.extend([5, 6])
    assert decode(made, FLAT)["user"].tolist() == [5, 6]


@pytest.mark.parametrize(("dtype", "low", "high"), [(4, 0, 255), (5, -(2**15), 2**15 - 1), (6, -128, 127)])
def test_number_beyond_the_narrow_type_of_its_tensor_is_refused(dtype, low, high):
    made = predict_request(
        ("user", DT_INT64, [2], b""), ("price", DT_FLOAT, [1], [1]), ("city", DT_STRING, [1], [b"a"])
    )
    made.inputs["user"].dtype = dtype
    made.inputs["user"].int_val.extend([low, high])
    assert decode(made, FLAT)["user"].tolist() == [low, high]
    for beyond in (low - 1, high + 1):
        made.inputs["user"].int_val[1] = beyond
        with pytest.raises(BadInput, match=rf"user: expected values that DT_U?INT\d+ holds, got {beyond} \(value 1\)"):
            decode(made, FLAT)


def test_ragged_input_is_a_row_tensor_or_values_and_splits():
    made = predict_request(
        ("user", DT_INT64, [2], [1, 2]),
        ("seen", DT_INT64, [2, 2], [1, 2, 3, 4]),
        ("tags", DT_STRING, [3], [b"a", b"b", b"c"]),
        ("tags.row_splits", DT_INT64, [3], [0, 1, 3]),
    )
    inputs = decode(made, RAGGED)
    assert inputs["seen"].row_splits.tolist() == [0, 2, 4]
    assert inputs["tags"].row_splits.tolist() == [0, 1, 3]


@pytest.mark.parametrize("content", [True, False])
def test_request_like_an_earlier_one_is_read_in_place(content):
    templates = Templates()
    decode(request(content=content), templates=templates)
    data = request(IDS + 1, FLOATS + 1, content).SerializeToString()
    inputs = tfs_rpc.PredictDecoder(data, templates).columns(PACKED)
    # Integers as *_val have no fixed width.
    assert isinstance(inputs, PackedColumns) == content
    np.testing.assert_array_equal(inputs["ids"], IDS + 1)
    np.testing.assert_array_equal(inputs["floats"], FLOATS + 1)


def test_version_label_and_signature_are_read():
    made = request()
    made.model_spec.version.value = 3
    made.model_spec.signature_name = "serving_default"
    made.output_filter.append("score")
    params = tfs_rpc.PredictDecoder(made.SerializeToString(), Templates()).params
    assert params == tfs_rpc.PredictParams("ctr", 3, None, "serving_default", ("score",))
    made.model_spec.version_label = "stable"
    assert tfs_rpc.PredictDecoder(made.SerializeToString(), Templates()).params[1:3] == (None, "stable")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda r: r.ClearField("model_spec"), "Missing ModelSpec"),
        (lambda r: setattr(r.model_spec, "signature_name", "other"), "Serving signature name: 'other' not found"),
        (lambda r: setattr(r.model_spec.version, "value", -1), "model_spec.version: expected 0 or more"),
        (lambda r: r.inputs.pop("ids"), "Missing but required: {ids}"),
        (lambda r: r.inputs["more"].MergeFrom(r.inputs["ids"]), "Sent extra: {'more'}"),
        (
            lambda r: setattr(r.inputs["ids"], "dtype", 2),
            "ids: Expects arg[0] to be DT_INT64 but DT_DOUBLE is provided",
        ),
        (lambda r: setattr(r.inputs["ids"], "dtype", 77), "DT_INT64 but 77 is provided"),
        (lambda r: r.inputs["ids"].tensor_shape.ClearField("dim"), "ids: expected shape [n,3], got []"),
        (lambda r: setattr(r.inputs["ids"].tensor_shape.dim[0], "size", -1), "dimensions from 0"),
        (lambda r: setattr(r.inputs["ids"].tensor_shape.dim[1], "size", 2), "ids: expected shape [n,3], got [2, 2]"),
        (
            lambda r: setattr(r.inputs["ids"].tensor_shape.dim[0], "size", 3),
            "expected 72 bytes of tensor_content, got 48",
        ),
        (lambda r: r.inputs["ids"].int64_val.append(1), "bytes of tensor_content, got 48 and values"),
        (lambda r: r.output_filter.append("other"), "output tensor alias not found in signature: 'other'"),
        (lambda r: r.output_filter.extend(["score", "score"]), "duplicate output tensor alias: 'score'"),
    ],
)
def test_malformed_request_is_refused_by_name(change, part):
    made = request()
    change(made)
    assert part in refusal(made)


def test_reply_equals_the_protobuf_runtime_encoding():
    outputs = {"click": np.array([[0.25], [0.5]], np.float32), "topic": np.arange(4, dtype=np.float32).reshape(2, 2)}
    reply = Response.FromString(tfs_rpc.encode(outputs, tfs_rpc.PredictParams("ctr", signature="serving_default"), 3))
    assert reply.model_spec.name == "ctr"
    assert reply.model_spec.version.value == 3
    assert reply.model_spec.signature_name == "serving_default"
    assert set(reply.outputs) == {"click", "topic"}
    topic = reply.outputs["topic"]
    assert (topic.dtype, [d.size for d in topic.tensor_shape.dim]) == (DT_FLOAT, [2, 2])
    assert list(topic.float_val) == [0, 1, 2, 3]
    only = Response.FromString(tfs_rpc.encode(outputs, tfs_rpc.PredictParams("ctr", outputs=("click",)), 3))
    assert list(only.outputs) == ["click"]
    assert list(only.outputs["click"].float_val) == [0.25, 0.5]


def test_one_output_of_two_can_be_requested():
    made = predict_request(("user", DT_INT64, [1], [1]))
    made.output_filter.append("topic")
    assert decode(made, TWO_OUTPUTS)["user"].tolist() == [1]


@pytest.mark.parametrize(("shape", "each", "total"), [([2, 1], [2, 1], [2, 1]), ([2], [2], [2, 1]), ([], [], [1])])
def test_output_follows_the_rank_of_the_request(shape, each, total):
    made, templates = predict_request(("x", DT_FLOAT, shape, [1.0] * int(np.prod(shape)))), Templates()
    for _ in range(3):
        decoder = tfs_rpc.PredictDecoder(made.SerializeToString(), templates)
        rows = len(decoder.columns(FOLLOWING)["x"])
        outputs = {name: np.full((rows, 1), value, np.float32) for name, value in (("each", 3), ("total", 5))}
        reply = Response.FromString(tfs_rpc.encode(outputs, decoder.params, 1, decoder.scalar, decoder.flat))
        assert {name: [d.size for d in t.tensor_shape.dim] for name, t in reply.outputs.items()} == {
            "each": each, "total": total,
        }  # fmt: skip


def test_reply_may_have_no_rows():
    params = tfs_rpc.PredictParams("ctr", None, None, "", ())
    reply = tfs_rpc.Response.FromString(tfs_rpc.encode({"score": np.empty((0, 1), np.float32)}, params, 1))
    assert [dim.size for dim in reply.outputs["score"].tensor_shape.dim] == [0, 1]
