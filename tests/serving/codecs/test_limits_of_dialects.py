"""Every dialect refuses a request beyond a limit by that limit's name, from lengths and shapes.

None of these requests has the values that it speaks of, or they are of a wrong type, so that whoever looked at them
would say something else.
"""

import json
import tracemalloc

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.features.limits import RequestLimits, RequestSize
from freshet_serving.serving.codecs import examples, kserve, kserve_rpc, tfs_rest, tfs_rpc
from freshet_serving.serving.codecs.kserve import HEADER_LENGTH
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.codecs.templates import Templates
from tests.serving.codecs.predict_requests import predict_request
from tests.serving.fakes import FLAT, PACKED, RAGGED, SINGLE

LIMITS = RequestLimits(max_rows=10, max_ids=60, max_nodes=200, max_json_bytes=4000)
BOTH = ("rows", "ids")


def rest(document, manifest=PACKED):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return tfs_rest.decode(body, {}, manifest, LIMITS)


def classify(document):
    return tfs_rest.decode_examples(json.dumps(document).encode(), {}, FLAT, "classify", LIMITS)


def infer(tensors, manifest=PACKED, binary=False):
    described = [dict(zip(("name", "datatype", "shape"), tensor)) | tensor[3] for tensor in tensors]
    body = json.dumps({"inputs": described}).encode()
    return kserve.decode(body, {HEADER_LENGTH: b"%d" % len(body)} if binary else {}, manifest, LIMITS)


def infer_message(shapes, manifest=PACKED, raw=False):
    made = message("inference.ModelInferRequest")(model_name="ctr")
    for name, datatype, shape in shapes:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
        if raw:
            made.raw_input_contents.append(b"")
    return kserve_rpc.InferDecoder(made.SerializeToString(), Templates(), LIMITS).columns(manifest, LIMITS)


def predict_message(shapes, manifest=PACKED):
    """No values: TensorFlow fills them up with zeros."""
    made = predict_request(*((*tensor, []) for tensor in shapes))
    return tfs_rpc.PredictDecoder(made.SerializeToString(), Templates(), LIMITS).columns(manifest, LIMITS)


def eas_message(shapes, manifest=PACKED):
    made = eas.Request()
    for name, dtype, shape, count in shapes:
        made.inputs[name].dtype = dtype
        made.inputs[name].array_shape.dim.extend(shape)
        made.inputs[name].int64_val.extend([1] * count)
    return eas.decode(made.SerializeToString(), manifest, LIMITS)


def example_message(count, manifest=FLAT, limits=LIMITS, feature=""):
    """Examples without values. feature: one that each names."""
    given = message("tensorflow.serving.Input")()
    for _ in range(count):
        example = given.example_list.examples.add()
        if feature:
            example.features.feature[feature].int64_list.SetInParent()
    extent = RequestSize(limits)
    return examples.columns(*examples.of_message(given, extent), manifest, extent)


ROWS = {
    "REST, rows": lambda: rest({"instances": [None] * 11}),
    "REST, columns": lambda: rest({"inputs": {"ids": [None] * 11, "floats": [None]}}),
    "REST, ragged": lambda: rest({"inputs": {"user": [1], "seen": [[]] * 11, "tags": [[]]}}, RAGGED),
    "REST, classify": lambda: classify({"examples": [None] * 11}),
    "KServe, JSON": lambda: infer([("ids", "INT64", [11, 3], {"data": None}), ("floats", "FP32", [1, 2], {})]),
    "KServe, binary": lambda: infer([("ids", "INT64", [11, 3], {"parameters": {"binary_data_size": 0}})], binary=True),
    "KServe, floats": lambda: infer([("x", "FP32", [11, 2], {"parameters": {"binary_data_size": 0}})], SINGLE, True),
    "KServe, raw": lambda: kserve.decode(bytes(88), {HEADER_LENGTH: b"0"}, SINGLE, LIMITS),
    "KServe, ragged": lambda: infer([("seen.row_splits", "INT64", [12], {"data": None})], RAGGED),
    "KServe, gRPC, typed": lambda: infer_message([("ids", "INT64", [11, 3])]),
    "KServe, gRPC, raw": lambda: infer_message([("ids", "INT64", [11, 3])], raw=True),
    "TensorFlow Serving, gRPC": lambda: predict_message([("ids", 9, [11, 3]), ("floats", 1, [1, 2])]),
    "TensorFlow Serving, gRPC, ragged": lambda: predict_message(
        [("user", 9, [1]), ("seen", 9, [11, 0]), ("tags", 7, [1, 1])], RAGGED
    ),
    "TensorFlow Serving, gRPC, row_splits": lambda: predict_message(
        [("user", 9, [1]), ("seen", 9, [0]), ("seen.row_splits", 9, [12]), ("tags", 7, [1, 1])], RAGGED
    ),
    "Examples, gRPC": lambda: example_message(11),
    "DeepRec": lambda: eas_message([("ids", 9, [11, 3], 33), ("floats", 1, [1, 2], 0)]),
    "DeepRec, nothing in many rows": lambda: eas_message(
        [("user", 9, [1], 1), ("seen", 9, [2**31 - 1, 0], 0), ("tags", 7, [1, 0], 0)], RAGGED
    ),
}
IDS = {
    "REST, ragged": lambda: rest({"inputs": {"user": [1], "seen": [[None] * 60], "tags": [[]]}}, RAGGED),
    "REST, strings": lambda: rest({"inputs": {"user": [1], "seen": [[]], "tags": [[None] * 30, [None] * 30]}}, RAGGED),
    "REST, together": lambda: rest({"inputs": {"user": [1], "seen": [[1] * 30], "tags": [[None] * 30]}}, RAGGED),
    "REST, rows": lambda: rest({"instances": [{"user": 1, "seen": [None] * 60, "tags": []}]}, RAGGED),
    "REST, classify": lambda: tfs_rest.decode_examples(
        json.dumps({"examples": [{"user": 1, "seen": [1] * 60}]}).encode(), {}, RAGGED, "classify", LIMITS
    ),
    "KServe, JSON": lambda: infer([("tags", "BYTES", [61], {"data": None})], RAGGED),
    "KServe, gRPC": lambda: infer_message([("seen", "INT64", [61])], RAGGED),
    "TensorFlow Serving, gRPC": lambda: predict_message(
        [("user", 9, [1]), ("seen", 9, [1, 60]), ("tags", 7, [1, 1])], RAGGED
    ),
    "DeepRec": lambda: eas_message([("user", 9, [1], 1), ("seen", 9, [1, 60], 60), ("tags", 7, [1, 0], 0)], RAGGED),
}


