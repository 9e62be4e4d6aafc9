"""What is refused of an ONNX file before anything of it is translated: what is broken, circular or boundless."""

import os
import time

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from freshet_serving.compiler.imports.onnx_graph import onnx_reader
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import read_onnx
from freshet_serving.processor.errors import BadInput, FreshetError, TooLarge
from tests.compiler.imports.onnx_graph.spelled import MEAN, TABLE, changed, dynamo_bag, truncated, written

DENSE = "g (float[batch, 4] x) => (float[batch, 4] y) { a = Mul (x, w) y = Add (a, w) }"
W = np.arange(4, dtype=np.float32)


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "model.onnx", DENSE, w=W)


def refused(path, kind=BadInput):
    """The one line that a file is refused with: about the file, not about where it lies."""
    with pytest.raises(kind) as refusal:
        read_onnx(path)
    said = str(refusal.value)
    assert "\n" not in said
    assert str(path.parent) not in said
    assert len(said) < 400
    return said


def said(path):
    """What a file is refused with; nothing where it is read."""
    try:
        read_onnx(path)
    except FreshetError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"not a message", b"\x08\x08", b"PK\x03\x04" + b"\0" * 64])
def test_file_that_is_not_onnx_is_refused(content, path):
    path.write_bytes(content)
    assert "not an ONNX file" in refused(path)


def test_file_truncated_anywhere_is_refused_in_one_line(tmp_path):
    whole = written(tmp_path / "whole.onnx", dynamo_bag(MEAN), 20, emb__weight=TABLE)
    size, taken = whole.stat().st_size, 0
    for nbytes in range(0, size, 37):
        copy = tmp_path / "model.onnx"
        copy.write_bytes(whole.read_bytes())
        taken += said(truncated(copy, nbytes)) == ""
    # A message may end between two of its fields; what is left is then a smaller model.
    assert taken <= 2


def test_corrupted_bytes_are_refused_or_read_safely(tmp_path):
    whole = written(tmp_path / "whole.onnx", dynamo_bag(MEAN), 20, emb__weight=TABLE).read_bytes()
    random = np.random.default_rng(0)
    for _ in range(300):
        spoilt = bytearray(whole)
        for at in random.integers(0, len(whole), 3):
            spoilt[at] = random.integers(0, 256)
        (tmp_path / "model.onnx").write_bytes(bytes(spoilt))
        assert "\n" not in said(tmp_path / "model.onnx")


@pytest.mark.parametrize("opset", [1, 9, 10, 99])
def test_unsupported_opset_is_refused_with_the_supported_range(opset, path):
    changed(path, lambda proto: setattr(proto.opset_import[0], "version", opset))
    assert f"expected opset 11 to 24, got {opset}" in refused(path)


@pytest.mark.parametrize("size", [1, 64])
def test_fixed_batch_size_is_refused_with_export_advice(size, path):
    def edit(proto):
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size

    said = refused(changed(path, edit))
    assert f"input 'x': expected a first dimension of any size, got {size}" in said
    assert "dynamic_axes={name: {0: 'batch'}}" in said
    assert "dynamic_shapes={name: {0: torch.export.Dim('batch')}}" in said


def test_input_without_dimensions_or_with_unknown_type_is_refused(path):
    def scalar(proto):
        del proto.graph.input[0].type.tensor_type.shape.dim[:]

    assert "got a single number" in refused(changed(path, scalar))
    changed(path, lambda proto: proto.graph.input[0].type.tensor_type.ClearField("shape"))
    assert "expected a tensor with a shape" in refused(path)
    changed(path, lambda proto: proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 14, ["n"])))
    assert "got complex64" in refused(path)
    changed(path, lambda proto: proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 999, ["n"])))
    assert "expected a type of ONNX" in refused(path)


@pytest.mark.parametrize("dims", [[1 << 40, 1 << 40], [4, 1 << 62], [-4], [-1, -4], [5], [2, 1], []])
def test_initialiser_with_mismatched_shape_is_refused_before_allocation(dims, path):
    changed(path, lambda proto: proto.graph.initializer[0].dims.__setitem__(slice(None), dims))
    assert "initialiser 'w'" in refused(path)


