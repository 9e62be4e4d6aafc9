import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.graph import Graph
from freshet_serving.compiler.passes.optimise import optimise
from tests.compiler.passes.graphs import assert_same, dense, ops

F, D = 7, 4
MACHINE = ["Mul", "Mul", "Mul", "Sub", "Sum", "Sum", "Sum"]
UPPER = np.triu(np.ones((F, F), np.float32), 1)
PAIRS = [i * F + j for i in range(F) for j in range(i + 1, F)]


def vectors(x):
    return tf.reshape(x, (-1, F, D))


def other(x):
    return 2.0 * vectors(x) + 1.0


def square(x):
    """As many vectors as numbers in each, so that no axis is told from another by its size."""
    return tf.reshape(x[:, : D * D], (-1, D, D))


def gram(x):
    return tf.matmul(vectors(x), vectors(x), transpose_b=True)


def column(numbers):
    return tf.reshape(numbers, (-1, 1))


def effect(done, name):
    return next((e for e in done.effects if e.name == name), None)


@pytest.mark.parametrize(
    "machine",
    [
        lambda x: (
            0.5
            * tf.reduce_sum(
                tf.square(tf.reduce_sum(vectors(x), 1)) - tf.reduce_sum(tf.square(vectors(x)), 1), 1, keepdims=True
            )
        ),
        lambda x: column(
            tf.reduce_sum(tf.pow(tf.reduce_sum(vectors(x), 1), 2.0) - tf.reduce_sum(vectors(x) ** 2.0, 1), 1) * 0.5
        ),
        lambda x: column(tf.reduce_sum(gram(x) * UPPER, (1, 2))),
        lambda x: column(tf.reduce_sum(UPPER.T * gram(x), (1, 2))),
        lambda x: tf.reduce_sum(tf.gather(tf.reshape(gram(x), (-1, F * F)), PAIRS, axis=1), 1, keepdims=True),
        lambda x: column(tf.reduce_sum(tf.matmul(vectors(x), tf.transpose(vectors(x), (0, 2, 1))) * UPPER, (1, 2))),
    ],
)
def test_factorisation_machine_in_any_spelling_uses_the_cheap_form(machine):
    graph = dense(lambda x, w: machine(x), F * D)

    done = optimise(graph)

    assert_same(graph, done.graph, atol=1e-4)
    left = [op for op in ops(Graph.of_dense(done.graph)) if op != "Reshape"]
    assert sorted(left) == MACHINE
    assert effect(done, "factorisation machines").found >= 1


def test_pairwise_products_cost_linear_and_not_quadratic_work():
    fields, dim = 40, 4

    def pairs(x, w):
        v = tf.reshape(x, (-1, fields, dim))
        mask = np.triu(np.ones((fields, fields), np.float32), 1)
        return column(tf.reduce_sum(tf.matmul(v, v, transpose_b=True) * mask, (1, 2)))

    found = effect(optimise(dense(pairs, fields * dim)), "factorisation machines")

    assert found.flops > 0.8 * 2 * fields * fields * dim


def test_vector_of_pairs_is_left_unchanged():
    def pooled(x, w):
        return 0.5 * (tf.square(tf.reduce_sum(vectors(x), 1)) - tf.reduce_sum(tf.square(vectors(x)), 1)) @ w["m"]

    graph = dense(pooled, F * D, m=(D, 2))
    done = optimise(graph)

    assert_same(graph, done.graph)
    assert effect(done, "factorisation machines") is None


def test_cheap_factorisation_machine_never_gains_work():
    def machine(x, w):
        v = vectors(x)
        return tf.reduce_sum(tf.square(tf.reduce_sum(v, 1)) - tf.reduce_sum(v * v, 1), 1, keepdims=True)

    found = effect(optimise(dense(machine, F * D)), "factorisation machines")

    assert found.applied
    assert 0 < found.flops < D * D


def cross_layer(x0, x, w, b, style):
    if style == "outer":
        outer = tf.matmul(tf.expand_dims(x0, 2), tf.expand_dims(x, 1))
        return tf.reshape(tf.tensordot(outer, w, 1), (-1, 9)) + b + x
    if style == "broadcast":
        outer = tf.expand_dims(x0, 2) * tf.expand_dims(x, 1)
        return tf.squeeze(outer @ w, 2) + x + b
    return x + (x0 * (x @ w) + b)


