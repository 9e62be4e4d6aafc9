"""Find operators that the backend does not support, by compiling each node of a dense graph separately.

Runs only if a whole graph could not be compiled: the next cut moves these nodes, and what they depend on, to the stage,
and leaves everything else.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.compiler.building.compile import compile_graph
from freshet_serving.compiler.building.parts import parts
from freshet_serving.compiler.imports.cut import CutTensor, GraphCut
from freshet_serving.compiler.imports.dense_side import build_dense
from freshet_serving.compiler.imports.foreign_graph import ForeignNode, Ref
from freshet_serving.compiler.imports.shapes import SIZES, Shapes
from freshet_serving.processor.backends import MATRIX
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import WHOLE

# Not compiled to an operator of their own: they only move data or are known beforehand.
PLAIN = frozenset({"Const", "Identity", "Reshape", "Shape", "Fill", "BroadcastTo"})


def unsupported_ops(cut: GraphCut, shapes: Shapes) -> dict[str, str]:
    """Return each unsupported node of a cut with the reason; nodes that compile alike are tried once."""
    unsupported: dict[str, str] = {}
    tried: dict[bytes, str] = {}
    for node in cut.dense:
        if node.op in PLAIN:
            continue
        kind = _kind(node, shapes)
        if kind not in tried:
            tried[kind] = _refused(node, shapes)
        if tried[kind]:
            unsupported[node.name] = tried[kind]
    return unsupported


def _kind(node: ForeignNode, shapes: Shapes) -> bytes:
    """Return a key of operation, attributes, shapes and small constants, equal for nodes that compile alike."""
    definition = type(node.definition)()
    definition.CopyFrom(node.definition)
    for stale in ("_class", "_output_shapes"):
        definition.attr.pop(stale, None)
    del definition.input[:]
    definition.ClearField("name")
    operands = [
        shapes.runner.constant(ref).tobytes()[:256] if ref[0] in shapes.constant else repr(shapes.rows(ref)).encode()
        for ref in node.inputs
    ]
    return b"\0".join([definition.SerializeToString(deterministic=True), *operands])


def _refused(node: ForeignNode, shapes: Shapes) -> str:
    """Return why a node cannot be compiled on its own; "" if it can."""
    ports: list[CutTensor] = []
    offset = 0
    for ref in dict.fromkeys(shapes.operands(node.name)):
        rows = shapes.rows(ref)
        if rows is None:
            return ""
        ports.append(CutTensor(ref, offset, shapes.size(ref), rows[1], shapes.dtype(ref), None))
        offset += ports[-1].size
    outputs: dict[str, Ref] = {f"y{i}": ref for i, ref in enumerate(shapes.runner.outputs(node.name))}
    if not ports or any(shapes.rows(ref) is None for ref in outputs.values()):
        return ""
    try:
        graph = build_dense(GraphCut(ports, offset, [node], {}), shapes, outputs)
        columns = [[np.reshape(values[p.ref], (n, -1)) for p in ports] for values, n in zip(shapes.values, SIZES)]
        examples = np.concatenate([np.concatenate(matrix, 1).astype(np.float32) for matrix in columns])
        graph = replace(graph, examples={MATRIX: examples})
        with tempfile.TemporaryDirectory(prefix="freshet-wordless-") as folder:
            compile_graph(parts(graph, [], [1]).by_subgraph[WHOLE].graph, Path(folder), [1])
    except BadInput:
        return "no backend has an operator for it"
    return ""
