"""Branches on constants are taken beforehand, in loops and in branches too; others stay."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.onnx_graph.branches import decided
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import OnnxBody, read_onnx
from tests.compiler.imports.onnx_graph.spelled import check_same, unoptimised_bag, written

NESTED = """g (float[batch, 2] x) => (float[batch, 2] y) {
    mode = Constant <value_int: int = MODE> ()
    one = Constant <value: tensor = int64 {1}> ()
    is_one = Equal (mode, one)
    z = If (is_one) <then_branch: graph = t () => (a) { a = Neg (x) }, else_branch: graph = e () => (b) {
        two = Constant <value: tensor = int64 {2}> ()
        less = Less (mode, two)
        more = Not (less)
        b = If (more) <then_branch: graph = t2 () => (c) { half = Mul (x, w) c = Abs (half) },
          else_branch: graph = e2 () => (x2) { x2 = Identity (x) }>
    }>
    y = Exp (z)
}"""
HALF = np.full(2, 0.5, np.float32)


def ops(body):
    found = [node.op for node in body.nodes]
    for node in body.nodes:
        for inner in node.attributes.values():
            found += ops(inner) if isinstance(inner, OnnxBody) else []
    return found


@pytest.mark.parametrize(("mode", "wanted"), [(1, ["Neg"]), (2, ["Mul", "Abs"]), (0, ["Identity"])])
def test_constant_condition_inlines_the_taken_branch(mode, wanted, tmp_path):
    path = written(tmp_path / "m.onnx", NESTED.replace("MODE", str(mode)), w=HALF)
    assert ops(decided(read_onnx(path).body)) == [*wanted, "Exp"]
    check_same(path, {"x": np.array([[1, -2], [3, 4]], np.float32)})


def test_branch_may_be_the_graph_output(tmp_path):
    text = NESTED.replace("z = If", "y = If").replace("    y = Exp (z)\n", "").replace("MODE", "1")
    check_same(written(tmp_path / "m.onnx", text, w=HALF), {"x": np.array([[1, -2]], np.float32)})


def test_constant_branches_in_a_loop_are_inlined_and_others_stay(tmp_path):
    for mode, wanted in enumerate(("ReduceSum", "ReduceMean", "ReduceMax")):
        path = written(tmp_path / "m.onnx", unoptimised_bag(mode), 20, emb__weight=np.ones((20, 4), np.float32))
        found = ops(decided(read_onnx(path).body))
        assert [op for op in found if op.startswith("Reduce")] == [wanted]
        assert found.count("If") == 1


def test_trained_weights_are_never_constant_folded(tmp_path):
    text = "g (float[batch, 2] x) => (float[batch, 2] y) { c = Add (a, b) y = Mul (x, c) }"
    path = written(tmp_path / "m.onnx", text, a=HALF, b=HALF)
    assert ops(decided(read_onnx(path).body)) == ["Add", "Mul"]
