"""OpenVINO's half of the compiler: frozen weights, and the precisions that a processor has."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

import compiler.building.compile as compiling
from compiler.backends.base import Variant
from compiler.building.compile import build, source_hash, variants
from processor.machine import this_machine
from tests.compiler.building.test_compile import make_graph, rows, score

pytestmark = pytest.mark.tensorflow


def test_frozen_weights_belong_to_the_source(tmp_path):
    pytest.importorskip("openvino", reason="the openvino extra is not installed")
    sources = [
        source_hash(compiling.lower(make_graph(hidden=(8, 4), seed=seed), Variant("openvino")), 4) for seed in (1, 2)
    ]
    assert sources[0] != sources[1]


def test_bfloat16_is_offered_only_where_the_processor_has_it():
    pytest.importorskip("openvino", reason="the openvino extra is not installed")
    precisions = {v.precision for v in variants("openvino")}
    assert precisions == ({"float32", "bfloat16"} if this_machine().bfloat16 else {"float32"})


def test_bfloat16_computes_within_its_rounding(tmp_path):
    """On a processor without it the library emulates it: slow, and the same numbers."""
    pytest.importorskip("openvino", reason="the openvino extra is not installed")
    graph = make_graph(hidden=(16, 8))
    entry = build(compiling.lower(graph, Variant("openvino", "bfloat16")), 4, tmp_path)
    assert (entry.precision, "-bfloat16/" in entry.file) == ("bfloat16", True)
    (program,) = compiling.load(graph, tmp_path, [entry]).programs
    x = rows(4, graph.width) * np.float32(0.1)
    np.testing.assert_allclose(score(program.with_weights(graph.weights)[4], x), graph.run(x)["score"], atol=2e-2)
