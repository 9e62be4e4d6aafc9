import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.graph import Graph
from freshet_serving.compiler.passes.optimise import optimise
from freshet_serving.compiler.passes.user_candidate_split import split_user_candidate
from freshet_serving.models.zoo import deepfm, dlrm
from tests.compiler.passes.graphs import dense, ops
from tests.models.zoo.layouts import make_layout


def assert_split_computes_the_same(graph, split, columns, weights=None, n=11):
    """One user of n candidates, through both graphs, for any weights."""
    weights = weights or {name: w * 1.25 + 0.01 for name, w in graph.weights.items()}
    others = [c for c in range(graph.width) if c not in columns]
    random = np.random.default_rng(3)
    x = random.standard_normal((n, graph.width), np.float32)
    x[:, columns] = x[0, columns]
    computed = split.user.run({"x": x[:1][:, columns]}, weights)
    got, wanted = split.candidate.run({"x": x[:, others], **computed}, weights), graph.run({"x": x}, weights)
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-4, atol=1e-4)


def divided(function, width, columns, **shapes):
    """A graph of enough work on the user's side, split and proved; with what its graphs are made of."""
    graph = dense(function, width, **shapes)
    split = split_user_candidate(optimise(graph).graph, columns)
    assert split is not None
    assert_split_computes_the_same(graph, split, columns)
    return split, ops(Graph.of_dense(split.user)), ops(Graph.of_dense(split.candidate))


def test_deepfm_computes_the_user_share_of_its_first_layer_once():
    layout = make_layout(*[8] * 6, 0, 0, 0)
    columns = [*range(8), *range(16, 24), *range(32, 40), 49]
    graph = DenseGraph.from_keras(deepfm.build(layout, (64, 32), seed=1).scores)

    split = split_user_candidate(optimise(graph).graph, columns)

    assert_split_computes_the_same(graph, split, columns)
    # The first layer, the sum of the vectors, and all that is one number a row in one.
    assert sorted(length for _, length in split.tensors) == [1, 8, 64]
    # Half of the first layer is most of what could be saved.
    whole, candidate, _ = split.flops
    assert whole - candidate > 0.9 * 2 * 25 * 64
    assert (split.user.width, split.candidate.width) == (25, 26)


def test_dlrm_splits_when_the_bottom_is_user_only():
    layout = make_layout(8, 8, 8, *[0] * 12)
    columns = list(range(24, 36))
    graph = DenseGraph.from_keras(dlrm.build(layout, (16, 8), seed=1, bottom=(64, 32)).scores)

    split = split_user_candidate(optimise(graph).graph, columns)

    assert_split_computes_the_same(graph, split, columns)
    # The bottom's vector, and its share of the top's first layer.
    assert sorted(length for _, length in split.tensors) == [8, 16]
    assert "Relu" in ops(Graph.of_dense(split.user))


def test_user_only_computation_runs_once_at_any_depth():
    def towers(x, w):
        user = tf.nn.relu(tf.nn.relu(x[:, :6] @ w["u0"]) @ w["u1"])
        item = tf.nn.relu(x[:, 6:] @ w["i0"])
        return tf.nn.relu(tf.concat([item, user], 1) @ w["top"] + w["b"]) @ w["out"]

    shapes = dict(u0=(6, 32), u1=(32, 16), i0=(4, 8), top=(24, 9), b=(9,), out=(9, 1))
    split, user, candidate = divided(towers, 10, range(6), **shapes)

    assert [length for _, length in split.tensors] == [9]
    assert user == ["MatMul", "Relu", "MatMul", "Relu", "MatMul", "BiasAdd"]
    assert candidate.count("MatMul") == 3