def test_initialisers_with_unknown_types_and_sparse_ones_are_refused(path):
    changed(path, lambda proto: setattr(proto.graph.initializer[0], "data_type", 14))
    assert "got complex64" in refused(path)
    changed(path, lambda proto: setattr(proto.graph.initializer[0], "data_type", 77))
    assert "expected a type of ONNX" in refused(path)
    changed(path, lambda proto: proto.graph.sparse_initializer.add())
    assert "expected dense initialisers" in refused(path)


def test_cyclic_or_unordered_operators_are_refused(path):
    changed(path, lambda proto: proto.graph.node[0].input.__setitem__(1, "y"))
    assert "uses 'y' before any operator outputs it" in refused(path)
    changed(path, lambda proto: proto.graph.node[0].input.__setitem__(1, "a"))
    assert "uses 'a' before any operator outputs it" in refused(path)
    changed(path, lambda proto: proto.graph.node[0].input.__setitem__(1, "nothing"))
    assert "uses 'nothing'" in refused(path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda graph: graph.node[1].output.__setitem__(0, "a"),
        lambda graph: graph.node[0].output.__setitem__(0, "x"),
        lambda graph: graph.node[0].output.__setitem__(0, "w"),
        lambda graph: graph.initializer.append(graph.initializer[0]),
        lambda graph: graph.input.append(graph.input[0]),
    ],
)
def test_two_values_with_one_name_are_refused(edit, path):
    changed(path, lambda proto: edit(proto.graph))
    assert "two values are called" in refused(path)


def test_output_that_nothing_computes_is_refused(path):
    changed(path, lambda proto: setattr(proto.graph.output[0], "name", "z"))
    assert "no operator outputs its output 'z'" in refused(path)


def outside(proto, location, **more):
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(value))


def test_external_data_next_to_the_file_is_read(path):
    (path.parent / "model.onnx.data").write_bytes(b"\0" * 8 + W.tobytes())
    changed(path, lambda proto: outside(proto, "model.onnx.data", offset=8, length=16))
    np.testing.assert_array_equal(read_onnx(path).body.weights["w"], W)
    changed(path, lambda proto: outside(proto, "./model.onnx.data", offset=8))
    np.testing.assert_array_equal(read_onnx(path).body.weights["w"], W)


@pytest.mark.parametrize(
    "location",
    ["../secret", "/etc/passwd", "", "..", ".", "link", "folder/../../secret", "a\0b", "x" * 5000, "missing"],
)
def test_external_data_outside_the_folder_is_refused(location, path, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"\0" * 16)
    os.symlink(tmp_path / "secret", folder / "link")
    os.rename(path, folder / "model.onnx")
    changed(folder / "model.onnx", lambda proto: outside(proto, location))
    assert "outside the model's folder" in refused(folder / "model.onnx")


def test_folder_link_or_pipe_is_refused_as_external_data(path, tmp_path):
    os.symlink("/etc", path.parent / "etc")
    os.mkfifo(path.parent / "pipe")
    for location in ("etc/passwd", "pipe"):
        changed(path, lambda proto, where=location: outside(proto, where))
        assert "outside the model's folder" in refused(path)


@pytest.mark.parametrize(
    "more", [{"length": 8}, {"length": 1 << 50}, {"offset": 8}, {"offset": -8}, {"offset": "one"}, {"length": "9" * 40}]
)
def test_external_data_smaller_than_the_shape_is_refused(more, path):
    (path.parent / "data").write_bytes(W.tobytes())
    changed(path, lambda proto: outside(proto, "data", **more))
    assert "initialiser 'w'" in refused(path)


def test_shape_larger_than_the_data_is_refused_at_once(path):
    (path.parent / "data").write_bytes(W.tobytes())
    changed(path, lambda proto: (outside(proto, "data"), proto.graph.initializer[0].dims.__setitem__(0, 1 << 44)))
    assert "bytes of data inside its file" in refused(path)


def test_repeatedly_referenced_data_file_is_refused(path):
    (path.parent / "data").write_bytes(W.tobytes())

    def edit(proto):
        outside(proto, "data")
        second = proto.graph.initializer.add()
        second.CopyFrom(proto.graph.initializer[0])
        second.name = "w2"

    assert "overlap" in refused(changed(path, edit), TooLarge)


def call(name, to):
    return helper.make_node(name, ["x"], [to], domain="local")


