"""Recognise the patterns that TensorFlow's front ends write in many different ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.graph import Graph, Node, Ref

ADDS = frozenset({"Add", "AddV2", "BiasAdd"})
RESHAPES = frozenset({"Reshape", "ExpandDims", "Squeeze"})


class AxisRange(NamedTuple):
    """Indices [start, stop) of one axis of a tensor."""

    source: Ref
    axis: int
    start: int
    stop: int


class Product(NamedTuple):
    """x [rows, k] times a matrix [k, n] that is known before any request."""

    x: Ref
    matrix: Ref


def product(graph: Graph, ref: Ref) -> Product | None:
    node = graph.producer(ref)
    if node.op != "MatMul" or node.attr("transpose_a") or node.attr("transpose_b"):
        return None
    x, matrix = node.inputs
    fits = graph.dtype(ref) == tf.float32 and not graph.free(x) and graph.free(matrix)
    return Product(x, matrix) if fits else None


def biased(graph: Graph, ref: Ref) -> tuple[Ref, Ref] | None:
    """Return (matrix, vector) if a tensor is [rows, n] plus a vector [n] that is known before any request."""
    node = graph.producer(ref)
    if node.op not in ADDS or not graph.ranked(ref) or len(graph.shape(ref)) != 2:
        return None
    for a, b in (node.inputs, node.inputs[::-1]):
        if not graph.free(a) and graph.free(b) and graph.shape(b) == graph.shape(ref)[1:]:
            return a, b
    return None


def squared(graph: Graph, ref: Ref) -> Ref | None:
    node = graph.producer(ref)
    if node.op == "Square":
        return node.inputs[0]
    if node.op == "Mul" and node.inputs[0] == node.inputs[1]:
        return node.inputs[0]
    if node.op == "Pow":
        power = graph.constant(node.inputs[1])
        if power is not None and power.size == 1 and float(power.reshape(())) == 2.0:
            return node.inputs[0]
    return None


def summed(graph: Graph, ref: Ref) -> tuple[Ref, tuple[int, ...]] | None:
    """Return the tensor that a tensor is the sum of, and the axes (ascending, from 0); else None."""
    node = graph.producer(ref)
    if node.op != "Sum":
        return None
    axes = graph.constant(node.inputs[1])
    if axes is None or not graph.ranked(node.inputs[0]):
        return None
    rank = len(graph.shape(node.inputs[0]))
    return node.inputs[0], tuple(sorted(int(a) % rank for a in axes.reshape(-1)))


def part(graph: Graph, ref: Ref) -> AxisRange | None:
    """Return a tensor as a range along one axis of another, with all other axes whole and in order; else None."""
    node = graph.producer(ref)
    if node.op not in ("StridedSlice", "Slice") or not graph.ranked(node.inputs[0]):
        return None
    bounds = [graph.constant(i) for i in node.inputs[1:]]
    if any(b is None for b in bounds):
        return None
    shape = graph.shape(node.inputs[0])
    spans = list(_spans(node, [b.tolist() for b in bounds if b is not None], shape))
    cut = [axis for axis, span in enumerate(spans) if span is None or span != (0, shape[axis])]
    if len(graph.shape(ref)) != len(shape) or len(cut) > 1:
        return None
    if not cut:
        last = len(shape) - 1
        return None if shape[last] is None else AxisRange(node.inputs[0], last, 0, int(shape[last] or 0))
    span = spans[cut[0]]
    if span is None or span[1] is None:
        return None
    return AxisRange(node.inputs[0], cut[0], span[0], span[1])


def _spans(
    node: Node, bounds: list[list[int]], shape: tuple[int | None, ...]
) -> Iterator[tuple[int, int | None] | None]:
    """Iterate over (start, stop) of every axis, None if it is unknown; a whole axis of unknown size is (0, None)."""
    if node.op == "Slice":
        for start, size, whole in zip(bounds[0], bounds[1], shape):
            stop = whole if size == -1 else start + size
            yield (start, stop)
        return
    masks = [int(node.attr(f"{name}_mask") or 0) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")]
    for axis, whole in enumerate(shape):
        if any(masks[2:]) or (axis < len(bounds[0]) and bounds[2][axis] != 1):
            yield None
            continue
        start = 0 if axis >= len(bounds[0]) or masks[0] >> axis & 1 else bounds[0][axis]
        stop = whole if axis >= len(bounds[0]) or masks[1] >> axis & 1 else bounds[1][axis]
        if whole is None or stop is None:
            yield (start, stop) if start >= 0 and (stop is None or stop >= 0) else None
            continue
        start, stop = (v + whole if v < 0 else v for v in (start, stop))
        yield min(max(start, 0), whole), min(max(stop, 0), whole)
