import numpy as np
import pytest

from freshet_serving.compiler.building.compile import compile_graph, load
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.dense.fusion import changes, fuse
from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest_entries import Feature
from tests.compiler.passes.graphs import dense, rows

TEXT = "ctr * cvr ** 0.5 * price"
PRICE = Feature("price", "float", "price", log1p=True, mean=1.5, scale=0.5, offset=3)
PLAIN = Feature("age", "float", "age", mean=40.0, scale=0.1, offset=2)


def heads():
    def two(x, w):
        return {"ctr": tf.sigmoid(x @ w["a"]), "cvr": tf.sigmoid(x @ w["b"]), "wide": x}

    return dense(two, 4, a=(4, 1), b=(4, 1))


def sent(x):
    """The price as a request has it."""
    return np.expm1(np.abs(x[:, 3:] / 0.5 + 1.5)) * np.sign(x[:, 3:] / 0.5 + 1.5)


def test_expression_becomes_an_output_next_to_its_heads():
    graph = fuse(heads(), {"score": TEXT}, [PLAIN, PRICE])
    x = rows(graph)

    got = graph.run({"x": x})

    assert [o.name for o in graph.outputs] == ["ctr", "cvr", "score", "wide"]
    assert graph.weights["fusion/score"].tolist() == [0.5]
    np.testing.assert_allclose(got["score"], got["ctr"] * got["cvr"] ** 0.5 * sent(x), rtol=1e-5)
    assert got["score"].shape == (len(x), 1)


def test_expressions_read_features_and_earlier_expressions():
    graph = fuse(heads(), {"base": "max(ctr, cvr)", "score": "base / age - 2", "flat": "1 + 2"}, [PLAIN])
    x = rows(graph)

    got = graph.run({"x": x})

    base = np.maximum(got["ctr"], got["cvr"])
    np.testing.assert_allclose(got["score"], base / (x[:, 2:3] / np.float32(0.1) + 40) - 2, rtol=1e-5)
    np.testing.assert_array_equal(got["flat"], np.full((len(x), 1), 3))


def test_delta_can_change_exponents_without_recompiling(tmp_path):
    graph = fuse(heads(), {"score": TEXT}, [PRICE])
    (entry,) = compile_graph(graph, tmp_path, (16,))
    x = rows(graph, 16)
    changed = changes("score", TEXT, "ctr * cvr ** 0.75 * price")

    assert {name: list(value) for name, value in changed.items()} == {"fusion/score": [0.75]}
    columns = {o.name: o.columns for o in graph.outputs}
    (program,) = load(graph, tmp_path, [entry]).programs
    for weights in (graph.weights, graph.weights | changed):
        loaded = program.with_weights(weights)[16]
        got = {name: np.empty((16, n), np.float32) for name, n in columns.items()}
        loaded.bind_buffers({"x": x}, got)()
        power = weights["fusion/score"][0]
        np.testing.assert_allclose(got["score"], got["ctr"] * got["cvr"] ** power * sent(x), rtol=1e-4)


def test_delta_cannot_change_the_structure_of_an_expression():
    with pytest.raises(BadInput, match=r"fusion.score: expected an expression that differs in its numbers alone"):
        changes("score", TEXT, "ctr * cvr * price")
    with pytest.raises(BadInput, match="with a number in it"):
        changes("score", "ctr * cvr", "ctr*cvr")


def test_fused_graph_is_saved_and_loaded_like_any_other(tmp_path):
    graph = fuse(heads(), {"score": TEXT}, [PRICE])
    graph.save(tmp_path / "graph")

    read = DenseGraph.load(tmp_path / "graph", graph.weights)

    inputs = {"x": rows(graph)}
    np.testing.assert_array_equal(read.run(inputs)["score"], graph.run(inputs)["score"])


@pytest.mark.parametrize(
    ("expressions", "message"),
    [
        ({"score": "ctr * wide"}, "fusion.score: expected one of ctr, cvr, price, got 'wide'"),
        ({"score": "ctr * later", "later": "cvr"}, "got 'later'"),
        ({"ctr": "cvr * 2"}, "fusion.ctr: expected a plain name that is no output yet"),
        ({"a/b": "ctr"}, "a plain name"),
        ({"score": "ctr *"}, "fusion.score: expected .* at the end"),
        ({f"s{i}": "ctr" for i in range(65)}, "expected at most 64 outputs"),
    ],
)
def test_unsupported_fusion_is_refused(expressions, message):
    with pytest.raises(BadInput, match=message):
        fuse(heads(), expressions, [PRICE])
