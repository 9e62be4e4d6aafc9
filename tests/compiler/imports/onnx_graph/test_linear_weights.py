"""Names of weights that an exporter has transposed, as both importers use them."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.onnx_graph.linear_weights import linear_names
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import read_onnx
from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.repository import open_repository
from tests.compiler.imports.onnx_graph.spelled import changed, written

W, B = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones(3, np.float32)
# nn.Linear on three dimensions, as exporters write it when they fold constants.
FOLDED = """g (float[batch, 2, 4] x) => (float[batch, 2, 3] y) {
    m = MatMul (x, "onnx::MatMul_12")
    y = Add ("query.bias", m)
}"""


def test_bias_gives_the_name_of_the_layer(tmp_path):
    path = written(tmp_path / "m.onnx", FOLDED, **{"onnx::MatMul_12": W, "query__bias": B})
    assert linear_names(read_onnx(path).body) == {"onnx::MatMul_12": "query.weight"}


@pytest.mark.parametrize(("scope", "known"), [("/query/MatMul", True), ("/other/MatMul", False), ("MatMul_3", True)])
def test_scope_of_the_product_must_be_the_layer(scope, known, tmp_path):
    path = written(tmp_path / "m.onnx", FOLDED, **{"onnx::MatMul_12": W, "query__bias": B})
    changed(path, lambda proto: setattr(proto.graph.node[0], "name", scope))
    assert bool(linear_names(read_onnx(path).body)) == known


def test_native_weight_takes_deltas_in_the_shape_of_the_layer(tmp_path):
    path = written(tmp_path / "m.onnx", FOLDED, **{"onnx::MatMul_12": W, "query__bias": B})
    repository = open_repository(tmp_path / "models", create=True)
    with repository.writer("m", 1) as writer:
        reader = NativeImporter(path, "").publish(repository, writer, (1, 8))
    assert reader.manifest.dense == {"query.weight": [3, 4], "query.bias": [3]}

    Publisher(tmp_path / "models", "m").publish({}, dense={"query.weight": 2 * W.T})
    x = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)
    with Processor.initialize(ProcessorConfig(repository=str(tmp_path / "models"), sessions=1)) as processor:
        got = processor.process(PredictRequest("m", {"x": x.reshape(3, 8)})).outputs["y"]
    np.testing.assert_allclose(got.reshape(3, 2, 3), x @ (2 * W) + B, rtol=1e-5, atol=1e-5)