def functions(path, bodies, main):
    """A model with functions of its own. bodies: name -> the functions that it calls, one after the other."""
    made = []
    for name, called in bodies.items():
        nodes, at = [], "x"
        for i, other in enumerate(called):
            nodes.append(helper.make_node(other, [at], [f"v{i}"], domain="" if other[0].isupper() else "local"))
            at = f"v{i}"
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        made.append(helper.make_function("local", name, ["x"], [at], nodes, opsets))
    given = helper.make_tensor_value_info("x", 1, ["batch", 2])
    graph = helper.make_graph([call(main, "y")], "g", [given], [helper.make_tensor_value_info("y", 1, ["batch", 2])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    path.write_bytes(helper.make_model(graph, functions=made, opset_imports=opsets, ir_version=8).SerializeToString())
    return path


def test_model_functions_are_inlined_at_their_calls(path):
    functions(path, {"twice": ["Neg", "Abs"], "more": ["twice", "Exp", "twice"]}, "more")
    assert [node.op for node in read_onnx(path).body.nodes] == ["Neg", "Abs", "Exp", "Neg", "Abs"]


def test_mutually_recursive_functions_are_refused(path):
    assert "calls itself" in refused(functions(path, {"f": ["g"], "g": ["f"]}, "f"))
    assert "calls itself" in refused(functions(path, {"f": ["f"]}, "f"))


def test_functions_with_unbounded_growth_are_refused_at_once(path):
    bodies = {"f0": ["Neg"] * 10} | {f"f{i}": [f"f{i - 1}"] * 10 for i in range(1, 12)}
    begun = time.monotonic()
    assert "at most 10000 operators" in refused(functions(path, bodies, "f11"), TooLarge)
    assert time.monotonic() - begun < 5


def test_deeply_nested_bodies_are_refused(path):
    def branch(depth):
        given = helper.make_tensor_value_info(f"o{depth}", 1, None)
        if not depth:
            return helper.make_graph([helper.make_node("Neg", ["x"], ["o0"])], "b", [], [given])
        node = helper.make_node("If", ["c"], [f"o{depth}"], then_branch=branch(depth - 1), else_branch=branch(0))
        return helper.make_graph([node], "b", [], [given])

    for depth in (17, 24):
        graph = branch(depth)
        graph.input.extend([helper.make_tensor_value_info("x", 1, ["n"]), helper.make_tensor_value_info("c", 9, ["n"])])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path.write_bytes(proto.SerializeToString())
        assert "nested at most 16" in refused(path)


def test_too_many_operators_are_refused(path, monkeypatch):
    monkeypatch.setattr(onnx_reader, "MAX_NODES", 1)
    assert "expected at most 1 operators" in refused(path, TooLarge)


def test_too_large_file_is_not_opened(path):
    with path.open("r+b") as file:
        file.truncate((2 << 30) + 1)
    begun = time.monotonic()
    assert "at most 2147483648 bytes" in refused(path, TooLarge)
    assert time.monotonic() - begun < 1


def test_unsupported_attributes_and_valueless_constants_are_refused(path):
    def edit(proto):
        attribute = proto.graph.node[0].attribute.add()
        attribute.name, attribute.type = "strange", onnx.AttributeProto.TYPE_PROTO

    assert "attribute 'strange' has an unsupported type" in refused(changed(path, edit))
    changed(
        path, lambda proto: proto.graph.node[0].CopyFrom(helper.make_node("Constant", [], ["a"], value_floats=[1.0]))
    )
    assert read_onnx(path).body.constants["a"].tolist() == [1.0]
    changed(path, lambda proto: proto.graph.node[0].ClearField("attribute"))
    assert "Constant '': expected one value of a supported type" in refused(path)


def test_initialisers_listed_as_inputs_are_not_inputs(path):
    changed(path, lambda proto: proto.graph.input.append(helper.make_tensor_value_info("w", 1, [4])))
    assert [given.name for given in read_onnx(path).inputs] == ["x"]


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint16", "int32", "int64", "bool"])
def test_numbers_of_every_type_are_read_from_bytes_or_lists(dtype, path):
    wanted = np.array([0, 1, 3, 1]).astype(dtype)
    changed(path, lambda proto: proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(wanted, "w")))
    np.testing.assert_array_equal(read_onnx(path).body.weights["w"], wanted)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    changed(path, lambda proto: proto.graph.initializer[0].CopyFrom(helper.make_tensor("w", code, [4], wanted)))
    np.testing.assert_array_equal(read_onnx(path).body.weights["w"], wanted)
