"""Factorise dense layers over pairs of a candidate and an event: DIN's first layer is one.

    [t, h, t - h, t * h] W = (Wt + Wd) t + (Wh - Wd) h + Wp (t * h)

with t repeated to all events. The left side multiplies 4 d numbers for each pair, the right one d: t's share is the
candidate's alone, and h's the user's, computed once a request (user_candidate_split). A tensor may occur in any number
of the concatenated parts and of their sums and differences.

    (t * h) Wp = h (t' * Wp)

with a matrix t' * Wp for each candidate. That multiplies d x units numbers for each candidate, not the d x events of
t * h, a matrix as large as all pairs. It is used where it is less work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.graph import Edit, Graph, Ref
from freshet_serving.compiler.passes.patterns import product

PROBED_ROWS = 2


def factorise(graph: Graph) -> tuple[Graph, int]:
    """Factorise all such layers; return the graph and their number."""
    edit = Edit(graph)
    for name in graph.nodes:
        layer = product(graph, (name, 0)) if graph.ranked((name, 0)) else None
        parts = None if layer is None else _parts(graph, layer.x)
        if layer is not None and parts is not None:
            _rewrite(edit, (name, 0), layer.matrix, parts)
    return (edit.done(), edit.changes) if edit.changes else (graph, 0)


def scale_weights(graph: Graph) -> tuple[Graph, int]:
    """Multiply candidates with weights, not with events; return the graph and how many products of pairs changed."""
    edit = Edit(graph)
    for name in graph.nodes:
        layer = product(graph, (name, 0)) if graph.ranked((name, 0)) else None
        factors = None if layer is None else _pair_factors(graph, layer.x)
        if layer is not None and factors is not None:
            candidate, events = factors
            width, units = (int(n or 0) for n in graph.shape(layer.matrix))
            scaled = edit.binary("Mul", edit.reshape(candidate, (-1, width, 1)), layer.matrix)
            each = edit.add("BatchMatMulV2", events, scaled, T=tf.float32, adj_x=False, adj_y=False)
            edit.replace((name, 0), edit.reshape(each, (-1, units)))
    return (edit.done(), edit.changes) if edit.changes else (graph, 0)


def _pair_factors(graph: Graph, ref: Ref) -> tuple[Ref, Ref] | None:
    """Return t [n, 1, d] and h [n or 1, L, d] if a matrix [n * L, d] has their products, or None."""
    reshape = graph.producer(ref)
    pairs = reshape.inputs[0] if reshape.op == "Reshape" else ref
    node = graph.producer(pairs)
    if node.op != "Mul" or not graph.ranked(pairs) or not all(graph.ranked(i) for i in node.inputs):
        return None
    shape = graph.shape(pairs)
    if len(shape) != 3 or shape[0] is not None or None in shape[1:] or graph.shape(ref) != (None, shape[2]):
        return None
    for t, h in (node.inputs, node.inputs[::-1]):
        if graph.shape(t) == (None, 1, shape[2]) and graph.shape(h) in (shape, (1, *shape[1:])):
            return None if graph.free(t) or graph.free(h) else (t, h)
    return None


def _parts(graph: Graph, ref: Ref) -> list[Ref] | None:
    """Return the tensors [n, L, d] that a matrix [n * L, c] has side by side, or None."""
    reshape = graph.producer(ref)
    source = reshape.inputs[0] if reshape.op == "Reshape" else ref
    if graph.producer(source).op != "ConcatV2" or not graph.ranked(source):
        return None
    shape, axis = graph.shape(source), graph.constant(graph.producer(source).inputs[-1])
    wide = len(shape) == 3 and shape[0] is None and None not in shape[1:] and graph.shape(ref) == (None, shape[2])
    if not wide or axis is None or int(axis) % 3 != 2:
        return None
    return list(graph.producer(source).inputs[:-1])


def _rewrite(edit: Edit, ref: Ref, matrix: Ref, parts: list[Ref]) -> None:
    """Replace a product by one for each tensor that its parts are made of, if those are fewer."""
    graph, rank = edit.graph, 2
    shares: dict[Ref, list[tuple[int, Ref]]] = {}
    at = 0
    for part in parts:
        width = int(graph.shape(part)[2] or 0)
        rows = edit.slice(matrix, rank, 0, at, at + width)
        for sign, term in _terms(graph, part):
            shares.setdefault(term, []).append((sign, rows))
        at += width
    repeated = {term: source for term in shares if (source := _repeated(graph, term)) is not None}
    if len(shares) - len(repeated) >= len(parts):
        return
    length, units = int(graph.shape(parts[0])[1] or 0), int(graph.shape(ref)[1] or 0)
    total: Ref | None = None
    for term, summands in shares.items():
        width = int(graph.shape(term)[2] or 0)
        source = repeated.get(term) or edit.reshape(_unrepeated(edit, term), (-1, width))
        share = edit.matmul(source, _signed_sum(edit, summands))
        share = edit.reshape(share, (-1, 1 if term in repeated else length, units))
        total = share if total is None else edit.binary("AddV2", total, share)
    assert total is not None
    edit.replace(ref, edit.reshape(total, (-1, units)))


def _signed_sum(edit: Edit, summands: list[tuple[int, Ref]]) -> Ref:
    ordered = sorted(summands, key=lambda summand: -summand[0])
    total = ordered[0][1] if ordered[0][0] > 0 else edit.unary("Neg", ordered[0][1])
    for sign, summand in ordered[1:]:
        total = edit.binary("AddV2" if sign > 0 else "Sub", total, summand)
    return total


def _terms(graph: Graph, ref: Ref, sign: int = 1) -> Iterator[tuple[int, Ref]]:
    """Iterate over the tensors of ref's shape that it is the sum of, each with its sign."""
    node = graph.producer(ref)
    alike = all(graph.ranked(i) and graph.shape(i) == graph.shape(ref) for i in node.inputs)
    if node.op in ("Add", "AddV2", "Sub") and alike and not any(graph.free(i) for i in node.inputs):
        yield from _terms(graph, node.inputs[0], sign)
        yield from _terms(graph, node.inputs[1], -sign if node.op == "Sub" else sign)
    else:
        yield sign, ref


