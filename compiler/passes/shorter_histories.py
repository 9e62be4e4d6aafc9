"""Shorten histories: derive from a dense graph the same graph for histories of fewer places.

A sequence's input has max_length places, whatever a user has (processor.package.sequences). Most users have fewer
events, and the work of a place is the same with and without one. So the graph is compiled for some shorter lengths too.

Places are followed through the graph from the inputs on. Of each axis of each tensor it is known which indices remain;
shapes, slices, constants and weights with such an axis are cut alike:

    history [n, 8 * 4]  ->  [n, 8, 4]  ->  [n * 8, 4]      8 places of 4 numbers
            [n, 5 * 4]  ->  [n, 5, 4]  ->  [n * 5, 4]      the first 5 of them

Numbers that are no sizes stay: a network that divides by its max_length divides by it at every length. Where no rule
fits, there is no shorter graph. Whether places without events change nothing depends on the network; the shorter graph
is compared with the whole one on such histories before it is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.dense.dense_graph import DenseGraph, Tensors
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.flops import proof_rows
from freshet_serving.compiler.passes.graph import Edit, Graph, Node, Ref
from freshet_serving.compiler.passes.optimise import improve
from freshet_serving.compiler.passes.patterns import part
from freshet_serving.compiler.passes.user_candidate_split import BINARY, MAPS
from freshet_serving.processor.package import SequenceEntry

TOLERANCE = 1e-5
PROOF_ROWS = 16
# Rows to try reshapes with, so that an axis of rows differs from one of size 1.
PROBED_ROWS = 2

ALIKE = MAPS | {"Cast", "LogicalNot", "OnesLike", "Softmax", "ZerosLike"}
BROADCAST = (
    BINARY
    | {"Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "NotEqual"}
    | {"Select", "SelectV2", "BiasAdd"}
)
REDUCTIONS = frozenset({"Sum", "Mean", "Max", "Min"})


def shortened(dense: DenseGraph, sequences: Sequence[SequenceEntry], length: int) -> DenseGraph | None:
    """Return the graph for histories of at most `length` events, or None.

    There is none if a rule is missing or the graph computes something else without the other places.
    """
    graph = Graph.of_dense(dense)
    kept = {s.name: kept_columns(s, length) for s in sequences}
    try:
        short, _ = improve(_Shortening(graph, kept).run())
    except _NoRule:
        return None
    short_graph = short.to_dense({name: dense.weights[name] for name in short.weights})
    rows = dense.sample(proof_rows(dense, PROOF_ROWS))
    emptied = {n: _emptied(rows[n], kept[n]) if n in kept else rows[n] for n in rows}
    got, expected = short_graph.run(shortened_rows(emptied, kept)), dense.run(emptied)
    alike = all(np.allclose(got[n], expected[n], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True) for n in expected)
    return replace(short_graph, examples=shortened_rows(emptied, kept)) if alike else None


def kept_columns(s: SequenceEntry, length: int) -> list[int]:
    """Return the columns of a sequence's input that hold its first `length` places, ascending."""
    kept, blocks = min(length, s.max_length), list[tuple[int, int]]()
    for c in s.columns:
        # A column of floats has rows of 0, and its values in place of a mask.
        dim = c.width // s.max_length - 1
        blocks += [(c.offset, dim), (c.offset + dim * s.max_length, 1)]
    if s.time:
        blocks.append((s.width - s.max_length, 1))
    return [at + i for at, dim in blocks for i in range(dim * kept)]


def shortened_rows(rows: Tensors, kept: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.float32]]:
    """Return inputs with the kept columns alone, by name; inputs without an entry stay."""
    return {n: np.ascontiguousarray(rows[n][:, kept[n]]) if n in kept else rows[n] for n in rows}


def _emptied(rows: NDArray[np.float32], kept: Sequence[int]) -> NDArray[np.float32]:
    empty = np.zeros_like(rows)
    empty[:, kept] = rows[:, kept]
    return empty


class _NoRule(Exception):
    """A node that no rule can shorten."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Indices that remain of an axis, in each block of `period`: an axis of rows and places has a block a row."""

    period: int
    kept: tuple[int, ...]


Cuts = tuple[_Cut | None, ...]
"""The part of each axis that remains; None: all of it."""


