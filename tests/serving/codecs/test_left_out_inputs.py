"""Every dialect lets an input be left out that a key fills, and no other."""

import json

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.serving.codecs import examples, kserve, kserve_rpc, tfs_rest, tfs_rpc
from freshet_serving.serving.codecs.kserve import HEADER_LENGTH
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.codecs.templates import Templates
from tests.serving.codecs.predict_requests import DT_FLOAT, DT_INT64, DT_STRING, predict_request
from tests.support.looked_up import manifest

MODEL = manifest()
VALUES = {"user": [1, 2], "f2": [0.5, 1.5], "f3": [0.0, 1.0], "user_id": [7, 7], "tags": [["a"], []], "f0": [1.0, 2.0]}
LITTLE = ("user", "f2", "f3", "user_id")
TYPES = {"user": ("INT64", 9), "user_id": ("INT64", 9)}
TEMPLATES = {"infer": Templates(), "predict": Templates()}


def columnar(names):
    document = {"inputs": {name: VALUES[name] for name in names}}
    return tfs_rest.decode(json.dumps(document).encode(), {}, MODEL)[0]


def rows(names):
    document = {"instances": [{name: VALUES[name][row] for name in names} for row in range(2)]}
    return tfs_rest.decode(json.dumps(document).encode(), {}, MODEL)[0]


def tf_examples(names):
    given = [{name: VALUES[name][row] for name in names} for row in range(2)]
    return examples.columns(*examples.of_json(given, {}), MODEL)


def tensors(names):
    for name in names:
        if name == "tags":
            yield "tags", "BYTES", [1], ["a"]
            yield "tags.row_splits", "INT64", [3], [0, 1, 1]
        else:
            yield name, TYPES.get(name, ("FP32", 1))[0], [2], VALUES[name]


def packed(datatype, data):
    return b"\1\0\0\0a" if datatype == "BYTES" else np.array(data, "<i8" if datatype == "INT64" else "<f4").tobytes()


def infer(names):
    listed = [dict(zip(("name", "datatype", "shape", "data"), tensor)) for tensor in tensors(names)]
    return kserve.decode(json.dumps({"inputs": listed}).encode(), {}, MODEL)[0]


def binary(names):
    listed, buffers = [], []
    for name, datatype, shape, data in tensors(names):
        values = packed(datatype, data)
        size = {"binary_data_size": len(values)}
        listed.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
        buffers.append(values)
    header = json.dumps({"inputs": listed}).encode()
    return kserve.decode(b"".join([header, *buffers]), {HEADER_LENGTH: b"%d" % len(header)}, MODEL)[0]


def infer_message(names):
    made = message("inference.ModelInferRequest")(model_name="small")
    for name, datatype, shape, data in tensors(names):
        made.inputs.add(name=name, datatype=datatype, shape=shape)
        made.raw_input_contents.append(packed(datatype, data))
    return kserve_rpc.InferDecoder(made.SerializeToString(), TEMPLATES["infer"]).columns(MODEL)[0]


def predict_message(names):
    dtypes = {"INT64": DT_INT64, "FP32": DT_FLOAT, "BYTES": DT_STRING}
    made = predict_request(
        *(
            (name, dtypes[datatype], shape, [b"a"] if datatype == "BYTES" else packed(datatype, data))
            for name, datatype, shape, data in tensors(names)
        ),
        model="small",
    )
    return tfs_rpc.PredictDecoder(made.SerializeToString(), TEMPLATES["predict"]).columns(MODEL)


def deeprec(names):
    made = eas.Request()
    for name in names:
        array = made.inputs[name]
        if name == "tags":
            array.dtype, values = 7, [b"a", b"b"]
            array.array_shape.dim.extend([2, 1])
            array.string_val.extend(values)
            continue
        integers = name in TYPES
        array.dtype = 9 if integers else 1
        array.array_shape.dim.append(2)
        getattr(array, "int64_val" if integers else "float_val").extend(VALUES[name])
    return eas.decode(made.SerializeToString(), MODEL)[0]


DIALECTS = [columnar, rows, tf_examples, infer, binary, infer_message, predict_message, deeprec]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("names", [LITTLE, (*LITTLE, "f0"), (*LITTLE, "tags"), ("user", "f2", "f3", "tags", "f0")])
def test_only_the_inputs_that_were_sent_are_read(dialect, names):
    for _ in range(2):
        found = dialect(names)
        assert set(found) == set(names)
    assert np.array_equal(found["user"], [1, 2])
    assert np.allclose(found["f2"], [0.5, 1.5])
    if "tags" in names:
        assert isinstance(found["tags"], Ragged)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_input_that_nobody_fills_is_missed_by_name(dialect):
    with pytest.raises(BadInput, match="f3"):
        dialect(("user", "f2", "user_id"))


def test_half_of_a_ragged_input_is_refused():
    given = {"name": "tags.row_splits", "datatype": "INT64", "shape": [3], "data": [0, 1, 1]}
    listed = [dict(zip(("name", "datatype", "shape", "data"), tensor)) for tensor in tensors(LITTLE)]
    with pytest.raises(BadInput, match=r"inputs: tags is missing"):
        kserve.decode(json.dumps({"inputs": [*listed, given]}).encode(), {}, MODEL)
    made = predict_request(*((name, DT_INT64, [3], []) for name in ("tags.row_splits", "user", "f2", "f3")))
    with pytest.raises(BadInput, match=r"Missing but required: \{tags\}"):
        tfs_rpc.PredictDecoder(made.SerializeToString(), Templates()).columns(MODEL)


def test_rows_of_one_request_leave_out_the_same_inputs():
    instances = [{"user": 1, "f2": 0.0, "f3": 0.0}, {"user": 1, "f2": 0.0, "f3": 0.0, "f0": 1.0}]
    with pytest.raises(BadInput, match=r"Failed to process element: 1 .* keys must be equal to: f2,f3,user"):
        tfs_rest.decode(json.dumps({"instances": instances}).encode(), {}, MODEL)
