"""Observe the shapes of a model's tensors by running it: which dimension is the batch, and what is fixed.

Static inference loses the batch at the first ragged or sparse operation. So the model is run on batches of three sizes;
a tensor whose first dimension is a fixed multiple of all three, with the rest equal, has one entry (or a fixed number
of them) per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.feeds import FeedSpec, feeds_of
from freshet_serving.compiler.imports.foreign_graph import INPUT, Ref
from freshet_serving.compiler.imports.ops import DENSE
from freshet_serving.compiler.imports.runner import Runner
from freshet_serving.processor.columns import Column

SIZES = (5, 7, 11)
# The operand of these operations that gives a shape: if the result's shape is known, it need not be computed.
SHAPE_OPERAND = {"Reshape": 1, "BroadcastTo": 1, "Fill": 0}


class Shapes:
    def __init__(
        self, runner: Runner, inputs: Sequence[FeedSpec], outputs: Sequence[Ref], samples: list[dict[str, Column]]
    ):
        self.graph, self.runner = runner.graph, runner
        self.order = self.graph.ancestors(outputs)
        self.constant: set[str] = set()
        for node in self.order:
            if node.op != INPUT and all(ref[0] in self.constant for ref in node.inputs):
                self.constant.add(node.name)
        refs = [ref for node in self.order if node.name not in self.constant for ref in runner.outputs(node.name)]
        refs = [ref for ref in refs if runner.tensor(ref).dtype not in (tf.resource, tf.variant)]
        by_name = {f.name: f for f in inputs}
        self.values: list[dict[Ref, Any]] = []
        for sample, rows in zip(samples, SIZES):
            self.values.append(dict(zip(refs, runner.run(refs, feeds_of(by_name, sample, rows)))))
        self._rows: dict[Ref, tuple[int, tuple[int, ...]]] = {}
        self._steady: set[Ref] = set()
        for ref in refs:
            self._find(ref)
        self.free = self._free()

    def rows(self, ref: Ref) -> tuple[int, tuple[int, ...]] | None:
        """Return (entries a row, shape of an entry) of a tensor [entries * rows, *shape]; None for any other."""
        return self._rows.get(ref)

    def steady(self, ref: Ref) -> bool:
        """Return whether a tensor has the rows along exactly one of its axes and is fixed along the rest."""
        return ref in self._steady

    def dtype(self, ref: Ref) -> Any:
        return self.runner.tensor(ref).dtype

    def size(self, ref: Ref) -> int:
        each, dims = self._rows[ref]
        return each * int(np.prod(dims, dtype=np.int64))

    def _find(self, ref: Ref) -> None:
        shapes = [np.shape(values[ref]) for values in self.values]
        if len({len(s) for s in shapes}) == 1 and 0 not in shapes[0]:
            sizes = [axis for axis in zip(*shapes) if len(set(axis)) > 1]
            if len(sizes) == 1 and all(size * SIZES[0] == sizes[0][0] * n for size, n in zip(sizes[0], SIZES)):
                self._steady.add(ref)
        if not shapes[0] or len({s[1:] for s in shapes}) != 1 or 0 in shapes[0]:
            return
        each, rest = divmod(shapes[0][0], SIZES[0])
        if not rest and all(s[0] == each * n for s, n in zip(shapes, SIZES)):
            self._rows[ref] = (each, tuple(int(d) for d in shapes[0][1:]))

    def _free(self) -> set[str]:
        """Return the nodes that depend on the number of rows alone, as far as a dense graph can compute them."""
        free: set[str] = set()
        for node in self.order:
            of_rows = node.op == "Shape" and self.rows(node.inputs[0]) is not None
            of_free = node.op in DENSE and all(ref[0] in free for ref in node.inputs)
            if of_rows or of_free or node.name in self.constant:
                free.add(node.name)
        return free

    def operands(self, name: str) -> list[Ref]:
        """Return a node's operands without those of the rows alone, and without its shape if that is known."""
        node = self.graph.nodes[name]
        skip = SHAPE_OPERAND.get(node.op, -1) if self.rows((name, 0)) is not None else -1
        return [ref for i, ref in enumerate(node.inputs) if i != skip and ref[0] not in self.free]
