"""Types that a model declared: what requests may hold, what replies hold, the same in every dialect."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.package import Feature, Input, Manifest, Output, ServingSignature
from freshet_serving.serving.client import grpc_transport, http_transport
from freshet_serving.serving.client.prediction import output
from freshet_serving.serving.codecs import examples, kserve, kserve_rpc, tfs_rest, tfs_rpc
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.codecs.templates import Templates
from freshet_serving.serving.codecs.tensor_types import ALL, BY_NAME, as_declared, converted, declared, takes
from freshet_serving.serving.front import catalog
from tests.serving.codecs.infer_requests import binary, tensor
from tests.serving.codecs.predict_requests import DT_FLOAT, predict_request

NUMBERS = [t for t in ALL if t.dtype is not None]
INPUTS = [
    Input("hour", "int64", declared="int32"),
    Input("flag", "int64", declared="bool"),
    Input("price", "float32", columns=2, declared="float64"),
    Input("weight", "float32"),
]
OUTPUTS = [Output("score", dims=[]), Output("label", dims=[], dtype="int64"), Output("grid", 4, dims=[2, 2])]


def make_manifest(inputs=INPUTS, outputs=OUTPUTS, signatures=()):
    features = [Feature(i.name, "floats" if i.dtype == "float32" else "id", i.name, offset=0, width=1) for i in inputs]
    return Manifest("ctr", 1, "imported", 0.0, inputs, features, [], outputs, 1, {}, {}, signatures=list(signatures))


MANIFEST = make_manifest()
PARAMS = tfs_rpc.PredictParams("ctr")
COMPUTED = {
    "score": np.array([[0.25], [0.5]], np.float32),
    "label": np.array([[7.0], [-2.0]], np.float32),
    "grid": np.arange(8, dtype=np.float32).reshape(2, 4),
}


def rpc(**arrays):
    kinds = {t.dtype: t.number for t in NUMBERS}
    tensors = ((name, kinds[array.dtype], array.shape, array.tobytes()) for name, array in arrays.items())
    return predict_request(*tensors).SerializeToString()


def typed(**arrays):
    """Return KServe's message with typed contents."""
    request = message("inference.ModelInferRequest")(model_name="ctr")
    for name, array in arrays.items():
        kind = BY_NAME[array.dtype.name]
        into = request.inputs.add(name=name, datatype=kind.datatype, shape=array.shape)
        getattr(into.contents, kind.contents).extend(array.ravel().tolist())
    return request.SerializeToString()


def raw(**arrays):
    """Return KServe's body with the tensors behind its JSON, and the headers."""
    described = [tensor(n, BY_NAME[a.dtype.name].datatype, list(a.shape), nbytes=a.nbytes) for n, a in arrays.items()]
    return binary(described, [array.tobytes() for array in arrays.values()])


def listed(**arrays):
    """Return KServe's JSON with the values in lists."""
    inputs = [tensor(n, BY_NAME[a.dtype.name].datatype, list(a.shape), a.tolist()) for n, a in arrays.items()]
    return json.dumps({"inputs": inputs}).encode()


def tensorflow(outputs, params=PARAMS, *more):
    """Return the outputs of TensorFlow Serving's reply."""
    reply = tfs_rpc.encode(outputs, params, 1, *more)
    return message("tensorflow.serving.PredictResponse").FromString(reply).outputs


def columns(templates=None, manifest=MANIFEST, **changed):
    sent = {
        "hour": np.array([3, 4], np.int32),
        "flag": np.array([True, False]),
        "price": np.array([[0.1, 2], [3, 4]]),
        "weight": np.array([1, 2], np.float32),
    } | changed
    sent = {name: array for name, array in sent.items() if array is not None}
    return tfs_rpc.PredictDecoder(rpc(**sent), templates or Templates()).columns(manifest)


