"""Operators of layers give what ONNX Runtime gives."""

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.onnx_graph.spelled import check_same, made, translated, written

RANDOM = np.random.default_rng(7)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def check(tmp_path, op, inputs, **more):
    check_same(made(tmp_path / "m.onnx", op, inputs, constants=tuple(inputs)[1:], **more), inputs)


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (floats(5, 4), floats(4, 3)),
        (floats(5, 2, 4), floats(4, 3)),
        (floats(5, 4), floats(4)),
        (floats(5, 2, 4), floats(1, 4, 3)),
    ],
)
def test_products_of_every_rank_equal_the_reference(x, w, tmp_path):
    check(tmp_path, "MatMul", {"x": x, "w": w})


def test_products_of_two_batch_tensors_equal_the_reference(tmp_path):
    inputs = {"x": floats(5, 3, 4), "y": floats(5, 4, 2)}
    check_same(made(tmp_path / "m.onnx", "MatMul", inputs), inputs)


@pytest.mark.parametrize("bias", [floats(3), floats(1, 3), floats(1), None])
def test_gemm_with_each_kind_of_bias_equals_the_reference(bias, tmp_path):
    check(tmp_path, "Gemm", {"x": floats(5, 4), "w": floats(3, 4), "b": bias}, transB=1)
    check(tmp_path, "Gemm", {"x": floats(5, 4), "w": floats(4, 3), "b": bias}, alpha=0.5, beta=2.0)


def test_normalisations_equal_the_reference(tmp_path):
    parts = {"scale": floats(4), "bias": floats(4), "mean": floats(4), "variance": np.abs(floats(4))}
    for opset in (11, 14, 17):
        check(tmp_path, "BatchNormalization", {"x": floats(5, 4), **parts}, opset=opset, epsilon=1e-3)
        check(tmp_path, "BatchNormalization", {"x": floats(5, 4, 2), **parts}, opset=opset)
    check(tmp_path, "LayerNormalization", {"x": floats(5, 3, 4), "scale": floats(4), "bias": floats(4)})
    check(tmp_path, "LayerNormalization", {"x": floats(5, 3, 4), "scale": floats(3, 4)}, axis=1)
    check(tmp_path, "RMSNormalization", {"x": floats(5, 3, 4), "scale": floats(4)}, opset=23)
    check(tmp_path, "LpNormalization", {"x": floats(5, 4)})
    check(tmp_path, "LpNormalization", {"x": floats(5, 4)}, p=1, axis=1)


def test_dropout_is_identity_and_einsum_equals_the_reference(tmp_path):
    check(tmp_path, "Dropout", {"x": floats(5, 4)})
    check(tmp_path, "Einsum", {"x": floats(5, 4), "w": floats(4, 3)}, equation="bi,io->bo")
    check(tmp_path, "Einsum", {"x": floats(5, 2, 4), "w": floats(4, 3)}, equation="b...i,io->b...o")


def test_model_in_training_mode_is_refused_with_advice(tmp_path):
    inputs = {"x": floats(5, 4), **{name: np.abs(floats(4)) for name in ("scale", "bias", "mean", "variance")}}
    path = made(tmp_path / "m.onnx", "BatchNormalization", inputs, 3, 15, tuple(inputs)[1:], training_mode=1)
    with pytest.raises(BadInput, match=r"call model\.eval"):
        translated(path, inputs)


def test_product_with_a_transposed_weight_has_no_transpose(tmp_path):
    text = """g (float[batch, 2, 4] x) => (float[batch, 2, 3] y) {
        t = Transpose <perm: ints = [1, 0]> (w)
        y = MatMul (x, t)
    }"""
    check_same(written(tmp_path / "m.onnx", text, w=floats(3, 4)), {"x": floats(5, 2, 4)})
