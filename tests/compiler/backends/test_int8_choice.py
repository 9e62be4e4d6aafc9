"""As many products in int8 as the bound allows; none is refused with the figure."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from freshet_serving.compiler.backends.int8_choice import in_int8
from freshet_serving.compiler.backends.onnxruntime import to_onnx
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.machine import this_machine
from tests.compiler.building.test_compile import make_graph, rows

pytestmark = pytest.mark.skipif(not this_machine().int8, reason="this processor does not multiply int8")


@pytest.fixture(scope="module")
def graph():
    graph = make_graph(hidden=(64, 48, 32))
    return replace(graph, examples={"x": rows(256, graph.width) * np.float32(0.3)})


def many(model):
    """Products that are in int8."""
    return sum(node.op_type == "ReduceMax" for node in onnx.load_from_string(model).graph.node)


def test_tighter_error_limit_leaves_fewer_int8_products(graph):
    model, names = to_onnx(graph)
    counts = []
    for bound in (0.1, 1e-3, 5e-4):
        try:
            counts.append(many(in_int8(model, names, graph, bound)))
        except BadInput:
            counts.append(0)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 3
    assert 0 < counts[1] < 3
    with pytest.raises(BadInput, match=r"int8: scores change by at least \d.*, expected at most 1e-06"):
        in_int8(model, names, graph, 1e-6)


def test_graph_of_small_products_is_not_quantised():
    graph = make_graph(hidden=(4,))
    with pytest.raises(BadInput, match="no matrix product is large enough"):
        in_int8(*to_onnx(graph), graph, 0.1)
