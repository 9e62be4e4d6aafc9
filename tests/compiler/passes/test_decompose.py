"""Operations that backends lack, written in others: where the plain formulas lose all digits, these do not."""

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.decompose import RULES, decompose
from freshet_serving.compiler.passes.graph import Graph
from freshet_serving.processor.package.manifest_entries import Output

TINY = [1e-30, 1e-20, 1e-12, 1e-8, 3e-6, 1e-4, 0.01, 0.2, 0.39, 0.4, 0.41, 0.49, 0.5, 0.51, 0.9, 1.0, 3.0, 30.0]
ENDS = [np.inf, np.nan, 0.0, 3e38]
SIGNED = [*TINY, *(-v for v in TINY), *ENDS, -np.inf]

CASES = {
    "log1p": (tf.math.log1p, [*SIGNED, -0.999, -1.0, 1e10]),
    "expm1": (tf.math.expm1, [*SIGNED, 80.0, -80.0]),
    "erfinv": (tf.math.erfinv, [v for v in SIGNED if not abs(v) > 1] + [0.999999, -0.99999994, 1.5]),
    "ndtri": (tf.math.ndtri, [1e-30, 1e-12, 1e-4, 0.02, 0.3, 0.5, 0.7, 0.999, 0.9999999, 0.0, 1.0]),
    "lgamma": (tf.math.lgamma, [1e-12, 0.01, 0.3, 0.5, 2.6, 7.0, 100.0, 1e6, -0.3, -1.7, -5.5, 0.0, -3.0, np.inf]),
    "digamma": (tf.math.digamma, [1e-6, 0.01, 0.3, 0.5, 2.6, 7.0, 100.0, 1e6, -0.3, -1.7, -5.5, -3.0]),
    "xlogy": (lambda x: tf.math.xlogy(x, x - x), [0.0, 1.0, -2.0, np.inf]),
    "xdivy": (lambda x: tf.math.xdivy(x, x - x), [0.0, 1.0, -2.0]),
    "multiply_no_nan": (lambda x: tf.math.multiply_no_nan(1.0 / x, x - x), [0.0, 1.0, -2.0, np.nan]),
    "truncatemod": (lambda x: tf.truncatemod(x, 0.7), [5.0, -5.0, 0.69, -0.69, 0.0, 1e4]),
    "cumulative_logsumexp": (
        lambda x: tf.math.cumulative_logsumexp(tf.stack([x, x, -x, x / 3], 1), 1),
        [-200.0, 0.0, 90.0, -np.inf, np.inf, -1e38],
    ),
    "bucketize": (
        lambda x: tf.cast(tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 0.5]), tf.float32),
        [-1.0, 0.0, 0.5, -2.0, 3.0, np.nan, np.inf, -np.inf, 0.49999997],
    ),
}


def dense_graph(functions, width, counts):
    """A graph with an output of each function of x; counts: the columns of each."""

    def compute(x, _):
        return {f"y{n:02}": tf.reshape(function(x), [-1, counts[n]]) for n, function in enumerate(functions)}

    specs = [tf.TensorSpec((None, width), tf.float32), {}]
    traced = tf.function(compute, input_signature=specs, autograph=False)
    return DenseGraph.of_matrix(traced, width, [Output(f"y{n:02}", count) for n, count in enumerate(counts)], {})


def decomposed(graph):
    """The graph without operators that backends lack."""
    found = decompose(graph)
    assert not RULES.keys() & {node.op for node in Graph.of_dense(found).nodes.values()}
    return found


def test_decomposed_results_are_near_tensorflow_precision():
    most = max(len(values) for _, values in CASES.values())
    x = np.stack([np.resize(np.array(values, np.float32), most) for _, values in CASES.values()], 1)
    columns = [lambda x, f=function, n=n: f(x[:, n]) for n, (function, _) in enumerate(CASES.values())]
    graph = dense_graph(columns, len(CASES), [1] * len(CASES))

    with np.errstate(all="ignore"):
        expected, got = graph.run({"x": x}), decomposed(graph).run({"x": x})
    for n, name in enumerate(CASES):
        # Where a function passes through 0 its terms cancel: there it is a few units of them.
        near_0 = 2e-6 if name in ("lgamma", "digamma") else 0.0
        np.testing.assert_allclose(got[f"y{n:02}"], expected[f"y{n:02}"], rtol=3e-6, atol=near_0, err_msg=name)


def shaped(*dims):
    return lambda x: tf.reshape(x, [-1, *dims])