@pytest.mark.parametrize("ask", ROWS.values(), ids=ROWS)
def test_too_many_rows_are_refused_before_values_are_read(ask):
    with pytest.raises(TooLarge, match="max_rows: expected at most 10 rows per request, got"):
        ask()


@pytest.mark.parametrize("ask", IDS.values(), ids=IDS)
def test_too_many_ids_are_refused_before_values_are_read(ask):
    with pytest.raises(TooLarge, match="max_ids: expected at most 60 ids and strings per request, got 61"):
        ask()


def test_every_column_of_an_input_counts_in_each_example():
    with pytest.raises(TooLarge, match="max_ids: expected at most 60 ids and strings per request, got 63"):
        example_message(21, PACKED, RequestLimits(max_ids=60), "ids")
    with pytest.raises(BadInput, match=r"ids.*is required"):
        example_message(20, PACKED, RequestLimits(max_ids=60), "ids")


def empties(field, count):
    """A message with so many empty messages in a field."""
    return bytes([field << 3 | 2, 0]) * count


@pytest.mark.parametrize(
    "parse",
    [
        lambda: kserve_rpc.InferDecoder(empties(5, 51), Templates(), LIMITS),
        lambda: tfs_rpc.PredictDecoder(empties(2, 51), Templates(), LIMITS),
        lambda: eas.decode(empties(2, 51), PACKED, LIMITS),
        lambda: rest(b"[" + b"[]," * 49 + b"]"),
        lambda: kserve.decode(b"[" + b"1," * 196 + b"]", {HEADER_LENGTH: b"394"}, PACKED, LIMITS),
    ],
    ids=["KServe, gRPC", "TensorFlow Serving, gRPC", "DeepRec", "REST", "KServe"],
)
def test_input_exceeding_max_nodes_is_refused_before_parsing(parse):
    """None of these is a request, nor all of them JSON; nobody has come so far as to say so."""
    with pytest.raises(TooLarge, match=r"max_nodes: expected at most 200 .*, got 20[14];"):
        parse()


@pytest.mark.parametrize("ask", [rest, lambda body: kserve.decode(body, {}, PACKED, LIMITS)], ids=["REST", "KServe"])
def test_too_much_json_is_refused_unread(ask):
    with pytest.raises(
        TooLarge, match="max_json_bytes: expected at most 4000 bytes of JSON, got 4001; send tensors as"
    ):
        ask(b"?" * 4001)


def test_binary_tensors_do_not_count_as_json():
    body = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [9, 2], "parameters": {"binary_data_size": 72}}]}
    ).encode()
    limits = RequestLimits(max_json_bytes=len(body))
    inputs, _ = kserve.decode(body + bytes(72), {HEADER_LENGTH: b"%d" % len(body)}, SINGLE, limits)
    assert np.asarray(inputs["x"]).shape == (9, 2)


STRANGE = 100_000


def strange_infer():
    """More of everything than a model has, of a message within its limits."""
    made = message("inference.ModelInferRequest")(model_name="ctr")
    for _ in range(STRANGE // 50):
        made.inputs.add(name="ids", datatype="INT64", shape=[1, 3])
        made.outputs.add(name="score")
    made.inputs[0].shape.extend([1] * STRANGE)
    made.raw_input_contents.extend([b""] * STRANGE)
    for n in range(STRANGE // 50):
        made.parameters[str(n)].bool_param = True
    return made.SerializeToString()


def strange_predict():
    made = message("tensorflow.serving.PredictRequest")()
    made.model_spec.name = "ctr"
    for n in range(STRANGE // 50):
        made.inputs[str(n)].dtype = 9
    made.output_filter.extend(["score"] * STRANGE)
    return made.SerializeToString()


def test_message_full_of_unknown_inputs_is_refused_cheaply():
    """Counted in memory: what is made of it on the way to the error is not much more than the message itself."""
    cases = {
        strange_infer(): lambda data: kserve_rpc.InferDecoder(data, Templates()).columns(PACKED),
        strange_predict(): lambda data: tfs_rpc.PredictDecoder(data, Templates()).columns(PACKED),
    }
    for data, read in cases.items():
        tracemalloc.start()
        try:
            with pytest.raises(BadInput) as caught:
                read(data)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
        assert len(str(caught.value)) < 1000


def test_unknown_input_names_are_listed_up_to_a_limit():
    names = {f"n{n}": 0 for n in range(STRANGE)}
    given = {"inputs": {"ids": [[1, 2, 3]], "floats": [[1, 2]], **names}}
    _, options = tfs_rest.decode(json.dumps(given).encode(), {}, PACKED)
    assert options.ignored == b", ".join(b"n%d" % n for n in range(tfs_rest.MAX_IGNORED))
    with pytest.raises(BadInput) as caught:
        tfs_rest.decode(json.dumps({"instances": [names]}).encode(), {}, PACKED)
    assert len(str(caught.value)) < 300
