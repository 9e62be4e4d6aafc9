"""FLOPs: what a graph costs for each row of a batch, and what a pass has changed of that.

Counted, not measured: multiplications and additions of the nodes that depend on x, of one row more. What depends on
weights alone is computed once for new weights and counts nothing; nor does moving data.
"""

from __future__ import annotations

from dataclasses import dataclass

from freshet_serving.compiler.passes.graph import Graph, Node, Ref

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
class PassEffect:
    """The effect of one pass. found: places changed. nodes: that are run for a batch no more; flops: that a row takes
    no more. Nodes may be below 0: some forms have more of them and take less work. applied: whether the graph was left
    so; a pass that would add to a row's work is not."""

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
    """Nodes that run for every batch; x itself is none."""
    return len(graph.varying) - 1


def flops(graph: Graph) -> int:
    """Floating-point operations of one row; a node whose size is not known before the graph runs counts nothing."""
    return sum(node_flops(graph, name) or 0 for name in graph.varying)


def counted(graph: Graph) -> bool:
    """Whether all nodes could be counted, so that another form of the graph can be compared with it."""
    return all(node_flops(graph, name) is not None for name in graph.varying)


def node_flops(graph: Graph, name: str) -> int | None:
    """FLOPs of one node, for one row; None where its size is not known before the graph runs."""
    node = graph.nodes[name]
    if node.op in MOVES:
        return 0
    size = graph.size(_measured(node, name))
    if size is None or node.op not in PRODUCTS:
        return size
    left = graph.shape(node.inputs[0])
    flipped = node.attr("transpose_a") or node.attr("adj_x")
    return 2 * size * (left[-2 if flipped else -1] or 1)


def _measured(node: Node, name: str) -> Ref:
    """The tensor whose numbers take an operation each: what a reduction reads, what any other node writes."""
    return node.inputs[0] if node.op in REDUCTIONS else (name, 0)
