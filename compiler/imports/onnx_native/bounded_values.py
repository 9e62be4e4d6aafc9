"""Find values of a request that the request's own size bounds: flags, counts of flags, and places in a tensor.

`mask.sum()` is at most as large as the mask, and what NonZero finds lies within it. Such a number may say how much is
computed, as the size of an input may (value_sizes). PyTorch's exporter writes `mask[rows, -1] = 0` so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import TensorProto

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import OURS

FLAG = 0
"""Bound of a value that is 0 or 1."""
MOST = 64
"""Largest bound that is kept: sums of sums would grow with the graph."""
FLAGS = frozenset(
    {"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"}
)
PLACES = frozenset({"ArgMax", "ArgMin", "NonZero"})
COUNTS = frozenset({"CumSum", "ReduceSum"})
SUMS = frozenset({"Add", "Sub"})
# By operator whose results are values of its inputs: those inputs, as a slice.
MOVES = {
    **dict.fromkeys(("Cast", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"), slice(1)),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "Reshape", "Slice", "Split", "Squeeze"), slice(1)),
    **dict.fromkeys(("Tile", "Transpose", "Unsqueeze"), slice(1)),
    **dict.fromkeys(("Concat", "Max", "Min"), slice(None)),
    "Where": slice(1, None),
}


def bound_of(node: Any, values: set[str], bounds: Mapping[str, int]) -> int | None:
    """Return how many times the size of the request each result of a node can be, or FLAG; None for any number.

    `values` depend on values of the request, and some have bounds; anything else counts as a size.
    """
    if node.domain not in OURS:
        return None
    to_bool = any(a.name == "to" and a.i == TensorProto.BOOL for a in node.attribute)
    if node.op_type in FLAGS or (node.op_type == "Cast" and to_bool):
        return FLAG
    if node.op_type in PLACES:
        return 1
    if node.op_type in COUNTS:
        return 1 if bounds.get(node.input[0]) == FLAG else None
    if node.op_type not in MOVES and node.op_type not in SUMS:
        return None
    read = [name for name in node.input[MOVES.get(node.op_type, slice(None))] if name]
    if not all(name in bounds for name in values.intersection(read)):
        return None
    factors = [bounds[name] if name in values else 1 for name in read]
    if node.op_type in MOVES:
        return max(factors)
    total = sum(max(1, bound) for bound in factors)
    return total if total <= MOST else None
