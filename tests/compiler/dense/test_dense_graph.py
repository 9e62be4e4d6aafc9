from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.compiler.dense.dense_graph import DenseGraph, signature
from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.models.zoo.deepfm import build
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest_entries import NAME, Output
from tests.models.zoo.layouts import make_layout


def made():
    return build(make_layout(4, 4, 4, 0, 0), (8, 6), seed=1)


@pytest.fixture(scope="module")
def graph():
    return DenseGraph.from_keras(made().scores)


def rows(n, width=14, seed=0):
    return np.random.default_rng(seed).standard_normal((n, width), np.float32)


def test_graph_computes_model_scores_from_the_given_weights():
    arch = made()
    graph = DenseGraph.from_keras(arch.scores)
    x = rows(5)

    assert graph.width == 14
    assert graph.outputs == [Output("score", 1)]
    np.testing.assert_allclose(graph.run({"x": x})["score"], arch.scores(x)["score"].numpy(), atol=1e-6)

    doubled = {name: 2 * array for name, array in graph.weights.items()}
    for variable in arch.scores.variables:
        variable.assign(doubled[variable.path])
    np.testing.assert_allclose(graph.run({"x": x}, doubled)["score"], arch.scores(x)["score"].numpy(), atol=1e-6)


def test_saved_graph_round_trips_without_weights(graph, tmp_path):
    graph.save(tmp_path / "graph")
    other = {name: array + 0.1 for name, array in graph.weights.items()}

    loaded = DenseGraph.load(tmp_path / "graph", other)

    assert (loaded.inputs, loaded.outputs) == (graph.inputs, graph.outputs)
    x = {"x": rows(3)}
    np.testing.assert_array_equal(loaded.run(x)["score"], graph.run(x, other)["score"])
    marks = [array.tobytes()[:64] for array in graph.weights.values() if array.any()]
    files = [p for p in (tmp_path / "graph").rglob("*") if p.is_file()]
    assert not any(mark in p.read_bytes() for p in files for mark in marks if len(mark) == 64)
    parts = [part for p in files for part in p.relative_to(tmp_path).parts]
    assert all(NAME.fullmatch(part) for part in parts)


def test_mismatched_weights_are_refused(graph, tmp_path):
    graph.save(tmp_path / "graph")
    missing = {name: array for name, array in graph.weights.items() if name != "linear/bias"}

    with pytest.raises(BadInput, match=r"weight 'linear/bias': expected shape \(1,\), got none"):
        DenseGraph.load(tmp_path / "graph", missing)
    with pytest.raises(BadInput, match=r"weight 'stray': expected shape none, got \(2,\)"):
        DenseGraph.load(tmp_path / "graph", graph.weights | {"stray": np.zeros(2, np.float32)})


def test_folder_without_a_dense_graph_is_refused(tmp_path):
    with pytest.raises(BadInput, match="expected a dense graph's SavedModel"):
        DenseGraph.load(tmp_path, {})
    (tmp_path / "saved_model.pb").write_bytes(b"\xff" * 100)
    with pytest.raises(BadInput, match="expected a dense graph's SavedModel"):
        DenseGraph.load(tmp_path, {})


def test_normalisation_and_dropout_compile_in_inference_mode():
    x = keras.Input((4,))
    h = keras.layers.BatchNormalization(name="norm")(keras.layers.Dropout(0.5, seed=1)(x))
    model = keras.Model(x, {"a": keras.layers.Dense(2, name="a")(h), "b": keras.layers.Dense(1, name="b")(h)})
    model.get_layer("norm").moving_mean.assign([1.0, 2, 3, 4])

    graph = DenseGraph.from_keras(model)

    assert graph.outputs == [Output("a", 2), Output("b", 1)]
    assert "norm/moving_mean" in graph.weights
    got = graph.run({"x": rows(3, 4)})
    for name, value in model(rows(3, 4), training=False).items():
        np.testing.assert_allclose(got[name], value.numpy(), atol=1e-6)


