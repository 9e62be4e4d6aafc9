"""Count FLOPs: the cost of a graph per row of a batch, and a pass's effect on it.

Counted, not measured: multiplications and additions of the nodes that depend on x, for one more row. What depends on
weights alone is computed once for new weights and counts nothing; neither does moving data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.passes.graph import Graph, Node

PROOF_FLOPS, LEAST_PROOF_ROWS = 20_000_000_000, 4
"""Two forms of a graph are compared on rows of so much work at most, but on a few in any case."""
PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
CONVOLUTIONS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative"})
REDUCTIONS = frozenset({"Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "ArgMax", "ArgMin"})
MOVES = frozenset(
    {"BroadcastTo", "Cast", "ConcatV2", "Const", "ExpandDims", "Fill", "GatherNd", "GatherV2", "Identity", "IdentityN"}
    | {"Pack", "Pad", "PadV2", "Placeholder", "Reshape", "Shape", "Slice", "Split", "SplitV", "Squeeze"}
    | {"StopGradient", "StridedSlice", "Tile", "Transpose", "Unpack", "ZerosLike"}
)


@dataclass(frozen=True, slots=True)
class PassEffect:
    """Effect of one pass.

    Attributes:
        found: Places changed.
        nodes: Nodes fewer per batch; negative for forms with more nodes but less work.
        flops: FLOPs fewer per row.
        applied: Whether the pass was applied; one that would add work per row is not.
    """

    name: str
    found: int
    nodes: int
    flops: int
    applied: bool = True

    def __str__(self) -> str:
        if not self.applied:
            return f"{self.name}: not applied, {_changed(self.flops, 'FLOPs a row')}"
        changed = ", ".join(_changed(*each) for each in ((self.nodes, "nodes"), (self.flops, "FLOPs a row")) if each[0])
        return f"{self.name}: {self.found} changes" + (f", {changed}" if changed else "")


def _changed(saved: int, of_what: str) -> str:
    return f"{saved:,} {of_what} fewer" if saved > 0 else f"{-saved:,} {of_what} more"


def node_count(graph: Graph) -> int:
    """Return the number of nodes that run for every batch, inputs themselves excluded."""
    return len(graph.varying) - len(graph.inputs)


def flops(graph: Graph) -> int:
    """Return the floating-point operations per row; a node of unknown size counts nothing."""
    return sum(node_flops(graph, name) or 0 for name in graph.varying)


def dense_flops(dense: DenseGraph) -> int:
    return flops(Graph.of_dense(dense))


def proof_rows(dense: DenseGraph, most: int) -> int:
    """Return how many rows to compare two forms of a graph on: fewer than `most` where a row is much work."""
    return max(LEAST_PROOF_ROWS, min(most, PROOF_FLOPS // max(1, dense_flops(dense))))


def counted(graph: Graph) -> bool:
    """Return whether all nodes could be counted, so that the graph can be compared with another form of it."""
    return all(node_flops(graph, name) is not None for name in graph.varying)


def node_flops(graph: Graph, name: str) -> int | None:
    """Return the FLOPs of one node per row; None if its size is not known before the graph runs."""
    node = graph.nodes[name]
    if node.op in MOVES:
        return 0
    # An element takes one operation: of a reduction's input, and of any other node's output.
    size = graph.size(node.inputs[0] if node.op in REDUCTIONS else (name, 0))
    if node.op == "Einsum":
        return _einsum_flops(graph, node)
    if size is not None and node.op in CONVOLUTIONS:
        # A kernel is [height, width, channels read, channels]; one that is depthwise reads one channel for each.
        kernel = graph.shape(node.inputs[1])[: 2 if node.op == "DepthwiseConv2dNative" else -1]
        return 2 * size * math.prod(n or 1 for n in kernel)
    if size is None or node.op not in PRODUCTS:
        return size
    left = graph.shape(node.inputs[0])
    flipped = node.attr("transpose_a") or node.attr("adj_x")
    return 2 * size * (left[-2 if flipped else -1] or 1)


def _einsum_flops(graph: Graph, node: Node) -> int | None:
    """Return the FLOPs of one row of an einsum: two for every combination of its letters' indices but the rows'."""
    terms = str(node.attr("equation").decode()).replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int | None] = {}
    for term, ref in zip(terms, node.inputs):
        if "." in term or not graph.ranked(ref):
            return None
        sizes |= dict(zip(term, graph.shape(ref)))
    return 2 * math.prod(n or 1 for n in sizes.values())