def test_declared_types_are_accepted_over_grpc():
    found = columns()
    assert found["hour"].tolist() == [3, 4]
    assert found["flag"].tolist() == [1, 0]
    np.testing.assert_array_equal(found["price"], np.array([[0.1, 2], [3, 4]], np.float32))
    assert {n: str(a.dtype) for n, a in found.items()} == {
        "hour": "int64", "flag": "int64", "price": "float32", "weight": "float32",
    }  # fmt: skip


def test_lossless_conversions_are_accepted():
    found = columns(hour=np.array([3, 4]), weight=np.array([1.5, 2.0]), flag=np.array([1, 0], np.int8))
    assert found["hour"].tolist() == [3, 4]
    assert found["weight"].tolist() == [1.5, 2.0]
    assert found["flag"].tolist() == [1, 0]
    assert columns(weight=np.array([1 << 24, 2]))["weight"].tolist() == [1 << 24, 2]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"hour": np.array([1 << 31, 4])}, "hour: expected values that DT_INT32 holds, got 2147483648 (value 0)"),
        ({"hour": np.array([1.0, 2.0], np.float32)}, "hour: Expects arg[0] to be DT_INT32 but DT_FLOAT is provided"),
        ({"flag": np.array([1, 2])}, "flag: expected values that DT_BOOL holds, got 2 (value 1)"),
        ({"weight": np.array([1.0, 0.1])}, "weight: expected values that DT_FLOAT holds, got 0.1 (value 1)"),
        ({"weight": np.array([1, (1 << 24) + 1])}, "weight: expected values that DT_FLOAT holds, got 16777217"),
    ],
)
def test_lossy_conversions_are_refused_by_name(changed, told):
    with pytest.raises(BadInput) as caught:
        columns(**changed)
    assert told in str(caught.value)


@pytest.mark.parametrize("model", NUMBERS)
@pytest.mark.parametrize("sent", NUMBERS)
def test_every_type_holds_zero_and_one_of_every_other(model, sent):
    spec = Input("x", "float32" if model.dtype.kind == "f" else "int64", declared=model.name)
    if takes(spec, sent):
        assert converted(spec, np.array([0, 1], sent.dtype)).tolist() == [0, 1]
        assert not len(converted(spec, np.array([], sent.dtype)))


def test_integers_become_floats_up_to_two_to_the_24th():
    spec = Input("weight", "float32")
    for number in (2**24, -(2**24)):
        assert converted(spec, np.array([number])).tolist() == [number]
        with pytest.raises(BadInput, match="weight"):
            converted(spec, np.array([number + np.sign(number) * 2]))
    assert converted(spec, np.array([2**24], np.uint32)).tolist() == [2**24]


def test_converted_request_makes_no_template():
    templates = Templates()
    columns(templates)
    assert columns(templates, hour=np.array([5, 6], np.int32))["hour"].tolist() == [5, 6]


def test_kserve_accepts_the_same_types_in_every_encoding():
    sent = {
        "hour": np.array([3, 4], np.int32),
        "flag": np.array([True, False]),
        "price": np.array([[0.1, 2], [3, 4]]),
        "weight": np.array([1, 2], np.float32),
    }
    found, _ = kserve.decode(*raw(**sent), MANIFEST)
    as_lists, _ = kserve.decode(listed(**sent), {}, MANIFEST)
    as_message, _ = kserve_rpc.InferDecoder(typed(**sent), Templates()).columns(MANIFEST)
    for name in sent:
        for other in (as_lists, as_message):
            np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(other[name]))
    assert found["flag"].tolist() == [1, 0]


def test_kserve_refuses_an_int64_that_exceeds_int32():
    manifest = make_manifest([Input("hour", "int64", declared="int32")])
    for _ in range(2):
        with pytest.raises(BadInput, match="hour: expected values that DT_INT32 holds, got 4294967296"):
            kserve.decode(*raw(hour=np.array([1 << 32])), manifest)