MATRICES = {
    "diag": (tf.linalg.diag, 144),
    "diag, padded": (lambda x: tf.linalg.diag(x, padding_value=7.0), 144),
    "diag of rows": (lambda x: tf.linalg.diag(shaped(3, 4)(x)), 48),
    "diag_part, wide": (lambda x: tf.linalg.diag_part(shaped(3, 4)(x)), 3),
    "diag_part, high": (lambda x: tf.linalg.diag_part(shaped(4, 3)(x)), 3),
    "diag_part of many": (lambda x: tf.linalg.diag_part(shaped(2, 2, 3)(x)), 4),
    "set_diag, wide": (lambda x: tf.linalg.set_diag(shaped(3, 4)(x), x[:, :3] * 9.0), 12),
    "set_diag, high": (lambda x: tf.linalg.set_diag(shaped(4, 3)(x), x[:, 5:8] * 9.0), 12),
    "set_diag of many": (lambda x: tf.linalg.set_diag(shaped(2, 2, 3)(x), shaped(2, 2)(x[:, :4] * 9.0)), 12),
} | {
    f"{name}, axis {axis}, {exclusive=}, {reverse=}": (
        lambda x, sum_=sum_, a=axis, e=exclusive, r=reverse: sum_(shaped(3, 4)(x), a, exclusive=e, reverse=r), 12
    )
    for name, sum_ in (("cumprod", tf.math.cumprod), ("logsumexp", tf.math.cumulative_logsumexp))
    for axis in (1, 2, -1)
    for exclusive in (False, True)
    for reverse in (False, True)
}  # fmt: skip


def unknown(x):
    """A number that follows from values."""
    return tf.cast(tf.reduce_max(x), tf.int32)


def counted(x, weights=(), binary=False, size=5):
    """How often each row has each of the numbers below a size."""
    given = tf.constant(weights, tf.float32) if isinstance(weights, tuple) else weights
    return tf.raw_ops.DenseBincount(
        input=tf.cast(tf.abs(3 * x), tf.int32), size=size, weights=given, binary_output=binary
    )


COUNTS = {
    "plain": counted,
    "weighted": lambda x: counted(x, weights=tf.abs(x)),
    "binary": lambda x: counted(x, binary=True),
}


def test_counts_diagonals_and_running_products_equal_tensorflow():
    cases = {**{f"counts, {name}": (function, 5) for name, function in COUNTS.items()}, **MATRICES}
    functions, columns = zip(*cases.values())
    graph = dense_graph(functions, 12, columns)
    x = np.random.default_rng(0).standard_normal((5, 12), np.float32)
    expected, got = graph.run({"x": x}), decomposed(graph).run({"x": x})
    for n, name in enumerate(cases):
        rtol = 1e-6 if n < len(COUNTS) else 3e-6
        np.testing.assert_allclose(got[f"y{n:02}"], expected[f"y{n:02}"], rtol=rtol, err_msg=name)
    most = {name: expected[f"y{n:02}"].max() for n, name in enumerate(COUNTS)}
    assert (most["plain"] > 1, most["weighted"] > 1, most["binary"]) == (True, True, 1)


UNCHANGED = [
    (tf.nn.relu, 12),
    (lambda x: tf.linalg.diag(x, k=1), 169),
    (lambda x: tf.linalg.diag(x, num_rows=13), 13 * 12),
    (lambda x: tf.linalg.diag_part(shaped(3, 4)(x), k=1), 3),
    (lambda x: tf.linalg.diag_part(shaped(3, 4)(x), k=(0, 1)), 6),
    (lambda x: tf.linalg.set_diag(shaped(3, 4)(x), x[:, :2], k=-1), 12),
    (lambda x: tf.linalg.diag(tf.reshape(x, [3, unknown(x)])), 12),
    (lambda x: tf.linalg.diag_part(tf.reshape(x, [-1, unknown(x), 4])), 4),
    (lambda x: counted(x, size=unknown(x)), 5),
    (lambda x: tf.cast(tf.math.cumprod(tf.cast(x, tf.int32), 1), tf.float32), 12),
    (lambda x: tf.cast(tf.raw_ops.Bucketize(input=tf.cast(x, tf.int64), boundaries=[-1.0, 0.5]), tf.float32), 12),
    (lambda x: tf.cast(tf.raw_ops.Bucketize(input=tf.cast(x, tf.float64), boundaries=[0.5]), tf.float32), 12),
    (lambda x: tf.cast(tf.raw_ops.Bucketize(input=x, boundaries=[]), tf.float32) + x, 12),
]


def test_operators_without_a_formula_are_left_unchanged():
    functions, columns = zip(*UNCHANGED)
    graph = dense_graph(functions, 12, columns)
    assert decompose(graph) is graph


def test_32_bit_integers_are_bucketised():
    graph = dense_graph(
        [lambda x: tf.cast(tf.raw_ops.Bucketize(input=tf.cast(x, tf.int32), boundaries=[-1.0, 0.5, 2.0]), tf.float32)],
        4,
        [4],
    )
    x = np.array([[-3.0, -1.0, 0.0, 1.0], [2.0, 3.0, -2.0, 0.5]], np.float32)
    np.testing.assert_array_equal(decomposed(graph).run({"x": x})["y00"], graph.run({"x": x})["y00"])
