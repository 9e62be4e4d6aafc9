import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.backends import onnxfile
from freshet_serving.processor.backends.onnxfile import external_weights
from freshet_serving.processor.errors import Corrupt, TooLarge
from tests.processor.backends.artefacts import SHAPES, make_artefact, onnx


def model_of(*tensors):
    return onnx.ModelProto(graph=onnx.GraphProto(initializer=tensors)).SerializeToString()


def outside(name="w", dims=(2, 3), data_type=1):
    return onnx.TensorProto(name=name, dims=dims, data_type=data_type, data_location=1)


def test_weights_left_out_are_listed_with_their_shapes():
    assert external_weights(make_artefact()) == {f"weights/{name}": shape for name, shape in SHAPES.items()}


def test_constants_inside_the_file_are_not_weights():
    inside = onnx.TensorProto(name="c", dims=[2], data_type=1, raw_data=bytes(8))

    assert external_weights(model_of(inside, outside())) == {"w": (2, 3)}


@pytest.mark.parametrize(
    "tensor", [outside(dims=(2, 0)), outside(dims=(2, -1)), outside(dims=(1,) * 9), outside(data_type=2)]
)
def test_weight_without_a_definite_float32_shape_is_refused(tensor):
    with pytest.raises(Corrupt, match="weight 'w': expected float32 of a definite shape"):
        external_weights(model_of(tensor))


def test_weight_given_twice_is_refused():
    with pytest.raises(Corrupt, match="weight 'w' occurs more than once"):
        external_weights(model_of(outside(), outside()))


def test_second_graph_is_refused():
    data = make_artefact()
    with pytest.raises(Corrupt, match="one graph, got 2"):
        external_weights(data + data)


def test_file_beyond_the_limit_is_refused_unread(monkeypatch):
    monkeypatch.setattr(onnxfile, "MAX_NBYTES", 10)
    with pytest.raises(TooLarge, match="expected at most 10 bytes, got 11"):
        external_weights(b"\x00" * 11)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused(data):
    with contextlib.suppress(Corrupt):
        external_weights(data)


@given(st.data())
def test_damaged_artefact_is_read_or_refused(data):
    artefact = bytearray(make_artefact())
    artefact[data.draw(st.integers(0, len(artefact) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Corrupt):
        external_weights(bytes(artefact))


def test_dims_packed_or_not_are_the_same():
    unpacked = b"\x08\x02\x08\x03"  # two varints of field 1
    packed = b"\x0a\x02\x02\x03"  # the same as one block
    rest = b"\x10\x01" + b"\x42\x01w" + b"\x70\x01"

    for dims in (unpacked, packed):
        tensor = dims + rest
        graph = b"\x2a" + bytes([len(tensor)]) + tensor
        assert external_weights(b"\x3a" + bytes([len(graph)]) + graph) == {"w": (2, 3)}
