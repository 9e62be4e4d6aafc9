"""Matrix products in int8: a row's score is its own, weights are quantised wherever they are taken, ranges fit."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from freshet_serving.compiler.backends.int8 import (
    LEVELS,
    QuantParams,
    measured,
    products,
    quantised,
    with_extra_outputs,
)
from freshet_serving.compiler.backends.onnxruntime import to_onnx
from freshet_serving.processor.machine import this_machine
from tests.compiler.building.test_compile import make_graph, rows

pytestmark = pytest.mark.skipif(not this_machine().int8, reason="this processor does not multiply int8")


@pytest.fixture(scope="module")
def graph():
    return make_graph(hidden=(64, 32))


@pytest.fixture(scope="module")
def model(graph):
    return to_onnx(graph)


def outputs(model, graph, x, weights=None):
    data, names = model
    values = [np.asarray((weights or graph.weights)[name], order="C") for name in names]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    held = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in values]
    options.add_external_initializers([f"weights/{name}" for name in names], held)
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": x})))


def in_int8(model, graph, x, chosen=None):
    data, names = model
    found = products(data)
    inside = [v for p in found for v in (p.value, p.result) if v != "x"]
    values = {"x": x, **outputs((with_extra_outputs(data, inside), names), graph, x)}
    ranges = {p.result: measured(values[p.result]) for p in found}
    for p in found:
        ranges.setdefault(p.value, measured(values[p.value], graph.weights[p.weight.removeprefix("weights/")]))
    return quantised(data, found if chosen is None else [found[i] for i in chosen], ranges), names


def test_int8_products_are_large_matmuls_fused_with_bias_and_relu(model):
    found = products(model[0])
    assert [(p.value, p.weight) for p in found] == [
        ("x", "weights/mlp_0/kernel"),
        (found[0].result, "weights/mlp_1/kernel"),
    ]
    nodes = onnx.load_from_string(model[0]).graph.node
    producer = {out: node.op_type for node in nodes for out in node.output}
    assert [producer[p.result] for p in found] == ["Relu", "Relu"]


@pytest.mark.parametrize("chosen", [None, [0], [1]])
def test_int8_scores_are_near_float32_for_any_chosen_products(chosen, model, graph):
    x = rows(512, graph.width) * np.float32(0.3)
    lower = in_int8(model, graph, x, chosen)
    kinds = [node.op_type for node in onnx.load_from_string(lower[0]).graph.node]
    assert "QuantizeLinear" in kinds
    got, wanted = outputs(lower, graph, x)["score"], outputs(model, graph, x)["score"]
    assert 0 < np.abs(got - wanted).max() < 0.02


def test_new_weights_are_quantised_with_their_own_scales(model, graph):
    x = rows(256, graph.width) * np.float32(0.3)
    lower = in_int8(model, graph, x)
    for scale in (0.01, 0.95):
        weights = {name: array * np.float32(scale) for name, array in graph.weights.items()}
        wanted = graph.run({"x": x}, weights)["score"]
        assert np.abs(outputs(lower, graph, x, weights)["score"] - wanted).max() < 0.02
    zeros = {name: np.zeros_like(array) for name, array in graph.weights.items()}
    np.testing.assert_allclose(outputs(lower, graph, x, zeros)["score"], graph.run({"x": x}, zeros)["score"], atol=1e-6)


def test_large_column_does_not_reduce_the_precision_of_others(model, graph):
    x = rows(512, graph.width) * np.float32(0.02)
    x[:, -1] *= 500
    weight = graph.weights["mlp_0/kernel"]
    assert measured(x, weight).columns is not None
    found = measured(x, weight)
    product = (x / found.columns) @ (weight * found.columns[:, None])
    np.testing.assert_allclose(product, x @ weight, rtol=1e-3, atol=1e-4)
    lower, even = in_int8(model, graph, x), measured(x)
    assert even.scale > 5 * np.abs(x[:, 0]).mean() / LEVELS
    got, wanted = outputs(lower, graph, x)["score"], outputs(model, graph, x)["score"]
    assert np.quantile(np.abs(got - wanted), 0.99) < 0.01


def test_equal_rows_give_identical_bytes(model, graph):
    x = rows(64, graph.width)
    assert in_int8(model, graph, x) == in_int8(model, graph, x)


VALUES = arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e6, 1e6, width=32))


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_quantisation_error_is_at_most_half_a_step(values):
    by = measured(values.reshape(-1, 1))
    assert isinstance(by, QuantParams)
    assert 0 <= by.zero_point <= LEVELS
    levels = np.rint(values.astype(np.float64) / by.scale) + by.zero_point
    inside = (levels >= 0) & (levels <= LEVELS)
    again = (np.clip(levels, 0, LEVELS) - by.zero_point) * by.scale
    assert (np.abs(again - values)[inside] <= by.scale * 0.5001 + 1e-30).all()
    # No value is left outside but for the sake of the others.
    whole = max(float(values.max(initial=0)) - float(values.min(initial=0)), 0) / LEVELS
    assert np.square(again - values).sum() <= len(values) * (whole * 1.01) ** 2 + 1e-12


def test_non_finite_numbers_do_not_affect_the_range():
    values = np.array([[np.nan], [np.inf], [1.0], [-np.inf]], np.float32)
    assert measured(values).scale == pytest.approx(1 / LEVELS)
    assert np.isfinite(measured(np.tile(values, 3), np.ones((3, 2), np.float32)).scale)
