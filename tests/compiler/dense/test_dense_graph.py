from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import keras
from freshet_serving.models.zoo.deepfm import build
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest import NAME, Output
from tests.models.zoo.layouts import make_layout

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def arch():
    return build(make_layout(4, 4, 4, 0, 0), (8, 6), seed=1)


def rows(n, width=14, seed=0):
    return np.random.default_rng(seed).standard_normal((n, width), np.float32)


def test_the_graph_computes_the_models_scores_from_the_weights_given(arch):
    graph = DenseGraph.from_keras(arch.scores)
    x = rows(5)

    assert graph.width == 14
    assert graph.outputs == [Output("score", 1)]
    np.testing.assert_allclose(graph.run(x)["score"], arch.scores(x)["score"].numpy(), atol=1e-6)

    doubled = {name: 2 * array for name, array in graph.weights.items()}
    for variable in arch.scores.variables:
        variable.assign(doubled[variable.path])
    np.testing.assert_allclose(graph.run(x, doubled)["score"], arch.scores(x)["score"].numpy(), atol=1e-6)


def test_a_saved_graph_reads_back_the_same_and_holds_no_weight(arch, tmp_path):
    graph = DenseGraph.from_keras(arch.scores)
    graph.save(tmp_path / "graph")
    other = {name: array + 0.1 for name, array in graph.weights.items()}

    loaded = DenseGraph.load(tmp_path / "graph", other)

    assert (loaded.width, loaded.outputs) == (graph.width, graph.outputs)
    np.testing.assert_array_equal(loaded.run(rows(3))["score"], graph.run(rows(3), other)["score"])
    marks = [array.tobytes()[:64] for array in graph.weights.values() if array.any()]
    files = [p for p in (tmp_path / "graph").rglob("*") if p.is_file()]
    assert not any(mark in p.read_bytes() for p in files for mark in marks if len(mark) == 64)
    parts = [part for p in files for part in p.relative_to(tmp_path).parts]
    assert all(NAME.fullmatch(part) for part in parts)


def test_weights_that_are_not_the_graphs_own_are_refused(arch, tmp_path):
    graph = DenseGraph.from_keras(arch.scores)
    graph.save(tmp_path / "graph")
    missing = {name: array for name, array in graph.weights.items() if name != "linear/bias"}

    with pytest.raises(BadInput, match=r"weight 'linear/bias': expected shape \(1,\), got none"):
        DenseGraph.load(tmp_path / "graph", missing)
    with pytest.raises(BadInput, match=r"weight 'stray': expected shape none, got \(2,\)"):
        DenseGraph.load(tmp_path / "graph", graph.weights | {"stray": np.zeros(2, np.float32)})


def test_a_folder_that_is_no_dense_graph_is_refused(tmp_path):
    with pytest.raises(BadInput, match="expected a dense graph's SavedModel"):
        DenseGraph.load(tmp_path, {})
    (tmp_path / "saved_model.pb").write_bytes(b"\xff" * 100)
    with pytest.raises(BadInput, match="expected a dense graph's SavedModel"):
        DenseGraph.load(tmp_path, {})


def test_normalisation_and_dropout_compile_as_they_serve():
    x = keras.Input((4,))
    h = keras.layers.BatchNormalization(name="norm")(keras.layers.Dropout(0.5, seed=1)(x))
    model = keras.Model(x, {"a": keras.layers.Dense(2, name="a")(h), "b": keras.layers.Dense(1, name="b")(h)})
    model.get_layer("norm").moving_mean.assign([1.0, 2, 3, 4])

    graph = DenseGraph.from_keras(model)

    assert graph.outputs == [Output("a", 2), Output("b", 1)]
    assert "norm/moving_mean" in graph.weights
    got = graph.run(rows(3, 4))
    for name, value in model(rows(3, 4), training=False).items():
        np.testing.assert_allclose(got[name], value.numpy(), atol=1e-6)


def test_models_that_are_no_dense_graph_are_refused():
    x, y = keras.Input((4,)), keras.Input((4,))
    with pytest.raises(BadInput, match=r"one input \[n, width\]"):
        DenseGraph.from_keras(keras.Model([x, y], keras.layers.add([x, y])))
    with pytest.raises(BadInput, match=r"output 'score': expected float32 \[n, columns\]"):
        DenseGraph.from_keras(keras.Model(x, keras.layers.Reshape((2, 2))(x)))
    with pytest.raises(BadInput, match="output 'a/b': expected a plain name"):
        DenseGraph.from_keras(keras.Model(x, {"a/b": keras.layers.Dense(1)(x)}))
    with pytest.raises(BadInput, match="expected float32, got float16"):
        DenseGraph.from_keras(keras.Model(x, keras.layers.Dense(1, dtype="float16")(x)))


def test_examples_travel_with_the_graph_and_are_what_it_is_tried_on(arch, tmp_path):
    plain = DenseGraph.from_keras(arch.scores)
    assert plain.sample(3).shape == (3, 14)
    examples = rows(2, seed=4)
    replace(plain, examples=examples).save(tmp_path / "graph")

    loaded = DenseGraph.load(tmp_path / "graph", plain.weights)

    np.testing.assert_array_equal(loaded.sample(5), examples[[0, 1, 0, 1, 0]])
