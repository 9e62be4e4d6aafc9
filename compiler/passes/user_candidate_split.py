"""User/candidate split: compute what depends on the user alone once per request, not once per candidate.

The columns of x belong to the user or to the candidates (processor.package.subgraphs). Each tensor of the graph is

    Free     known from weights alone
    Once     of the user's columns alone: [1, ...] a request, or [L, ...] of L events side by side (UserTensor)
    Varied   of the candidates' columns too (CandidateTensor)
    Parted   some indices of axis 1 Once, the others Varied (SplitColumns): x, and slices, concatenations, maps of such
    Added    the sum of a Once and a Varied (SplitSum): a product or a sum along axis 1 of a Parted

    x @ W = x_user @ W[user's rows] + x_candidate @ W[the others]

so the user's share of the first layer, and of a factorisation machine's sums, is computed once, with its bias. Where no
rule fits, a tensor is assembled for every row, which is always correct and saves nothing. A product of a Once with a
Varied (attention) is one product of all candidates' rows with the user's matrix, which is not repeated.

The result is two graphs: user, x [requests, user's columns] and sequences -> u0, u1, ... [requests, length], and
candidate, whose inputs are x [rows, candidates' columns] and u0, u1, ... [1, length]. The split is verified on random
numbers before it is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph, Tensors
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.flops import PRODUCTS, flops, proof_rows
from freshet_serving.compiler.passes.graph import Edit, Graph, Node, Ref, Shape, X
from freshet_serving.compiler.passes.optimise import improve
from freshet_serving.compiler.passes.patterns import part, summed
from freshet_serving.processor.backends import Dims, Matrix
from freshet_serving.processor.package import MAX_TENSOR_NUMBERS

# A split that saves less than this of a candidate's work does not justify a second set of executables.
MIN_SAVED = 0.05
TOLERANCE = 1e-4
PROOF_ROWS = 67
BROADCAST_COLUMNS = 16  # with fewer, products for each candidate cost more than transposing one product of all

MAPS = frozenset(
    {"Abs", "Elu", "Erf", "Erfc", "Exp", "Expm1", "LeakyRelu", "Log", "Log1p", "Neg", "Reciprocal", "Relu", "Relu6"}
    | {"Rsqrt", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Square", "Tanh"}
)
BINARY = frozenset({"Add", "AddV2", "Maximum", "Minimum", "Mul", "Pow", "RealDiv", "SquaredDifference", "Sub"})


@dataclass(frozen=True, slots=True, eq=False)
class UserCandidateSplit:
    """Both graphs of a split, and the FLOPs of one row of the whole graph, of a candidate, of a user."""

    user: DenseGraph
    candidate: DenseGraph
    flops: tuple[int, int, int]

    @property
    def tensors(self) -> list[tuple[str, int]]:
        """Name and length of each of the user's tensors."""
        return [(output.name, output.columns) for output in self.user.outputs]

    @property
    def saved(self) -> float:
        """Share of a row's work that is saved for a candidate."""
        whole, candidate, _ = self.flops
        return 1 - candidate / whole

    def inputs(self, whole: Tensors, columns: Sequence[int]) -> tuple[dict[str, Matrix], dict[str, Matrix]]:
        """Convert rows of the whole graph's inputs to the inputs of both graphs.

        These are the user's columns of each row, and all rows as candidates of the first row's user.
        """
        x = whole[X]
        others = sorted(set(range(x.shape[1])) - set(columns))
        users = {n: np.ascontiguousarray(x[:, columns]) if n == X else whole[n] for n in self.user.inputs}
        computed = self.user.run({name: rows[:1] for name, rows in users.items()})
        candidates = {**whole, X: np.ascontiguousarray(x[:, others])}
        return users, {name: computed[name] if name in computed else candidates[name] for name in self.candidate.inputs}

    def __str__(self) -> str:
        whole, candidate, user = self.flops
        return (
            f"user-once: {whole} -> {candidate} FLOPs a candidate and {user} a request, "
            f"which shares {sum(length for _, length in self.tensors)} numbers"
        )


