"""Names of weights that an exporter has transposed, as both importers use them."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.onnx_graph.linear_weights import linear_names
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import read_onnx
from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.repository import open_repository
from tests.compiler.imports.onnx_graph.spelled import changed, written
from tests.compiler.imports.replies import replies

W, B = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones(3, np.float32)
# nn.Linear on three dimensions, as exporters write it when they fold constants.
FOLDED = """g (float[batch, 2, 4] x) => (float[batch, 2, 3] y) {
    m = MatMul (x, "onnx::MatMul_12")
    y = Add ("query.bias", m)
}"""


@pytest.mark.parametrize(
    ("layer", "scope", "named"),
    [
        ("query", "", True),
        ("query", "/query/MatMul", True),
        ("query", "/other/MatMul", False),
        ("query", "MatMul_3", True),
        ("tower.layers.0", "/tower/layers/layers.0/MatMul", False),
    ],
)
def test_bias_gives_the_name_of_the_layer_in_whose_scope_the_product_is(layer, scope, named, tmp_path):
    text = FOLDED.replace("query.bias", f"{layer}.bias")
    path = written(tmp_path / "m.onnx", text, **{"onnx::MatMul_12": W, f"{layer}.bias".replace(".", "__"): B})
    changed(path, lambda proto: setattr(proto.graph.node[0], "name", scope))
    assert linear_names(read_onnx(path).body) == ({"onnx::MatMul_12": f"{layer}.weight"} if named else {})


def test_native_weight_takes_deltas_in_the_shape_of_the_layer(tmp_path):
    path = written(tmp_path / "m.onnx", FOLDED, **{"onnx::MatMul_12": W, "query__bias": B})
    repository = open_repository(tmp_path / "models", create=True)
    with repository.writer("m", 1) as writer:
        reader = NativeImporter(path, "").publish(repository, writer, (1, 8))
    assert reader.manifest.dense == {"query.weight": [3, 4], "query.bias": [3]}

    Publisher(tmp_path / "models", "m").publish({}, dense={"query.weight": 2 * W.T})
    x = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)
    got = replies(tmp_path / "models", "m", {"x": x.reshape(3, 8)})["y"]
    np.testing.assert_allclose(got.reshape(3, 2, 3), x @ (2 * W) + B, rtol=1e-5, atol=1e-5)
