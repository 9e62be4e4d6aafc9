"""Remove redundant data movement and compute common subexpressions once.

Removed: identities, casts to the same type, reshapes of reshapes and transposes of transposes, slices of slices, slices
of concatenations, concatenations of concatenations and of neighbouring slices, adding 0 and multiplying by 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.graph import IDENTITIES, Edit, Graph, Ref
from freshet_serving.compiler.passes.patterns import ADDS, RESHAPES, AxisRange, part

Rule = Callable[[Graph, Edit, Ref], Ref | None]

# Types that hold every value of another: a cast there and back changes nothing.
WIDER = {("float32", "float64"), ("float16", "float32"), ("bfloat16", "float32"), ("int32", "int64")}


def clean(graph: Graph) -> tuple[Graph, int]:
    """Return the graph without such nodes, and their number."""
    edit = Edit(graph)
    for name, node in graph.nodes.items():
        rule = RULES.get(node.op)
        if rule is not None and not graph.given(name):
            ref = (name, 0)
            instead = rule(graph, edit, ref)
            if instead is not None:
                edit.replace(ref, instead)
    cleaned = edit.changes
    merged, twice = _eliminate_common_subexpressions(edit.done())
    return merged, cleaned + twice


def _cast(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    (source,) = graph.producer(ref).inputs
    if graph.dtype(source) == graph.dtype(ref):
        return source
    before = graph.producer(source)
    if before.op == "Cast" and graph.dtype(before.inputs[0]) == graph.dtype(ref):
        exact = (graph.dtype(ref).name, graph.dtype(source).name) in WIDER
        return before.inputs[0] if exact else None
    return None


def _reshape(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    node = graph.producer(ref)
    source = node.inputs[0]
    if not graph.ranked(ref) or not graph.ranked(source):
        return None
    shape = graph.shape(ref)
    if shape == graph.shape(source) and shape.count(None) <= 1:
        return source
    if shape.count(None) > 1:
        return None
    before = graph.producer(source)
    again = before.op in RESHAPES
    if not again and node.op == "Reshape":
        return None
    dims = edit.constant([-1 if n is None else n for n in shape], np.int32)
    under = before.inputs[0] if again else source
    return edit.add("Reshape", under, dims, T=graph.dtype(ref), Tshape=tf.int32)


def _transpose(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    source, order_ref = graph.producer(ref).inputs
    order = graph.constant(order_ref)
    if order is None:
        return None
    if order.tolist() == list(range(order.size)):
        return source
    before = graph.producer(source)
    first = graph.constant(before.inputs[1]) if before.op == "Transpose" else None
    if first is None:
        return None
    both = edit.constant(first[order], np.int32)
    return edit.add("Transpose", before.inputs[0], both, T=graph.dtype(ref), Tperm=tf.int32)


def _concat(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    axis = _axis(graph, ref)
    if axis is None:
        return None
    parts: list[Ref | AxisRange] = []
    for source in graph.producer(ref).inputs[:-1]:
        inner = [source]
        if graph.producer(source).op == "ConcatV2" and _axis(graph, source) == axis:
            inner = list(graph.producer(source).inputs[:-1])
        for item in inner:
            cut = part(graph, item)
            last = parts[-1] if parts else None
            if cut is not None and cut.axis == axis:
                if isinstance(last, AxisRange) and (last.source, last.stop) == (cut.source, cut.start):
                    parts[-1] = last._replace(stop=cut.stop)
                    continue
                parts.append(cut)
            else:
                parts.append(item)
    if len(parts) == len(graph.producer(ref).inputs) - 1 > 1:
        return None
    rank = len(graph.shape(ref))
    pieces = [_cut(graph, edit, p, rank) if isinstance(p, AxisRange) else p for p in parts]
    return edit.concat(pieces, axis, graph.dtype(ref))


def _slice(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    cut = part(graph, ref)
    if cut is None:
        return None
    if (cut.start, cut.stop) == (0, graph.shape(cut.source)[cut.axis]):
        return cut.source
    rank = len(graph.shape(ref))
    inner = part(graph, cut.source)
    if inner is not None and inner.axis == cut.axis:
        moved = AxisRange(inner.source, cut.axis, inner.start + cut.start, inner.start + cut.stop)
        return _cut(graph, edit, moved, rank)
    if graph.producer(cut.source).op != "ConcatV2" or _axis(graph, cut.source) != cut.axis:
        return None
    # If the whole is needed as well, a slice is only cheaper when it lies within one part.
    alone = all(user and part(graph, (user, 0)) for user in graph.users[cut.source])
    pieces, at = [], 0
    for source in graph.producer(cut.source).inputs[:-1]:
        whole = graph.shape(source)[cut.axis]
        if whole is None:
            return None
        start, stop = max(cut.start - at, 0), min(cut.stop - at, whole)
        if start < stop:
            pieces.append(_cut(graph, edit, AxisRange(source, cut.axis, start, stop), rank))
        at += whole
    return edit.concat(pieces, cut.axis, graph.dtype(ref)) if alone or len(pieces) == 1 else None


def _neutral(graph: Graph, edit: Edit, ref: Ref) -> Ref | None:
    node = graph.producer(ref)
    nothing = {"Mul": 1.0, "RealDiv": 1.0, "Pow": 1.0}.get(node.op, 0.0)
    for side, other in ((0, 1), (1, 0)):
        value = graph.constant(node.inputs[other])
        if value is None or not value.size or graph.dtype(ref) != tf.float32 or (value != nothing).any():
            continue
        symmetric = node.op in ADDS or node.op == "Mul"
        if (other == 1 or symmetric) and graph.shape(node.inputs[side]) == graph.shape(ref):
            return node.inputs[side]
    return None


def _axis(graph: Graph, ref: Ref) -> int | None:
    axis = graph.constant(graph.producer(ref).inputs[-1])
    return int(axis) % len(graph.shape(ref)) if axis is not None and graph.ranked(ref) else None


def _cut(graph: Graph, edit: Edit, cut: AxisRange, rank: int) -> Ref:
    """Return a part of a tensor of any type; the tensor itself if the part is all of it."""
    if (cut.start, cut.stop) == (0, graph.shape(cut.source)[cut.axis]):
        return cut.source
    return edit.slice(cut.source, rank, cut.axis, cut.start, cut.stop, graph.dtype(cut.source))


def _eliminate_common_subexpressions(graph: Graph) -> tuple[Graph, int]:
    edit = Edit(graph)
    same: dict[Ref, Ref] = {}
    seen: dict[Any, str] = {}
    for name, node in graph.nodes.items():
        if graph.given(name) or graph.stateful(name):
            continue
        inputs = tuple(same.get(ref, ref) for ref in node.inputs)
        attrs = tuple((k, v.SerializeToString(deterministic=True)) for k, v in sorted((node.attrs or {}).items()))
        value = None if node.value is None else (node.value.dtype.str, node.value.shape, node.value.tobytes())
        first = seen.setdefault((node.op, inputs, attrs, value), name)
        if first != name:
            for number in range(graph.outputs_of(name)):
                same[name, number] = (first, number)
                edit.replace((name, number), (first, number))
    return edit.done(), sum(graph.nodes[name].value is None for name, number in same if number == 0)


RULES: dict[str, Rule] = {
    **dict.fromkeys(IDENTITIES, lambda graph, edit, ref: graph.producer(ref).inputs[0]),
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(("Slice", "StridedSlice"), _slice),
    **dict.fromkeys(("Add", "AddV2", "Sub", "Mul", "RealDiv", "Pow", "BiasAdd"), _neutral),
    "Cast": _cast,
    "Transpose": _transpose,
    "ConcatV2": _concat,
}
