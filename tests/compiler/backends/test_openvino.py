"""OpenVINO's half of the compiler: frozen weights, and the precisions that a processor has."""

import numpy as np
import pytest

import freshet_serving.compiler.building.compile as compiling
from freshet_serving.compiler.backends import openvino
from freshet_serving.compiler.backends.base import Variant
from freshet_serving.compiler.building.compile import build, source_hash, variants
from freshet_serving.processor.machine import Machine
from tests.compiler.building.test_compile import make_graph, rows, score


def test_frozen_weights_belong_to_the_source_hash(tmp_path):
    pytest.importorskip("openvino", reason="the openvino extra is not installed")
    sources = [
        source_hash(compiling.lower(make_graph(hidden=(8, 4), seed=seed), Variant("openvino")), 4) for seed in (1, 2)
    ]
    assert sources[0] != sources[1]


@pytest.mark.parametrize(
    ("features", "precisions"),
    [
        ({"avx2"}, ["float32"]),
        ({"avx512_bf16"}, ["float32", "bfloat16"]),
        ({"avx_vnni"}, ["float32", "int8"]),
        ({"amx_bf16", "avx512_vnni"}, ["float32", "bfloat16", "int8"]),
    ],
)
def test_lower_precision_is_offered_only_on_supporting_processors(features, precisions, monkeypatch):
    pytest.importorskip("openvino", reason="the openvino extra is not installed")
    monkeypatch.setattr(openvino, "this_machine", lambda: Machine(frozenset(features), "one"))
    assert [v.precision for v in variants("openvino")] == precisions


def test_bfloat16_scores_are_within_its_rounding(tmp_path):
    """On a processor without it the library emulates it: slow, and the same numbers."""
    pytest.importorskip("openvino", reason="the openvino extra is not installed")
    graph = make_graph(hidden=(16, 8))
    entry = build(compiling.lower(graph, Variant("openvino", "bfloat16")), 4, tmp_path)
    assert (entry.precision, "-bfloat16/" in entry.file) == ("bfloat16", True)
    (program,) = compiling.load(graph, tmp_path, [entry]).programs
    x = rows(4, graph.width) * np.float32(0.1)
    np.testing.assert_allclose(
        score(program.with_weights(graph.weights)[4], x), graph.run({"x": x})["score"], atol=2e-2
    )
