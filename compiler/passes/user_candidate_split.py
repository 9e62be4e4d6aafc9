"""User/candidate split: compute what depends on the user alone once per request, not once per candidate.

The columns of x belong to the user or to the candidates (processor.package.roles). Each tensor of the graph is one of

    Free     known from weights alone
    Once     depends on the user's columns alone: [1, ...] a request (UserTensor)
    Varied   depends on the candidates' columns too (CandidateTensor)
    Parted   some indices of axis 1 Once, the others Varied (SplitColumns): x itself, and slices, concatenations and
             maps of such
    Added    the sum of a Once and a Varied (SplitSum): a product or a sum along axis 1 of a Parted

    x @ W = x_user @ W[user's rows] + x_candidate @ W[the others]

so the user's share of the first layer, and of a factorisation machine's sums, is computed once, together with its bias.
Where no rule fits, a tensor is assembled for every row, which is always correct and saves nothing.

The result is two graphs: user [requests, user's columns] -> u [requests, user_width], and candidate, whose x has the
candidates' columns and then the side columns that carry u (processor.package.roles). The split is verified on random
numbers before it is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph, Matrix
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.flops import PRODUCTS, flops
from freshet_serving.compiler.passes.graph import Edit, Graph, Node, Ref, Shape, X
from freshet_serving.compiler.passes.optimise import improve
from freshet_serving.compiler.passes.patterns import part, summed
from freshet_serving.processor.package import MAX_USER_WIDTH, USER_VECTOR, user_column_count

# A split that saves less than this of a candidate's work does not justify a second set of executables.
MIN_SAVED = 0.05
TOLERANCE = 1e-4

MAPS = frozenset(
    {"Abs", "Elu", "Erf", "Erfc", "Exp", "Expm1", "LeakyRelu", "Log", "Log1p", "Neg", "Reciprocal", "Relu", "Relu6"}
    | {"Rsqrt", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Square", "Tanh"}
)
BINARY = frozenset({"Add", "AddV2", "Maximum", "Minimum", "Mul", "Pow", "RealDiv", "SquaredDifference", "Sub"})


@dataclass(frozen=True, slots=True, eq=False)
class UserCandidateSplit:
    """Both graphs of a split.

    Attributes:
        user: xu -> {"u": [requests, user_width]}.
        candidate: x of the candidates' columns and the side columns -> outputs; its buckets must have `rows` rows or
            more.
        user_width: Length of u.
        rows: Fewest rows of the candidates' graph.
        flops: FLOPs of one row of the whole graph, of a candidate, of a user.
    """

    user: DenseGraph
    candidate: DenseGraph
    user_width: int
    rows: int
    flops: tuple[int, int, int]

    @property
    def saved(self) -> float:
        """Share of a row's work that is saved for a candidate."""
        whole, candidate, _ = self.flops
        return 1 - candidate / whole

    def inputs(self, x: Matrix, columns: Sequence[int]) -> tuple[Matrix, Matrix]:
        """Convert rows of the whole graph's x to the inputs of both graphs.

        These are the user's columns of each row, and all rows as candidates of the first row's user.

        Args:
            x: float32 [n, width], at least `rows` rows.
            columns: The user's columns.
        """
        others = sorted(set(range(x.shape[1])) - set(columns))
        user_columns = user_column_count(self.user_width, self.rows)
        users, own = np.ascontiguousarray(x[:, columns]), np.zeros((len(x), len(others) + user_columns), np.float32)
        own[:, : len(others)] = x[:, others]
        block = np.zeros(self.rows * user_columns, np.float32)
        block[: self.user_width] = self.user.run(users[:1])[USER_VECTOR][0]
        own[: self.rows, len(others) :] = block.reshape(self.rows, user_columns)
        return users, own

    def __str__(self) -> str:
        whole, candidate, user = self.flops
        return (
            f"user-once: {whole} -> {candidate} FLOPs a candidate and {user} a request, "
            f"which shares {self.user_width} numbers"
        )


