"""FLOPs: what a graph costs for each row of a batch, and what a pass has changed of that.

Counted, not measured: multiplications and additions of the nodes that depend on x. What depends on weights alone is
computed once for new weights and counts nothing; nor does moving data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.passes.graph import Graph, Ref

PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
REDUCTIONS = frozenset({"Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "ArgMax", "ArgMin"})
MOVES = frozenset(
    {
        "BroadcastTo",
        "Cast",
        "ConcatV2",
        "Const",
        "ExpandDims",
        "Fill",
        "GatherNd",
        "GatherV2",
        "Identity",
        "IdentityN",
        "Pack",
        "Pad",
        "PadV2",
        "Placeholder",
        "Reshape",
        "Shape",
        "Slice",
        "Split",
        "SplitV",
        "Squeeze",
        "StopGradient",
        "StridedSlice",
        "Tile",
        "Transpose",
        "Unpack",
        "ZerosLike",
    }
)


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one pass. found: places changed. nodes: that are run for a batch no more; flops: that a row takes
    no more. Either may be below 0: some forms have more of one and take less time all the same."""

    name: str
    found: int
    nodes: int
    flops: int

    def __str__(self) -> str:
        return f"{self.name}: {self.found} changes, {self.nodes} nodes and {self.flops} FLOPs a row saved"


def node_count(graph: Graph) -> int:
    """Nodes that run for every batch; x itself is none."""
    return len(graph.varying) - 1


def flops(graph: Graph) -> int:
    """Floating-point operations of one row."""
    return sum(node_flops(graph, name) for name in graph.varying)


def node_flops(graph: Graph, name: str) -> int:
    """FLOPs of one node, for one row; a tensor whose size is not known counts nothing."""
    node = graph.nodes[name]
    if node.op in MOVES:
        return 0
    if node.op in PRODUCTS:
        left = graph.shape(node.inputs[0])
        flipped = node.attr("transpose_a") or node.attr("adj_x")
        return 2 * _size(graph, (name, 0)) * (left[-2 if flipped else -1] or 1)
    if node.op in REDUCTIONS:
        return _size(graph, node.inputs[0])
    return _size(graph, (name, 0))


def _size(graph: Graph, ref: Ref) -> int:
    return math.prod(n or 1 for n in graph.shape(ref)) if graph.ranked(ref) else 0
