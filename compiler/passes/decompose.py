"""Rewrite operations that some backends lack into operations that all of them have: one table, operation -> rule.

A rule writes float32 formulas that stay accurate where the naive ones lose all digits: log1p and expm1 of the smallest
numbers have a relative error of 1e-6. No formula relies on (1 + x) - 1, because compilers rearrange such sums.
Functions without a formula of a few dozen operations (igamma, zeta, Cholesky) are not covered: they cannot be part of a
dense graph.

Sources: the quantile after M. Giles, "Approximating the erfinv function" (2010); lgamma and digamma after C. Lanczos
(1964), g = 7, nine terms, with Euler's reflection below 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.graph import Edit, Graph, Node, Ref

# Below these |x| a series replaces log(1 + x) and exp(x) - 1.
SMALL_LOG1P, SMALL_EXPM1 = 0.4, 0.5
LOG1P_TERMS, EXPM1_TERMS = 7, 9
# Giles' polynomials, in w - 2.5 below 5 and in sqrt(w) - 3 above; highest power first.
ERFINV_CENTRE: tuple[float, ...] = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 2.1858087e-04)
ERFINV_CENTRE += (-1.25372503e-03, -4.17768164e-03, 2.46640727e-01, 1.50140941)
ERFINV_TAIL: tuple[float, ...] = (-2.00214257e-04, 1.00950558e-04, 1.34934322e-03, -3.67342844e-03, 5.73950773e-03)
ERFINV_TAIL += (-7.6224613e-03, 9.43887047e-03, 1.00167406, 2.83297682)
# Polynomial in 1 / sqrt(-2 log p), for p below DEEP; fitted to 1e-7.
DEEP, SMALLEST = 1e-3, 1e-38
NDTRI_DEEP: tuple[float, ...] = (-367.226135, 595.632263, -430.738556, 185.430405, -54.6301842, 12.9638643, -3.76605678)
NDTRI_DEEP += (-0.0421465971, 1.00037742)
LANCZOS_G = 7.0
LANCZOS_BASE = 0.99999999999980993
LANCZOS: tuple[float, ...] = (676.520368121885098567, -1259.139216722402870, 771.32342877765308, -176.615029162140590)
LANCZOS += (12.507343278686904814, -0.13857109526572011, 9.984369578019570e-6, 1.50563273514931e-7)
LOWEST = float(np.finfo(np.float32).min)

Rule = Callable[["Formula"], Ref | None]


def decompose(dense: DenseGraph) -> DenseGraph:
    """Rewrite unsupported operators; return the graph unchanged if there are none."""
    graph = Graph.of_dense(dense)
    edit = Edit(graph)
    for name, node in graph.nodes.items():
        rule = RULES.get(node.op)
        written = rule(Formula(edit, name, node)) if rule is not None else None
        if written is not None:
            edit.replace((name, 0), written)
    return replace(edit.done().to_dense(dense.weights), examples=dense.examples) if edit.changes else dense


class Formula:
    """Writes one operation's formula: arithmetic on tensors of the graph, in which a number denotes a constant."""

    def __init__(self, edit: Edit, name: str, node: Node) -> None:
        self.edit, self.graph, self.node, self.out = edit, edit.graph, node, (name, 0)
        self.inputs = node.inputs

    @property
    def floats(self) -> bool:
        return bool(self.graph.dtype(self.out) == tf.float32)

    def shape(self, ref: Ref) -> tuple[int | None, ...] | None:
        return self.graph.shape(ref) if self.graph.ranked(ref) else None

    def number(self, value: Ref | float, dtype: type = np.float32) -> Ref:
        return value if isinstance(value, tuple) else self.edit.constant(value, dtype)

    def op(self, name: str, *operands: Ref | float) -> Ref:
        return self.edit.add(name, *map(self.number, operands), T=tf.float32)

    def add(self, a: Ref | float, b: Ref | float) -> Ref:
        return self.op("AddV2", a, b)

    def sub(self, a: Ref | float, b: Ref | float) -> Ref:
        return self.op("Sub", a, b)

    def mul(self, a: Ref | float, b: Ref | float) -> Ref:
        return self.op("Mul", a, b)

    def div(self, a: Ref | float, b: Ref | float) -> Ref:
        return self.op("RealDiv", a, b)

    def less(self, a: Ref | float, b: Ref | float) -> Ref:
        return self.op("Less", a, b)

    def where(self, condition: Ref, a: Ref | float, b: Ref | float) -> Ref:
        return self.edit.add("SelectV2", condition, self.number(a), self.number(b), T=tf.float32)

    def equal(self, a: Ref, b: Ref | float) -> Ref:
        return self.edit.add("Equal", a, self.number(b), T=tf.float32, incompatible_shape_error=True)

    def polynomial(self, x: Ref, coefficients: Sequence[float]) -> Ref:
        """Evaluate a polynomial by Horner's scheme, the highest power first."""
        total: Ref | float = coefficients[0]
        for coefficient in coefficients[1:]:
            total = self.add(self.mul(total, x), coefficient)
        return self.number(total)

    def cast(self, a: Ref, source: object, target: object) -> Ref:
        return self.edit.add("Cast", a, SrcT=source, DstT=target, Truncate=False)

    def expand(self, a: Ref, axis: int, dtype: object = tf.float32) -> Ref:
        return self.edit.add("ExpandDims", a, self.edit.constant(axis, np.int32), T=dtype, Tdim=tf.int32)

    def axis(self, ref: Ref, size_of: Ref) -> tuple[int, int, int] | None:
        """Return (axis from 0, rank, size) if a constant selects an axis of fixed size of a tensor."""
        value, shape = self.graph.constant(ref), self.shape(size_of)
        if value is None or shape is None:
            return None
        axis = int(value.reshape(())) % len(shape)
        size = shape[axis]
        return None if size is None else (axis, len(shape), size)