def split_user_candidate(dense: DenseGraph, columns: Sequence[int], rows: int) -> UserCandidateSplit | None:
    """Split a graph.

    Args:
        dense: The graph.
        columns: The user's columns of x, ascending.
        rows: Rows of the smallest bucket of the candidates' graph.

    Returns:
        The split, or None if it would save too little.
    """
    if not columns or len(columns) == dense.width or not _of_rows(graph := Graph.of_dense(dense)):
        return None
    split = _GraphSplitter(graph, columns)
    user_width = split.run()
    if not 0 < user_width <= MAX_USER_WIDTH:
        return None
    user, _ = improve(split.user_graph())
    candidate, _ = improve(split.candidate_graph(rows))
    work = flops(graph), flops(candidate), flops(user)
    weights = {name: dense.weights[name] for name in graph.weights}
    found = UserCandidateSplit(user.to_dense(weights), candidate.to_dense(weights), user_width, rows, work)
    return found if found.saved >= MIN_SAVED and _same(dense, found, columns) else None


class UserTensor(NamedTuple):
    """A tensor [requests, ...] of the user's graph."""

    ref: Ref


class CandidateTensor(NamedTuple):
    """A tensor of the candidates' graph."""

    ref: Ref


class SplitColumns(NamedTuple):
    """A tensor whose indices user_at of axis 1 come from `user`, the others from `rows`, both in ascending order."""

    user: Ref
    user_at: tuple[int, ...]
    rows: Ref
    rows_at: tuple[int, ...]


class SplitSum(NamedTuple):
    """user + rows, of equal shapes except for the first axis."""

    user: Ref
    rows: Ref


Value = UserTensor | CandidateTensor | SplitColumns | SplitSum
"""The kinds of tensors. A tensor without a Value is Free: the same in both graphs."""