@pytest.mark.parametrize(
    "function",
    [
        lambda h, x, w: tf.nn.softmax(h @ w["m"]),
        lambda h, x, w: h @ w["m"] - x @ w["n"],
        lambda h, x, w: (h @ w["m"]) * 0.5 + x[:, :1] * x[:, 7:8],
        lambda h, x, w: tf.nn.relu(tf.concat([h, x], 1) * w["s"]) @ w["o"],
        lambda h, x, w: tf.reduce_sum(tf.square(tf.reshape(x, (-1, 4, 2))), 1) + (h @ w["m"])[:, :2],
        lambda h, x, w: tf.concat([x[:, 4:] * 2.0, h, tf.nn.relu(x[:, :4])], 1) @ w["o"],
        lambda h, x, w: tf.reverse(x, [1]) @ w["n"] + h @ w["m"],
        lambda h, x, w: tf.gather(x, (7, 1, 3, 0, 5, 4, 6, 2), axis=1) @ w["n"] - h @ w["m"],
        lambda h, x, w: {"a": h @ w["m"], "b": x @ w["n"], "c": tf.tanh(h)},
        lambda h, x, w: (
            tf.matmul(tf.reshape(x, (-1, 4, 2)), tf.reshape(x, (-1, 4, 2)), transpose_b=True)[:, 0] + h[:, :1]
        ),
        lambda h, x, w: (
            tf.reshape(tf.reshape(tf.square(tf.reshape(x, (-1, 4, 2))), (-1, 2)) @ w["n"][:2, :2], (-1, 8)) + h[:, :1]
        ),
        lambda h, x, w: x / (1.0 + tf.abs(h[:, :1])) + tf.maximum(x, 0.25) - tf.reduce_sum(x, 1, keepdims=True),
        lambda h, x, w: tf.reduce_mean(tf.stack([x, x * 2.0], 2), 2) @ w["n"] + h @ w["m"],
        lambda h, x, w: tf.zeros_like(x) + tf.cast(tf.shape(x)[1], tf.float32) + h[:, :1],
    ],
)
def test_any_mixture_computes_the_same(function):
    def mixed(x, w):
        return function(tf.nn.relu(tf.nn.relu(x[:, :4] @ w["u"]) @ w["v"]), x, w)

    divided(mixed, 8, range(4), u=(4, 64), v=(64, 32), m=(32, 3), n=(8, 3), s=(40,), o=(40, 3))


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(columns=st.sets(st.integers(0, 23), min_size=8, max_size=20))
def test_any_columns_may_belong_to_the_user(columns):
    columns = sorted(columns)

    def machine(x, w):
        v = tf.reshape(x, (-1, 6, 4))
        pairs = tf.square(tf.reduce_sum(v, 1)) - tf.reduce_sum(tf.square(v), 1)
        return tf.concat([tf.nn.relu(x @ w["m"] + w["b"]), pairs], 1) @ w["o"]

    graph = dense(machine, 24, m=(24, 40), b=(40,), o=(44, 1))
    split = split_user_candidate(optimise(graph).graph, columns)

    assert split is not None
    assert_split_computes_the_same(graph, split, columns)


def test_split_that_saves_little_is_not_made():
    def late(x, w):
        return tf.nn.relu(tf.nn.relu(x @ w["a"]) @ w["b"]) @ w["c"]

    graph = dense(late, 8, a=(8, 32), b=(32, 64), c=(64, 1))

    assert split_user_candidate(graph, [3]) is None
    assert split_user_candidate(graph, []) is None
    assert split_user_candidate(graph, range(8)) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: tf.transpose(tf.transpose(w["a"]) @ tf.transpose(x)),
        lambda x, w: (x - tf.reduce_mean(x, 0, keepdims=True)) @ w["a"],
    ],
    ids=["rows on another axis", "mixed rows"],
)
def test_graph_that_is_not_computed_row_by_row_is_not_split(function):
    assert split_user_candidate(dense(function, 8, a=(8, 3)), range(4)) is None


HISTORY, LENGTH, DIM = 24, 6, 4


