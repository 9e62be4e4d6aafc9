import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.package import Input, Manifest, Output
from tests.support.packages import make_inputs, make_weights, reference, tag_id, write_package

MANIFEST = Manifest(
    "ctr",
    1,
    "test",
    0.0,
    [Input("user", "int64"), Input("tags", "string", ragged=True), Input("floats", "float32", 2)],
    [],
    [],
    [Output("click"), Output("topic", 2)],
    1,
    {},
    {},
)


def array(into, dtype, shape, **values):
    into.dtype = dtype
    into.array_shape.dim.extend(shape)
    for name, numbers in values.items():
        getattr(into, name).extend(numbers)


def request():
    made = eas.Request(signature_name="serving_default")
    array(made.inputs["user"], 9, [2], int64_val=[7, -8])
    array(made.inputs["tags"], 7, [2, 1], string_val=[b"a", b"\xff"])
    array(made.inputs["floats"], 1, [2, 2], float_val=[0.5, 1, 2, 3])
    return made


def test_arrays_become_columns():
    made = request()
    made.output_filter.append("topic")
    inputs, wanted = eas.decode(made.SerializeToString(), MANIFEST)
    assert wanted == ("topic",)
    assert inputs["user"].tolist() == [7, -8]
    assert isinstance(inputs["tags"], Ragged)
    assert isinstance(inputs["tags"].values, Strings)
    assert inputs["tags"].row_splits.tolist() == [0, 1, 2]
    assert inputs["floats"].tolist() == [[0.5, 1], [2, 3]]


def test_inputs_have_the_models_own_names_too():
    first = MANIFEST.inputs[0].name
    manifest, made = dataclasses.replace(MANIFEST, own_names={"its:own": first}), request()
    made.inputs["its:own"].CopyFrom(made.inputs[first])
    with pytest.raises(BadInput, match="got both"):
        eas.decode(made.SerializeToString(), manifest)
    del made.inputs[first]
    assert first in eas.decode(made.SerializeToString(), manifest)[0]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda r: setattr(r, "signature_name", "x"), "signature_name: expected serving_default, got 'x'"),
        (lambda r: r.inputs.pop("user"), "inputs: user is missing"),
        (
            lambda r: r.inputs["more"].MergeFrom(r.inputs["user"]),
            "inputs: expected one of floats, tags, user, got 'more'",
        ),
        (
            lambda r: r.output_filter.append("x"),
            "output_filter: expected one of click, topic, each at most once, got 'x'",
        ),
        (
            lambda r: r.output_filter.extend(["click", "click"]),
            "output_filter: expected one of click, topic, each at most once",
        ),
        (lambda r: setattr(r.inputs["user"], "dtype", 3), "user: expected DT_INT64, got data type 3"),
        (lambda r: r.inputs["user"].array_shape.dim.append(-1), "user: expected a shape of 2 values, got [2, -1]"),
        (lambda r: r.inputs["user"].int64_val.append(1), "user: expected a shape of 3 values, got [2]"),
        (lambda r: r.inputs["floats"].array_shape.dim.append(1), "floats: expected shape [n, 2], got [2, 2, 1]"),
        (lambda r: r.inputs["tags"].array_shape.dim.append(1), "tags: expected shape [n, k], got [2, 1, 1]"),
    ],
)
def test_malformed_request_is_refused_by_name(change, part):
    made = request()
    change(made)
    with pytest.raises(BadInput) as caught:
        eas.decode(made.SerializeToString(), MANIFEST)
    assert part in str(caught.value)


def test_outputs_are_arrays():
    outputs = {"click": np.array([[0.25], [0.5]], np.float32), "topic": np.ones((2, 2), np.float32)}
    response = eas.Response.FromString(eas.encode(outputs))
    assert set(response.outputs) == {"click", "topic"}
    click = response.outputs["click"]
    assert (click.dtype, list(click.array_shape.dim), list(click.float_val)) == (1, [2, 1], [0.25, 0.5])
    assert list(eas.Response.FromString(eas.encode(outputs, ("topic",))).outputs) == ["topic"]


def test_whole_numbers_are_floats_unless_they_are_ids():
    outputs = {"item_ids": np.array([[2**53 + 1]]), "scores": np.ones((1, 1), np.float32)}
    ids = eas.Response.FromString(eas.encode(outputs, whole=True)).outputs["item_ids"]
    assert (list(ids.int64_val), list(ids.float_val)) == ([2**53 + 1], [])
    ids = eas.Response.FromString(eas.encode(outputs)).outputs["item_ids"]
    assert (list(ids.int64_val), list(ids.float_val)) == ([], [float(2**53)])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused_with_a_freshet_error(data):
    try:
        eas.decode(data, MANIFEST)
    except FreshetError:
        return


def test_processor_accepts_the_message_and_replies_with_one(tmp_path):
    write_package(tmp_path)
    users, tags = [0, 3, 55], [["a"], ["b"], ["zz"]]
    floats = make_inputs(users)["floats"]
    made = eas.Request()
    array(made.inputs["user"], 9, [3], int64_val=users)
    array(made.inputs["tags"], 7, [3, 1], string_val=[row[0].encode() for row in tags])
    array(made.inputs["floats"], 1, floats.shape, float_val=floats.ravel())
    wanted = reference(
        dict.fromkeys(range(20), 0), dict.fromkeys([tag_id(t) for t in "abc"], 0), make_weights(), users, tags, floats
    )
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        for model in (None, "small"):
            response = eas.Response.FromString(processor.process(made.SerializeToString(), model))
            np.testing.assert_allclose(list(response.outputs["score"].float_val), wanted, atol=1e-5)
        with pytest.raises(BadInput):
            processor.process(b"\xff")
    config = ProcessorConfig(str(tmp_path), models=["none"], sessions=1)
    with Processor.initialize(config) as processor, pytest.raises(BadInput, match="model: expected one of none"):
        processor.process(made.SerializeToString())