def log1p(f: Formula, x: Ref) -> Ref:
    """Write log(1 + x), as 2 atanh(x / (2 + x)) near 0."""
    s = f.div(x, f.add(x, 2.0))
    series = f.polynomial(f.mul(s, s), [2.0 / (2 * k + 1) for k in reversed(range(LOG1P_TERMS))])
    return f.where(f.less(f.op("Abs", x), SMALL_LOG1P), f.mul(s, series), f.op("Log", f.add(x, 1.0)))


def expm1(f: Formula, x: Ref) -> Ref:
    """Write exp(x) - 1, by Taylor's series near 0."""
    series = f.polynomial(x, [1.0 / math.factorial(k) for k in range(EXPM1_TERMS, 0, -1)])
    return f.where(f.less(f.op("Abs", x), SMALL_EXPM1), f.mul(x, series), f.sub(f.op("Exp", x), 1.0))


def ndtri(f: Formula, p: Ref) -> Ref:
    """Write the normal distribution's quantile at p, by log(4 p (1 - p)), which does not cancel at either end."""
    x = f.sub(f.mul(p, 2.0), 1.0)
    rest = f.mul(f.mul(p, 4.0), f.sub(1.0, p))
    w = f.op("Neg", f.op("Log", rest))
    centre = f.polynomial(f.sub(w, 2.5), ERFINV_CENTRE)
    # In the centre, rounding may make w negative, where sqrt is undefined.
    tail = f.polynomial(f.sub(f.op("Sqrt", f.op("Maximum", w, 0.0)), 3.0), ERFINV_TAIL)
    quantile = f.mul(f.mul(f.where(f.less(w, 5.0), centre, tail), x), math.sqrt(2.0))
    # Giles' last polynomial ends where 1 - x has no smaller float32; p has many more values near 0.
    s = f.op("Sqrt", f.mul(f.op("Log", f.op("Maximum", p, SMALLEST)), -2.0))
    deep = f.mul(f.op("Neg", s), f.polynomial(f.div(1.0, s), NDTRI_DEEP))
    quantile = f.where(f.less(p, DEEP), f.where(f.equal(p, 0.0), -math.inf, deep), quantile)
    return f.where(f.equal(p, 1.0), math.inf, quantile)