class _Shortening:
    def __init__(self, graph: Graph, kept: Mapping[str, Sequence[int]]) -> None:
        self._graph, self._edit = graph, Edit(graph)
        self._kept = {name: tuple(columns) for name, columns in kept.items()}
        self._cuts: dict[Ref, Cuts] = {}
        self._new: dict[Ref, Ref] = {}
        self._further: dict[tuple[Ref, Cuts], Ref] = {}
        self._rules: dict[str, Callable[[Ref, Node], Cuts]] = {
            "BatchMatMul": self._product,
            "BatchMatMulV2": self._product,
            "ConcatV2": self._concat,
            "Einsum": self._einsum,
            "GatherV2": self._gather,
            "MatMul": self._product,
            "Reshape": self._reshape,
            "Slice": self._slice,
            "StridedSlice": self._slice,
            "Transpose": self._transpose,
            **dict.fromkeys(ALIKE, self._alike),
            **dict.fromkeys(BROADCAST, self._broadcast),
            **dict.fromkeys(REDUCTIONS, self._reduce),
        }

    def run(self) -> Graph:
        """Return the shorter graph; raise _NoRule if there is none."""
        graph, inputs = self._graph, dict(self._graph.inputs)
        for name, columns in self._kept.items():
            size = inputs[name][1] or 0
            self._cuts[name, 0] = (None, _cut(size, columns))
            inputs[name] = (None, len(columns))
        for name, node in graph.nodes.items():
            if name not in graph.varying or name in graph.inputs:
                continue
            if any(any(self._of(ref)) for ref in node.inputs):
                rule = self._rules.get(node.op)
                if rule is None or graph.outputs_of(name) != 1 or not graph.ranked((name, 0)):
                    raise _NoRule(node.op)
                self._cuts[name, 0] = rule((name, 0), node)
            elif any(ref in self._new for ref in node.inputs):
                copied = self._edit.copy(node, [self._moved(ref) for ref in node.inputs])
                for number in range(graph.outputs_of(name)):
                    self._new[name, number] = copied, number
        if any(any(self._of(ref)) for ref in graph.outputs.values()):
            raise _NoRule
        return self._edit.done({name: self._moved(ref) for name, ref in graph.outputs.items()}, inputs)

    def _of(self, ref: Ref) -> Cuts:
        return self._cuts.get(ref, ())

    def _all(self, ref: Ref) -> list[_Cut | None]:
        return list(self._of(ref) or [None] * len(self._graph.shape(ref)))

    def _moved(self, ref: Ref) -> Ref:
        return self._new.get(ref, ref)

    def _copied(self, ref: Ref, node: Node, inputs: Sequence[Ref]) -> None:
        self._new[ref] = self._edit.copy(node, inputs), 0

    def _cut_to(self, ref: Ref, cuts: Sequence[_Cut | None]) -> Ref:
        """Return a tensor with these cuts, some of which it may lack; raise _NoRule if it has others."""
        has, sizes = self._all(ref), self._graph.shape(ref)
        more = [None if _count(present) == _count(cut) else cut for present, cut in zip(has, cuts)]
        if any(present is not None and _count(present) != _count(cut) for present, cut in zip(has, cuts)):
            raise _NoRule
        if not any(more):
            return self._moved(ref)
        if any(cut is not None and cut.period != size for cut, size in zip(more, sizes)):
            raise _NoRule
        key = ref, tuple(more)
        if key not in self._further:
            self._further[key] = self._cut_further(ref, cuts, more)
        return self._further[key]

    def _cut_further(self, ref: Ref, wanted: Sequence[_Cut | None], more: Sequence[_Cut | None]) -> Ref:
        graph, edit, node = self._graph, self._edit, self._graph.producer(ref)
        rank = len(wanted)
        if node.value is not None:
            value = node.value
            for axis, cut in enumerate(more):
                value = value if cut is None else np.take(value, cut.kept, axis)
            return edit.constant(value, value.dtype)
        if node.op in BROADCAST or node.op in ALIKE - {"Softmax"}:
            return edit.copy(node, [self._cut_to(i, self._own(i, wanted)) for i in node.inputs]), 0
        if node.op == "GatherV2" and (at := self._gathered(node)) is not None:
            params, indices, axis = at
            last = axis + len(graph.shape(indices))
            if not any((*more[:axis], *more[last:])):
                places = self._cut_to(indices, wanted[axis:last])
                return edit.copy(node, [self._moved(params), places, *node.inputs[2:]]), 0
        spans = {axis: (cut.kept[0], cut.kept[-1] + 1) for axis, cut in enumerate(more) if cut is not None}
        if any(stop - start != _kept(more[axis]) for axis, (start, stop) in spans.items()):
            raise _NoRule
        return edit.slices(self._moved(ref), rank, spans, graph.dtype(ref))

    def _own(self, ref: Ref, cuts: Sequence[_Cut | None]) -> list[_Cut | None]:
        """Return the cuts of an operand, given those of what it is broadcast to."""
        shape = self._graph.shape(ref)
        return [None if size == 1 else cut for size, cut in zip(shape, cuts[len(cuts) - len(shape) :])]

    def _alike(self, ref: Ref, node: Node) -> Cuts:
        self._copied(ref, node, [self._moved(i) for i in node.inputs])
        return self._of(node.inputs[0])

    def _broadcast(self, ref: Ref, node: Node) -> Cuts:
        rank = len(self._graph.shape(ref))
        cuts = self._together([self._spread(i, rank) for i in node.inputs])
        self._copied(ref, node, [self._cut_to(i, self._own(i, cuts)) for i in node.inputs])
        return cuts

    def _spread(self, ref: Ref, rank: int) -> list[_Cut | None]:
        cuts = self._all(ref)
        return [None] * (rank - len(cuts)) + cuts

    def _together(self, cuts: Sequence[Sequence[_Cut | None]]) -> Cuts:
        """Return the cuts of several tensors' common axes; raise _NoRule where two keep different numbers.

        Which indices they keep may differ, as of a mask and the same mask moved by one place.
        """
        common = []
        for axis in zip(*cuts):
            present = [cut for cut in axis if cut is not None]
            if len({_count(cut) for cut in present}) > 1:
                raise _NoRule
            common.append(present[0] if present else None)
        return tuple(common)

    def _product(self, ref: Ref, node: Node) -> Cuts:
        a, b = node.inputs
        turned_a, turned_b = (
            any(map(node.attr, names)) for names in (("transpose_a", "adj_x"), ("transpose_b", "adj_y"))
        )
        rank = len(self._graph.shape(ref))
        left, right = self._spread(a, rank), self._spread(b, rank)
        (row, inner_a), (inner_b, column) = (
            (side[::-1] if turned else side) for side, turned in ((left[-2:], turned_a), (right[-2:], turned_b))
        )
        (inner,) = self._together([[inner_a], [inner_b]])
        first = self._together([left[:-2], right[:-2]])
        inputs = []
        for source, pair, turned in ((a, [row, inner], turned_a), (b, [inner, column], turned_b)):
            cuts = self._own(source, [*first, *(pair[::-1] if turned else pair)])
            inputs.append(self._cut_to(source, cuts))
        self._copied(ref, node, inputs)
        return (*first, row, column)

    def _einsum(self, ref: Ref, node: Node) -> Cuts:
        equation = str(node.attr("equation").decode()).replace(" ", "")
        terms, _, out = equation.partition("->")
        letters = terms.split(",")
        if "." in equation or not out:
            raise _NoRule
        cuts: dict[str, _Cut] = {}
        for source, term in zip(node.inputs, letters):
            for letter, cut in zip(term, self._all(source)):
                if cut is not None and _count(cuts.setdefault(letter, cut)) != _count(cut):
                    raise _NoRule
        inputs = [self._cut_to(i, [cuts.get(letter) for letter in term]) for i, term in zip(node.inputs, letters)]
        self._copied(ref, node, inputs)
        return tuple(cuts.get(letter) for letter in out)

    def _concat(self, ref: Ref, node: Node) -> Cuts:
        graph, sources = self._graph, node.inputs[:-1]
        axis = graph.constant(node.inputs[-1])
        if axis is None:
            raise _NoRule
        at = int(axis) % len(graph.shape(ref))
        others = self._together([[None if n == at else c for n, c in enumerate(self._all(i))] for i in sources])
        kept, whole = list[int](), 0
        inputs = []
        for i in sources:
            size, cut = graph.shape(i)[at], self._all(i)[at]
            if size is None:
                raise _NoRule
            kept += [whole + n for n in (range(size) if cut is None else cut.kept)]
            whole += size
            inputs.append(self._cut_to(i, [cut if n == at else c for n, c in enumerate(others)]))
        self._copied(ref, node, [*inputs, node.inputs[-1]])
        return tuple(_cut(whole, kept) if n == at else c for n, c in enumerate(others))

    def _gathered(self, node: Node) -> tuple[Ref, Ref, int] | None:
        """Return the source of a GatherV2 of whole slices, its indices and its axis, else None."""
        params, indices, at = node.inputs
        axis = self._graph.constant(at)
        if axis is None or node.attr("batch_dims"):
            return None
        return params, indices, int(axis) % len(self._graph.shape(params))

    def _gather(self, ref: Ref, node: Node) -> Cuts:
        at = self._gathered(node)
        if at is None or (cuts := self._all(at[0]))[at[2]] is not None:
            raise _NoRule
        self._copied(ref, node, [self._moved(i) for i in node.inputs])
        return (*cuts[: at[2]], *self._all(at[1]), *cuts[at[2] + 1 :])

    def _transpose(self, ref: Ref, node: Node) -> Cuts:
        order = self._graph.constant(node.inputs[1])
        if order is None:
            raise _NoRule
        self._copied(ref, node, [self._moved(node.inputs[0]), node.inputs[1]])
        cuts = self._all(node.inputs[0])
        return tuple(cuts[axis] for axis in order.tolist())

    def _reduce(self, ref: Ref, node: Node) -> Cuts:
        axes = self._graph.constant(node.inputs[1])
        if axes is None:
            raise _NoRule
        cuts = self._all(node.inputs[0])
        reduced = {int(axis) % len(cuts) for axis in axes.reshape(-1)}
        self._copied(ref, node, [self._moved(node.inputs[0]), node.inputs[1]])
        if node.attr("keep_dims"):
            return tuple(None if axis in reduced else cut for axis, cut in enumerate(cuts))
        return tuple(cut for axis, cut in enumerate(cuts) if axis not in reduced)

    def _slice(self, ref: Ref, node: Node) -> Cuts:
        cut_range = part(self._graph, ref)
        if cut_range is None:
            strides = self._graph.constant(node.inputs[-1])
            if node.op == "StridedSlice" and strides is not None and (strides == 1).all():
                # All of it with further axes of size 1, or else a reshape of another size, which has no rule.
                return self._reshape(ref, node)
            raise _NoRule
        source, cuts, edit = cut_range.source, self._all(cut_range.source), self._edit
        cut = cuts[cut_range.axis]
        if cut is None:
            self._copied(ref, node, [self._moved(source), *node.inputs[1:]])
            return tuple(cuts)
        inside = [n for n, index in enumerate(cut.kept) if cut_range.start <= index < cut_range.stop]
        if not inside or cut.period != self._graph.shape(source)[cut_range.axis]:
            raise _NoRule
        span = {cut_range.axis: (inside[0], inside[-1] + 1)}
        self._new[ref] = edit.slices(self._moved(source), len(cuts), span, self._graph.dtype(ref))
        cuts[cut_range.axis] = _cut(cut_range.stop - cut_range.start, [cut.kept[n] - cut_range.start for n in inside])
        return tuple(cuts)

    def _reshape(self, ref: Ref, node: Node) -> Cuts:
        graph, source = self._graph, node.inputs[0]
        before, after = self._sizes(source), self._sizes(ref)
        if np.prod(before) != np.prod(after):
            raise _NoRule
        marks = [
            np.ones(size, bool) if cut is None else np.tile(_marked(cut), size // cut.period)
            for size, cut in zip(before, self._all(source))
        ]
        whole = reduce(np.logical_and.outer, marks).reshape(after)
        cuts, shape = list[_Cut | None](), list[int]()
        for axis, (size, static) in enumerate(zip(after, graph.shape(ref))):
            mark = np.atleast_1d(whole.any(axis=tuple(n for n in range(len(after)) if n != axis)))
            period = size if static is not None else size // PROBED_ROWS
            kept = np.flatnonzero(mark[:period])
            if not np.array_equal(mark, np.tile(mark[:period], size // period)):
                raise _NoRule
            cuts.append(_cut(period, kept.tolist()))
            shape.append(-1 if static is None else len(kept))
        remain = [np.tile(_marked(c), n // c.period) if c else np.ones(n, bool) for n, c in zip(after, cuts)]
        if shape.count(-1) > 1 or not np.array_equal(reduce(np.logical_and.outer, remain), whole):
            raise _NoRule
        dtype = graph.dtype(ref)
        places = self._edit.constant(shape, np.int32)
        self._new[ref] = self._edit.add("Reshape", self._moved(source), places, T=dtype, Tshape=tf.int32)
        return tuple(cuts)

    def _sizes(self, ref: Ref) -> tuple[int, ...]:
        """Return a tensor's shape for PROBED_ROWS rows; raise _NoRule if it is not known."""
        shape, size = self._graph.shape(ref), self._graph.size(ref)
        if shape.count(None) > 1 or (None in shape and not size):
            raise _NoRule
        static = int(np.prod([n for n in shape if n is not None], dtype=np.int64))
        return tuple((size or 0) // max(1, static) * PROBED_ROWS if n is None else n for n in shape)


def _cut(period: int, kept: Sequence[int]) -> _Cut | None:
    return None if len(kept) == period else _Cut(period, tuple(kept))


def _count(cut: _Cut | None) -> tuple[int, int] | None:
    return None if cut is None else (cut.period, len(cut.kept))


def _kept(cut: _Cut | None) -> int:
    return 0 if cut is None else len(cut.kept)


def _marked(cut: _Cut) -> NDArray[np.bool_]:
    marks = np.zeros(cut.period, bool)
    marks[list(cut.kept)] = True
    return marks
