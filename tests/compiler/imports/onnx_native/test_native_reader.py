"""Refusals of ONNX files that ONNX Runtime is to run as they are, and the part of its messages that is shown."""

import numpy as np
import onnx
import pytest

from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.onnx_native.native_models import GRU, GRU_WEIGHTS, regressor, spelled

SHRINK = "g (float[batch, 4] x) => (float[batch, 4] y) { a = Shrink (x) y = Mul (a, w) }"
W = np.arange(4, dtype=np.float32)


def edited(path, edit):
    proto = onnx.load_from_string(path.read_bytes())
    edit(proto)
    path.write_bytes(proto.SerializeToString())
    return path


def refused(path):
    with pytest.raises(BadInput) as refusal:
        read_native(path)
    said = str(refusal.value)
    assert "\n" not in said
    assert str(path.parent) not in said
    assert ".cc" not in said
    assert len(said) < 400
    return said


@pytest.fixture
def path(tmp_path):
    return spelled(tmp_path / "m.onnx", SHRINK, w=W)


def test_trees_alone_get_a_version_of_other_operators(tmp_path):
    model = read_native(regressor(tmp_path / "m.onnx"))
    assert model.opset == 17
    assert model.outputs == {"variable": "float"}


def test_custom_operator_is_refused_by_name(path):
    def custom(proto):
        proto.graph.node[0].domain = "my.company"
        proto.opset_import.append(onnx.helper.make_opsetid("my.company", 1))

    said = refused(edited(path, custom))
    assert "operator Shrink of 'my.company': expected one of ai.onnx, ai.onnx.ml, com.microsoft" in said


def external(proto, location):
    """The first initialiser lies in another file."""
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def test_operator_that_reads_files_is_refused(path):
    def context(proto):
        proto.graph.node[0].op_type, proto.graph.node[0].domain = "EPContext", "com.microsoft"

    assert "operator EPContext reads a file; refused" in refused(edited(path, context))


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/passwd"])
def test_data_outside_the_folder_are_refused(location, path):
    (path.parent.parent / "outside.bin").write_bytes(bytes(16))
    changed = edited(path, lambda proto: external(proto, location))
    assert "its data file is missing or outside the model's folder" in refused(changed)


def test_data_inside_the_folder_are_read(path):
    (path.parent / "w.bin").write_bytes(W.tobytes())
    model = read_native(edited(path, lambda proto: external(proto, "w.bin")))
    np.testing.assert_array_equal(model.session.run(["y"], {"x": np.full((1, 4), 2, np.float32)})[0], [2 * W])


def test_large_external_data_are_not_copied(tmp_path):
    text = "g (int64[n] i) => (float[n, 64] y) { a = Gather (t, i) y = Shrink <lambd: float = 0> (a) }"
    table = np.ones((5000, 64), np.float32)
    path = spelled(tmp_path / "m.onnx", text, t=table)
    proto = onnx.load_from_string(path.read_bytes())
    onnx.save_model(proto, path, save_as_external_data=True, location="m.onnx.data")
    model = read_native(path)
    assert model.proto.ByteSize() < 10_000
    np.testing.assert_array_equal(model.session.run(["y"], {"i": np.array([7])})[0], table[:1])


def test_external_data_of_an_attribute_are_refused(path):
    def inside(proto):
        tensor = onnx.TensorProto(data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="w.bin")
        proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], value=tensor))

    assert "external data, which only initialisers of the graph itself may have" in refused(edited(path, inside))


def test_unknown_version_is_refused_with_the_known_range(path):
    said = refused(edited(path, lambda proto: setattr(proto.opset_import[0], "version", 99)))
    assert "refuses the graph" in said
    assert "opset" in said.lower()
    said = refused(edited(path, lambda proto: setattr(proto, "ir_version", 99)))
    assert "IR version" in said


def test_nodes_without_use_are_left_out(tmp_path):
    text = GRU.replace("score = Sigmoid (raw)", "score = Sigmoid (raw)\n unused = Det (both)")
    model = read_native(spelled(tmp_path / "m.onnx", text, **GRU_WEIGHTS))
    assert "Det" not in {node.op_type for node in model.proto.graph.node}
