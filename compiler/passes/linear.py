"""Normalise dense layers to MatMul, BiasAdd, activation, which every backend runs as one kernel.

Matrices are untransposed, biases in any spelling become one BiasAdd, and two layers with nothing between them become
one if that is less work.
"""

from __future__ import annotations

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.graph import Edit, Graph, Ref
from freshet_serving.compiler.passes.patterns import biased, product

ACTIVATIONS = frozenset({"Relu", "Relu6", "Sigmoid", "Tanh", "Elu", "Selu", "LeakyRelu", "Softplus", "Softsign"})


def fuse(graph: Graph) -> tuple[Graph, int]:
    """Return the graph with its dense layers in that form, and the number of changes."""
    edit = Edit(graph)
    for name, node in graph.nodes.items():
        ref = (name, 0)
        if not graph.free(ref):
            rule = RULES.get(node.op)
            instead = rule(graph, edit, ref) if rule is not None else None
            if instead is not None:
                edit.replace(ref, instead)
    return edit.done(), edit.changes


def layers(graph: Graph) -> int:
    """Count the chains of at least two of MatMul, BiasAdd and activation, which a backend can run as one kernel."""
    count = 0
    for name in graph.nodes:
        if product(graph, (name, 0)) is None or not graph.only_user((name, 0)):
            continue
        (user,) = graph.users[name, 0]
        count += graph.nodes[user].op == "BiasAdd" or graph.nodes[user].op in ACTIVATIONS
    return count


def vector(graph: Graph, edit: Edit, ref: Ref, columns: int) -> Ref | None:
    """Return a tensor that is known before any request as [columns], if it broadcasts to [rows, columns] as such."""
    if not graph.free(ref) or not graph.ranked(ref) or graph.dtype(ref) != tf.float32:
        return None
    shape = graph.shape(ref)
    if shape == (columns,):
        return ref
    if shape == (1, columns):
        return edit.reshape(ref, (columns,))
    if shape in ((), (1,), (1, 1)):
        return edit.binary("Mul", edit.reshape(ref, (1,)), edit.constant(np.ones(columns)))
    return None


def _untransposed(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    node = graph.producer(ref)
    x, matrix = node.inputs
    if node.attr("transpose_b") and not node.attr("transpose_a") and graph.free(matrix) and not graph.free(x):
        return edit.matmul(x, edit.transpose(matrix, (1, 0)))
    return _collapsed(graph, edit, ref)


def _collapsed(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    """Rewrite (x @ A + a) @ B to x @ (A @ B) + a @ B, if that is less work a row."""
    outer = product(graph, ref)
    if outer is None or not graph.only_user(outer.x):
        return None
    with_bias = biased(graph, outer.x)
    inner = product(graph, with_bias[0] if with_bias else outer.x)
    if inner is None or (with_bias and not graph.only_user(with_bias[0])):
        return None
    (rows, between), columns = graph.shape(inner.matrix), graph.shape(outer.matrix)[1]
    if rows is None or between is None or columns is None or rows * columns > rows * between + between * columns:
        return None
    merged = edit.matmul(inner.x, edit.matmul(inner.matrix, outer.matrix))
    if with_bias is None:
        return merged
    carried = edit.matmul(edit.reshape(with_bias[1], (1, between)), outer.matrix)
    return edit.bias(merged, edit.reshape(carried, (columns,)))


def _bias(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    """Rewrite anything that is added to a product as one BiasAdd."""
    node = graph.producer(ref)
    if not graph.ranked(ref) or len(graph.shape(ref)) != 2:
        return None
    columns = graph.shape(ref)[1]
    sides = (node.inputs, node.inputs[::-1]) if node.op in ("Add", "AddV2") else (node.inputs,)
    for a, b in sides:
        under = biased(graph, a)
        layer = under[0] if under and graph.only_user(a) else a
        if columns is None or product(graph, layer) is None or graph.shape(a) != graph.shape(ref):
            continue
        if layer == a and node.op == "BiasAdd":
            return None
        added = vector(graph, edit, b, columns)
        if added is None:
            continue
        if node.op == "Sub":
            added = edit.unary("Neg", added)
        if under and layer != a:
            added = edit.binary("AddV2", under[1], added)
        return edit.bias(layer, added)
    return None


def _relu(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    node = graph.producer(ref)
    for a, b in (node.inputs, node.inputs[::-1]):
        low = graph.constant(b)
        if low is not None and low.dtype == np.float32 and low.size == 1 and not low.any():
            return edit.unary("Relu", a) if graph.shape(a) == graph.shape(ref) else None
    return None


RULES = {
    "MatMul": _untransposed,
    **dict.fromkeys(("Add", "AddV2", "BiasAdd", "Sub"), _bias),
    "Maximum": _relu,
}
