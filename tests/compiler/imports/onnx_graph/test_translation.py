"""Weights under the names that PyTorch gives them; sizes that are known; operators that nobody has words for."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import read_onnx
from freshet_serving.compiler.imports.onnx_graph.translation import weights_of
from freshet_serving.processor.errors import BadInput, TooLarge
from tests.compiler.imports.onnx_graph.spelled import check_same, made, translated, written

RANDOM = np.random.default_rng(8)
W, B = RANDOM.standard_normal((4, 3)).astype(np.float32), RANDOM.standard_normal(3).astype(np.float32)
X = RANDOM.standard_normal((5, 2, 4)).astype(np.float32)


def names(path):
    """Variables by the names that deltas will use."""
    found = weights_of(read_onnx(path).body).variables.values()
    return {variable.name.partition(":")[0]: variable.numpy() for variable in found}


# nn.Linear on three dimensions, as exporters write it when they fold constants.
FOLDED = """g (float[batch, 2, 4] x) => (float[batch, 2, 3] y) {
    m = MatMul (x, "onnx::MatMul_12")
    y = Add ("query.bias", m)
}"""


def test_pretransposed_weight_regains_its_name_and_shape_from_the_bias(tmp_path):
    for anonymous in ("onnx::MatMul_12", "val_5"):
        path = tmp_path / "m.onnx"
        written(path, FOLDED.replace("onnx::MatMul_12", anonymous), **{anonymous: W, "query__bias": B})

        found = names(path)
        assert found.keys() == {"query.weight", "query.bias"}
        np.testing.assert_array_equal(found["query.weight"], W.T)
        check_same(path, {"x": X})


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        (FOLDED.replace("query.bias", "shift"), {"shift": B}),
        (FOLDED.replace("Add", "Sub"), {"query__bias": B}),
        (FOLDED.replace("m)\n", "m2)\n").replace("y = Add", "m2 = Relu (m)\n    y = Add"), {"query__bias": B}),
        (FOLDED, {"query__bias": B[:1]}),
    ],
    ids=["no bias of a layer", "no sum", "not at once", "of another size"],
)
def test_weight_of_unknown_origin_keeps_its_name(text, weights, tmp_path):
    found = names(written(tmp_path / "m.onnx", text, **{"onnx::MatMul_12": W, **weights}))
    assert "onnx__MatMul_12" in found
    np.testing.assert_array_equal(found["onnx__MatMul_12"], W)


def test_unused_initialisers_and_unnamed_numbers_are_not_weights(tmp_path):
    text = """g (float[batch, 4] x) => (float[batch, 4] y) {
        a = Mul (x, scale)
        y = Mul (a, val_3)
        z = Add (a, unused)
    }"""
    weights = {"scale": np.float32(2), "val_3": np.float32(3), "unused": np.ones(4, np.float32)}
    assert names(written(tmp_path / "m.onnx", text, **weights)).keys() == {"scale"}


def test_names_differing_only_in_case_are_refused(tmp_path):
    text = "g (float[batch, 3] x) => (float[batch, 3] y) { a = Add (x, Bias) y = Add (a, bias) }"
    with pytest.raises(BadInput, match="initialiser 'bias': another name"):
        names(written(tmp_path / "m.onnx", text, Bias=B, bias=B))


@pytest.mark.parametrize(
    ("op", "domain", "said"),
    [
        ("LSTM", "", "operator LSTM of ai.onnx (opset 17) is not supported"),
        ("FusedGelu", "com.example", "operator FusedGelu of com.example (opset 17) is not supported"),
        ("EmbeddingBag", "com.microsoft", "operator EmbeddingBag of com.microsoft"),
    ],
)
def test_untranslatable_operator_is_refused_with_name_domain_and_opset(op, domain, said, tmp_path):
    path = made(tmp_path / "m.onnx", op, {"x": X}, domain=domain)
    with pytest.raises(BadInput) as refusal:
        translated(path, {"x": X})
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_known_sizes_become_numbers_everywhere(tmp_path):
    text = """g (float[batch, 2, 4] x) => (float[batch, 8] y, float[batch, 4, 2] z) {
        s = Shape (x)
        zero = Constant <value: tensor = int64 {0}> ()
        one = Constant <value: tensor = int64[1] {1}> ()
        three = Constant <value: tensor = int64[1] {3}> ()
        axis = Constant <value: tensor = int64[1] {0}> ()
        batch = Gather <axis: int = 0> (s, zero)
        batches = Unsqueeze (batch, axis)
        rest = Slice (s, one, three)
        n = ReduceProd <keepdims: int = 1> (rest)
        flat = Concat <axis: int = 0> (batches, n)
        y = Reshape (x, flat)
        four = Gather <axis: int = 0> (rest, one)
        two = Slice (rest, axis, one)
        shape = Concat <axis: int = 0> (batches, four, two)
        z = Reshape (x, shape)
    }"""
    check_same(written(tmp_path / "m.onnx", text), {"x": X})


# squeeze(1) of a tensor whose columns TorchScript's exporter does not know.
SQUEEZED = """g (float[batch, COLUMNS] x) => (float[a, b] y) {
    one = Constant <value: tensor = int64[1] {1}> ()
    s = Shape (x)
    columns = Gather <axis: int = 0> (s, one)
    single = Equal (columns, one)
    z = If (single) <then_branch: graph = t () => (squeezed) {
        axis = Constant <value: tensor = int64[1] {1}> ()
        squeezed = Squeeze (x, axis)
    }, else_branch: graph = e () => (same) { same = Identity (x) }>
    y = Neg (z)
}"""


def test_branch_on_a_known_size_is_inlined(tmp_path):
    one = RANDOM.standard_normal((5, 1)).astype(np.float32)
    check_same(written(tmp_path / "m.onnx", SQUEEZED.replace("COLUMNS", "1")), {"x": one})
    three = RANDOM.standard_normal((5, 3)).astype(np.float32)
    path = written(tmp_path / "m.onnx", SQUEEZED.replace("COLUMNS", "3"))
    np.testing.assert_array_equal(translated(path, {"x": three})[0], -three)


def test_branch_on_data_is_refused(tmp_path):
    text = SQUEEZED.replace("COLUMNS", "4").replace("Gather <axis: int = 0> (s, one)", "Cast <to: int = 7> (x)")
    with pytest.raises(BadInput, match=r"operator If of ai\.onnx"):
        translated(written(tmp_path / "m.onnx", text), {"x": X[:, 0]})


def test_repeatedly_doubling_operators_are_refused_before_running(tmp_path):
    steps = "".join(f"v{i} = Concat <axis: int = 1> (v{i - 1}, v{i - 1}) " for i in range(1, 40))
    text = f"g (float[batch, 4] x) => (float[batch, d] y) {{ v0 = Identity (x) {steps} y = Neg (v39) }}"
    with pytest.raises(TooLarge, match="graph: Concat '': expected at most 16777216 numbers"):
        translated(written(tmp_path / "m.onnx", text), {"x": X[:, 0]})
    constants = text.replace("Identity (x)", "Identity (w)").replace("axis: int = 1", "axis: int = 0")
    with pytest.raises(TooLarge, match="graph: Concat '': expected at most 16777216 numbers"):
        translated(written(tmp_path / "m.onnx", constants, w=np.arange(4)), {"x": X[:, 0]})


def test_ids_beyond_a_table_do_not_wrap_around(tmp_path):
    """-1 is no row: it has none."""
    import tensorflow as tf

    path = written(tmp_path / "m.onnx", "g (int64[n] i) => (float[n, 3] y) { y = Gather <axis: int = 0> (t, i) }", t=W)
    check_same(path, {"i": np.array([0, 3, 1])})
    with pytest.raises((tf.errors.OpError, ValueError)):
        translated(path, {"i": np.array([-1])})


def test_scalar_gathered_from_constants_is_a_constant(tmp_path):
    text = """g (float[batch, 6] x) => (float[batch, 3, 2] y) {
        size = Gather <axis = 0> (sizes, second)
        last = Unsqueeze (size, front)
        shape = Concat <axis = 0> (head, last)
        y = Reshape (x, shape)
    }"""
    numbers = {"sizes": [7, 2], "second": 1, "front": [0], "head": [-1, 3]}
    path = written(tmp_path / "m.onnx", text, **{name: np.array(value) for name, value in numbers.items()})
    check_same(path, {"x": RANDOM.standard_normal((5, 6)).astype(np.float32)})
