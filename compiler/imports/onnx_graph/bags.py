"""Recognise nn.EmbeddingBag as PyTorch's exporters write it: ONNX has no such operator, so it becomes a loop over bags.

TorchScript: a Loop of Slice (ids of one bag), Gather, ReduceSum | Mean | Max, its rows stacked by the Loop. Dynamo:
Gather of all ids before the loop, then a Loop of Slice and Reduce that appends to a sequence; with a padding_idx, an
inner loop that leaves entries out. Each becomes one node of our own, EmbeddingBag; any other Loop is refused on
translation. The recognition is verified later (reference_check).

Ids and offsets that are inputs of the model become one ragged input of the package. A matrix of ids, which exporters
split into ids and offsets, is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import Array, OnnxBody, OnnxModel, OnnxNode
from freshet_serving.processor.errors import BadInput

BAG, DOMAIN = "EmbeddingBag", "freshet"
MODES = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max"}
SAME = ("Identity", "Cast", "CastLike")
# Operators that hash and shift ids.
ONE_BY_ONE = ("Mod", "Add", "Sub", "Mul", "Div", "Clip", "Max", "Min", "Abs")
# All operators in the dynamo exporter's loop over bags.
# fmt: off
LOOPED = frozenset(
    {
        "Reshape", "CastLike", "Cast", "Add", "Sub", "Slice", "Equal", "Less", "Greater", "If", "Identity", "ReduceSum",
        "ReduceMean", "ReduceMax", "Shape", "Div", "Concat", "SequenceInsert", "Expand", "Gather", "Not", "Size",
        "Loop",
    }
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Bag:
    """One EmbeddingBag: the names of its result, table, ids and weights of entries ("" for none).

    Attributes:
        mode: sum, mean or max.
        ids: Ids, flat.
        splits: Begin of each bag and end of the last one.
        matrix: Ids [rows, entries], instead of ids and splits.
        padding: The id that is ignored.
    """

    output: str
    mode: str
    table: str
    ids: str = ""
    splits: str = ""
    matrix: str = ""
    weights: str = ""
    padding: int | None = None

    def node(self) -> OnnxNode:
        inputs = (self.table, self.matrix or self.ids, self.splits, self.weights)
        return OnnxNode(BAG, DOMAIN, self.output, inputs, (self.output,), {"mode": self.mode, "padding": self.padding})


@dataclass(frozen=True, slots=True)
class Offsets:
    """Ids and offsets given as two inputs; `ends` tells whether the offsets include the end of the last bag."""

    ids: str
    offsets: str
    ends: bool


def find_bags(model: OnnxModel) -> tuple[OnnxBody, list[Offsets]]:
    """Replace loops by EmbeddingBag nodes; return the graph, and the inputs that are ids and offsets.

    The input of the ids stays, and the offsets become the node's splits: `splits_of(ids)`.
    """
    body, ranks = model.body, {info.name: len(info.dims) for info in model.inputs}
    finder = _BagFinder(body, ranks)
    bags = {bag.output: bag for node in body.nodes if (bag := finder.bag(node)) is not None}
    paired: dict[str, Offsets] = {}
    nodes: list[OnnxNode] = []
    for node in body.nodes:
        bag = next((bags[name] for name in node.outputs if name in bags), None)
        if bag is None:
            nodes.append(node)
            continue
        pair = finder.inputs(bag)
        if pair is None and (lengths := finder.lengths(bag)):
            raise BadInput(
                f"input {lengths[:64]!r}: it says how many values of another input each row has; expected ids and "
                "offsets of each list, or a matrix of ids: wrap the model so that it takes these"
            )
        if pair is not None and paired.setdefault(pair.ids, pair) == pair:
            if ranks.get(bag.weights) == 1:
                raise BadInput(
                    f"input {bag.weights[:64]!r}: it weighs the entries of {pair.ids[:64]!r}, whose number varies "
                    "by row; expected a fixed number of floats per row: compute weights from ids, or give ids a length"
                )
            bag = replace(bag, splits=splits_of(pair.ids))
        nodes.append(bag.node())
    return OnnxBody(body.inputs, body.outputs, nodes, body.weights, body.constants), list(paired.values())


def splits_of(ids: str) -> str:
    return f"{ids}/row_splits"


class _Scope:
    """Finds the producers of values in a graph or in a body inside it."""

    def __init__(self, body: OnnxBody, around: _Scope | None = None) -> None:
        self.body, self._around = body, around
        self._makers = {name: node for node in body.nodes for name in node.outputs}

    def maker(self, name: str, *ops: str) -> OnnxNode | None:
        """Return the operator that directly produces a value; None if it is not one of `ops`."""
        node = self._makers.get(name)
        if node is None and self._around is not None:
            return self._around.maker(name, *ops)
        return node if node is not None and node.op in ops and not node.domain else None

    def inside(self, name: str) -> bool:
        return name in self._makers or name in self.body.inputs or self.body.value(name) is not None

    def through(self, name: str, *ops: str) -> str:
        while (node := self.maker(name, *ops)) is not None:
            name = node.inputs[0]
        return name

    def constant(self, name: str) -> Array | None:
        name = self.through(name, *SAME)
        value = self.body.value(name)
        return self._around.constant(name) if value is None and self._around is not None else value

    def number(self, name: str) -> int | None:
        value = self.constant(name)
        return int(value.ravel()[0]) if value is not None and value.size == 1 and value.dtype.kind in "iu" else None


class _BagFinder:
    def __init__(self, body: OnnxBody, ranks: dict[str, int]) -> None:
        self._graph, self._ranks = _Scope(body), ranks

    def bag(self, node: OnnxNode) -> Bag | None:
        if node.domain:
            return None
        if node.op == "Loop":
            return self._scanned(node)
        if node.op == "ConcatFromSequence" and not node.attributes.get("axis", 0):
            return self._gathered(node)
        return None

    def inputs(self, bag: Bag) -> Offsets | None:
        if not bag.ids:
            return None
        ids = self._sent(bag.ids)
        whole = self._graph.through(bag.splits, *SAME)
        if self._ranks.get(ids) != 1:
            return None
        if self._ranks.get(whole) == 1:
            return Offsets(ids, whole, True)
        joined = self._graph.maker(whole, "Concat")
        if joined is None or len(joined.inputs) != 2 or not self._is_length(joined.inputs[1], ids):
            return None
        offsets = self._graph.through(joined.inputs[0], *SAME)
        return Offsets(ids, offsets, False) if self._ranks.get(offsets) == 1 else None

    def lengths(self, bag: Bag) -> str:
        """Return the input of lengths, beside ids one after another, that a bag's splits are summed from; "" if none.

        TorchRec's KeyedJaggedTensor is made so; its values are as many as the lengths say, feature after feature.
        """
        ways = ("Reshape", "Squeeze", "Slice", "Split", *SAME)
        joined = self._graph.maker(self._graph.through(bag.splits, *ways), "Concat")
        summed = self._graph.maker(self._graph.through(joined.inputs[-1], *ways), "CumSum") if joined else None
        name = self._graph.through(summed.inputs[0], *ways) if summed else ""
        ids = self._graph.through(self._sent(bag.ids), *ways)
        return name if self._ranks.get(name) == 1 and self._ranks.get(ids) == 1 else ""

    def _sent(self, name: str) -> str:
        """Return the source of a value, skipping element-wise operators with constants: ids before they are hashed."""
        while (node := self._graph.maker(name, "Reshape", *SAME, *ONE_BY_ONE)) is not None:
            taken = [n for n in node.inputs if n and self._graph.constant(n) is None]
            if taken[:1] != [node.inputs[0]] or (len(taken) > 1 and node.op in ONE_BY_ONE):
                break
            name = node.inputs[0]
        return name

    def _scanned(self, loop: OnnxNode) -> Bag | None:
        """Match TorchScript's form: for i: rows[i] = reduce(table[ids[splits[i] : ends[i]]])."""
        body = loop.attributes.get("body")
        if not isinstance(body, OnnxBody) or len(body.inputs) != 2 or len(body.outputs) != 2 or len(loop.outputs) != 1:
            return None
        graph, inner, step = self._graph, _Scope(body, self._graph), body.inputs[0]
        reduced = inner.maker(body.outputs[1], *MODES)
        if reduced is None or self._axes(inner, reduced) != [0] or reduced.attributes.get("keepdims", 1):
            return None
        data, weighing = reduced.inputs[0], inner.maker(reduced.inputs[0], "Mul")
        weights = ""
        if weighing is not None:
            data, sliced = weighing.inputs[0], inner.maker(inner.through(weighing.inputs[1], "Unsqueeze"), "Slice")
            if sliced is None:
                return None
            weights = sliced.inputs[0]
        gathered = inner.maker(data, "Gather")
        taken = inner.maker(gathered.inputs[1], "Slice") if gathered is not None else None
        if gathered is None or taken is None or gathered.attributes.get("axis", 0):
            return None
        first, last = (inner.maker(inner.through(name, "Unsqueeze"), "Gather") for name in taken.inputs[1:3])
        if first is None or last is None or first.inputs[1] != step or last.inputs[1] != step:
            return None
        splits = first.inputs[0]
        tail = graph.maker(last.inputs[0], "Slice")
        if tail is None or tail.inputs[0] != splits or graph.number(tail.inputs[1]) != 1:
            return None
        mode = MODES[reduced.op]
        return self._made(loop.outputs[0], mode, gathered.inputs[0], taken.inputs[0], splits, weights, None)

    def _gathered(self, joined: OnnxNode) -> Bag | None:
        """Match dynamo's form: rows = table[ids] * weights; for i: append(reduce(rows[splits[i] : splits[i + 1]]))."""
        loop = self._graph.maker(joined.inputs[0], "Loop")
        body = loop.attributes.get("body") if loop is not None else None
        if loop is None or not isinstance(body, OnnxBody):
            return None
        nodes = list(_within(body))
        if any(node.op not in LOOPED or node.domain for node, _ in nodes):
            return None
        modes = {MODES[node.op] for node, _ in nodes if node.op in MODES}
        mode = "mean" if "mean" in modes else next(iter(modes), "")
        inner = _Scope(body, self._graph)
        taken = {
            node.inputs[0] for node, _ in nodes if node.op in ("Slice", "Gather") and not inner.inside(node.inputs[0])
        }
        rows = [name for name in taken if self._rows(name) is not None]
        if not mode or len(modes) > 2 or len(rows) != 1:
            return None
        entry_rows = self._rows(rows[0])
        assert entry_rows is not None, "it was just found"
        table, ids, weights = entry_rows
        paddings = self._paddings(nodes)
        others = taken - {rows[0], ids} if paddings is not None else taken - {rows[0]}
        if len(others) != 1 or (paddings is not None and len(paddings) != 1):
            return None
        padding = next(iter(paddings)) if paddings else None
        return self._made(joined.outputs[0], mode, table, ids, next(iter(others)), weights, padding)

    def _rows(self, name: str) -> tuple[str, str, str] | None:
        graph, weights = self._graph, ""
        name = graph.through(name, *SAME)
        weighing = graph.maker(name, "Mul")
        if weighing is not None:
            name = graph.through(weighing.inputs[0], *SAME)
            weights = graph.through(weighing.inputs[1], "Unsqueeze", *SAME)
            spread = graph.maker(weights, "Expand")
            spread_value = graph.constant(spread.inputs[0]) if spread is not None else None
            if spread_value is not None and (np.asarray(spread_value) == 1).all():
                weights = ""
        gathered = graph.maker(name, "Gather")
        if gathered is None or gathered.attributes.get("axis", 0):
            return None
        return gathered.inputs[0], gathered.inputs[1], weights

    def _paddings(self, nodes: list[tuple[OnnxNode, _Scope]]) -> set[int] | None:
        if not any(node.op == "Loop" for node, _ in nodes):
            return None
        graph, turned = self._graph, {node.inputs[0] for node, _ in nodes if node.op == "Not"}
        compared = [node for node, _ in nodes if node.op == "Equal" and node.outputs[0] in turned]
        numbers = {graph.number(node.inputs[1]) for node in compared}
        return {number for number in numbers if number is not None}

    def _made(
        self, output: str, mode: str, table: str, ids: str, splits: str, weights: str, padding: int | None
    ) -> Bag:
        matrix = self._matrix(ids, splits)
        if matrix and weights:
            weights = self._graph.through(weights, "Reshape")
        if matrix:
            return Bag(output, mode, table, matrix=matrix, weights=weights, padding=padding)
        return Bag(output, mode, table, ids, splits, "", weights, padding)

    def _matrix(self, ids: str, splits: str) -> str:
        """Return the matrix that was split: its entries one after another, with bags of equal length."""
        graph = self._graph
        matrix = graph.through(ids, "Reshape", *SAME)
        joined = graph.maker(graph.through(splits, *SAME), "Concat")
        steps = graph.maker(graph.through(joined.inputs[0], *SAME), "Range") if joined is not None else None
        if matrix == ids or steps is None or graph.number(steps.inputs[0]) != 0:
            return ""
        return matrix if self._ranks.get(matrix, 2) == 2 else ""

    def _is_length(self, name: str, ids: str) -> bool:
        counted = self._graph.maker(
            self._graph.through(name, "Unsqueeze", "Squeeze", "Gather", "Reshape", *SAME), "Shape", "Size"
        )
        return counted is not None and self._sent(counted.inputs[0]) == ids

    def _axes(self, scope: _Scope, node: OnnxNode) -> list[int] | None:
        if "axes" in node.attributes:
            return list(node.attributes["axes"])
        value = scope.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        return None if value is None else [int(axis) for axis in value.ravel()]


def _within(body: OnnxBody, around: _Scope | None = None) -> Iterator[tuple[OnnxNode, _Scope]]:
    scope = _Scope(body, around)
    for node in body.nodes:
        yield node, scope
        for inner in node.attributes.values():
            if isinstance(inner, OnnxBody):
                yield from _within(inner, scope)