def _erfinv(f: Formula) -> Ref:
    """Write erfinv as TensorFlow computes it, which rounds small numbers off: models were trained with that."""
    (x,) = f.inputs
    return f.mul(ndtri(f, f.add(f.mul(x, 0.5), 0.5)), math.sqrt(0.5))


def _lanczos(f: Formula, x: Ref) -> tuple[Ref, Ref, Ref, Ref]:
    """Return (x < 1/2, z, the sum, its derivative); z is x - 1, or -x where the reflection applies."""
    low = f.less(x, 0.5)
    z = f.where(low, f.op("Neg", x), f.sub(x, 1.0))
    total: Ref | float = LANCZOS_BASE
    slope: Ref | float = 0.0
    for i, coefficient in enumerate(LANCZOS, 1):
        term = f.div(coefficient, f.add(z, float(i)))
        total = f.add(total, term)
        slope = f.sub(slope, f.div(term, f.add(z, float(i))))
    return low, z, f.number(total), f.number(slope)


def _lgamma(f: Formula) -> Ref:
    (x,) = f.inputs
    low, z, total, _ = _lanczos(f, x)
    log_t = f.add(math.log(LANCZOS_G + 0.5), log1p(f, f.div(z, LANCZOS_G + 0.5)))
    t = f.add(z, LANCZOS_G + 0.5)
    log_y = f.mul(f.sub(f.add(z, 0.5), f.div(t, log_t)), log_t)
    log_y = f.add(f.add(log_y, 0.5 * math.log(2.0 * math.pi)), f.op("Log", total))
    fraction = f.op("Abs", x)
    fraction = f.sub(fraction, f.op("Floor", fraction))
    # sin(pi y) = sin(pi (1 - y)): use the nearer end, where it is accurate.
    fraction = f.where(f.less(0.5, fraction), f.sub(1.0, fraction), fraction)
    sine = f.op("Sin", f.mul(fraction, math.pi))
    reflected = f.sub(f.sub(math.log(math.pi), f.op("Log", sine)), log_y)
    value = f.where(low, f.where(f.equal(sine, 0.0), math.inf, reflected), log_y)
    return f.where(f.edit.add("IsInf", x, T=tf.float32), math.inf, value)


def _digamma(f: Formula) -> Ref:
    (x,) = f.inputs
    low, z, total, slope = _lanczos(f, x)
    log_t = f.add(math.log(LANCZOS_G + 0.5), log1p(f, f.div(z, LANCZOS_G + 0.5)))
    y = f.sub(f.add(log_t, f.div(slope, total)), f.div(LANCZOS_G, f.add(z, LANCZOS_G + 0.5)))
    # The cotangent has period 1: evaluate it within 1/2 of an integer.
    nearest = f.add(x, f.op("Abs", f.op("Floor", f.add(x, 0.5))))
    angle = f.mul(nearest, math.pi)
    reflected = f.sub(y, f.div(f.mul(math.pi, f.op("Cos", angle)), f.op("Sin", angle)))
    whole = f.equal(x, f.op("Floor", x))
    poles = f.edit.add("LogicalAnd", whole, f.less(x, 0.5))
    return f.where(poles, math.nan, f.where(low, reflected, y))


def _where_zero(of: int, write: Callable[[Formula, Ref, Ref], Ref]) -> Rule:
    """Return a rule that gives 0 where operand `of` is 0, whatever the other operand is."""

    def rule(f: Formula) -> Ref | None:
        x, y = f.inputs
        return f.where(f.equal(f.inputs[of], 0.0), 0.0, write(f, x, y)) if f.floats else None

    return rule


def _truncate_mod(f: Formula) -> Ref:
    x, y = f.inputs
    dtype = f.graph.dtype(f.out)
    sizes = (f.edit.add("Abs", x, T=dtype), f.edit.add("Abs", y, T=dtype))
    return f.edit.add("Mul", f.edit.add("FloorMod", *sizes, T=dtype), f.edit.add("Sign", x, T=dtype), T=dtype)