def split_user_candidate(
    dense: DenseGraph, columns: Sequence[int], histories: Collection[str] = ()
) -> UserCandidateSplit | None:
    """Split a graph by the user's columns of x, ascending; return None if that would save too little.

    `histories` are inputs that are the user's as a whole.
    """
    if not (columns or histories) or len(columns) == dense.width or not _of_rows(graph := Graph.of_dense(dense)):
        return None
    split = _GraphSplitter(graph, columns, histories)
    if not 0 < split.run() <= MAX_TENSOR_NUMBERS:
        return None
    user, _ = improve(split.user_graph())
    candidate, _ = improve(split.candidate_graph())
    work = flops(graph), flops(candidate), flops(user)
    weights = {name: dense.weights[name] for name in graph.weights}
    result = UserCandidateSplit(user.to_dense(weights), candidate.to_dense(weights), work)
    return result if result.saved >= MIN_SAVED and _same(dense, result, columns, histories) else None


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

    def __init__(self, graph: Graph, columns: Sequence[int], histories: Collection[str]) -> None:
        self._graph, self._histories = graph, histories
        self._user, self._rows = Edit(graph), Edit(graph)
        others = tuple(sorted(set(range(graph.width)) - set(columns)))
        self._user_columns, self._row_columns = len(columns), len(others)
        # Both graphs call their own columns x.
        x = SplitColumns((X, 0), tuple(columns), (X, 0), others) if columns else CandidateTensor((X, 0))
        self._values: dict[Ref, Value] = {(X, 0): x}
        for name in graph.inputs:
            if name != X:
                self._values[name, 0] = (UserTensor if name in histories else CandidateTensor)((name, 0))
        self._whole: dict[Ref, Ref] = {}
        self._pieces: dict[Ref, tuple[str, int]] = {}
        self._outputs: dict[str, Ref] = {}
        self._rules: dict[str, Callable[[Ref, Node], Value | None]] = {
            "ConcatV2": self._concat,
            "MatMul": self._matmul,
            "Reshape": self._reshape,
            "Sum": self._sum,
            "BiasAdd": self._binary,
            "Einsum": self._einsum,
            **dict.fromkeys(("BatchMatMul", "BatchMatMulV2"), self._batch_matmul),
            **dict.fromkeys(("Slice", "StridedSlice"), self._slice),
            **dict.fromkeys(MAPS, self._map),
            **dict.fromkeys(BINARY, self._binary),
        }

    def run(self) -> int:
        """Write both graphs; return how many numbers the user's tensors have."""
        graph = self._graph
        for name, node in graph.nodes.items():
            if name in graph.varying and name not in graph.inputs:
                self._visit(name, node)
        self._outputs = {name: self._as_rows(ref) for name, ref in graph.outputs.items()}
        return sum(size for _, size in self._pieces.values())

    def user_graph(self) -> Graph:
        outputs = {name: self._user.reshape(ref, (-1, size)) for ref, (name, size) in self._pieces.items()}
        inputs: dict[str, Dims] = {X: (None, self._user_columns)} if self._user_columns else {}
        return self._user.done(outputs, inputs | {name: self._graph.inputs[name] for name in self._histories})

    def candidate_graph(self) -> Graph:
        user_inputs: dict[str, Dims] = {name: (1, size) for name, size in sorted(self._pieces.values())}
        inputs = {name: dims for name, dims in self._graph.inputs.items() if name not in self._histories}
        return self._rows.done(self._outputs, {**inputs, X: (None, self._row_columns), **user_inputs})

    def _visit(self, name: str, node: Node) -> None:
        graph, ref = self._graph, (name, 0)
        values = [self._values.get(i) for i in node.inputs]
        varying = [v for v in values if v is not None]
        alone = all(isinstance(v, UserTensor) for v in varying)
        usable = graph.outputs_of(name) == 1 and graph.ranked(ref) and self._rows_each(ref) > 0
        if alone and usable and graph.shape(ref)[:1] == (None,):
            inputs = [i if v is None else v[0] for i, v in zip(node.inputs, values)]
            self._values[ref] = UserTensor((self._user.copy(node, inputs), 0))
            return
        rule = self._rules.get(node.op)
        plain = graph.outputs_of(name) == 1 and graph.dtype(ref) == tf.float32 and graph.ranked(ref)
        if any(isinstance(v, UserTensor) and self._rows_each(i) != 1 for i, v in zip(node.inputs, values)):
            rule = self._side_by_side if node.op in BINARY else None
        value = rule(ref, node) if rule is not None and plain else None
        if value is not None:
            self._values[ref] = value
            return
        copied = self._rows.copy(node, [i if graph.free(i) else self._as_rows(i) for i in node.inputs])
        for number in range(graph.outputs_of(name)):
            self._values[name, number] = CandidateTensor((copied, number))

    def _rows_each(self, ref: Ref) -> int:
        """Return how many rows a tensor has for each row of x; 0 if that is not known."""
        size, row = self._graph.size(ref), math.prod(n or 1 for n in self._graph.shape(ref)[1:])
        return 0 if size is None or row == 0 or size % row else size // row

    def _side_by_side(self, ref: Ref, node: Node) -> Value | None:
        """Handle [rows * L, ...] of the candidates and the user's [L, ...] as [rows, L, ...] and [1, L, ...]."""
        graph, edit, (a, b) = self._graph, self._rows, node.inputs
        values, shape, each = (self._values.get(a), self._values.get(b)), graph.shape(ref), self._rows_each(ref)
        alike = all(graph.shape(i) == shape and self._rows_each(i) == each for i in node.inputs)
        if not alike or not each or None in shape[1:] or None in values:
            return None
        wide = (None, each, *shape[1:])
        spread = [n or -1 for n in wide]
        inputs = [
            self._from_user_vector(v.ref, wide) if isinstance(v, UserTensor) else edit.reshape(self._as_rows(i), spread)
            for i, v in zip(node.inputs, values)
        ]
        return CandidateTensor(edit.reshape((edit.copy(node, inputs), 0), [n or -1 for n in shape]))

    def _from_user_vector(self, ref: Ref, shape: Sequence[int | None]) -> Ref:
        """Return a tensor of the user's graph in the candidates' graph, as [1, ...].

        A matrix becomes [n], which broadcasts alike and is the form of a bias.
        """
        dims = [n or 1 for n in shape[1:]]
        piece = (self._lent(ref, math.prod(dims)), 0)
        return self._rows.reshape(piece, dims if len(dims) == 1 else (1, *dims))

    def _lent(self, ref: Ref, size: int) -> str:
        """Return the name of the candidates' input that holds a tensor of the user's graph."""
        if ref not in self._pieces:
            self._pieces[ref] = (f"u{len(self._pieces)}", size)
        return self._pieces[ref][0]

    def _as_rows(self, ref: Ref) -> Ref:
        """Return a tensor of the graph in the candidates' graph, with a row for each candidate."""
        value = self._values.get(ref)
        if value is None or isinstance(value, CandidateTensor):
            return ref if value is None else value.ref
        if ref not in self._whole:
            self._whole[ref] = self._together(value, self._graph.shape(ref), self._rows_each(ref))
        return self._whole[ref]

    def _together(self, value: UserTensor | SplitColumns | SplitSum, shape: Shape, each: int) -> Ref:
        edit = self._rows
        if isinstance(value, UserTensor):
            wide = self._repeated(value.ref, (None, each, *shape[1:]) if each != 1 else shape)
            return edit.reshape(wide, [n or -1 for n in shape]) if each != 1 else wide
        if isinstance(value, SplitColumns):
            both = edit.concat([self._repeated(value.user, (None, len(value.user_at), *shape[2:])), value.rows])
            order = np.argsort([*value.user_at, *value.rows_at]).tolist()
            return both if order == list(range(len(order))) else edit.gather(both, order, 1)
        user_vector = self._from_user_vector(value.user, shape)
        return edit.bias(value.rows, user_vector) if len(shape) == 2 else edit.binary("AddV2", value.rows, user_vector)

    def _repeated(self, ref: Ref, shape: Sequence[int | None]) -> Ref:
        edit = self._rows
        dims = edit.add("Shape", (X, 0), T=tf.float32, out_type=tf.int32)
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
        """Handle [n, F * d] -> [n, F, d] and back, if every group of d is whole; [n, F, d] -> [n * F, d] is neither."""
        value = self._values[node.inputs[0]]
        before, after = self._graph.shape(node.inputs[0]), self._graph.shape(ref)
        if not isinstance(value, SplitColumns) or before[0] is not None or after[0] is not None:
            return None
        if len(before) == 2 and len(after) == 3 and after[1] and after[2]:
            dim = after[2]
            ats = [_grouped(at, dim) for at in (value.user_at, value.rows_at)]
            tail: tuple[int, ...] = (dim,)
        elif len(before) == 3 and len(after) == 2 and before[2] and after[1] == (before[1] or 0) * before[2]:
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

    def _batch_matmul(self, ref: Ref, node: Node) -> Value | None:
        """Multiply all candidates' rows with the user's matrix in one product a head: nothing is repeated.

        [rows, ..., m, k] @ [1, ..., k, n]: the rows of all candidates side by side, [..., rows * m, k].
        [1, m, k] @ [rows, k, n] with many columns n: a product for each candidate, which no transposition follows.
        """
        graph, (a, b) = self._graph, node.inputs
        left, right = self._values.get(a), self._values.get(b)
        before = graph.shape(a), graph.shape(b)
        rank = len(before[0])
        sizes = [*before[0][1:], *before[1][1:]]
        if rank < 3 or len(before[1]) != rank or None in sizes or before[0][1:-2] != before[1][1:-2]:
            return None
        if isinstance(left, UserTensor) and right is not None and not isinstance(right, UserTensor):
            user, rows, flip = (a, left.ref), self._as_rows(b), True
        elif isinstance(right, UserTensor) and left is not None and not isinstance(left, UserTensor):
            user, rows, flip = (b, right.ref), self._as_rows(a), False
        else:
            return None
        edit, heads = self._rows, [n or 1 for n in before[0][1:-2]]
        plain = not (node.attr("adj_x") or node.attr("adj_y"))
        if flip and not heads and plain and (before[1][-1] or 0) >= BROADCAST_COLUMNS:
            matrix = edit.reshape(self._from_user_vector(user[1], before[0]), (1, before[0][1] or 1, before[0][2] or 1))
            return CandidateTensor(edit.add("BatchMatMulV2", matrix, rows, T=tf.float32, adj_x=False, adj_y=False))
        last = [*range(rank - 2), rank - 1, rank - 2]
        transposed = bool(node.attr("adj_y" if flip else "adj_x")), bool(node.attr("adj_x" if flip else "adj_y"))
        # (A @ B)' = B' @ A': with the user's matrix on the left, both are read the other way round.
        if transposed[0] != flip:
            rows = edit.transpose(rows, last)
        shape = before[1] if flip else before[0]
        m, k = (shape[-1], shape[-2]) if transposed[0] != flip else (shape[-2], shape[-1])
        whole = before[0] if flip else before[1]
        matrix = edit.reshape(
            self._from_user_vector(user[1], graph.shape(user[0])), (*heads, whole[-2] or 1, whole[-1] or 1)
        )
        if transposed[1] != flip:
            order = [*range(len(heads)), len(heads) + 1, len(heads)]
            matrix = edit.transpose(matrix, order)
            n = whole[-2]
        else:
            n = whole[-1]
        if not heads:
            product = edit.matmul(edit.reshape(rows, (-1, k or 1)), matrix)
            result = edit.reshape(product, (-1, m or 1, n or 1))
        else:
            first = [*range(1, rank - 2), 0, rank - 2, rank - 1]
            beside = edit.reshape(edit.transpose(rows, first), (*heads, -1, k or 1))
            product = edit.add("BatchMatMulV2", beside, matrix, T=tf.float32, adj_x=False, adj_y=False)
            apart = edit.reshape(product, (*heads, -1, m or 1, n or 1))
            result = edit.transpose(apart, [rank - 3, *range(rank - 3), rank - 2, rank - 1])
        return CandidateTensor(edit.transpose(result, last) if flip else result)

    def _einsum(self, ref: Ref, node: Node) -> Value | None:
        """Drop the axis of rows from the user's operand: "rk,rlk->rl" becomes "rk,lk->rl"."""
        graph = self._graph
        equation = str(node.attr("equation").decode()).replace(" ", "")
        terms, _, out = equation.partition("->")
        letters = terms.split(",")
        values = [self._values.get(i) for i in node.inputs]
        varying = [v for v in values if v is not None]
        if len(node.inputs) != 2 or len(varying) != 2 or "." in equation or not out:
            return None
        users = [isinstance(v, UserTensor) for v in values]
        axis = letters[0][:1]
        if sum(users) != 1 or not all(term.startswith(axis) and term.count(axis) == 1 for term in (*letters, out)):
            return None
        inputs = []
        for number, (source, value) in enumerate(zip(node.inputs, values)):
            if isinstance(value, UserTensor):
                dims = graph.shape(source)[1:]
                if None in dims or not dims:
                    return None
                inputs.append(
                    self._rows.reshape(self._from_user_vector(value.ref, graph.shape(source)), [n or 1 for n in dims])
                )
                letters[number] = letters[number][1:]
            else:
                inputs.append(self._as_rows(source))
        attrs = {"equation": f"{','.join(letters)}->{out}".encode(), "T": tf.float32, "N": 2}
        return CandidateTensor(self._rows.add("Einsum", *inputs, **attrs))

    def _sum(self, ref: Ref, node: Node) -> Value | None:
        reduction, value = summed(self._graph, ref), self._values.get(node.inputs[0])
        if reduction is None or not isinstance(value, SplitColumns) or 0 in reduction[1]:
            return None
        axes = node.inputs[1]
        user, rows = self._user.copy(node, [value.user, axes]), self._rows.copy(node, [value.rows, axes])
        if 1 in reduction[1]:
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
            added = self._added_binary(ref, node, left, right)
            if added is not None:
                return added
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
            operand_shape = graph.shape(source)
            if isinstance(value, SplitColumns):
                if (value.user_at, value.rows_at) != (like.user_at, like.rows_at) or operand_shape != shape:
                    return None
                user.append(value.user)
                rows.append(value.rows)
            elif value is None:
                axis = len(operand_shape) - len(shape) + 1
                if node.op == "BiasAdd" and len(shape) != 2:
                    return None
                if axis < 0 or operand_shape[axis] == 1:
                    user.append(source)
                    rows.append(source)
                else:
                    user.append(_taken(self._user, source, len(operand_shape), axis, like.user_at))
                    rows.append(_taken(self._rows, source, len(operand_shape), axis, like.rows_at))
            elif isinstance(value, UserTensor) and len(operand_shape) == len(shape) and operand_shape[1] == 1:
                user.append(value.ref)
                rows.append(self._from_user_vector(value.ref, operand_shape))
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


def _same(dense: DenseGraph, split: UserCandidateSplit, columns: Sequence[int], histories: Collection[str]) -> bool:
    """Return whether both graphs together compute what the whole does, for two users with several candidates each."""
    rows = dense.sample(proof_rows(dense, PROOF_ROWS))
    for first in (0, 1):
        inputs = {name: np.roll(array, -first, 0) for name, array in rows.items()}
        inputs[X][:, columns] = inputs[X][0, columns]
        for name in histories:
            inputs[name][:] = inputs[name][0]
        got, expected = split.candidate.run(split.inputs(inputs, columns)[1]), dense.run(inputs)
        for name, values in expected.items():
            if not np.allclose(got[name], values, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                return False
    return True
