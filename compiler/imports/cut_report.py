"""Describe the cut of a TensorFlow graph for the report of its import: where each operation went, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.imports.boundary import BoundaryTensor, sender
from freshet_serving.compiler.imports.cut import GATHERS, CutTensor, GraphCut
from freshet_serving.compiler.imports.dense_side import weight_names
from freshet_serving.compiler.imports.draft import Draft
from freshet_serving.compiler.imports.embedding_lookups import PASSING, SHAPING, Lookup
from freshet_serving.compiler.imports.foreign import ForeignModel
from freshet_serving.compiler.imports.foreign_graph import INPUT, SOURCES, VARIABLE, ForeignNode
from freshet_serving.compiler.imports.import_report import described_pair, import_report
from freshet_serving.compiler.imports.pooling import PooledLookup
from freshet_serving.compiler.imports.shapes import Shapes
from freshet_serving.compiler.passes.flops import dense_flops

MAX_REASONS = 64
MAX_THROUGH = 4


def describe(
    source: ForeignModel, shapes: Shapes, cut: GraphCut, draft: Draft, graph: DenseGraph, notes: Sequence[str]
) -> dict[str, Any]:
    staged = {node.name for node in draft.stage.nodes} if draft.stage else set()
    constants = draft.stage.constants if draft.stage else []
    sparse = [shapes.graph.nodes[name] for name in cut.reasons]
    reasons: dict[str, str] = {}
    for node in sparse:
        why = cut.reasons[node.name]
        if node.op not in reasons or reasons[node.op].startswith("feeds "):
            reasons[node.op] = why
    sides = {
        "dense": _count(cut.dense),
        "stage": _count(node for node in sparse if node.name in staged),
        "tables": _count(node for node in sparse if node.name not in staged),
    }
    return import_report(
        source.kind,
        source.signature,
        notes,
        sides,
        [_pair(port, features, shapes, draft) for port, features in zip(cut.ports, draft.ports)],
        graph.weights.values(),
        [rows for _, (_, rows) in draft.tables.values()],
        flops=dense_flops(graph),
        reasons=dict(list(reasons.items())[:MAX_REASONS]),
        staged=[part for port in cut.ports if port.ref in draft.staged for part in _staged(port, shapes, draft)],
        constants=sorted(weight_names(shapes.graph)[name] for name in constants),
    )


def _staged(port: CutTensor, shapes: Shapes, draft: Draft) -> Iterator[dict[str, str]]:
    """Describe a tensor that the stage hands over (keys of a table, rows of embeddings, other columns), and why."""
    filled = {row.target for row in draft.stage.rows} if draft.stage else set()
    above, names = shapes.graph.ancestors([port.ref], filled), weight_names(shapes.graph)
    inputs = ", ".join(sorted({n.name.split("/")[1] for n in above if n.op == INPUT}))
    why = draft.staged[port.ref]
    if isinstance(port.how, Lookup | PooledLookup):
        lookup = port.how if isinstance(port.how, Lookup) else port.how.lookup
        name = names.get(lookup.variable, "without a name").replace("/", ".")
        yield {"what": f"keys of table {name}", "inputs": inputs, "why": why}
        return
    rows = [n for n in above if n.op in GATHERS and n.name not in shapes.constant]
    embeddings = {v.name: n for n in rows for v in shapes.graph.ancestors(n.inputs[:1]) if v.op == VARIABLE}
    for name, gather in embeddings.items():
        through = _through(above, gather)
        passed = f"its rows go through {', '.join(through)}" if through else why
        what = f"embedding {names[name].replace('/', '.')}, which is no table"
        yield {"what": what, "inputs": inputs, "why": passed}
    if not embeddings:
        yield {"what": "columns", "inputs": inputs, "why": why}


def _through(above: Sequence[ForeignNode], gather: ForeignNode) -> list[str]:
    reached = {gather.name}
    ops: dict[str, None] = {}
    for node in above:
        if any(ref[0] in reached for ref in node.inputs):
            reached.add(node.name)
            if node.op not in PASSING | SHAPING:
                ops[node.op] = None
    return list(ops)[:MAX_THROUGH]


def _count(nodes: Any) -> dict[str, int]:
    counts = Counter(node.op for node in nodes if node.op not in SOURCES)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _pair(port: CutTensor, features: Sequence[Any], shapes: Shapes, draft: Draft) -> dict[str, Any]:
    sent = features[0]
    pair = BoundaryTensor(
        tensor=port.ref[0].rsplit("/", 2)[-1] if "/" in port.ref[0] else port.ref[0],
        dtype=port.dtype.name,
        shape=port.dims,
        columns=(port.offset, port.offset + port.size),
        sender=sender(sent, staged=port.ref in draft.staged),
    )
    op = shapes.graph.nodes[port.ref[0]].op.lstrip("@")
    return described_pair(pair, op, features)