def _euclidean_norm(f: Formula) -> Ref | None:
    x, axes = f.inputs
    if not f.floats:
        return None
    index, keep = f.graph.dtype(axes), bool(f.node.attr("keep_dims"))
    return f.op("Sqrt", f.edit.add("Sum", f.mul(x, x), axes, T=tf.float32, Tidx=index, keep_dims=keep))


def _running(neutral: float, join: Callable[[Formula, Ref, Ref], Ref]) -> Rule:
    """Return a rule for prefix products along a fixed axis, in log2(size) steps (Hillis and Steele).

    The neutral element LOWEST stands for minus infinity, whose differences would be NaN.
    """

    def rule(f: Formula) -> Ref | None:
        x, axis = f.inputs
        place = f.axis(axis, x)
        if place is None or not f.floats:
            return None
        at, rank, size = place
        reverse = bool(f.node.attr("reverse"))

        def shifted(a: Ref, by: int) -> Ref:
            """Shift `a` along the axis by `by` places, filling in the neutral element."""
            rest = f.edit.slice(a, rank, at, by, size) if reverse else f.edit.slice(a, rank, at, 0, size - by)
            pads = np.zeros((rank, 2), np.int32)
            pads[at, 1 if reverse else 0] = by
            return f.edit.add(
                "PadV2", rest, f.edit.constant(pads, np.int32), f.number(neutral), T=tf.float32, Tpaddings=tf.int32
            )

        if neutral == LOWEST:
            x = f.op("Maximum", x, LOWEST)
        if f.node.attr("exclusive"):
            x = shifted(x, 1)
        step = 1
        while step < size:
            x = join(f, x, shifted(x, step))
            step *= 2
        return f.where(f.equal(x, LOWEST), -np.inf, x) if neutral == LOWEST else x

    return rule


def _log_add(f: Formula, a: Ref, b: Ref) -> Ref:
    gap = f.op("Neg", f.op("Abs", f.sub(a, b)))
    return f.add(f.op("Maximum", a, b), log1p(f, f.op("Exp", gap)))


def _bucketize(f: Formula) -> Ref | None:
    """Count the boundaries that a number is not below; all of them for NaN, as in TensorFlow."""
    (x,) = f.inputs
    boundaries = list(f.node.attr("boundaries").f)
    if f.graph.dtype(x) not in (tf.float32, tf.int32) or not boundaries:
        return None
    x = x if f.graph.dtype(x) == tf.float32 else f.cast(x, tf.int32, tf.float32)
    below = f.less(f.expand(x, -1), f.edit.constant(boundaries))
    # Do not sum !(x < b): optimisers rewrite it to x >= b, which is false for NaN.
    last = f.edit.constant([-1], np.int32)
    ahead = f.edit.add("Sum", f.cast(below, tf.bool, tf.float32), last, T=tf.float32, Tidx=tf.int32, keep_dims=False)
    return f.cast(f.sub(float(len(boundaries)), ahead), tf.float32, tf.int32)


def _dense_bincount(f: Formula) -> Ref | None:
    """Count the integers in each row: one-hot rows, added up, or their maximum for binary output."""
    x, size, weights = f.inputs
    limit, shape = f.graph.constant(size), f.shape(x)
    weights_shape = f.shape(weights)
    static = limit is not None and shape is not None and weights_shape is not None
    if not static or not f.floats or len(shape or ()) != 2 or f.graph.dtype(x) != tf.int32:
        return None
    depth = f.edit.constant(int(np.max(limit if limit is not None else 0)), np.int32)
    hot = f.edit.add("OneHot", x, depth, f.number(1.0), f.number(0.0), T=tf.float32, TI=tf.int32, axis=-1)
    if 0 not in (weights_shape or ()):
        hot = f.mul(hot, f.expand(weights, -1))
    how = "Max" if f.node.attr("binary_output") else "Sum"
    return f.edit.add(how, hot, f.edit.constant([1], np.int32), T=tf.float32, Tidx=tf.int32, keep_dims=False)


def _cross(f: Formula) -> Ref | None:
    a, b = f.inputs
    shape = f.shape(a)
    if shape is None or not f.floats:
        return None

    def turned(ref: Ref, by: int) -> Ref:
        return f.edit.gather(ref, [(i + by) % 3 for i in range(3)], len(shape) - 1)

    return f.sub(f.mul(turned(a, 1), turned(b, 2)), f.mul(turned(a, 2), turned(b, 1)))