def attended(score, weigh):
    """Attention of a candidate's 4 numbers over a user's 6 events of 4: scores, softmax, weighted sum, a network."""

    def attention(x, w):
        events = tf.reshape(tf.nn.relu(x[:, :HISTORY] @ w["k"]), (-1, LENGTH, DIM))
        found = weigh(tf.nn.softmax(score(x[:, HISTORY:], events)), events)
        return tf.nn.relu(tf.concat([found, x[:, HISTORY:]], 1) @ w["m"]) @ w["o"]

    return attention


@pytest.mark.parametrize(
    "attention",
    [
        attended(
            lambda q, e: tf.matmul(q[:, None], e, transpose_b=True)[:, 0], lambda a, e: tf.matmul(a[:, None], e)[:, 0]
        ),
        attended(
            lambda q, e: tf.matmul(e, q[:, :, None])[:, :, 0],
            lambda a, e: tf.matmul(e, a[:, :, None], transpose_a=True)[:, :, 0],
        ),
        attended(lambda q, e: tf.einsum("rk,rlk->rl", q, e), lambda a, e: tf.einsum("rl,rlk->rk", a, e)),
    ],
    ids=["queries-left", "queries-right", "einsum"],
)
def test_attention_reads_the_users_events_without_a_copy_per_candidate(attention):
    shapes = dict(k=(HISTORY, HISTORY), m=(2 * DIM, 8), o=(8, 1))
    split, _, candidate = divided(attention, HISTORY + DIM, range(HISTORY), **shapes)
    assert [length for _, length in split.tensors] == [HISTORY]
    assert not {"BatchMatMulV2", "BroadcastTo", "Tile"} & set(candidate)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("user_left", [False, True])
def test_products_of_several_heads_keep_one_product_a_head(transposed, user_left):
    def heads(x, w):
        events = tf.transpose(tf.reshape(x[:, :HISTORY] @ w["k"], (-1, LENGTH, 2, 2)), (0, 2, 1, 3))
        query = tf.reshape(x[:, HISTORY:], (-1, 2, 1, 2))
        if user_left:
            q = query if transposed else tf.transpose(query, (0, 1, 3, 2))
            return tf.reshape(tf.matmul(events, q, transpose_b=transposed), (-1, 2 * LENGTH)) @ w["o"]
        e = events if transposed else tf.transpose(events, (0, 1, 3, 2))
        return tf.reshape(tf.matmul(query, e, transpose_b=transposed), (-1, 2 * LENGTH)) @ w["o"]

    _, _, candidate = divided(heads, HISTORY + DIM, range(HISTORY), k=(HISTORY, HISTORY), o=(2 * LENGTH, 1))
    assert candidate.count("BatchMatMulV2") == 1
    assert not {"BroadcastTo", "Tile"} & set(candidate)


JOINS = {
    "sum": lambda pairs, events: pairs + events,
    "difference": lambda pairs, events: events - pairs,
    "product": lambda pairs, events: pairs * events,
    "largest": tf.maximum,
    "concatenation": lambda pairs, events: tf.concat([pairs, events], 1),
    "transform of the sum": lambda pairs, events: tf.matmul(pairs + events, tf.ones((UNITS, 3))),
}
EVENTS, WIDTH, UNITS = 7, 6, 16


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_events_side_by_side_meet_candidates_side_by_side(join):
    def function(x, w):
        t, h = tf.reshape(x[:, :WIDTH], (-1, 1, WIDTH)), tf.reshape(x[:, WIDTH:], (-1, EVENTS, WIDTH))
        pairs = tf.matmul(tf.reshape(t * h, (-1, WIDTH)), w["k"])
        events = tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(tf.reshape(h, (-1, WIDTH)), w["k"])), w["v"]))
        both = tf.nn.relu(join(pairs, events))
        return tf.reduce_sum(tf.reshape(both, (-1, EVENTS, both.shape[1])), 1)

    width = WIDTH * (EVENTS + 1)
    _, user, _ = divided(function, width, list(range(WIDTH, width)), k=(WIDTH, UNITS), v=(UNITS, UNITS))
    assert user.count("MatMul") == 2