@pytest.mark.parametrize(
    ("datatype", "value", "told"),
    [("UINT8", 300, "DT_UINT8 holds, got 300"), ("INT8", -129, "DT_INT8 holds, got -129"), ("BOOL", 2, "DT_BOOL")],
)
@pytest.mark.parametrize(
    ("dtype", "declared"), [("int64", ""), ("int64", "uint32"), ("int64", "uint64"), ("float32", "")]
)
def test_kserve_refuses_json_beyond_the_type_that_it_names(dtype, declared, datatype, value, told):
    manifest = make_manifest([Input("hour", dtype, declared=declared)])

    def decode(number):
        tensor = {"name": "hour", "datatype": datatype, "shape": [1], "data": [number]}
        return kserve.decode(json.dumps({"inputs": [tensor]}).encode(), {}, manifest)[0]["hour"].tolist()

    assert decode(1) == [1]
    with pytest.raises(BadInput, match=f"hour: expected values that {told}"):
        decode(value)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16"])
def test_kserve_refuses_contents_beyond_the_type_that_they_name(name):
    kind, manifest = BY_NAME[name], make_manifest([Input("hour", "int64")])
    low, high = np.iinfo(kind.dtype).min, np.iinfo(kind.dtype).max
    request = message("inference.ModelInferRequest")()
    into = request.inputs.add(name="hour", datatype=kind.datatype, shape=[2])
    contents = getattr(into.contents, kind.contents)
    contents.extend([low, high])

    def decode():
        return kserve_rpc.InferDecoder(request.SerializeToString(), Templates()).columns(manifest)[0]["hour"]

    assert decode().tolist() == [low, high]
    contents[1] = high + 1
    with pytest.raises(BadInput, match=rf"hour: expected values that {kind.dt} holds, got {high + 1} \(value 1\)"):
        decode()


@pytest.mark.parametrize("declared", ["uint32", "uint64"])
def test_kserve_refuses_json_beyond_a_signed_type_for_unsigned_inputs(declared):
    manifest = make_manifest([Input("hour", "int64", declared=declared)])
    tensor = {"name": "hour", "datatype": "INT8", "shape": [1], "data": [300]}
    with pytest.raises(BadInput, match="hour: expected values that DT_INT8 holds, got 300"):
        kserve.decode(json.dumps({"inputs": [tensor]}).encode(), {}, manifest)
    tensor["data"] = [-1]
    with pytest.raises(BadInput, match=r"hour: expected values that DT_UINT(32|64) holds, got -1"):
        kserve.decode(json.dumps({"inputs": [tensor]}).encode(), {}, manifest)


def test_whole_numbers_and_booleans_of_kserve_json_may_fill_floats():
    manifest = make_manifest([Input("weight", "float32")])

    def decode(datatype, *values):
        tensor = {"name": "weight", "datatype": datatype, "shape": [len(values)], "data": values}
        return kserve.decode(json.dumps({"inputs": [tensor]}).encode(), {}, manifest)[0]["weight"]

    assert decode("BOOL", True, False).tolist() == [1, 0]
    assert decode("INT32", 3, -(2**31)).tolist() == [3, -(2**31)]
    # Rounded, as other numbers of JSON are.
    assert decode("INT64", 2**24 + 1).tolist() == [2**24]
    assert decode("UINT64", 2**64 - 1).tolist() == [2.0**64]
    assert decode("UINT64", 1).dtype == np.float32
    for value in (0.5, 1.0, None):
        with pytest.raises(BadInput, match=r"weight: JSON Value: .* is not of expected type: DT_INT32"):
            decode("INT32", value)
    with pytest.raises(BadInput, match=r"weight: .* is out of range"):
        decode("UINT64", -1)