class _GraphSplitter:
    """Walks the graph once and writes both graphs."""

    def __init__(self, graph: Graph, columns: Sequence[int]) -> None:
        self._graph = graph
        self._user, self._rows = Edit(graph), Edit(graph)
        others = tuple(sorted(set(range(graph.width)) - set(columns)))
        self._user_columns, self._row_columns = len(columns), len(others)
        # Placeholders for the candidates' columns and for u, until their positions in x are known.
        self._own, self._user_vector = self._rows.add("NoOp"), self._rows.add("NoOp")
        self._values: dict[Ref, Value] = {(X, 0): SplitColumns((X, 0), tuple(columns), self._own, others)}
        self._whole: dict[Ref, Ref] = {}
        self._pieces: dict[Ref, tuple[int, int]] = {}
        self._outputs: dict[str, Ref] = {}
        self._rules: dict[str, Callable[[Ref, Node], Value | None]] = {
            "ConcatV2": self._concat,
            "MatMul": self._matmul,
            "Reshape": self._reshape,
            "Sum": self._sum,
            "BiasAdd": self._binary,
            **dict.fromkeys(("Slice", "StridedSlice"), self._slice),
            **dict.fromkeys(MAPS, self._map),
            **dict.fromkeys(BINARY, self._binary),
        }

    def run(self) -> int:
        """Write both graphs; return the length of the user vector."""
        graph = self._graph
        for name, node in graph.nodes.items():
            if name in graph.varying and name != X:
                self._visit(name, node)
        self._outputs = {name: self._as_rows(ref) for name, ref in graph.outputs.items()}
        return sum(size for _, size in self._pieces.values())

    def user_graph(self) -> Graph:
        parts = [
            self._user.reshape(ref, (-1, size)) for ref, (_, size) in sorted(self._pieces.items(), key=lambda p: p[1])
        ]
        return self._user.done({USER_VECTOR: self._user.concat(parts)}, self._user_columns)

    def candidate_graph(self, rows: int) -> Graph:
        edit, own = self._rows, self._row_columns
        user_vector = sum(size for _, size in self._pieces.values())
        user_columns = user_column_count(user_vector, rows)
        edit.replace(self._own, edit.slice((X, 0), 2, 1, 0, own))
        block = edit.slices((X, 0), 2, {0: (0, rows), 1: (own, own + user_columns)})
        edit.replace(self._user_vector, edit.reshape(block, (rows * user_columns,)))
        return edit.done(self._outputs, own + user_columns)

    def _visit(self, name: str, node: Node) -> None:
        graph, ref = self._graph, (name, 0)
        values = [self._values.get(i) for i in node.inputs]
        varying = [v for v in values if v is not None]
        alone = all(isinstance(v, UserTensor) for v in varying)
        if alone and graph.outputs_of(name) == 1 and graph.ranked(ref) and graph.shape(ref)[:1] == (None,):
            inputs = [i if v is None else v[0] for i, v in zip(node.inputs, values)]
            self._values[ref] = UserTensor((self._user.copy(node, inputs), 0))
            return
        rule = self._rules.get(node.op)
        plain = graph.outputs_of(name) == 1 and graph.dtype(ref) == tf.float32 and graph.ranked(ref)
        value = rule(ref, node) if rule is not None and plain else None
        if value is not None:
            self._values[ref] = value
            return
        copied = self._rows.copy(node, [i if graph.free(i) else self._as_rows(i) for i in node.inputs])
        for number in range(graph.outputs_of(name)):
            self._values[name, number] = CandidateTensor((copied, number))

    def _from_user_vector(self, ref: Ref, shape: Sequence[int | None]) -> Ref:
        """Return a tensor of the user's graph in the candidates' graph, as [1, ...].

        A matrix becomes [n], which broadcasts alike and is the form of a bias.
        """
        dims = [n or 1 for n in shape[1:]]
        size = math.prod(dims)
        if ref not in self._pieces:
            self._pieces[ref] = (sum(s for _, s in self._pieces.values()), size)
        start, size = self._pieces[ref]
        piece = self._rows.slice(self._user_vector, 1, 0, start, start + size)
        return piece if len(dims) == 1 else self._rows.reshape(piece, (1, *dims))

    def _as_rows(self, ref: Ref) -> Ref:
        """Return a tensor of the graph in the candidates' graph, with a row for each candidate."""
        value = self._values.get(ref)
        if value is None or isinstance(value, CandidateTensor):
            return ref if value is None else value.ref
        if ref not in self._whole:
            self._whole[ref] = self._together(value, self._graph.shape(ref))
        return self._whole[ref]

    def _together(self, value: UserTensor | SplitColumns | SplitSum, shape: Shape) -> Ref:
        edit = self._rows
        if isinstance(value, UserTensor):
            return self._repeated(value.ref, shape)
        if isinstance(value, SplitColumns):
            both = edit.concat([self._repeated(value.user, (None, len(value.user_at), *shape[2:])), value.rows])
            order = np.argsort([*value.user_at, *value.rows_at]).tolist()
            return both if order == list(range(len(order))) else edit.gather(both, order, 1)
        user_vector = self._from_user_vector(value.user, shape)
        return edit.bias(value.rows, user_vector) if len(shape) == 2 else edit.binary("AddV2", value.rows, user_vector)

    def _repeated(self, ref: Ref, shape: Sequence[int | None]) -> Ref:
        edit = self._rows
        dims = edit.add("Shape", self._own, T=tf.float32, out_type=tf.int32)
        rows = edit.slice(dims, 1, 0, 0, 1, tf.int32)
        whole = edit.concat([rows, edit.constant([n or 1 for n in shape[1:]], np.int32)], 0, tf.int32)
        return edit.add("BroadcastTo", self._from_user_vector(ref, shape), whole, T=tf.float32, Tidx=tf.int32)

    def _map(self, ref: Ref, node: Node) -> Value | None:
        value = self._values[node.inputs[0]]
        if not isinstance(value, SplitColumns):
            return None
        user, rows = self._user.copy(node, [value.user]), self._rows.copy(node, [value.rows])
        return value._replace(user=(user, 0), rows=(rows, 0))

    def _slice(self, ref: Ref, node: Node) -> Value | None:
        value, cut = self._values[node.inputs[0]], part(self._graph, ref)
        if not isinstance(value, SplitColumns) or cut is None or cut.axis != 1:
            return None
        rank = len(self._graph.shape(ref))

        def taken(edit: Edit, source: Ref, at: tuple[int, ...]) -> tuple[Ref, tuple[int, ...]]:
            inside = [i for i, place in enumerate(at) if cut.start <= place < cut.stop]
            if not inside:
                return source, ()
            whole = len(inside) == len(at)
            moved = source if whole else edit.slice(source, rank, 1, inside[0], inside[-1] + 1)
            return moved, tuple(at[i] - cut.start for i in inside)

        return _parted(*taken(self._user, value.user, value.user_at), *taken(self._rows, value.rows, value.rows_at))

    def _reshape(self, ref: Ref, node: Node) -> Value | None:
        """Handle [n, F * d] -> [n, F, d] and back, if every group of d is whole."""
        value = self._values[node.inputs[0]]
        before, after = self._graph.shape(node.inputs[0]), self._graph.shape(ref)
        if not isinstance(value, SplitColumns) or before[0] is not None or after[0] is not None:
            return None
        if len(before) == 2 and len(after) == 3 and after[1] and after[2]:
            dim = after[2]
            ats = [_grouped(at, dim) for at in (value.user_at, value.rows_at)]
            tail: tuple[int, ...] = (dim,)
        elif len(before) == 3 and len(after) == 2 and before[2]:
            dim = before[2]
            ats = [tuple(g * dim + i for g in at for i in range(dim)) for at in (value.user_at, value.rows_at)]
            tail = ()
        else:
            return None
        if ats[0] is None or ats[1] is None:
            return None
        user = self._user.reshape(value.user, (-1, len(ats[0]), *tail))
        rows = self._rows.reshape(value.rows, (-1, len(ats[1]), *tail))
        return SplitColumns(user, ats[0], rows, ats[1])

    def _concat(self, ref: Ref, node: Node) -> Value | None:
        axis = self._graph.constant(node.inputs[-1])
        if axis is None or int(axis) % len(self._graph.shape(ref)) != 1:
            return None
        user: list[Ref] = []
        rows: list[Ref] = []
        user_at: list[int] = []
        rows_at: list[int] = []
        at = 0
        for source in node.inputs[:-1]:
            value, size = self._values.get(source), self._graph.shape(source)[1]
            if value is None or size is None:
                return None
            if isinstance(value, SplitColumns):
                user.append(value.user)
                rows.append(value.rows)
                user_at += [at + i for i in value.user_at]
                rows_at += [at + i for i in value.rows_at]
            elif isinstance(value, UserTensor):
                user.append(value.ref)
                user_at += range(at, at + size)
            else:
                rows.append(self._as_rows(source))
                rows_at += range(at, at + size)
            at += size
        if not user:
            return None
        return SplitColumns(self._user.concat(user), tuple(user_at), self._rows.concat(rows), tuple(rows_at))

    def _matmul(self, ref: Ref, node: Node) -> Value | None:
        x, matrix = node.inputs
        value = self._values.get(x)
        if not isinstance(value, SplitColumns) or not self._graph.free(matrix):
            return None
        if node.attr("transpose_a") or node.attr("transpose_b"):
            return None
        user = self._user.matmul(value.user, _taken(self._user, matrix, 2, 0, value.user_at))
        return SplitSum(user, self._rows.matmul(value.rows, _taken(self._rows, matrix, 2, 0, value.rows_at)))

    def _sum(self, ref: Ref, node: Node) -> Value | None:
        found, value = summed(self._graph, ref), self._values.get(node.inputs[0])
        if found is None or not isinstance(value, SplitColumns) or 0 in found[1]:
            return None
        axes = node.inputs[1]
        user, rows = self._user.copy(node, [value.user, axes]), self._rows.copy(node, [value.rows, axes])
        if 1 in found[1]:
            return SplitSum((user, 0), (rows, 0))
        return value._replace(user=(user, 0), rows=(rows, 0))

    def _binary(self, ref: Ref, node: Node) -> Value | None:
        graph, (a, b) = self._graph, node.inputs
        left, right = self._values.get(a), self._values.get(b)
        kinds = {type(left), type(right)}
        if graph.shape(ref)[:1] != (None,):
            return None
        if SplitColumns in kinds:
            return self._parted_binary(ref, node, left, right)
        linear = node.op in ("Add", "AddV2", "BiasAdd", "Sub")
        if linear and (SplitSum in kinds or kinds == {UserTensor, CandidateTensor}):
            return self._added_binary(ref, node, left, right)
        if node.op in ("Mul", "RealDiv") and isinstance(left, SplitSum) and graph.free(b):
            return self._scaled(ref, node, left, 0)
        if node.op == "Mul" and isinstance(right, SplitSum) and graph.free(a):
            return self._scaled(ref, node, right, 1)
        if kinds == {UserTensor, CandidateTensor} and len(graph.shape(a)) == len(graph.shape(b)):
            inputs = [
                self._from_user_vector(v.ref, graph.shape(i)) if isinstance(v, UserTensor) else self._as_rows(i)
                for i, v in ((a, left), (b, right))
            ]
            return CandidateTensor((self._rows.copy(node, inputs), 0))
        return None

    def _scaled(self, ref: Ref, node: Node, value: SplitSum, number: int) -> Value | None:
        shape = self._graph.shape(ref)
        if shape != self._graph.shape(node.inputs[number]):
            return None
        factor = node.inputs[1 - number]
        pairs = ([part, factor] if number == 0 else [factor, part] for part in value)
        user, rows = (edit.copy(node, pair) for edit, pair in zip((self._user, self._rows), pairs))
        return SplitSum((user, 0), (rows, 0))

    def _added_binary(self, ref: Ref, node: Node, left: Value | None, right: Value | None) -> Value | None:
        """Handle a sum or difference: combine the user's terms, and the candidates' terms."""
        shape = self._graph.shape(ref)
        terms: list[tuple[Ref | None, Ref | None]] = []
        for source, value in zip(node.inputs, (left, right)):
            if value is None:
                # Known from weights alone: it joins the user's terms, which are computed once.
                terms.append((source, None))
            elif self._graph.shape(source) != shape:
                return None
            elif isinstance(value, SplitSum):
                terms.append((value.user, value.rows))
            else:
                terms.append((value.ref, None) if isinstance(value, UserTensor) else (None, self._as_rows(source)))

        def joined(edit: Edit, a: Ref | None, b: Ref | None) -> Ref:
            if b is None:
                assert a is not None
                return a
            if a is None:
                return edit.unary("Neg", b) if node.op == "Sub" else b
            return edit.binary("Sub" if node.op == "Sub" else "AddV2", a, b)

        (user_a, rows_a), (user_b, rows_b) = terms
        return SplitSum(joined(self._user, user_a, user_b), joined(self._rows, rows_a, rows_b))

    def _parted_binary(self, ref: Ref, node: Node, left: Value | None, right: Value | None) -> Value | None:
        graph, shape = self._graph, self._graph.shape(ref)
        like = next(v for v in (left, right) if isinstance(v, SplitColumns))
        user: list[Ref] = []
        rows: list[Ref] = []
        for source, value in zip(node.inputs, (left, right)):
            its = graph.shape(source)
            if isinstance(value, SplitColumns):
                if (value.user_at, value.rows_at) != (like.user_at, like.rows_at) or its != shape:
                    return None
                user.append(value.user)
                rows.append(value.rows)
            elif value is None:
                axis = len(its) - len(shape) + 1
                if node.op == "BiasAdd" and len(shape) != 2:
                    return None
                if axis < 0 or its[axis] == 1:
                    user.append(source)
                    rows.append(source)
                else:
                    user.append(_taken(self._user, source, len(its), axis, like.user_at))
                    rows.append(_taken(self._rows, source, len(its), axis, like.rows_at))
            elif isinstance(value, UserTensor) and len(its) == len(shape) and its[1] == 1:
                user.append(value.ref)
                rows.append(self._from_user_vector(value.ref, its))
            else:
                return None
        return like._replace(user=(self._user.copy(node, user), 0), rows=(self._rows.copy(node, rows), 0))


