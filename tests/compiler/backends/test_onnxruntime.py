"""Conversion to ONNX: what a pass of the converter that fails changes, and how often it copies a graph."""

import copy
import os

import pytest

pytest.importorskip("tf2onnx", reason="compiling needs the train extra")

import tf2onnx

from freshet_serving.compiler.backends.onnxruntime import IN_PLACE, to_onnx
from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.errors import BadInput
from tests.compiler.passes.graphs import dense


@pytest.fixture
def graph():
    def score(x, w):
        hidden = tf.nn.relu(tf.reshape(tf.transpose(x), (-1, 4)) @ w["first"])
        return tf.reduce_sum(tf.identity(hidden) * tf.sigmoid(hidden), 1, keepdims=True)

    return dense(score, 4, first=(4, 3))


@pytest.fixture
def copies(monkeypatch):
    """Return the graphs that the converter copies."""
    copied, deepcopy = [], copy.deepcopy

    def counted(value, *memo):
        if isinstance(value, tf2onnx.graph.Graph):
            copied.append(value)
        return deepcopy(value, *memo)

    monkeypatch.setattr(copy, "deepcopy", counted)
    return copied


class Failing:
    graph_been_opt = False

    def optimize(self, graph, iteration):
        for node in graph.get_nodes():
            graph.remove_node(node.name)
        raise ValueError("a pass that fails")


def test_passes_change_the_graph_itself_with_the_same_result(graph, copies, monkeypatch):
    model, weights = to_onnx(graph)
    assert copies == []
    # What it gives by default.
    monkeypatch.setattr("freshet_serving.compiler.backends.onnxruntime.IN_PLACE", "OTHER")
    assert to_onnx(graph) == (model, weights)
    assert len(copies) > 10


def test_pass_that_fails_is_left_out(graph, copies, monkeypatch):
    expected = to_onnx(graph)
    monkeypatch.setitem(tf2onnx.optimizer._optimizers, "failing", Failing)
    assert to_onnx(graph) == expected
    assert copies


@pytest.mark.parametrize("before", [None, "true"])
def test_variable_of_the_converter_is_as_before(graph, monkeypatch, before):
    monkeypatch.delenv(IN_PLACE, raising=False)
    if before is not None:
        monkeypatch.setenv(IN_PLACE, before)
    monkeypatch.setattr(tf2onnx.convert, "from_function", lambda *_, **__: 1 / 0)
    with pytest.raises(BadInput, match="cannot be converted for backend onnxruntime"):
        to_onnx(graph)
    assert os.environ.get(IN_PLACE) == before