def _unrepeated(edit: Edit, ref: Ref) -> Ref:
    """Return a product [n, L, d] with a repeated factor read as [n, 1, d]; another tensor unchanged."""
    graph = edit.graph
    node = graph.producer(ref)
    if node.op != "Mul":
        return ref
    sources = [_repeated(graph, i) for i in node.inputs]
    if all(sources) or not any(sources) or any(graph.shape(i) != graph.shape(ref) for i in node.inputs):
        return ref
    width = int(graph.shape(ref)[2] or 0)
    factors = [i if s is None else edit.reshape(s, (-1, 1, width)) for i, s in zip(node.inputs, sources)]
    return edit.copy(node, factors), 0


def _repeated(graph: Graph, ref: Ref) -> Ref | None:
    """Return the matrix [n, d] that [n, L, d] repeats L times, or None."""
    if not graph.ranked(ref) or len(graph.shape(ref)) != 3 or None in graph.shape(ref)[1:]:
        return None
    _, length, width = (int(n or 0) for n in graph.shape(ref))
    steps, source = [], ref
    while graph.producer(source).op in ("Reshape", "Tile") and graph.shape(source) != (None, width):
        node = graph.producer(source)
        operand = graph.constant(node.inputs[1])
        if operand is None or not graph.ranked(node.inputs[0]):
            return None
        steps.append((node.op, operand))
        source = node.inputs[0]
    if not steps or graph.shape(source) != (None, width):
        return None
    matrix = np.arange(PROBED_ROWS * width).reshape(PROBED_ROWS, width)
    probed = matrix
    for op, operand in reversed(steps):
        probed = probed.reshape(operand) if op == "Reshape" else np.tile(probed, operand)
    return source if np.array_equal(probed, np.repeat(matrix[:, None], length, 1)) else None