def _main_diagonal(f: Formula, k: int) -> bool:
    """Return whether operand `k`, the number of the diagonal, selects the main one."""
    value = f.graph.constant(f.inputs[k])
    return value is not None and not value.any() and value.size == 1


def _eye(f: Formula, rows: int, columns: int) -> Ref:
    return f.edit.constant(np.eye(rows, columns, dtype=np.bool_), np.bool_)


def _matrix_diag(f: Formula) -> Ref | None:
    diagonal, _, rows, columns, padding = f.inputs
    shape = f.shape(diagonal)
    sizes = [f.graph.constant(ref) for ref in (rows, columns)]
    if shape is None or shape[-1] is None or not f.floats or not _main_diagonal(f, 1) or any(s is None for s in sizes):
        return None
    if any(s is not None and int(s) not in (-1, shape[-1]) for s in sizes):
        return None
    return f.where(_eye(f, shape[-1], shape[-1]), f.expand(diagonal, -1), padding)


def _matrix_diag_part(f: Formula) -> Ref | None:
    shape = f.shape(f.inputs[0])
    if shape is None or None in shape[1:] or not f.floats or not _main_diagonal(f, 1) or len(shape) < 3:
        return None
    *lead, rows, columns = (int(n or -1) for n in shape)
    flat = f.edit.reshape(f.inputs[0], [*lead, rows * columns])
    return f.edit.gather(flat, [i * (columns + 1) for i in range(min(rows, columns))], len(lead))


def _matrix_set_diag(f: Formula) -> Ref | None:
    matrix, diagonal = f.inputs[:2]
    shape = f.shape(matrix)
    if shape is None or not f.floats or not _main_diagonal(f, 2) or None in shape[-2:]:
        return None
    rows, columns = int(shape[-2] or 0), int(shape[-1] or 0)
    # Broadcast the diagonal along rows or columns, whichever has as many entries as the diagonal.
    spread = f.expand(diagonal, -1 if rows <= columns else -2)
    return f.where(_eye(f, rows, columns), spread, matrix)


def _floats(rule: Callable[[Formula], Ref | None]) -> Rule:
    return lambda f: rule(f) if f.floats else None


RULES: dict[str, Rule] = {
    "Bucketize": _bucketize,
    "Cross": _cross,
    "CumulativeLogsumexp": _running(LOWEST, _log_add),
    "Cumprod": _running(1.0, lambda f, a, b: f.mul(a, b)),
    "DenseBincount": _dense_bincount,
    "Digamma": _floats(_digamma),
    "Erfc": _floats(lambda f: f.sub(1.0, f.op("Erf", *f.inputs))),
    "Erfinv": _floats(_erfinv),
    "EuclideanNorm": _euclidean_norm,
    "Expm1": _floats(lambda f: expm1(f, *f.inputs)),
    "Lgamma": _floats(_lgamma),
    "Log1p": _floats(lambda f: log1p(f, *f.inputs)),
    "MatrixDiagPartV2": _matrix_diag_part,
    "MatrixDiagPartV3": _matrix_diag_part,
    "MatrixDiagV2": _matrix_diag,
    "MatrixDiagV3": _matrix_diag,
    "MatrixSetDiagV2": _matrix_set_diag,
    "MatrixSetDiagV3": _matrix_set_diag,
    "MulNoNan": _where_zero(1, lambda f, x, y: f.mul(x, y)),
    "Ndtri": _floats(lambda f: ndtri(f, *f.inputs)),
    "TruncateMod": _truncate_mod,
    "Xdivy": _where_zero(0, lambda f, x, y: f.div(x, y)),
    "Xlog1py": _where_zero(0, lambda f, x, y: f.mul(x, log1p(f, y))),
    "Xlogy": _where_zero(0, lambda f, x, y: f.mul(x, f.op("Log", y))),
}
"""Operation -> rule that rewrites it; a rule returns None where it does not apply: for another type, or a shape that
is not fixed.
"""
