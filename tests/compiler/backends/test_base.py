"""Each backend's half of the compiler: what it writes loads, scores as TensorFlow does, and is keyed by its source."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

import compiler.building.compile as compiling
from compiler.backends.base import Variant
from compiler.building.compile import build, source_hash
from compiler.dense.dense_graph import DenseGraph
from compiler.frameworks import keras
from models.zoo import deepfm, dlrm
from processor.backends import registry
from processor.machine import this_machine
from tests.compiler.building.test_compile import make_graph, rows, score
from tests.models.zoo.layouts import LAYOUTS

pytestmark = pytest.mark.tensorflow

LIBRARIES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "xla": "jaxlib", "tensorflow": "tensorflow"}


class TensorFlowPoint:
    """The entry point that pyproject.toml declares; a bare checkout is not installed."""

    name = "tensorflow"

    @staticmethod
    def load():
        from compiler.backends.tensorflow_runtime import TensorFlow

        return TensorFlow


@pytest.fixture(params=LIBRARIES)
def backend(request, monkeypatch):
    pytest.importorskip(LIBRARIES[request.param], reason="the library is not installed")
    monkeypatch.setattr(registry, "entry_points", lambda group: [TensorFlowPoint])
    return request.param


def built(graph, folder, backend, buckets=(1, 8)):
    lowered = compiling.lower(graph, Variant(backend))
    return [build(lowered, bucket, folder) for bucket in buckets]


@pytest.mark.parametrize("build", [deepfm.build, dlrm.build], ids=["deepfm", "dlrm"])
def test_scores_are_tensorflows_for_the_compiled_weights_and_for_others(build, backend, tmp_path):
    layout = next(iter(LAYOUTS.values()))
    graph = make_graph(build, layout, (16, 8))
    entries = built(graph, tmp_path, backend)
    (program,) = compiling.load(graph, tmp_path, entries).programs
    for scale in (1.0, 1.5):
        weights = {name: array * np.float32(scale) for name, array in graph.weights.items()}
        for bucket, executable in program.with_weights(weights).items():
            x = rows(bucket, graph.width)
            np.testing.assert_allclose(score(executable, x), graph.run(x, weights)["score"], atol=1e-5)


def test_several_outputs_come_under_their_own_names(backend, tmp_path):
    x = keras.Input((4,))
    h = keras.layers.BatchNormalization(name="bn")(x)
    model = keras.Model(x, {"b": keras.layers.Dense(3, name="b")(h), "a": keras.layers.Dense(1, name="a")(h)})
    graph = DenseGraph.from_keras(model)
    (program,) = compiling.load(graph, tmp_path, built(graph, tmp_path, backend, (8,))).programs
    got = {"a": np.zeros((8, 1), np.float32), "b": np.zeros((8, 3), np.float32)}
    program.with_weights(graph.weights)[8].bind(rows(8, 4), got)()
    for name, wanted in graph.run(rows(8, 4)).items():
        np.testing.assert_allclose(got[name], wanted, atol=1e-5)


def test_machine_code_names_what_it_needs_and_what_it_came_from(backend, tmp_path):
    graph = make_graph(hidden=(16, 8))
    (entry,) = built(graph, tmp_path, backend, (4,))
    code = backend in ("openvino", "xla")
    assert bool(entry.sha256) == bool(entry.library) == bool(entry.origin) == code
    assert entry.features == (sorted(this_machine().features) if code else [])
    assert bool(entry.frozen) == (backend == "openvino")
    assert (tmp_path / entry.file).is_file()
    assert entry.target in entry.file


@pytest.mark.long
def test_the_source_follows_the_graph_and_not_the_process_or_the_names_in_it(backend):
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