def test_json_accepts_booleans_only_where_declared():
    row = {"hour": 3, "flag": True, "price": [0.1, 2], "weight": 1}
    found, _ = tfs_rest.decode(json.dumps({"instances": [row]}).encode(), {}, MANIFEST)
    assert found["flag"].tolist() == [1]
    with pytest.raises(BadInput, match=r"hour: JSON Value: true .* is not of expected type: DT_INT32"):
        tfs_rest.decode(json.dumps({"instances": [row | {"hour": True}]}).encode(), {}, MANIFEST)
    with pytest.raises(BadInput, match="hour: expected values that DT_INT32 holds, got 2147483648"):
        tfs_rest.decode(json.dumps({"instances": [row | {"hour": 1 << 31}]}).encode(), {}, MANIFEST)


def test_replies_have_the_declared_shapes_and_types():
    found = as_declared(COMPUTED, MANIFEST)
    row, column = tfs_rest.PredictOptions(row=True), tfs_rest.PredictOptions(row=False)
    assert json.loads(tfs_rest.encode(found, row))["predictions"] == [
        {"score": 0.25, "label": 7, "grid": [[0.0, 1.0], [2.0, 3.0]]},
        {"score": 0.5, "label": -2, "grid": [[4.0, 5.0], [6.0, 7.0]]},
    ]
    assert json.loads(tfs_rest.encode(found, column))["outputs"]["score"] == [0.25, 0.5]
    assert b'"label":[7,-2]' in tfs_rest.encode(found, column)
    outputs = tensorflow(found)
    assert list(outputs["label"].int64_val) == [7, -2]
    assert [d.size for d in outputs["score"].tensor_shape.dim] == [2]
    assert [d.size for d in outputs["grid"].tensor_shape.dim] == [2, 2, 2]
    options = kserve.InferOptions(tuple(kserve.RequestedOutput(o.name, False) for o in OUTPUTS))
    tensors = json.loads(kserve.encode(found, options, "ctr", 1)[0])["outputs"]
    assert [(t["datatype"], t["shape"]) for t in tensors] == [("FP32", [2]), ("INT64", [2]), ("FP32", [2, 2, 2])]
    rpc_reply = message("inference.ModelInferResponse").FromString(
        kserve_rpc.encode(found, kserve_rpc.InferParams("ctr", 1, outputs=options.outputs), 1)
    )
    assert [t.datatype for t in rpc_reply.outputs] == ["FP32", "INT64", "FP32"]
    assert np.frombuffer(rpc_reply.raw_output_contents[1], "<i8").tolist() == [7, -2]


def test_metadata_lists_the_declared_types():
    described = catalog.model_metadata(MANIFEST, "ctr", [1])
    assert [(i["name"], i["datatype"]) for i in described["inputs"]] == [
        ("hour", "INT32"), ("flag", "BOOL"), ("price", "FP64"), ("weight", "FP32"),
    ]  # fmt: skip
    assert [(o["datatype"], o["shape"]) for o in described["outputs"]] == [
        ("FP32", [-1]), ("INT64", [-1]), ("FP32", [-1, 2, 2]),
    ]  # fmt: skip
    signature = catalog.signatures(MANIFEST)["signature_def"]["serving_default"]
    assert signature["inputs"]["flag"]["dtype"] == "DT_BOOL"
    assert [d["size"] for d in signature["outputs"]["score"]["tensor_shape"]["dim"]] == ["-1"]
    assert catalog.model_config(MANIFEST, "ctr")["output"][1]["data_type"] == "TYPE_INT64"


def test_outputs_of_native_models_are_returned_unchanged():
    computed = {"score": np.zeros((2, 1), np.float32)}
    assert as_declared(computed, make_manifest(outputs=[Output("score")])) is computed


