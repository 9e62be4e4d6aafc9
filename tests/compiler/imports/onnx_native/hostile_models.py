"""ONNX files that ask for gigabytes, for minutes, for code, for other files, or for the end of the process.

Each is small. None may be served: it is refused by what it says, or ended at a limit when it is tried.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.imports.onnx_native.native_models import ML, spelled

CONSTANTS = """
    zero = Constant <value: tensor = int64 {0}> ()
    one = Constant <value: tensor = int64[1] {1}> ()
    forty = Constant <value: tensor = int64 {40}> ()
    many = Constant <value: tensor = int64 {100000000}> ()
    endless = Constant <value: tensor = int64 {1152921504606846976}> ()
    huge = Constant <value: tensor = int64[2] {1099511627776, 4}> ()
    go = Constant <value: tensor = bool {1}> ()
    whole = Cast <to = 7> (x)
    most = ReduceMax <keepdims: int = 0> (whole)
    size = Reshape (most, one)
"""
# Keeps the translation away, so that ONNX Runtime is to compute the graph as it is.
NATIVE = "plain = Shrink (x)"
LOOP = (
    "<body = b (int64 i, bool c, float[r, q] v) => (bool again, float[r, p] w) { again = Identity (c) w = %s (v, v) }>"
)
NESTED = (
    "<body = b (int64 i, bool c, float[r, q] v) => (bool again, float[r, p] w) { again = Identity (c) w = Loop "
    + (
        "<body = d (int64 j, bool e, float[r, s] u) => (bool more, float[r, t] o) "
        "{ more = Identity (e) o = Add (u, u) }>"
        " (many, go, v) }>"
    )
)
BY_VALUES = {
    "range": "r = Range (zero, most, forty) f = Cast <to = 1> (r) m = ReduceMax (f) y = Add (x, m)",
    "constant_of_shape": "r = ConstantOfShape (size) m = ReduceMax (r) y = Add (x, m)",
    "expand": "r = Expand (x, size) y = Identity (r)",
    "tile": "p = Concat <axis = 0> (one, size) r = Tile (x, p) y = Identity (r)",
    "pad": "p = Concat <axis = 0> (size, size, size, size) y = Pad (x, p)",
    "one_hot": "v = Constant <value: tensor = float[2] {0, 1}> () y = OneHot (whole, most, v)",
    "resize": 's = Cast <to = 1> (size) f = Concat <axis = 0> (s, s) y = Resize (x, "", f)',
    "trips": f"y = Loop {LOOP % 'Add'} (most, go, x)",
    "roi_align": "b = Flatten (whole) y = RoiAlign (x, x, size)",
    "division": "d = Div (whole, whole) y = Cast <to = 1> (d)",
    "remainder": "d = Mod (many, whole) y = Cast <to = 1> (d)",
}
BY_CONSTANTS = {
    "huge_constant": "r = ConstantOfShape (huge) m = ReduceMax (r) y = Add (x, m)",
    "huge_range": "r = Range (zero, endless, forty) f = Cast <to = 1> (r) m = ReduceMax (f) y = Add (x, m)",
    "huge_expand": "y = Expand (x, huge)",
    "huge_random": "r = RandomNormal <shape = [1099511627776]> () m = ReduceMax (r) y = Add (x, m)",
    "endless_loop": f"y = Loop {LOOP % 'Add'} (endless, go, x)",
    "doubling_loop": f"z = Loop {LOOP % 'Concat <axis: int = 1>'} (forty, go, x) "
    "m = ReduceMax <axes = [1]> (z) y = Add (x, m)",
    "loops_in_loops": f"y = Loop {NESTED} (many, go, x)",
    "huge_resize": 's = Constant <value: tensor = float[2] {1, 100000000}> () y = Resize (x, "", s)',
    "huge_hidden": "w = Constant <value: tensor = float[1, 1, 1] {0}> () y = GRU <hidden_size = 1073741824> (x, w, w)",
    "doubling_strings": "s0 = Cast <to = 8> (x) "
    + " ".join(f"s{i + 1} = StringConcat (s{i}, s{i})" for i in range(40))
    + " e = Equal (s40, s0) y = Cast <to = 1> (e)",
    "doubling_rows": "a0 = Identity (x) "
    + " ".join(f"a{i + 1} = Concat <axis = 1> (a{i}, a{i})" for i in range(40))
    + " m = ReduceMax <axes = [1]> (a40) y = Add (x, m)",
    "quadratic": "t = Transpose <perm = [1, 0]> (x) o = MatMul (x, t) m = ReduceMax <axes = [1]> (o) y = Add (x, m)",
    "sequence_loop": "e = SequenceEmpty () z = Loop "
    "<body = b (int64 i, bool c, seq(float[r]) v) => (bool again, seq(float[r]) w) "
    "{ again = Identity (c) w = SequenceInsert (v, x) }> (endless, go, e) y = ConcatFromSequence <axis = 1> (z)",
}


def _stepped(steps: str) -> Callable[[Path], Path]:
    text = f"g (float[n, 4] x) => (float[n, m] y) {{ {CONSTANTS} {NATIVE} {steps} }}"
    return lambda path: spelled(path, text, opset=20 if "StringConcat" in steps else 17)


def _graph(path: Path, nodes: list, weights: list = (), opsets: dict | None = None, functions: list = ()) -> Path:
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", None])]
    graph = helper.make_graph(nodes, "g", given, made, list(weights))
    ids = [helper.make_opsetid(domain, version) for domain, version in (opsets or {"": 17}).items()]
    model = helper.make_model(graph, opset_imports=ids, ir_version=8, functions=list(functions))
    path.write_bytes(model.SerializeToString())
    return path


def _external(location: str) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value=location)
        return _graph(
            path, [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Shrink", ["m"], ["y"])], [weight]
        )

    return write


def _claimed(path: Path) -> Path:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 40, 4], raw_data=bytes(16))
    return _graph(
        path, [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Shrink", ["m"], ["y"])], [weight]
    )


def _custom(path: Path) -> Path:
    return _graph(path, [helper.make_node("Run", ["x"], ["y"], domain="evil")], opsets={"": 17, "evil": 1})


def _context(path: Path) -> Path:
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context="/etc/passwd", embed_mode=0
    )
    return _graph(path, [node], opsets={"": 17, "com.microsoft": 1})


def _cyclic(path: Path) -> Path:
    return _graph(
        path,
        [
            helper.make_node("Shrink", ["a"], ["b"]),
            helper.make_node("Add", ["b", "x"], ["a"]),
            helper.make_node("Identity", ["b"], ["y"]),
        ],
    )


def _nested(path: Path) -> Path:
    """Branches inside each other."""
    made = [helper.make_tensor_value_info("o", TensorProto.FLOAT, ["n", 4])]
    leaf = helper.make_graph([helper.make_node("Shrink", ["x"], ["o"])], "leaf", [], made)
    body = leaf
    for _ in range(20):
        branch = helper.make_node("If", ["go"], ["o"], then_branch=body, else_branch=leaf)
        body = helper.make_graph([branch], "b", [], made)
    go = numpy_helper.from_array(np.array(True), "go")
    return _graph(path, [*body.node, helper.make_node("Identity", ["o"], ["y"])], [go])


def _functions(count: int, calls: int) -> Callable[[Path], Path]:
    """Functions that call each other, in a circle if there is one only."""

    def write(path: Path) -> Path:
        found = []
        for n in range(count):
            callee = f"f{(n + 1) % count if count == 1 else n + 1}"
            domain = "local" if n + 1 < count or count == 1 else ""
            nodes = [
                helper.make_node(
                    callee if domain else "Shrink", ["a" if i == 0 else f"t{i}"], [f"t{i + 1}"], domain=domain
                )
                for i in range(calls)
            ]
            nodes.append(helper.make_node("Identity", [f"t{calls}"], ["b"]))
            ids = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
            found.append(helper.make_function("local", f"f{n}", ["a"], ["b"], nodes, ids))
        return _graph(
            path, [helper.make_node("f0", ["x"], ["y"], domain="local")], opsets={"": 17, "local": 1}, functions=found
        )

    return write


def _tree(path: Path) -> Path:
    """A tree whose node is its own child."""
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=1,
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"], nodes_values=[0.0, 0.0, 0.0], nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0], target_treeids=[0], target_nodeids=[2], target_ids=[0], target_weights=[1.0],
    )  # fmt: skip
    return _graph(path, [node], opsets={"": 17, ML: 3})


def _truncated(path: Path) -> Path:
    whole = _stepped("y = Identity (plain)")(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def _bytes(path: Path) -> Path:
    path.write_bytes(np.random.default_rng(3).bytes(4096))
    return path


HOSTILE: dict[str, Callable[[Path], Path]] = {
    **{f"{name}_by_value": _stepped(steps) for name, steps in BY_VALUES.items()},
    **{name: _stepped(steps) for name, steps in BY_CONSTANTS.items()},
    "data_outside": _external("../../../../etc/passwd"),
    "data_absolute": _external("/etc/passwd"),
    "data_missing": _external("nothing.bin"),
    "claimed_size": _claimed,
    "custom_operator": _custom,
    "operator_that_reads": _context,
    "cyclic_graph": _cyclic,
    "nested_branches": _nested,
    "recursive_function": _functions(1, 1),
    "growing_functions": _functions(9, 8),
    "cyclic_tree": _tree,
    "truncated": _truncated,
    "random_bytes": _bytes,
}
"""Name -> writes the file."""
