"""Operations that backends lack, written in others: where the plain formulas lose all digits, these do not."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.decompose import RULES, decompose
from freshet_serving.processor.package.manifest_entries import Output

pytestmark = pytest.mark.tensorflow

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


@pytest.mark.parametrize("name", CASES)
def test_decomposed_results_are_near_tensorflow_precision(name):
    function, values = CASES[name]
    dense = tf.function(
        lambda x, _: {"y": tf.reshape(function(x[:, 0]), [-1, 1])}, input_signature=_specs(1), autograph=False
    )
    graph = DenseGraph.of_matrix(dense, 1, [Output("y")], {})
    decomposed = decompose(graph)
    x = np.array(values, np.float32)[:, None]

    with np.errstate(all="ignore"):
        wanted, got = graph.run({"x": x})["y"], decomposed.run({"x": x})["y"]
    assert not RULES.keys() & {node.op for node in decomposed.concrete.graph.as_graph_def().node}
    # Where a function passes through 0 its terms cancel: there it is a few units of them.
    near_0 = 2e-6 if name in ("lgamma", "digamma") else 0.0
    np.testing.assert_allclose(got, wanted, rtol=3e-6, atol=near_0)


def _specs(width):
    return [tf.TensorSpec((None, width), tf.float32), {}]


def dense_graph(function, width, out):
    dense = tf.function(
        lambda x, _: {"y": tf.reshape(function(x), [-1, out])}, input_signature=_specs(width), autograph=False
    )
    return DenseGraph.of_matrix(dense, width, [Output("y", out)], {})


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


@pytest.mark.parametrize("name", COUNTS)
def test_counted_numbers_equal_tensorflow(name):
    graph = dense_graph(COUNTS[name], 12, 5)
    decomposed = decompose(graph)
    assert not RULES.keys() & {node.op for node in decomposed.concrete.graph.as_graph_def().node}
    x = np.random.default_rng(0).standard_normal((5, 12), np.float32)
    counts = graph.run({"x": x})["y"]
    assert counts.max() == 1 if name == "binary" else counts.max() > 1
    np.testing.assert_allclose(decomposed.run({"x": x})["y"], counts, rtol=1e-6)


@pytest.mark.parametrize("name", MATRICES)
def test_diagonals_and_running_products_equal_tensorflow(name):
    graph = dense_graph(*MATRICES[name][:1], 12, MATRICES[name][1])
    decomposed = decompose(graph)
    assert not RULES.keys() & {node.op for node in decomposed.concrete.graph.as_graph_def().node}
    x = np.random.default_rng(0).standard_normal((5, 12), np.float32)
    np.testing.assert_allclose(decomposed.run({"x": x})["y"], graph.run({"x": x})["y"], rtol=3e-6)


@pytest.mark.parametrize(
    ("function", "out"),
    [
        (lambda x: tf.linalg.diag(x, k=1), 169),
        (lambda x: tf.linalg.diag(x, num_rows=13), 13 * 12),
        (lambda x: tf.linalg.diag_part(shaped(3, 4)(x), k=1), 3),
        (lambda x: tf.linalg.diag_part(shaped(3, 4)(x), k=(0, 1)), 6),
        (lambda x: tf.linalg.set_diag(shaped(3, 4)(x), x[:, :2], k=-1), 12),
        (lambda x: tf.linalg.diag(tf.reshape(x, [3, unknown(x)])), 12),
        (lambda x: tf.linalg.diag_part(tf.reshape(x, [-1, unknown(x), 4])), 4),
        (lambda x: counted(x, size=unknown(x)), 5),
        (lambda x: tf.cast(tf.raw_ops.Bucketize(input=tf.cast(x, tf.int64), boundaries=[-1.0, 0.5]), tf.float32), 12),
        (lambda x: tf.cast(tf.raw_ops.Bucketize(input=tf.cast(x, tf.float64), boundaries=[0.5]), tf.float32), 12),
        (lambda x: tf.cast(tf.raw_ops.Bucketize(input=x, boundaries=[]), tf.float32) + x, 12),
    ],
)
def test_operators_without_a_formula_are_left_unchanged(function, out):
    graph = dense_graph(function, 12, out)
    assert decompose(graph) is graph


def test_32_bit_integers_are_bucketised():
    graph = dense_graph(
        lambda x: tf.cast(tf.raw_ops.Bucketize(input=tf.cast(x, tf.int32), boundaries=[-1.0, 0.5, 2.0]), tf.float32),
        4,
        4,
    )
    decomposed = decompose(graph)
    x = np.array([[-3.0, -1.0, 0.0, 1.0], [2.0, 3.0, -2.0, 0.5]], np.float32)
    assert decomposed is not graph
    np.testing.assert_array_equal(decomposed.run({"x": x})["y"], graph.run({"x": x})["y"])


def test_graph_without_decomposable_nodes_is_returned_unchanged():
    dense = tf.function(lambda x, _: {"y": tf.nn.relu(x)}, input_signature=_specs(2), autograph=False)
    graph = DenseGraph.of_matrix(dense, 2, [Output("y", 2)], {})
    assert decompose(graph) is graph


def test_different_type_is_left_unchanged():
    def whole(x, _):
        return {"y": tf.cast(tf.math.cumprod(tf.cast(x, tf.int32), 1), tf.float32)}

    dense = tf.function(whole, input_signature=_specs(3), autograph=False)
    graph = DenseGraph.of_matrix(dense, 3, [Output("y", 3)], {})
    assert decompose(graph) is graph
