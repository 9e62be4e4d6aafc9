import re

import numpy as np
import pytest

import freshet_serving.compiler.building.compile as compiling
from freshet_serving.compiler.backends.base import Variant
from freshet_serving.compiler.building.compile import BUCKETS, compile_graph, parse_variant, source_hash
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import keras
from freshet_serving.models.zoo import deepfm, dlrm
from freshet_serving.processor.errors import BadInput
from tests.models.zoo.layouts import LAYOUTS, make_layout


def make_graph(build=deepfm.build, layout=None, hidden=(64, 32), seed=1):
    return DenseGraph.from_keras(build(layout or make_layout(*[8] * 6, 0, 0), hidden, seed=seed).scores)


def load(folder, graph, entries, weights=None):
    (program,) = compiling.load(graph, folder, entries).programs
    return list(program.with_weights(weights or graph.weights).values())


def lower(graph, backend="onnxruntime"):
    return compiling.lower(graph, Variant(backend))


def score(executable, x):
    """Scores of x [n, width], the rest of the bucket filled up with zeros."""
    padded = np.zeros((executable.bucket, x.shape[1]), np.float32)
    padded[: len(x)] = x
    y = np.full((executable.bucket, 1), np.nan, np.float32)
    executable.bind_buffers({"x": padded}, {"score": y})()
    return y[: len(x)]


def rows(n, width, seed=0):
    return np.random.default_rng(seed).standard_normal((n, width), np.float32)


@pytest.mark.parametrize("build", [deepfm.build, dlrm.build], ids=["deepfm", "dlrm"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_bucket_scores_like_tensorflow_padded_or_full(build, layout, tmp_path):
    graph, layout = make_graph(build, LAYOUTS[layout], (16, 8)), LAYOUTS[layout]
    buckets = BUCKETS if build is dlrm.build and layout is LAYOUTS["mixed order"] else (1, 12)

    entries = compile_graph(graph, tmp_path, buckets)

    assert [e.bucket for e in entries] == list(buckets)
    for executable in load(tmp_path, graph, entries):
        for n in {1, max(1, executable.bucket * 3 // 4), executable.bucket}:
            x = rows(n, layout.width, seed=n)
            np.testing.assert_allclose(score(executable, x), graph.run({"x": x})["score"], atol=1e-5)


def test_artefact_contains_no_weights(tmp_path):
    graph = make_graph(hidden=(512, 256))
    for entry in compile_graph(graph, tmp_path, (1, 8)):
        data = (tmp_path / entry.file).read_bytes()
        assert len(data) < 10_000 < sum(w.nbytes for w in graph.weights.values())
        assert set(entry.weights) == set(graph.weights)
        assert re.fullmatch(rf"compiled/onnxruntime-cpu/score-rows{entry.bucket}\.[0-9a-f]{{12}}\.onnx", entry.file)


def test_equal_graphs_compile_to_identical_bytes_for_any_weights(tmp_path):
    graph, trained = make_graph(seed=1), make_graph(seed=2)
    graph.save(tmp_path / "graph")
    loaded = DenseGraph.load(tmp_path / "graph", trained.weights)

    definitions = [lower(g, "onnxruntime").definition for g in (graph, trained, loaded)]

    assert definitions[0] == definitions[1] == definitions[2]


def test_source_hash_distinguishes_graphs_and_buckets():
    graphs = [make_graph(), make_graph(hidden=(64, 33)), make_graph(dlrm.build)]
    lowered = [lower(graph, "onnxruntime") for graph in graphs]

    assert len({source_hash(one, bucket) for one in lowered for bucket in (1, 4)}) == 6


def test_progress_is_reported_after_every_bucket(tmp_path):
    told = []
    compile_graph(make_graph(hidden=(4,)), tmp_path, (8, 2, 2), progress=lambda *counts: told.append(counts))

    assert told == [(1, 2), (2, 2)]


def test_invalid_batch_sizes_and_unknown_backends_are_refused(tmp_path):
    graph = make_graph(hidden=(4,))
    for buckets in ((), (0,), (-1, 4)):
        with pytest.raises(BadInput, match="buckets: expected positive batch sizes"):
            compile_graph(graph, tmp_path, buckets)
    with pytest.raises(BadInput, match=r"backend: expected one of onnxruntime, .*, got 'abacus'"):
        compile_graph(graph, tmp_path, backend="abacus")


def test_artefact_with_wrong_scores_is_refused(tmp_path, monkeypatch):
    graph = make_graph(hidden=(4,))
    wrong = {name: array + 0.5 for name, array in graph.weights.items()}
    honest = DenseGraph.run
    monkeypatch.setattr(DenseGraph, "run", lambda self, inputs: honest(self, inputs, wrong))

    with pytest.raises(BadInput, match=r"executable b4: output 'score' differs by [\d.]+ from TensorFlow's"):
        compile_graph(graph, tmp_path, buckets=(4,))


def test_unsupported_operator_is_named(tmp_path):
    x = keras.Input((4,))

    class Odd(keras.layers.Layer):
        def call(self, inputs):
            from freshet_serving.compiler.frameworks import tf

            return tf.math.igamma(tf.abs(inputs) + 1.0, tf.abs(inputs))

    graph = DenseGraph.from_keras(keras.Model(x, Odd()(x)))
    with pytest.raises(BadInput, match="dense graph: operator Igamma is not supported by backend onnxruntime"):
        compile_graph(graph, tmp_path)


def test_variants_are_written_as_backend_and_precision():
    for text, variant in (("xla", Variant("xla")), (" openvino:bfloat16 ", Variant("openvino", "bfloat16"))):
        assert parse_variant(text) == variant
        assert str(variant) == text.strip()
    for text in ("abacus", "", "xla:float99", ":int8"):
        with pytest.raises(BadInput, match=r"backend.*: expected .*, got"):
            parse_variant(text)
