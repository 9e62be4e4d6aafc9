"""Operations that backends lack, written in others: where the plain formulas lose all digits, these do not."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

from compiler.dense.dense_graph import DenseGraph, signature
from compiler.frameworks import tf
from compiler.passes.decompose import RULES, decompose
from processor.package.manifest import Output

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
    "cumulative_logsumexp": (lambda x: tf.math.cumulative_logsumexp(x[:, None], 1)[:, 0], [-200.0, 0.0, 90.0]),
    "bucketize": (
        lambda x: tf.cast(tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 0.5]), tf.float32),
        [-1.0, 0.0, 0.5, -2.0, 3.0, np.nan, np.inf, -np.inf, 0.49999997],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_tensorflows_to_a_few_units_in_the_last_place(name):
    function, values = CASES[name]
    dense = tf.function(
        lambda x, _: {"y": tf.reshape(function(x[:, 0]), [-1, 1])}, input_signature=signature(1, {}), autograph=False
    )
    graph = DenseGraph(dense, 1, [Output("y")], {})
    decomposed = decompose(graph)
    x = np.array(values, np.float32)[:, None]

    with np.errstate(all="ignore"):
        wanted, got = graph.run(x)["y"], decomposed.run(x)["y"]
    assert not RULES.keys() & {node.op for node in decomposed.concrete.graph.as_graph_def().node}
    # Where a function passes through 0 its terms cancel: there it is a few units of them.
    near_0 = 2e-6 if name in ("lgamma", "digamma") else 0.0
    np.testing.assert_allclose(got, wanted, rtol=3e-6, atol=near_0)


def test_a_graph_with_nothing_to_decompose_is_left_as_it_is():
    dense = tf.function(lambda x, _: {"y": tf.nn.relu(x)}, input_signature=signature(2, {}), autograph=False)
    graph = DenseGraph(dense, 2, [Output("y", 2)], {})
    assert decompose(graph) is graph


def test_another_type_is_left_to_whoever_has_it():
    def whole(x, _):
        return {"y": tf.cast(tf.math.cumprod(tf.cast(x, tf.int32), 1), tf.float32)}

    dense = tf.function(whole, input_signature=signature(3, {}), autograph=False)
    graph = DenseGraph(dense, 3, [Output("y", 3)], {})
    assert decompose(graph) is graph
