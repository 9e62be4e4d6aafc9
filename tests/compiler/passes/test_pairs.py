"""Layers over [t, h, t - h, t * h]: one product a pair instead of four, and the same numbers."""

import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.decompose import decompose
from freshet_serving.compiler.passes.graph import Graph
from freshet_serving.compiler.passes.optimise import optimise
from freshet_serving.compiler.passes.pairs import factorise, scale_weights
from freshet_serving.compiler.passes.user_candidate_split import BROADCAST_COLUMNS, split_user_candidate
from tests.compiler.passes.graphs import assert_same, dense, ops

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
    [lambda t, h: [h, h * h], lambda t, h: [h, tf.nn.relu(t - h)], lambda t, h: [h, t[:, ::-1] * h]],
    ids=["events alone", "not linear", "as many products"],
)
def test_layers_that_would_not_gain_stay(join):
    graph = made(join, parts=2)
    before = Graph.of_dense(graph)
    assert factorise(before) == (before, 0)


MANY, FEW = 12, 5


def products(length, units=UNITS, times=lambda t, h: t * h):
    """Return the sum over events of relu((t * h) W)."""

    def function(x, w):
        t, h = tf.reshape(x[:, :DIM], (-1, 1, DIM)), tf.reshape(x[:, DIM:], (-1, length, DIM))
        hidden = tf.nn.relu(tf.matmul(tf.reshape(times(t, h), (-1, DIM)), w["k"]))
        return tf.reduce_sum(tf.reshape(hidden, (-1, length, units)), 1)

    return dense(function, DIM * (length + 1), k=(DIM, units))


@pytest.mark.parametrize("times", [lambda t, h: t * h, lambda t, h: h * t], ids=["t * h", "h * t"])
def test_products_of_pairs_scale_weights_instead_of_events(times):
    graph = products(MANY, times=times)
    found, count = scale_weights(Graph.of_dense(graph))
    assert count == 1
    after = found.to_dense(graph.weights)
    assert_same(graph, after, atol=1e-4)
    assert "MatMul" not in ops(found)


@pytest.mark.parametrize(("length", "applied"), [(MANY, True), (FEW, False)])
def test_weights_are_scaled_only_where_that_is_less_work(length, applied):
    effects = {effect.name: effect for effect in optimise(products(length)).effects}
    assert effects["pair products"].applied is applied
    assert effects["pair products"].flops == DIM * (length - UNITS)


@pytest.mark.parametrize(
    "times",
    [lambda t, h: tf.tile(t, (1, MANY, 1)) * h, lambda t, h: t[:, :, :1] * h, lambda t, h: t + h, lambda t, h: h * h],
    ids=["of one shape", "a number a candidate", "sums", "events alone"],
)
def test_other_products_of_events_are_left(times):
    assert scale_weights(Graph.of_dense(products(MANY, times=times)))[1] == 0


def test_weights_scaled_for_candidates_meet_the_users_events_unrepeated():
    length, units = 4 * BROADCAST_COLUMNS, 2 * BROADCAST_COLUMNS

    def function(x, w):
        t, h = tf.reshape(x[:, :DIM], (-1, 1, DIM)), tf.reshape(x[:, DIM:], (-1, length, DIM))
        pairs, events = tf.reshape(t * h, (-1, DIM)), tf.reshape(h, (-1, DIM))
        both = tf.matmul(pairs, w["k"]) + tf.matmul(tf.nn.relu(tf.matmul(events, w["k"])), w["v"])
        return tf.reduce_sum(tf.reshape(tf.nn.relu(both), (-1, length, units)), 1)

    graph = dense(function, DIM * (length + 1), k=(DIM, units), v=(units, units))
    found = split_user_candidate(optimise(graph).graph, range(DIM, DIM * (length + 1)))
    assert found is not None
    operators = ops(Graph.of_dense(found.candidate))
    assert "BatchMatMulV2" in operators
    assert not {"BroadcastTo", "Transpose", "Tile"} & set(operators)