def _parted(user: Ref, user_at: tuple[int, ...], rows: Ref, rows_at: tuple[int, ...]) -> Value:
    if not rows_at:
        return UserTensor(user)
    return SplitColumns(user, user_at, rows, rows_at) if user_at else CandidateTensor(rows)


def _grouped(at: tuple[int, ...], dim: int) -> tuple[int, ...] | None:
    """Return the groups of `dim` that the positions form; None if one is incomplete."""
    groups = tuple(place // dim for place in at[::dim])
    return groups if at == tuple(g * dim + i for g in groups for i in range(dim)) else None


def _taken(edit: Edit, ref: Ref, rank: int, axis: int, at: tuple[int, ...]) -> Ref:
    """Take indices of one axis of a tensor that is known from weights alone."""
    if at == tuple(range(at[0], at[-1] + 1)):
        return edit.slice(ref, rank, axis, at[0], at[-1] + 1)
    return edit.gather(ref, at, axis)


def _of_rows(graph: Graph) -> bool:
    """Return whether all products, nearly all of the work, have a row for each row of x."""
    products = [(n, 0) for n in graph.varying if graph.nodes[n].op in PRODUCTS]
    return all(graph.ranked(ref) and graph.shape(ref)[:1] == (None,) for ref in products)


def _same(dense: DenseGraph, found: UserCandidateSplit, columns: Sequence[int]) -> bool:
    """Return whether both graphs together compute what the whole does, for two users with several candidates each."""
    rows = dense.sample(found.rows + 3)
    for first in (0, 1):
        x = np.roll(rows, -first, 0)
        x[:, columns] = x[0, columns]
        got, wanted = found.candidate.run(found.inputs(x, columns)[1]), dense.run(x)
        for name, values in wanted.items():
            if not np.allclose(got[name], values, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                return False
    return True