@given(st.data())
def test_accepted_values_equal_the_sent_ones(data):
    spec = data.draw(st.sampled_from([Input("x", "int64", declared=d) for d in ("", "int8", "uint32", "bool")] + [
        Input("x", "float32"), Input("x", "float32", declared="float16"),
    ]))  # fmt: skip
    sent = data.draw(st.sampled_from(NUMBERS))
    values = data.draw(hnp.arrays(sent.dtype, st.integers(0, 4)))
    if not takes(spec, sent):
        assert spec.dtype == "int64"
        assert sent.dtype.kind == "f"
        return
    try:
        found = converted(spec, values)
    except BadInput:
        return
    assert found.dtype == np.dtype(spec.dtype)
    for mine, theirs in zip(found.tolist(), values.tolist()):
        assert mine == theirs or (mine != mine and theirs != theirs)


def test_every_type_has_one_name_in_each_protocol():
    assert len({t.number for t in ALL}) == len({t.datatype for t in ALL}) == len(ALL)
    assert declared(Input("x", "int64")) is BY_NAME["int64"]


NESTED = make_manifest([Input("x", "float32", 12, dims=[2, 3, 2]), Input("one", "int64", dims=[1])], [Output("score")])
VALUES = np.arange(24, dtype=np.float32).reshape(2, 2, 3, 2)


def test_multidimensional_rows_are_accepted_in_both_shapes():
    wanted = VALUES.reshape(2, 12)
    for x, one in ((VALUES, np.array([[1], [2]])), (wanted, np.array([1, 2]))):
        document = json.dumps({"inputs": {"x": x.tolist(), "one": one.tolist()}}).encode()
        rest, _ = tfs_rest.decode(document, {}, NESTED)
        over_grpc = columns(None, NESTED, x=x, one=one, hour=None, flag=None, price=None, weight=None)
        infer, _ = kserve.decode(listed(x=x, one=one), {}, NESTED)
        for found in (rest, over_grpc, infer):
            np.testing.assert_array_equal(found["x"], wanted)
            assert np.ravel(found["one"]).tolist() == [1, 2]
    assert [i["shape"] for i in catalog.model_metadata(NESTED, "ctr", [1])["inputs"]] == [[-1, 2, 3, 2], [-1, 1]]


