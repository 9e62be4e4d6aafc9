"""Each backend's half of the compiler: what it writes loads, scores as TensorFlow does, and is keyed by its source."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import freshet_serving.compiler.building.compile as compiling
from freshet_serving.compiler.backends.base import Variant
from freshet_serving.compiler.building.compile import build, source_hash
from freshet_serving.compiler.dense.dense_graph import DenseGraph, signature
from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.models.zoo import deepfm, dlrm
from freshet_serving.processor.backends import registry
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.package.manifest_entries import Output
from tests.compiler.building.test_compile import make_graph, rows, score
from tests.models.zoo.layouts import LAYOUTS

LIBRARIES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "xla": "jaxlib", "tensorflow": "tensorflow"}


class TensorFlowPoint:
    """The entry point that pyproject.toml declares; a bare checkout is not installed."""

    name = "tensorflow"

    @staticmethod
    def load():
        from freshet_serving.compiler.backends.tensorflow_runtime import TensorFlow

        return TensorFlow


@pytest.fixture(params=LIBRARIES)
def backend(request, monkeypatch):
    pytest.importorskip(LIBRARIES[request.param], reason="the library is not installed")
    monkeypatch.setattr(registry, "entry_points", lambda group: [TensorFlowPoint])
    return request.param


VARIANTS = [Variant(backend) for backend in LIBRARIES] + [
    Variant(backend, precision)
    for backend, precision in (("onnxruntime", "int8"), ("openvino", "int8"), ("openvino", "bfloat16"))
    if getattr(this_machine(), precision)
]
STRANGE = st.sampled_from([0.0, -1e4, 3e37, -3e37, np.inf, np.nan]) | st.floats(-50, 50, width=32)


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def executables(request, tmp_path_factory):
    """A variant's executables, by bucket, of a network that is large enough for int8."""
    pytest.importorskip(LIBRARIES[request.param.backend], reason="the library is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", lambda group: [TensorFlowPoint])
        graph = make_graph(hidden=(64, 32))
        graph = replace(graph, examples={"x": rows(256, graph.width)})
        folder = tmp_path_factory.mktemp("version")
        lowered = compiling.lower(graph, replace(request.param, bound=1.0))
        entries = [build(lowered, bucket, folder) for bucket in (2, 8, 64)]
        assert {entry.precision for entry in entries} == {request.param.precision}
        (program,) = compiling.load(graph, folder, entries).programs
        return graph.width, program.with_weights(graph.weights)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([2, 8, 64]), st.integers(0, 63), st.integers(0, 2**32 - 1), STRANGE, st.booleans())
def test_score_of_a_row_is_bitwise_independent_of_its_batch(executables, bucket, at, seed, strange, everywhere):
    width, by_bucket = executables
    random, at = np.random.default_rng(seed), at % bucket
    x = random.standard_normal((bucket, width)).astype(np.float32)
    others = random.standard_normal((bucket, width)).astype(np.float32) * np.float32(10.0 ** random.integers(-3, 4))
    if everywhere:
        others[:] = strange
    else:
        others[random.integers(0, bucket), random.integers(0, width)] = strange
    others[at] = x[at]
    assert score(by_bucket[bucket], x)[at].tobytes() == score(by_bucket[bucket], others)[at].tobytes()


def built(graph, folder, backend, buckets=(1, 8)):
    lowered = compiling.lower(graph, Variant(backend))
    return [build(lowered, bucket, folder) for bucket in buckets]


@pytest.mark.parametrize(("build", "buckets"), [(deepfm.build, (8,)), (dlrm.build, (1, 8))], ids=["deepfm", "dlrm"])
def test_scores_equal_tensorflow_for_compiled_and_new_weights(build, buckets, backend, tmp_path):
    graph = make_graph(build, LAYOUTS["embeddings then floats"], (16, 8))
    entries = built(graph, tmp_path, backend, buckets)
    (program,) = compiling.load(graph, tmp_path, entries).programs
    for scale in (1.0, 1.5):
        weights = {name: array * np.float32(scale) for name, array in graph.weights.items()}
        for bucket, executable in program.with_weights(weights).items():
            x = rows(bucket, graph.width)
            np.testing.assert_allclose(score(executable, x), graph.run({"x": x}, weights)["score"], atol=1e-5)
    check_requirements(entries[0], backend, tmp_path)


def check_requirements(entry, backend, folder):
    """Machine code records what it needs, and what it is compiled from."""
    code = backend in ("openvino", "xla")
    assert bool(entry.sha256) == bool(entry.library) == bool(entry.origin) == code
    assert entry.features == (sorted(this_machine().features) if code else [])
    assert bool(entry.frozen) == (backend == "openvino")
    assert (folder / entry.file).is_file()
    assert entry.target in entry.file


def test_several_outputs_are_returned_by_name(backend, tmp_path):
    x = keras.Input((4,))
    h = keras.layers.BatchNormalization(name="bn")(x)
    model = keras.Model(x, {"b": keras.layers.Dense(3, name="b")(h), "a": keras.layers.Dense(1, name="a")(h)})
    graph = DenseGraph.from_keras(model)
    (program,) = compiling.load(graph, tmp_path, built(graph, tmp_path, backend, (8,))).programs
    got = {"a": np.zeros((8, 1), np.float32), "b": np.zeros((8, 3), np.float32)}
    program.with_weights(graph.weights)[8].bind_buffers({"x": rows(8, 4)}, got)()
    for name, wanted in graph.run({"x": rows(8, 4)}).items():
        np.testing.assert_allclose(got[name], wanted, atol=1e-5)


def test_inputs_per_row_and_per_request_are_given_by_name(backend, tmp_path):
    def scored(inputs, weights):
        history = tf.reduce_sum(inputs["history"] * inputs["x"][:, None, :2], (1, 2))
        return {"score": inputs["x"] @ weights["w"] + inputs["a_user"] @ weights["v"] + history[:, None]}

    dims = {"x": (None, 4), "history": (None, 3, 2), "a_user": (1, 5)}
    weights = {"w": rows(4, 1), "v": rows(5, 1, seed=1)}
    function = tf.function(scored, input_signature=signature(dims, weights), autograph=False)
    graph = DenseGraph(function, dims, [Output("score", 1)], weights)
    (program,) = compiling.load(graph, tmp_path, built(graph, tmp_path, backend, (8,))).programs
    given, got = graph.sample(8), graph.spec.allocate_outputs(8)

    program.with_weights(weights)[8].bind_buffers(given, got)()

    np.testing.assert_allclose(got["score"], graph.run(given)["score"], atol=1e-5)


@pytest.mark.long
def test_source_hash_depends_on_the_graph_and_not_its_names(backend):
    if backend == "tensorflow":
        pytest.skip("a GraphDef keeps the names that it was traced with")
    code = (
        "from tests.compiler.backends.test_base import *; import sys\n"
        "graph = make_graph(dlrm.build, hidden=(8, 4))\n"
        f"sys.stdout.write(source_hash(compiling.lower(graph, Variant({backend!r})), 4))"
    )
    root = Path(__file__).parents[3]
    other = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    make_graph()  # moves the counters that names could follow from
    lowered = compiling.lower(make_graph(dlrm.build, hidden=(8, 4)), Variant(backend))
    assert other.stdout == source_hash(lowered, 4)
    assert source_hash(lowered, 8) != source_hash(lowered, 4)
    assert source_hash(compiling.lower(make_graph(hidden=(8, 4)), Variant(backend)), 4) != other.stdout
