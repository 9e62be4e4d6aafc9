"""Dense graphs written down as TensorFlow functions, and what every pass has to keep."""

from __future__ import annotations

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph, signature
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.flops import flops, node_count
from freshet_serving.compiler.passes.graph import Graph
from freshet_serving.compiler.passes.optimise import apply
from freshet_serving.processor.package.manifest_entries import Output


def dense(function, width, seed=0, **shapes):
    """A DenseGraph of function(x, weights), which returns "y" or outputs by name; shapes: of weights, by name."""
    random = np.random.default_rng(seed)
    weights = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}

    def called(inputs, values):
        found = function(inputs["x"], values)
        return found if isinstance(found, dict) else {"y": found}

    made = tf.function(called, input_signature=signature({"x": (None, width)}, weights), autograph=False)
    outputs = made.get_concrete_function().structured_outputs
    return DenseGraph(
        made, {"x": (None, width)}, [Output(n, int(o.shape[1])) for n, o in sorted(outputs.items())], weights
    )


def rows(graph, n=9, seed=0):
    return np.random.default_rng(seed).standard_normal((n, graph.width), np.float32)


def assert_same(a, b, atol=1e-5):
    """Both compute the same, for the weights as they are and for others."""
    random = np.random.default_rng(7)
    others = {name: random.random(w.shape, np.float32) + np.float32(0.1) for name, w in a.weights.items()}
    for weights in (a.weights, others):
        wanted, got = a.run({"x": rows(a)}, weights), b.run({"x": rows(a)}, weights)
        assert wanted.keys() == got.keys()
        for name, values in wanted.items():
            np.testing.assert_allclose(got[name], values, rtol=1e-5, atol=atol)


def passed(run, graph, rounds=8):
    """The graph after one pass, again and again until it finds nothing more: (Graph, Effect of all rounds); proves
    that it computes the same and that the effect is what was counted."""
    before = after = Graph.of_dense(graph)
    found = 0
    for _ in range(rounds):
        after, effect = apply("pass", run, after)
        found += effect.found
        if not effect.found:
            break
    assert_same(graph, after.to_dense(graph.weights))
    return after, found, node_count(before) - node_count(after), flops(before) - flops(after)


def ops(graph):
    """Operations that run for every batch, in order."""
    return [graph.nodes[name].op for name in graph.nodes if name in graph.varying][1:]
