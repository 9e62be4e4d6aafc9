"""Fold batch normalisation, and any scale or shift by weights, into the adjacent matrices.

In inference a normalisation is y * s + t, with s and t known from weights alone. After a dense layer it becomes part of
that layer's matrix and bias; before one, of the next layer's. Nothing of it remains to be computed for a batch.
"""

from __future__ import annotations

from freshet_serving.compiler.passes.graph import Edit, Graph, Ref
from freshet_serving.compiler.passes.linear import vector
from freshet_serving.compiler.passes.patterns import ADDS, biased, product


def fold(graph: Graph) -> tuple[Graph, int]:
    """Return the graph with scales and shifts folded, and their number."""
    edit = Edit(graph)
    for name, node in graph.nodes.items():
        ref = (name, 0)
        if graph.free(ref):
            continue
        instead = None
        if node.op in ("Mul", "RealDiv"):
            instead = _into_the_layer_before(graph, edit, ref)
        elif node.op == "MatMul":
            instead = _into_the_layer_after(graph, edit, ref)
        if instead is not None:
            edit.replace(ref, instead)
    return edit.done(), edit.changes


def _into_the_layer_before(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    """Rewrite (x @ W + b) * s to x @ (W * s) + b * s."""
    for a, factor in _factors(graph, edit, ref):
        under = biased(graph, a)
        layer = product(graph, under[0] if under else a)
        if layer is None or not graph.only_user(a) or (under and not graph.only_user(under[0])):
            continue
        scaled = edit.matmul(layer.x, edit.binary("Mul", layer.matrix, factor))
        return edit.bias(scaled, edit.binary("Mul", under[1], factor)) if under else scaled
    return None


def _into_the_layer_after(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    """Rewrite (x * s) @ W to x @ (s * W), and (x + t) @ W to x @ W + t @ W, if all readers of x are such layers."""
    layer = product(graph, ref)
    if layer is None or any(not user or product(graph, (user, 0)) is None for user in graph.users[layer.x]):
        return None
    node = graph.producer(layer.x)
    rows, columns = graph.shape(layer.matrix)
    if rows is None or columns is None:
        return None
    if node.op in ("Mul", "RealDiv"):
        for a, factor in _factors(graph, edit, layer.x):
            return edit.matmul(a, edit.binary("Mul", edit.reshape(factor, (rows, 1)), layer.matrix))
    if node.op in ADDS | {"Sub"}:
        for a, b in (node.inputs, node.inputs[::-1]):
            shift = vector(graph, edit, b, rows)
            # A bias belongs to the layer before it; in a subtraction only the left operand is shifted.
            ours = not graph.free(a) and product(graph, a) is None and (node.op != "Sub" or a == node.inputs[0])
            if shift is None or not ours or graph.shape(a) != graph.shape(layer.x):
                continue
            if node.op == "Sub":
                shift = edit.unary("Neg", shift)
            moved = edit.matmul(edit.reshape(shift, (1, rows)), layer.matrix)
            return edit.bias(edit.matmul(a, layer.matrix), edit.reshape(moved, (columns,)))
    return None


def _factors(graph: Graph, edit: Edit, ref: Ref) -> list[tuple[Ref, Ref]]:
    """Return every way to write [rows, n] as a tensor times a vector [n] that is known before any request."""
    node = graph.producer(ref)
    if not graph.ranked(ref) or len(graph.shape(ref)) != 2 or graph.shape(ref)[1] is None:
        return []
    ways = []
    for a, b in (node.inputs, node.inputs[::-1]):
        if graph.free(a) or graph.shape(a) != graph.shape(ref) or (node.op == "RealDiv" and a != node.inputs[0]):
            continue
        factor = vector(graph, edit, b, int(graph.shape(ref)[1] or 0))
        if factor is not None:
            ways.append((a, edit.unary("Reciprocal", factor) if node.op == "RealDiv" else factor))
    return ways
