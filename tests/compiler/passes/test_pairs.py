"""Layers over [t, h, t - h, t * h]: one product a pair instead of four, and the same numbers."""

import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.decompose import decompose
from freshet_serving.compiler.passes.graph import Graph
from freshet_serving.compiler.passes.optimise import optimise
from freshet_serving.compiler.passes.pairs import factorise
from tests.compiler.passes.graphs import assert_same, dense, ops

pytestmark = pytest.mark.tensorflow

LENGTH, DIM, UNITS = 5, 8, 6


def layer(x, kernel, join, repeat):
    """Return [n, UNITS]: the sum over events of relu(join(t, h) W), t repeated to all events."""
    t, h = repeat(x[:, :DIM]), tf.reshape(x[:, DIM:], (-1, LENGTH, DIM))
    pairs = tf.concat(join(t, h), 2)
    hidden = tf.nn.relu(tf.matmul(tf.reshape(pairs, (-1, pairs.shape[2])), kernel))
    return tf.reduce_sum(tf.reshape(hidden, (-1, LENGTH, UNITS)), 1)


REPEATS = {
    "repeat": lambda t: tf.reshape(tf.tile(tf.reshape(t, (-1, 1, 1, DIM)), (1, 1, LENGTH, 1)), (-1, LENGTH, DIM)),
    "tile": lambda t: tf.tile(tf.reshape(t, (-1, 1, DIM)), (1, LENGTH, 1)),
    "tiled columns": lambda t: tf.reshape(tf.tile(t, (1, LENGTH)), (-1, LENGTH, DIM)),
}


def made(join, repeat="repeat", parts=4):
    graph = dense(lambda x, w: layer(x, w["k"], join, REPEATS[repeat]), DIM * (LENGTH + 1), k=(parts * DIM, UNITS))
    return decompose(graph)


@pytest.mark.parametrize("repeat", REPEATS)
def test_first_layer_of_din_multiplies_each_pair_once(repeat):
    graph = made(lambda t, h: [t, h, t - h, t * h], repeat)
    found, count = factorise(Graph.of_dense(graph))
    assert count == 1
    after = found.to_dense(graph.weights)
    assert_same(graph, after, atol=1e-4)
    assert "Tile" not in ops(found)
    effects = {effect.name: effect for effect in optimise(graph).effects}
    # Of 4 products with d x units for each of 5 pairs there remain 2, and one for the candidate.
    assert effects["pairs"].found == 1
    assert effects["pairs"].flops >= 2 * DIM * UNITS * (4 * LENGTH - 2 * LENGTH - 1) - 4 * LENGTH * UNITS


@pytest.mark.parametrize(
    ("join", "parts"),
    [
        (lambda t, h: [h - t, t, h], 3),
        (lambda t, h: [h + t, h], 2),
        (lambda t, h: [t, h], 2),
        (lambda t, h: [h - t - h, h], 2),
    ],
    ids=["differences", "sums", "candidate beside event", "twice in one part"],
)
def test_other_pairs_are_factorised_too(join, parts):
    graph = made(join, parts=parts)
    found, count = factorise(Graph.of_dense(graph))
    assert count == 1
    assert_same(graph, found.to_dense(graph.weights), atol=1e-4)


@pytest.mark.parametrize(
    "join",
    [
        lambda t, h: [h, h * h],
        lambda t, h: [h, tf.nn.relu(t - h)],
        lambda t, h: [h, t[:, ::-1] * h],
    ],
    ids=["events alone", "not linear", "as many products"],
)
def test_layers_that_would_not_gain_stay(join):
    graph = made(join, parts=2)
    before = Graph.of_dense(graph)
    assert factorise(before) == (before, 0)
