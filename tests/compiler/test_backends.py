"""Each backend's half of the compiler: what it writes loads, scores as TensorFlow does, and is keyed by its source."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

import compiler.building.compile as compiling
from compiler.backends.base import Variant
from compiler.building.compile import build, parse_variant, source_hash, variants
from compiler.dense.dense_graph import DenseGraph
from compiler.frameworks import keras, tf
from models.zoo import deepfm, dlrm
from processor.backends import registry
from processor.errors import BadInput
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


def test_the_source_follows_the_graph_and_not_the_process_or_the_names_in_it(backend):
    if backend == "tensorflow":
        pytest.skip("a GraphDef keeps the names that it was traced with")
    code = (
        "from tests.compiler.test_backends import *; import sys\n"
        "graph = make_graph(dlrm.build, hidden=(8, 4))\n"
        f"sys.stdout.write(source_hash(compiling.lower(graph, Variant({backend!r})), 4))"
    )
    root = Path(__file__).parents[2]
    other = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    make_graph()  # moves the counters that names could follow from
    lowered = compiling.lower(make_graph(dlrm.build, hidden=(8, 4)), Variant(backend))
    assert other.stdout == source_hash(lowered, 4)
    assert source_hash(lowered, 8) != source_hash(lowered, 4)
    assert source_hash(compiling.lower(make_graph(hidden=(8, 4)), Variant(backend)), 4) != other.stdout


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


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("xla", Variant("xla")),
        (" openvino:bfloat16 ", Variant("openvino", "bfloat16")),
    ],
)
def test_variants_are_written_as_backend_and_precision(text, wanted):
    assert parse_variant(text) == wanted
    assert str(wanted) == text.strip()


@pytest.mark.parametrize("text", ["abacus", "", "xla:float99", ":int8"])
def test_what_is_no_variant_is_refused(text):
    with pytest.raises(BadInput, match=r"backend.*: .* wanted, got"):
        parse_variant(text)


def test_a_graph_that_xla_cannot_compile_is_one_clear_line(tmp_path):
    pytest.importorskip("jaxlib", reason="the xla extra is not installed")
    x = keras.Input((4,))

    class Odd(keras.layers.Layer):
        def call(self, inputs):
            text = tf.strings.as_string(inputs)
            return tf.reshape(tf.strings.to_number(text), (-1, 4))

    graph = DenseGraph.from_keras(keras.Model(x, Odd()(x)))
    with pytest.raises(BadInput, match="dense graph: cannot be compiled for backend xla"):
        built(graph, tmp_path, "xla")
