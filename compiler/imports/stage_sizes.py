"""Refuse translated ONNX graphs in which numbers of a request say how much is computed.

What the compiler cannot make dense runs in a stage, once a request, and TensorFlow allocates what the graph asks for.
As in a graph that ONNX Runtime runs (onnx_native.value_sizes), sizes must follow from constants and shapes. A
SavedModel may do otherwise: masks of lengths are written so (tf.sequence_mask).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.error_reason import size_by_value
from freshet_serving.compiler.imports.feeds import FeedSpec
from freshet_serving.compiler.imports.foreign_graph import INPUT, ForeignGraph, Ref
from freshet_serving.compiler.imports.ops import words

# By operation, the inputs that say how large its output is.
SIZING: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(words("BroadcastTo MirrorPad OneHot Pad PadV2 Tile"), (1,)),
    "Fill": (0,),
    "Range": (0, 1, 2),
}
BY_SHAPE = frozenset({"Shape", "ShapeN", "Size", "Rank"})
PARTS = ("/row_splits", "/indices", "/shape")
"""Nodes that are fed where values lie: the engine makes them, as large as the request is."""


SPLITTING = words(
    "DecodeBase64 ParseExample ParseExampleV2 ParseSequenceExample ParseSequenceExampleV2 ParseSingleExample "
    "StringNGrams StringSplit StringSplitV2 UnicodeDecode UnicodeDecodeWithOffsets"
)
"""Operations that make as many values of a string as it is long."""
MORE_SIZING = {
    **SIZING,
    **dict.fromkeys(words("Bincount DenseBincount SparseToDense"), (1,)),
    **dict.fromkeys(words("LinSpace RaggedBincount ScatterNd"), (2,)),
    "RaggedRange": (0, 1, 2),
}


def sizing_inputs(data: bytes, fed: Iterable[FeedSpec]) -> list[str]:
    """Return the inputs whose values say how large tensors of a stage's graph are.

    An integer that reaches a size, by whatever way, and a string that is split. What happens inside a function is
    taken to happen to all that the function is given.
    """
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(data)
    functions = {function.signature.name: list(function.node_def) for function in definition.library.function}
    nodes = {node.name: node for node in definition.node}
    sizing = []
    for spec in fed:
        text = spec.dtype.kind == "O"
        if not text and spec.dtype.kind not in "iu":
            continue
        reached = {node for node in spec.nodes if not node.endswith(PARTS)}
        if _reaches(nodes.values(), reached, functions, text):
            sizing.append(spec.name)
    return sorted(sizing)


def _reaches(nodes: Iterable[Any], reached: set[str], functions: dict[str, list[Any]], text: bool) -> bool:
    """Report whether values of nodes, in any order, say how large a tensor is; add to them what depends on them."""
    ordered, before = list(nodes), -1
    while len(reached) != before:
        before = len(reached)
        for node in ordered:
            inputs = [name.lstrip("^").split(":")[0] for name in node.input]
            if reached.isdisjoint(inputs):
                continue
            if _sizes(node, inputs, reached, functions, text):
                return True
            if node.op not in BY_SHAPE:
                reached.add(node.name)
    return False


def _sizes(node: Any, inputs: list[str], reached: set[str], functions: dict[str, list[Any]], text: bool) -> bool:
    if text and node.op in SPLITTING:
        return True
    if any(inputs[i] in reached for i in MORE_SIZING.get(node.op, ()) if i < len(inputs)):
        return True
    called = {node.op} | {a.func.name for a in node.attr.values() if a.HasField("func")}
    called |= {f.name for a in node.attr.values() for f in a.list.func}
    seen: set[str] = set()
    while called := (called & functions.keys()) - seen:
        seen |= called
        inner = [n for name in called for n in functions[name]]
        if any(n.op in SPLITTING if text else n.op in MORE_SIZING for n in inner):
            return True
        called = {n.op for n in inner} | {a.func.name for n in inner for a in n.attr.values() if a.HasField("func")}
    return False


def check_stage_sizes(graph: ForeignGraph, outputs: Iterable[Ref]) -> None:
    values: set[str] = set()
    for node in graph.ancestors(outputs):
        inputs = [name for name, _ in node.inputs]
        for i in SIZING.get(node.op, ()):
            if i < len(inputs) and inputs[i] in values:
                raise size_by_value(node.op, node.name.rsplit("/")[-1])
        fed = node.op == INPUT and not node.name.endswith(PARTS)
        if fed or (node.op not in BY_SHAPE and not values.isdisjoint(inputs)):
            values.add(node.name)
