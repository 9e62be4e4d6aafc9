"""Constant folding: compute what depends on constants and static shapes alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.graph import Edit, Graph, Ref

# A constant larger than this stays as the operation that computes it.
MAX_NBYTES = 4 << 20


def fold(graph: Graph) -> tuple[Graph, int]:
    """Return the graph with constants in place of fixed nodes, and their number."""
    edit = Edit(graph)
    count = 0
    for ref, value in _values(graph).items():
        if value.nbytes <= MAX_NBYTES:
            edit.replace(ref, edit.constant(value, value.dtype))
            count += 1
    for name, node in graph.nodes.items():
        if name not in graph.varying or name in graph.inputs:
            continue
        if node.op == "Shape":
            dims = graph.shape(node.inputs[0]) if graph.ranked(node.inputs[0]) else (None,)
            if None not in dims:
                edit.replace((name, 0), edit.constant(dims, graph.dtype((name, 0)).as_numpy_dtype))
                count += 1
        elif node.op == "StridedSlice" and graph.producer(node.inputs[0]).op == "Shape":
            dims = _known(graph, name)
            if dims is not None:
                edit.replace((name, 0), edit.constant(dims, graph.dtype((name, 0)).as_numpy_dtype))
                count += 1
        elif node.op == "Reshape" and graph.constant(node.inputs[1]) is None:
            shape = graph.shape((name, 0)) if graph.ranked((name, 0)) else (None, None)
            if shape.count(None) <= 1:
                sizes = edit.constant([-1 if n is None else n for n in shape], np.int32)
                edit.replace(
                    (name, 0),
                    edit.add("Reshape", node.inputs[0], sizes, T=graph.dtype((name, 0)), Tshape=tf.int32),
                )
                count += 1
    return edit.done(), count


def _values(graph: Graph) -> dict[Ref, NDArray[Any]]:
    """Return the values of fixed tensors that non-fixed nodes read, except those that are constants already."""
    refs: dict[str, Ref] = {}
    for ref, users in graph.users.items():
        node = graph.producer(ref)
        needed = any(user not in graph.fixed for user in users)
        if needed and ref[0] in graph.fixed and node.value is None and graph.dtype(ref).is_numpy_compatible:
            refs[str(len(refs))] = ref
    if not refs:
        return {}
    function = tf.function(lambda: graph.apply({}, refs), autograph=False)
    return {refs[key]: value.numpy() for key, value in function.get_concrete_function()().items()}


def _known(graph: Graph, name: str) -> Any:
    """Return a slice of a shape if all dimensions in it are static, else None."""
    node = graph.nodes[name]
    source = graph.producer(node.inputs[0]).inputs[0]
    bounds = [graph.constant(ref) for ref in node.inputs[1:]]
    masks = [int(node.attr(f"{kind}_mask") or 0) for kind in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")]
    if not graph.ranked(source) or masks[2] or masks[3] or any(b is None for b in bounds):
        return None
    start, stop, step = (int(b.reshape(-1)[0]) for b in bounds if b is not None)
    dims = graph.shape(source)
    if masks[4]:
        return dims[start] if dims[start] is not None else None
    sliced = dims[None if masks[0] else start : None if masks[1] else stop : step]
    return None if None in sliced else np.array(sliced)
