"""Refuse graphs with a loop whose carried tensor doubles: as many trips as a list has values would fill any memory.

What a graph computes is measured before it is served (processor.features.growth_meter), which finds such a loop if it
runs. One that ends early by a value does not run on when it is measured, so it is refused by what it says: a carried
tensor that is joined with itself, or repeated, on its way to the next trip. What comes after a product with weights or
a reduction has a size of its own again, so cells of recurrent networks, which join their state with their input, are
served.
"""

from __future__ import annotations

from typing import Any

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import bodies_of
from freshet_serving.processor.errors import BadInput

REPEATING = frozenset({"Resize", "Tile", "Upsample"})
SETTLING = frozenset({"Gemm", "Gather", "GatherElements", "GatherND", "MatMul", "Shape", "Size", "Slice"})
"""Operators whose result is as large as their other operand or a reduction of it."""
CARRYING, GROWING = 1, 2


def check_loops(model: Any) -> None:
    """Raise BadInput if a loop's carried tensor doubles with each trip."""
    graphs = [model.graph]
    while graphs:
        for node in graphs.pop().node:
            bodies = bodies_of(node)
            graphs += bodies
            if node.op_type == "Loop":
                _check(node, bodies[0])


def _check(node: Any, body: Any) -> None:
    state = {info.name: CARRYING for info in body.input[2:]}
    for inner in body.node:
        carried = [state.get(name, 0) for name in inner.input]
        level = max(carried, default=0)
        if inner.op_type in SETTLING or inner.op_type.startswith("Reduce"):
            level = 0
        elif level and (inner.op_type in REPEATING or (inner.op_type == "Concat" and sum(map(bool, carried)) > 1)):
            level = GROWING
        state |= dict.fromkeys(inner.output, level)
    # After the condition come the carried tensors; what a loop stacks is no input of the next trip.
    for info in body.output[1 : len(body.input) - 1]:
        if state.get(info.name) == GROWING:
            raise BadInput(
                f"graph: Loop {node.name[:64]!r}: expected carried tensors that keep their size, got "
                f"{info.name[:64]!r}, which is joined with itself or repeated in each trip"
            )