def test_models_that_are_not_dense_graphs_are_refused():
    x, ragged, scalar = keras.Input((4,)), keras.Input((None,)), keras.Input(())
    for inputs in (ragged, scalar, [x, ragged], [x, scalar]):
        with pytest.raises(BadInput, match=r"expected inputs \[n, \.\.\.\] of a known size"):
            DenseGraph.from_keras(keras.Model(inputs, keras.layers.Dense(1)(x) if isinstance(inputs, list) else inputs))
    with pytest.raises(BadInput, match=r"output 'score': expected float32 \[n, columns\]"):
        DenseGraph.from_keras(keras.Model(x, keras.layers.Reshape((2, 2))(x)))
    with pytest.raises(BadInput, match="output 'a/b': expected a plain name"):
        DenseGraph.from_keras(keras.Model(x, {"a/b": keras.layers.Dense(1)(x)}))
    with pytest.raises(BadInput, match="expected float32, got float16"):
        DenseGraph.from_keras(keras.Model(x, keras.layers.Dense(1, dtype="float16")(x)))


def test_examples_are_saved_with_the_graph_and_used_for_checks(graph, tmp_path):
    assert {name: array.shape for name, array in graph.sample(3).items()} == {"x": (3, 14)}
    examples = rows(2, seed=4)
    replace(graph, examples={"x": examples}).save(tmp_path / "graph")

    loaded = DenseGraph.load(tmp_path / "graph", graph.weights)

    np.testing.assert_array_equal(loaded.sample(5)["x"], examples[[0, 1, 0, 1, 0]])


def test_first_of_several_inputs_is_called_x(tmp_path):
    features, mask = keras.Input((4,), name="features"), keras.Input((3, 2), name="mask")
    joined = keras.layers.concatenate([features, keras.layers.Flatten()(mask)])
    model = keras.Model([features, mask], keras.layers.Dense(1, name="d")(joined))
    graph = DenseGraph.from_keras(model)
    given = {"x": rows(5, 4), "mask": rows(30, 1).reshape(5, 3, 2)}

    assert list(graph.inputs.items()) == [("x", (None, 4)), ("mask", (None, 3, 2))]
    assert (graph.width, graph.rows(given)) == (4, 5)
    wanted = model([given["x"], given["mask"]]).numpy()
    np.testing.assert_allclose(graph.run(given)["score"], wanted, atol=1e-6)

    replace(graph, examples=given).save(tmp_path / "graph")
    loaded = DenseGraph.load(tmp_path / "graph", graph.weights)
    assert list(loaded.inputs.items()) == list(graph.inputs.items())
    np.testing.assert_array_equal(loaded.run(given)["score"], graph.run(given)["score"])
    for name, array in given.items():
        np.testing.assert_array_equal(loaded.sample(7)[name], array[[0, 1, 2, 3, 4, 0, 1]])


def test_an_input_without_rows_is_neither_repeated_nor_cut():
    function = tf.function(
        lambda inputs, weights: {"score": tf.reduce_sum(inputs["x"] * inputs["u"], 1, keepdims=True) * weights["w"]},
        input_signature=signature({"x": (None, 3), "u": (1, 3)}, {"w": np.ones(1, np.float32)}),
    )
    graph = DenseGraph(function, {"x": (None, 3), "u": (1, 3)}, [Output("score", 1)], {"w": np.ones(1, np.float32)})
    given = {"x": rows(2, 3), "u": rows(1, 3, seed=1)}

    resized = graph.resized(given, 5)

    assert {name: array.shape for name, array in graph.sample(7).items()} == {"x": (7, 3), "u": (1, 3)}
    assert graph.rows(given) == 2
    np.testing.assert_array_equal(resized["u"], given["u"])
    np.testing.assert_array_equal(resized["x"], given["x"][[0, 1, 0, 1, 0]])


def test_graph_saved_by_an_older_release_reads_x(tmp_path):
    weights = {"w": rows(3, 1)}
    specs = [tf.TensorSpec((None, 3), tf.float32, "x"), {"w": tf.TensorSpec((3, 1), tf.float32, "weight_0")}]
    module = tf.Module()
    module.dense = tf.function(lambda x, values: {"score": x @ values["w"]}, input_signature=specs, autograph=False)
    module.examples = tf.Variable(rows(2, 3), trainable=False)
    tf.saved_model.save(module, str(tmp_path / "graph"))

    graph = DenseGraph.load(tmp_path / "graph", weights)

    assert graph.inputs == {"x": (None, 3)}
    np.testing.assert_array_equal(graph.sample(3)["x"], rows(2, 3)[[0, 1, 0]])
    np.testing.assert_allclose(graph.run({"x": rows(4, 3)})["score"], rows(4, 3) @ weights["w"], atol=1e-6)
