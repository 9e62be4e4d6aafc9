"""A dense graph that ONNX Runtime computes as it is: kept in a folder, compiled for its one backend, recompiled."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="importing needs the train extra")

from freshet_serving.compiler.backends import native_onnx
from freshet_serving.compiler.backends.base import Variant
from freshet_serving.compiler.dense.onnx_dense_graph import OnnxDenseGraph
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.version import GRAPH, VersionReader
from tests.compiler.imports.onnx_native.native_models import LSTM, LSTM_WEIGHTS, spelled


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lstm")
    path = spelled(folder / "m.onnx", LSTM, **LSTM_WEIGHTS)
    return VersionReader(import_model(path, folder / "models", "m", options=ImportOptions(buckets=(1, 4))).folder)


@pytest.fixture(scope="module")
def graph(reader):
    return OnnxDenseGraph.load(reader.folder / GRAPH, reader.dense(), reader.manifest.outputs)


def test_folder_holds_model_and_examples(reader, graph, tmp_path):
    assert OnnxDenseGraph.stored(reader.folder / GRAPH)
    assert not OnnxDenseGraph.stored(tmp_path)
    graph.save(tmp_path / "copy")
    copy = OnnxDenseGraph.load(tmp_path / "copy", graph.weights, graph.outputs)
    assert (copy.model, copy.width, copy.spec) == (graph.model, graph.width, graph.spec)
    np.testing.assert_array_equal(copy.sample(300)["x"], graph.sample(300)["x"])


def test_weights_are_arguments_of_a_run(graph):
    given = graph.sample(300)
    assert graph.rows(given) == 300
    doubled = {**graph.weights, "top.weight": graph.weights["top.weight"] * 2}
    np.testing.assert_allclose(graph.run(given, doubled)["score"], 2 * graph.run(given)["score"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "variant", [Variant("xla"), Variant("onnxruntime", "int8"), Variant("onnxruntime", target="cuda")]
)
def test_other_backends_and_precisions_are_refused(variant, graph):
    with pytest.raises(BadInput, match="an ONNX graph, which onnxruntime computes as it is"):
        native_onnx.lower(graph, variant)


def test_its_executable_is_the_graph(graph):
    lowered = native_onnx.lower(graph, Variant("onnxruntime"))
    assert lowered.compile(4).data == lowered.compile(64).data == graph.model


@pytest.mark.tensorflow
def test_version_is_compiled_again_for_other_batch_sizes(reader):
    pytest.importorskip("tensorflow", reason="compiling needs the train extra")
    from freshet_serving.compiler.building.recompile import CompileOptions, compile_version
    from tests.compiler.building.versions import Silent

    report = compile_version(reader.folder, CompileOptions(backends=("onnxruntime", "xla"), buckets=(2, 16)), Silent())
    assert sorted(report.chosen) == [2, 16]
    assert {e.backend for e in report.manifest.executables} == {"onnxruntime"}
    assert any("an ONNX graph, which onnxruntime computes as it is" in line for line in report.skipped)
    assert report.passes == ["passes: none: ONNX Runtime computes the graph as it is"]