@pytest.mark.parametrize("style", ["plain", "outer", "broadcast"])
def test_cross_layers_become_one_product_with_a_number_per_row(style):
    def crossed(x, w):
        h = x
        for i in range(3):
            h = cross_layer(x, h, w[f"w{i}"], w[f"b{i}"], style)
        return h

    shapes = {f"w{i}": (9, 1) for i in range(3)} | {f"b{i}": (9,) for i in range(3)}
    graph = dense(crossed, 9, **shapes)
    done = optimise(graph)

    assert_same(graph, done.graph, atol=2e-3)
    left = ops(Graph.of_dense(done.graph))
    assert (left.count("MatMul"), left.count("BatchMatMulV2"), left.count("Reshape")) == (1, 0, 0)
    assert effect(done, "cross layers").flops > 0


def test_intermediate_cross_layer_output_uses_the_cheap_form_too():
    def crossed(x, w):
        first = cross_layer(x, x, w["w0"], w["b0"], "plain")
        return {"a": first, "b": cross_layer(x, first, w["w1"], w["b1"], "plain")}

    graph = dense(crossed, 9, w0=(9, 1), w1=(9, 1), b0=(9,), b1=(9,))
    done = optimise(graph)

    assert_same(graph, done.graph, atol=1e-3)
    assert ops(Graph.of_dense(done.graph)).count("MatMul") == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x * (x @ w["w"]) + w["b"],
        lambda x, w: x * (x @ w["m"] + w["b"]) + x,
        lambda x, w: x * (tf.nn.relu(x) @ w["w"]) + w["b"] + x,
        lambda x, w: tf.nn.relu(x) * (x @ w["w"]) + w["b"] + x,
    ],
)
def test_non_cross_layer_chain_computes_the_same(function):
    graph = dense(function, 9, w=(9, 1), m=(9, 9), b=(9,))
    done = optimise(graph)

    assert_same(graph, done.graph)
    assert effect(done, "cross layers") is None


MASKED = ("both triangles", "the diagonal", "a pair less", "other squares")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: column(tf.reduce_sum(gram(x) * (UPPER + UPPER.T), (1, 2))),
        lambda x: column(tf.reduce_sum(gram(x) * np.eye(F, dtype=np.float32), (1, 2))),
        lambda x: tf.reduce_sum(tf.gather(tf.reshape(gram(x), (-1, F * F)), PAIRS[:-1], axis=1), 1, keepdims=True),
        lambda x: tf.reduce_sum(
            tf.square(tf.reduce_sum(vectors(x), 1)) - tf.reduce_sum(tf.square(vectors(-x) + 1.0), 1), 1, keepdims=True
        ),
        lambda x: column(tf.reduce_sum(tf.matmul(vectors(x), other(x), transpose_b=True) * UPPER, (1, 2))),
        lambda x: column(tf.reduce_sum(tf.matmul(vectors(x), tf.transpose(other(x), (0, 2, 1))) * UPPER, (1, 2))),
        lambda x: column(
            tf.reduce_sum(
                tf.square(tf.reduce_sum(square(x), 1, keepdims=True))
                - tf.reduce_sum(tf.square(square(x)), (1, 2), keepdims=True),
                (1, 2),
            )
        ),
        lambda x: column(
            tf.reduce_sum(tf.square(tf.reduce_sum(square(x), 2)) - tf.reduce_sum(tf.square(square(x)), 2), 1)
        ),
    ],
    ids=[*MASKED, "another side", "another side, turned", "squares summed up whole", "the other axis"],
)
def test_near_factorisation_machine_computes_the_same(function):
    graph = dense(lambda x, w: function(x), F * D)
    done = optimise(graph)

    assert_same(graph, done.graph, atol=1e-4)
    assert effect(done, "factorisation machines") is None


def test_cross_chain_with_a_changed_x0_computes_the_same():
    def crossed(x, w):
        h = x
        for i in range(3):
            h = cross_layer(tf.nn.relu(x) if i == 1 else x, h, w[f"w{i}"], w[f"b{i}"], "plain")
        return h

    shapes = {f"w{i}": (9, 1) for i in range(3)} | {f"b{i}": (9,) for i in range(3)}
    graph = dense(crossed, 9, **shapes)

    assert_same(graph, optimise(graph).graph, atol=2e-3)
