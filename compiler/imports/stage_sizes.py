"""Refuse translated ONNX graphs in which numbers of a request say how much is computed.

What the compiler cannot make dense runs in a stage, once a request, and TensorFlow allocates what the graph asks for.
As in a graph that ONNX Runtime runs (onnx_native.value_sizes), sizes must follow from constants and shapes. A
SavedModel may do otherwise: masks of lengths are written so (tf.sequence_mask).
"""

from __future__ import annotations

from collections.abc import Iterable

from freshet_serving.compiler.imports.foreign_graph import INPUT, ForeignGraph, Ref
from freshet_serving.processor.errors import BadInput

# By operation, the inputs that say how large its output is.
SIZING = {
    "BroadcastTo": (1,),
    "Fill": (0,),
    "MirrorPad": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "PadV2": (1,),
    "Range": (0, 1, 2),
    "Tile": (1,),
}
BY_SHAPE = frozenset({"Shape", "ShapeN", "Size", "Rank"})
PARTS = ("/row_splits", "/indices", "/shape")
"""Nodes that are fed where values lie: the engine makes them, as large as the request is."""


def check_stage_sizes(graph: ForeignGraph, outputs: Iterable[Ref]) -> None:
    """Raise BadInput if a size depends on values of a request.

    Args:
        graph: The graph.
        outputs: What is computed.
    """
    values: set[str] = set()
    for node in graph.ancestors(outputs):
        given = [name for name, _ in node.inputs]
        for i in SIZING.get(node.op, ()):
            if i < len(given) and given[i] in values:
                label = f"{node.op} {node.name.rsplit('/')[-1][:64]!r}"
                raise BadInput(
                    f"graph: {label}: expected a size that follows from shapes, got one that follows from numbers of "
                    "the request, which could ask for any"
                )
        fed = node.op == INPUT and not node.name.endswith(PARTS)
        if fed or (node.op not in BY_SHAPE and not values.isdisjoint(given)):
            values.add(node.name)
