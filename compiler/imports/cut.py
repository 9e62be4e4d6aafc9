"""Cut a model into the part that the CPU computes and its dense graph, and decide what every tensor at the cut becomes.

A node can be dense if it computes on numbers with a shape that is fixed except for the batch. Everything else, and all
that it depends on, is the sparse side; the rest is the dense graph. A tensor at the cut is the first of these that
applies: a float input; embeddings that a table holds (compiler.imports.embedding_lookups), pooled or not
(compiler.imports.pooling); or columns that the model's own sparse side computes, as a stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.embedding_lookups import Lookup, LookupFinder
from freshet_serving.compiler.imports.feeds import FeedSpec
from freshet_serving.compiler.imports.foreign_graph import INPUT, ForeignNode, Ref
from freshet_serving.compiler.imports.ops import DENSE
from freshet_serving.compiler.imports.pooling import POOLING, PooledLookup, PoolFinder
from freshet_serving.compiler.imports.shapes import Shapes
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import INTEGERS, PIECES

DTYPES = (tf.float32, tf.bool, tf.int32, tf.int64)
CUT_DTYPES = (tf.float32, tf.bool)
GATHERS = frozenset({"GatherV2", "GatherNd", "Gather"})


@dataclass(frozen=True, slots=True, eq=False)
class CutTensor:
    """A tensor at the cut: `size` columns of the dense input, starting at `offset`.

    Attributes:
        how: The float input, lookup or pool that it becomes; None for columns of the stage.
        exact: Whether it is an output of whole numbers, which come in pieces (processor.package.replies).
    """

    ref: Ref
    offset: int
    size: int
    dims: tuple[int, ...]
    dtype: Any
    how: str | Lookup | PooledLookup | None
    exact: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class GraphCut:
    """A cut of a model.

    Attributes:
        ports: The tensors at the cut, by offset.
        width: Columns of the dense input.
        dense: The dense nodes, each after its inputs; empty if the stage computes the outputs.
        reasons: By node of the sparse side, the reason why it is there.
    """

    ports: list[CutTensor]
    width: int
    dense: list[ForeignNode]
    reasons: dict[str, str]


class Cutter:
    def __init__(
        self, shapes: Shapes, inputs: Sequence[FeedSpec], outputs: Mapping[str, Ref], samples: list[dict[str, Column]]
    ):
        self._shapes, self._graph, self._outputs = shapes, shapes.graph, outputs
        self._floats = {f"input/{f.name}": f.name for f in inputs if f.dtype == "float32" and len(f.nodes) == 1}
        self._finder = LookupFinder(shapes)
        self._pools = PoolFinder(shapes, self._finder, inputs, samples)
        for name, ref in outputs.items():
            if shapes.rows(ref) is None:
                raise BadInput(f"output {name[:64]!r}: expected numbers for every row")

    def cut(self, refused: Mapping[str, str] | None = None, whole: bool = False) -> GraphCut:
        """Cut the model, all to the sparse side with `whole`; `refused` nodes, with reasons, must not be dense."""
        reasons: dict[str, str] = {}
        while True:
            before = len(reasons)
            dense, cut = self._walk(reasons, refused or {}, whole)
            if len(reasons) == before:
                break
        position = {node.name: i for i, node in enumerate(self._shapes.order)}
        ports: list[CutTensor] = []
        offset = 0
        for ref in sorted(cut, key=lambda ref: (position[ref[0]], ref[1])):
            ports.append(self._port(ref, offset, whole))
            offset += ports[-1].size
        return GraphCut(ports, offset, sorted(dense, key=lambda n: position[n.name]), reasons)

    def _walk(
        self, reasons: dict[str, str], refused: Mapping[str, str], whole: bool
    ) -> tuple[list[ForeignNode], list[Ref]]:
        """Walk from the outputs up; return nodes passed and tensors met, add nodes that must be sparse to `reasons`."""
        shapes = self._shapes
        dense: dict[str, ForeignNode] = {}
        cut: dict[Ref, None] = {}
        stack = list(self._outputs.values())
        while stack:
            ref = stack.pop()
            node = self._graph.nodes[ref[0]]
            if node.op == INPUT or node.name in reasons:
                cut[ref] = None
            elif node.name not in shapes.free and node.name not in dense:
                why = "the whole model runs in TensorFlow" if whole else self._why_sparse(node)
                why = why or refused.get(node.name, "") or self._why_not_after(node, reasons)
                if why:
                    self._add(reasons, node, why)
                else:
                    dense[node.name] = node
                    stack.extend(shapes.operands(node.name))
        return list(dense.values()), list(cut)

    def _why_not_after(self, node: ForeignNode, reasons: Mapping[str, str]) -> str:
        """Return why a node cannot read what the sparse side hands over; "" if it can."""
        for ref in self._shapes.operands(node.name):
            producer = self._graph.nodes[ref[0]]
            fits = self._shapes.rows(ref) is not None and self._shapes.dtype(ref) in CUT_DTYPES
            if producer.op == INPUT and not (fits and producer.name in self._floats):
                return f"takes the input {producer.name.removeprefix('input/')[:80]!r}"
            if producer.name in reasons and not fits:
                return f"takes {self._shapes.dtype(ref).name} from {producer.op.lstrip('@')}"
        return ""

    def _add(self, reasons: dict[str, str], node: ForeignNode, why: str) -> None:
        reasons[node.name] = why
        stack = [ref[0] for ref in node.inputs]
        while stack:
            above = self._graph.nodes[stack.pop()]
            if above.name not in self._shapes.free and above.op != INPUT and above.name not in reasons:
                reasons[above.name] = self._why_sparse(above) or f"feeds {node.op}"
                stack.extend(ref[0] for ref in above.inputs)

    def _why_sparse(self, node: ForeignNode) -> str:
        shapes = self._shapes
        if node.op not in DENSE:
            return f"{node.op} is not allowed in a dense graph"
        rows, indices = (node.inputs[0][0], node.inputs[1][0]) if node.op in GATHERS else ("", "")
        if rows in shapes.constant and indices not in shapes.free:
            return "looks up rows"
        for ref in shapes.runner.outputs(node.name):
            if shapes.dtype(ref) not in DTYPES:
                return f"outputs {shapes.dtype(ref).name}"
            if not shapes.steady(ref):
                return "its shape is not fixed, or it mixes rows"
        return ""

    def _port(self, ref: Ref, offset: int, whole: bool) -> CutTensor:
        shapes = self._shapes
        rows = shapes.rows(ref)
        assert rows is not None, "only tensors with rows are cut"
        _, dims = rows
        node = self._graph.nodes[ref[0]]
        how: str | Lookup | PooledLookup | None = None
        if node.op == INPUT and ref[0] in self._floats:
            how = self._floats[ref[0]]
        elif not whole and shapes.dtype(ref) in CUT_DTYPES:
            how = self._pools.find(ref) if node.op in POOLING else None
            how = how or self._finder.find(ref)
        # Dense operations take no whole numbers from the sparse side, so these are outputs.
        exact = shapes.dtype(ref).name in INTEGERS
        size = shapes.size(ref) * (PIECES if exact else 1)
        return CutTensor(ref, offset, size, dims, shapes.dtype(ref), how, exact)