@pytest.mark.parametrize(
    "rows",
    [
        VALUES.reshape(2, 3, 2, 2).tolist(),
        VALUES.reshape(2, 6, 2).tolist(),
        [VALUES[0].tolist(), 1],
        [VALUES[0].tolist(), [[[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [5]]]],
        [VALUES[0].tolist(), [[[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4, 5], [6]]]],
        [VALUES[0].tolist(), VALUES[0].ravel().tolist()],
        [[[1]]],
    ],
)
def test_rows_with_a_wrong_shape_are_refused(rows):
    with pytest.raises(BadInput, match=r"x: .* shape|x: Encountered list"):
        tfs_rest.decode(json.dumps({"inputs": {"x": rows, "one": [1, 2]}}).encode(), {}, NESTED)


LABELS = ["cat", "\u00e9mu"]
NAMED = make_manifest(
    outputs=[Output("name", dims=[], dtype="string", labels=LABELS), Output("score", 2)],
    signatures=[
        ServingSignature("serving_default", outputs={"name": "name"}),
        ServingSignature("scores", outputs={"scores": "score"}),
    ],
)


def named():
    computed = {"name": np.array([[1.0], [0.0]], np.float32), "score": np.array([[1, 2], [3, 4]], np.float32)}
    return computed, as_declared(computed, NAMED)


def test_signatures_reply_with_their_own_outputs():
    computed, default = named()
    assert list(default) == ["name"]
    found = as_declared(computed, NAMED, "scores")
    assert (list(found), found["scores"].tolist()) == (["scores"], [[1.0, 2.0], [3.0, 4.0]])
    signatures = catalog.signatures(NAMED)["signature_def"]
    assert {name: list(s["outputs"]) for name, s in signatures.items()} == {
        "serving_default": ["name"],
        "scores": ["scores"],
    }
    assert [o["name"] for o in catalog.model_metadata(NAMED, "ctr", [1])["outputs"]] == ["name"]
    assert [o["name"] for o in catalog.model_config(NAMED, "ctr")["output"]] == ["name"]


def test_strings_are_replied_in_json_and_messages():
    _, found = named()
    texts = LABELS[::-1]
    both = found | {"score": np.zeros(2, np.float32)}
    assert json.loads(tfs_rest.encode(found, tfs_rest.PredictOptions(row=True))) == {"predictions": texts}
    assert json.loads(tfs_rest.encode(both, tfs_rest.PredictOptions(row=True)))["predictions"] == [
        {"name": text, "score": 0.0} for text in texts
    ]
    assert json.loads(tfs_rest.encode(both, tfs_rest.PredictOptions(row=False)))["outputs"]["name"] == texts
    assert [text.decode() for text in tensorflow(found)["name"].string_val] == texts
    processor = eas.Response.FromString(eas.encode(found))
    assert [text.decode() for text in processor.outputs["name"].string_val] == texts


@pytest.mark.parametrize("binary", [True, False])
def test_strings_are_replied_by_kserve_in_bytes(binary):
    _, found = named()
    options = kserve.InferOptions((kserve.RequestedOutput("name", binary),), plain=binary)
    body, kinds = kserve.encode(found, options, "ctr", 1)
    texts = LABELS[::-1]
    if not binary:
        (tensor,) = json.loads(body)["outputs"]
        assert (tensor["datatype"], tensor["data"]) == ("BYTES", texts)
        return
    headers = {name.decode(): value.decode() for name, value in kinds}
    assert http_transport.decode(200, headers, body).outputs["name"].tolist() == texts
    rpc_reply = kserve_rpc.encode(found, kserve_rpc.InferParams("ctr", 1, outputs=options.outputs), 1)
    assert grpc_transport.decode(rpc_reply, ()).outputs["name"].tolist() == texts


def test_client_refuses_strings_that_do_not_fill_their_output():
    for data, shape in ((b"\1\0\0\0a", [2]), (b"\2\0\0\0a", [1]), (b"\0", [0]), (b"", [-1])):
        with pytest.raises(FreshetError, match="do not fill output 'name'"):
            output("name", "BYTES", shape, data)


def test_tensor_without_dimensions_is_one_row():
    manifest = make_manifest(inputs=[Input("x", "float32")], outputs=[Output("y", dims=[])])
    request = predict_request(("x", DT_FLOAT, [], [2.0]))
    decoder = tfs_rpc.PredictDecoder(request.SerializeToString(), Templates())
    assert decoder.columns(manifest)["x"].tolist() == [2.0]
    assert decoder.scalar
    output = tensorflow({"y": np.array([3.0], np.float32)}, decoder.params, decoder.scalar)["y"]
    assert (list(output.float_val), list(output.tensor_shape.dim)) == ([3.0], [])


def test_halves_arrive_with_all_their_bits():
    request = predict_request(("x", BY_NAME["float16"].number, [2], b""))
    request.inputs["x"].half_val.extend([0x3C01, 0xBC01])
    decoder = tfs_rpc.PredictDecoder(request.SerializeToString(), Templates())
    manifest = make_manifest(inputs=[Input("x", "float32")], outputs=[Output("y", dims=[])])
    assert decoder.columns(manifest)["x"].tolist() == [1 + 2**-10, -1 - 2**-10]


@pytest.mark.parametrize("kind", NUMBERS, ids=lambda kind: kind.name)
def test_every_type_of_numbers_has_a_field_of_its_own(kind):
    getattr(message("tensorflow.TensorProto")(dtype=kind.number), kind.field).append(1)
    assert len(getattr(tensorflow({"y": np.ones(2, kind.dtype)})["y"], kind.field)) == 2


HASHES = [5, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1]
CARRIED = np.array(HASHES, np.uint64).view(np.int64).tolist()
HASHED = make_manifest(
    [Input("id", "int64", declared="uint64"), Input("seen", "int64", ragged=True, declared="uint64")]
)


def hashed_columns(ids):
    """Return what each dialect makes of the ids, and of lists with one id each; BadInput where it refuses them."""
    rows = [{"id": n, "seen": [n]} for n in ids]
    body = json.dumps({"inputs": {"id": ids, "seen": [[n] for n in ids]}}).encode()
    yield lambda: tfs_rest.decode(body, {}, HASHED)[0]
    yield lambda: tfs_rest.decode(json.dumps({"instances": rows}).encode(), {}, HASHED)[0]
    splits = tensor("seen.row_splits", "INT64", [len(ids) + 1], list(range(len(ids) + 1)))
    tensors = [*(tensor(name, "UINT64", [len(ids)], ids) for name in ("id", "seen")), splits]
    yield lambda: kserve.decode(json.dumps({"inputs": tensors}).encode(), {}, HASHED)[0]
    signed = min(ids) < 0
    values = np.array(ids, np.int64 if signed else np.uint64)
    arrays = {"id": values, "seen": values, "seen.row_splits": np.arange(len(ids) + 1)}
    yield lambda: tfs_rpc.PredictDecoder(rpc(**arrays), Templates()).columns(HASHED)
    yield lambda: kserve_rpc.InferDecoder(typed(**arrays), Templates()).columns(HASHED)[0]
    yield lambda: kserve.decode(*raw(**arrays), HASHED)[0]
    if not signed:
        yield lambda: examples.columns(*examples.of_json(rows, {}), HASHED)


def test_every_dialect_carries_the_bits_of_uint64():
    for read in hashed_columns(HASHES):
        found = read()
        assert found["id"].tolist() == found["seen"].values.tolist() == CARRIED
        assert found["id"].dtype == np.int64


def test_negative_number_for_uint64_is_refused_with_its_range():
    for read in hashed_columns([7, -1]):
        with pytest.raises(BadInput, match=r"(id|seen): .*-1.*0 to 18446744073709551615"):
            read()


def test_json_number_beyond_uint64_is_refused():
    with pytest.raises(BadInput, match=r"id: .*DT_UINT64"):
        tfs_rest.decode(b'{"inputs": {"id": [18446744073709551616], "seen": [[1]]}}', {}, HASHED)


def test_example_messages_carry_the_bits_of_uint64():
    wrapped = message("tensorflow.serving.Input")()
    for carried in CARRIED:
        features = wrapped.example_list.examples.add().features.feature
        features["id"].int64_list.value.append(carried)
        features["seen"].int64_list.value.append(carried)
    found = examples.columns(*examples.of_message(wrapped), HASHED)
    assert found["id"].tolist() == found["seen"].values.tolist() == CARRIED


def test_deeprec_message_carries_the_bits_of_uint64():
    request = eas.Request()
    array = request.inputs["id"]
    array.dtype = 9
    array.array_shape.dim.append(len(CARRIED))
    array.int64_val.extend(CARRIED)
    found, _ = eas.decode(request.SerializeToString(), make_manifest(HASHED.inputs[:1]))
    assert found["id"].tolist() == CARRIED


def test_ids_of_uint64_are_replied_without_sign():
    manifest = make_manifest(outputs=[Output("item_ids", dtype="uint64")])
    replied = as_declared({"item_ids": np.array([CARRIED])}, manifest)
    assert replied["item_ids"].tolist() == [HASHES]


OWN = "user:age/in years"
RENAMED = Manifest(
    "ctr", 1, "imported", 0.0, [Input("user_age", "float32"), Input("tags", "int64", ragged=True)],
    [Feature("user_age", "floats", "user_age")], [], [Output("p_click")], 1, {}, {},
    signatures=[ServingSignature("serving_default", outputs={"p:click": "p_click"})],
    own_names={OWN: "user_age", "my tags": "tags"},
)  # fmt: skip
SENT = {"user_age": [1.5, 2.5], "tags": [[1, 2], [3]]}


def arrays_named(age, tags):
    return {
        age: np.array(SENT["user_age"], np.float32),
        tags: np.array([1, 2, 3]),
        f"{tags}.row_splits": np.array([0, 2, 3]),
    }


def read_by(dialect, age, tags):
    """Return the inputs of a request of a dialect with these names."""
    arrays, rows = arrays_named(age, tags), [dict(zip((age, tags), row)) for row in zip(*SENT.values())]
    if dialect == "columns":
        return tfs_rest.decode(json.dumps({"inputs": dict(zip((age, tags), SENT.values()))}).encode(), {}, RENAMED)[0]
    if dialect == "rows":
        return tfs_rest.decode(json.dumps({"instances": rows}).encode(), {}, RENAMED)[0]
    if dialect == "examples":
        return examples.columns(*examples.of_json(rows, {}), RENAMED)
    if dialect == "tfs rpc":
        return tfs_rpc.PredictDecoder(rpc(**arrays), Templates()).columns(RENAMED)
    if dialect == "kserve rpc":
        return kserve_rpc.InferDecoder(typed(**arrays), Templates()).columns(RENAMED)[0]
    return kserve.decode(listed(**arrays), {}, RENAMED)[0]


DIALECTS = ("columns", "rows", "examples", "tfs rpc", "kserve", "kserve rpc")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_inputs_have_the_models_own_names_and_plain_ones(dialect):
    for names in ((OWN, "my tags"), ("user_age", "tags"), (OWN, "tags")):
        inputs = read_by(dialect, *names)
        assert np.asarray(inputs["user_age"]).tolist() == [1.5, 2.5]
        assert (inputs["tags"].values.tolist(), inputs["tags"].row_splits.tolist()) == ([1, 2, 3], [0, 2, 3])


def test_own_and_plain_name_of_one_input_are_refused_together():
    both = {OWN: [1.5], "user_age": [1.5], "tags": [[1]]}
    for body in ({"inputs": both}, {"instances": [{OWN: 1.5, "user_age": 1.5, "tags": [1]}]}):
        with pytest.raises(BadInput, match="expected one of 'user:age/in years' and 'user_age', got both"):
            tfs_rest.decode(json.dumps(body).encode(), {}, RENAMED)


def test_replies_and_metadata_have_the_models_own_names():
    computed = {"p_click": np.array([[0.5]], np.float32)}
    assert list(as_declared(computed, RENAMED)) == ["p:click"]
    assert as_declared(computed, RENAMED, asked=["p_click"])["p_click"].tolist() == [[0.5]]
    infer = json.loads(listed(**arrays_named(OWN, "my tags"))) | {"outputs": [{"name": "p_click"}]}
    _, options = kserve.decode(json.dumps(infer).encode(), {}, RENAMED)
    assert [output.name for output in options.outputs] == ["p_click"]
    metadata, config = catalog.model_metadata(RENAMED, "ctr", [1]), catalog.model_config(RENAMED, "ctr")
    names = [OWN, "my tags", "my tags.row_splits"]
    assert [i["name"] for i in metadata["inputs"]] == [i["name"] for i in config["input"]] == names
    assert [o["name"] for o in metadata["outputs"]] == [o["name"] for o in config["output"]] == ["p:click"]
    signature = catalog.signatures(RENAMED)["signature_def"]["serving_default"]
    assert (list(signature["inputs"]), list(signature["outputs"])) == ([OWN, "my tags"], ["p:click"])


def test_own_names_are_learned_as_templates_too():
    manifest = dataclasses.replace(RENAMED, inputs=RENAMED.inputs[:1], own_names={OWN: "user_age"})
    templates = Templates()
    for value in (1.5, 2.5):
        data = rpc(**{OWN: np.array([value], np.float32)})
        assert tfs_rpc.PredictDecoder(data, templates).columns(manifest)["user_age"].tolist() == [value]
    assert templates.find(data) is not None
