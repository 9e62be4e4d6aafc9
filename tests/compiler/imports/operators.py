"""Operators of tf.math, tf.nn and Keras on x float32 [n, 6], each as a function of x that keeps the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from freshet_serving.compiler.frameworks import keras, tf

Operator = Callable[[Any], Any]
acts, kops, math, nn, linalg = keras.activations, keras.ops, tf.math, tf.nn, tf.linalg


def above_0(x: Any) -> Any:
    return tf.abs(x) + 0.1


def inside_1(x: Any) -> Any:
    return 0.9 * tf.tanh(x)


def turned(x: Any) -> Any:
    return x[:, ::-1]


def matrices(x: Any) -> Any:
    """[n, 2, 3]."""
    return tf.reshape(x, [-1, 2, 3])


def squares(x: Any) -> Any:
    """[n, 6, 6]."""
    return x[:, :, None] * turned(x)[:, None, :]


def classes(x: Any) -> Any:
    """int32 [n, 6] from 0 to 3."""
    return tf.cast(tf.clip_by_value(2.0 * x, 0.0, 3.0), tf.int32)


def number(x: Any) -> Any:
    return tf.cast(x, tf.float32)


ELEMENTWISE: dict[str, Operator] = {
    "abs": tf.abs,
    "acos": lambda x: tf.acos(inside_1(x)),
    "acosh": lambda x: tf.acosh(above_0(x) + 1.0),
    "asin": lambda x: tf.asin(inside_1(x)),
    "asinh": tf.asinh,
    "atan": tf.atan,
    "atan2": lambda x: math.atan2(x, turned(x)),
    "atanh": lambda x: tf.atanh(inside_1(x)),
    "bucketize": lambda x: number(tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0])),
    "cast_int": lambda x: number(tf.cast(10.0 * x, tf.int32)),
    "ceil": math.ceil,
    "clip": lambda x: tf.clip_by_value(x, -0.5, 0.5),
    "clip_by_norm": lambda x: tf.clip_by_norm(x, 1.0, axes=[1]),
    "cos": tf.cos,
    "cosh": tf.cosh,
    "cross": lambda x: linalg.cross(matrices(x), matrices(turned(x))),
    "digamma": lambda x: math.digamma(above_0(x)),
    "digamma_below_0": lambda x: math.digamma(tf.round(x) - 0.37),
    "divide_no_nan": lambda x: math.divide_no_nan(x, nn.relu(turned(x))),
    "equal": lambda x: number(tf.equal(tf.round(x), 0.0)),
    "erf": math.erf,
    "erfc": math.erfc,
    "erfinv": lambda x: math.erfinv(inside_1(x)),
    "exp": tf.exp,
    "expm1": math.expm1,
    "expm1_near_0": lambda x: 1e4 * math.expm1(1e-4 * x),
    "floor": math.floor,
    "floordiv": lambda x: math.floordiv(x, above_0(turned(x))),
    "floormod": lambda x: math.floormod(x, above_0(turned(x))),
    "greater": lambda x: number(x > 0.1),
    "is_finite": lambda x: number(math.is_finite(1.0 / nn.relu(x))),
    "is_inf": lambda x: number(math.is_inf(1.0 / nn.relu(x))),
    "is_nan": lambda x: number(math.is_nan(tf.sqrt(x))),
    "less_equal": lambda x: number(x <= 0.1),
    "lgamma": lambda x: math.lgamma(above_0(x)),
    "lgamma_below_0": lambda x: math.lgamma(tf.round(x) - 0.37),
    "log": lambda x: math.log(above_0(x)),
    "log10": lambda x: kops.log10(above_0(x)),
    "log1p": lambda x: math.log1p(above_0(x)),
    "log1p_near_0": lambda x: 1e5 * math.log1p(1e-5 * x),
    "log2": lambda x: kops.log2(above_0(x)),
    "logaddexp": lambda x: kops.logaddexp(x, turned(x)),
    "logical_and_not": lambda x: tf.where(tf.logical_and(x > 0.0, tf.logical_not(x > 1.0)), x, 0.0),
    "logical_xor": lambda x: number(math.logical_xor(x > 0.0, turned(x) > 0.0)),
    "maximum": lambda x: tf.maximum(x, 0.3),
    "minimum": lambda x: tf.minimum(x, 0.3),
    "multiply_no_nan": lambda x: math.multiply_no_nan(1.0 / nn.relu(turned(x)), nn.relu(turned(x))),
    "ndtri": lambda x: math.ndtri(tf.sigmoid(x)),
    "negative": tf.negative,
    "not_equal": lambda x: number(tf.not_equal(tf.round(x), 0.0)),
    "pow": lambda x: tf.pow(above_0(x), turned(x)),
    "reciprocal": lambda x: math.reciprocal(above_0(x)),
    "reciprocal_no_nan": lambda x: math.reciprocal_no_nan(tf.round(x)),
    "rint": math.rint,
    "round": tf.round,
    "rsqrt": lambda x: math.rsqrt(above_0(x)),
    "sign": tf.sign,
    "sin": tf.sin,
    "sinh": tf.sinh,
    "sqrt": lambda x: tf.sqrt(above_0(x)),
    "square": tf.square,
    "squared_difference": lambda x: math.squared_difference(x, turned(x)),
    "tan": lambda x: tf.tan(inside_1(x)),
    "tanh": tf.tanh,
    "truncatediv": lambda x: number(tf.truncatediv(tf.cast(9.0 * x, tf.int32), 2)),
    "truncatemod": lambda x: tf.truncatemod(x, 0.7),
    "where": lambda x: tf.where(x > 0.0, x, 0.1 * x),
    "xdivy": lambda x: math.xdivy(nn.relu(x), nn.relu(x)),
    "xlog1py": lambda x: math.xlog1py(nn.relu(x), above_0(x)),
    "xlogy": lambda x: math.xlogy(nn.relu(x), nn.relu(x)),
}

ACTIVATIONS: dict[str, Operator] = {
    "celu": acts.celu,
    "crelu": nn.crelu,
    "elu": nn.elu,
    "exponential": acts.exponential,
    "gelu": nn.gelu,
    "gelu_tanh": lambda x: nn.gelu(x, approximate=True),
    "glu": acts.glu,
    "hard_shrink": acts.hard_shrink,
    "hard_sigmoid": acts.hard_sigmoid,
    "hard_silu": acts.hard_silu,
    "hard_tanh": acts.hard_tanh,
    "leaky_relu": nn.leaky_relu,
    "log_sigmoid": math.log_sigmoid,
    "log_softmax": nn.log_softmax,
    "mish": acts.mish,
    "mish_by_hand": lambda x: x * tf.tanh(nn.softplus(x)),
    "relu": nn.relu,
    "relu6": nn.relu6,
    "selu": nn.selu,
    "sigmoid": tf.sigmoid,
    "silu": nn.silu,
    "silu_beta": lambda x: nn.silu(x, 1.5),
    "soft_shrink": acts.soft_shrink,
    "softmax": nn.softmax,
    "softplus": nn.softplus,
    "softsign": nn.softsign,
    "sparse_plus": acts.sparse_plus,
    "sparse_sigmoid": acts.sparse_sigmoid,
    "sparsemax": acts.sparsemax,
    "squareplus": acts.squareplus,
    "tanh_shrink": acts.tanh_shrink,
    "threshold": lambda x: acts.threshold(x, 0.1, 0.2),
}

REDUCTIONS: dict[str, Operator] = {
    "all": lambda x: number(tf.reduce_all(x > -1.0, 1)),
    "any": lambda x: number(tf.reduce_any(x > 1.0, 1)),
    "argmax": lambda x: number(tf.argmax(x, 1)),
    "argmin": lambda x: number(tf.argmin(x, 1)),
    "argsort": lambda x: number(tf.argsort(x, 1)),
    "bincount": lambda x: tf.raw_ops.DenseBincount(input=classes(x), size=4, weights=x),
    "bincount_binary": lambda x: tf.raw_ops.DenseBincount(
        input=classes(x), size=4, weights=tf.zeros([0]), binary_output=True
    ),
    "count_nonzero": lambda x: number(math.count_nonzero(nn.relu(x), 1)),
    "cumprod": lambda x: math.cumprod(x, 1),
    "cumprod_exclusive_reverse": lambda x: math.cumprod(x, 1, exclusive=True, reverse=True),
    "cumsum": lambda x: tf.cumsum(x, 1),
    "cumsum_exclusive_reverse": lambda x: tf.cumsum(x, 1, exclusive=True, reverse=True),
    "cumulative_logsumexp": lambda x: math.cumulative_logsumexp(x, 1),
    "euclidean_norm": lambda x: math.reduce_euclidean_norm(x, 1),
    "l2_normalize": lambda x: nn.l2_normalize(x, 1),
    "logsumexp": lambda x: tf.reduce_logsumexp(x, 1),
    "max": lambda x: tf.reduce_max(x, 1),
    "mean": lambda x: tf.reduce_mean(x, 1),
    "median": lambda x: kops.median(x, 1),
    "min": lambda x: tf.reduce_min(x, 1),
    "moments": lambda x: tf.stack(nn.moments(x, [1]), 1),
    "norm": lambda x: tf.norm(x, axis=1),
    "prod": lambda x: tf.reduce_prod(x, 1),
    "quantile": lambda x: kops.quantile(x, 0.3, axis=1),
    "sort": lambda x: tf.sort(x, 1),
    "std": lambda x: math.reduce_std(x, 1),
    "sum": lambda x: tf.reduce_sum(matrices(x), [1, 2]),
    "top_k": lambda x: math.top_k(x, 3)[0],
    "variance": lambda x: math.reduce_variance(x, 1),
}

SHAPES: dict[str, Operator] = {
    "avg_pool": lambda x: nn.avg_pool1d(x[:, :, None], 2, 2, "VALID"),
    "band_part": lambda x: linalg.band_part(squares(x), -1, 0),
    "bias_add": lambda x: nn.bias_add(x, tf.range(6.0)),
    "boolean_mask": lambda x: tf.boolean_mask(x, [True, False, True, True, False, True], axis=1),
    "broadcast_to": lambda x: tf.broadcast_to(x[:, None], [tf.shape(x)[0], 2, 6]),
    "concat": lambda x: tf.concat([x, 2.0 * x], 1),
    "conv1d": lambda x: nn.conv1d(x[:, :, None], tf.ones([3, 1, 2]), 1, "SAME"),
    "det": lambda x: linalg.det(squares(x) + tf.eye(6)),
    "diag": linalg.diag,
    "diag_part": lambda x: linalg.diag_part(squares(x)),
    "einsum": lambda x: tf.einsum("ni,nj->nij", x, x),
    "expand_dims": lambda x: tf.expand_dims(x, 1),
    "gather": lambda x: tf.gather(x, [0, 2, 2], axis=1),
    "gather_batched": lambda x: tf.gather(x, tf.argsort(x, 1), batch_dims=1),
    "gather_nd": lambda x: tf.transpose(tf.gather_nd(tf.transpose(x), [[1], [3]])),
    "invert_permutation": lambda x: tf.gather(x, math.invert_permutation([1, 0, 2, 3, 5, 4]), axis=1),
    "matmul": lambda x: tf.matmul(matrices(x), matrices(x), transpose_b=True),
    "max_pool": lambda x: nn.max_pool1d(x[:, :, None], 2, 2, "SAME"),
    "one_hot": lambda x: tf.one_hot(classes(x)[:, 0], 4),
    "ones_like": lambda x: tf.ones_like(x) + x,
    "pad": lambda x: tf.pad(x, [[0, 0], [1, 2]], constant_values=0.5),
    "pad_reflect": lambda x: tf.pad(x, [[0, 0], [1, 2]], "REFLECT"),
    "pad_symmetric": lambda x: tf.pad(x, [[0, 0], [1, 2]], "SYMMETRIC"),
    "repeat": lambda x: tf.repeat(x, 2, 1),
    "reshape": matrices,
    "reverse": lambda x: tf.reverse(x, [1]),
    "roll": lambda x: tf.roll(x, 2, 1),
    "sequence_mask": lambda x: number(tf.sequence_mask(classes(x)[:, 0], 4)),
    "set_diag": lambda x: linalg.set_diag(squares(x), x),
    "slice": lambda x: tf.slice(x, [0, 1], [-1, 3]),
    "split": lambda x: tf.split(x, [1, 2, 3], 1)[2],
    "squeeze": lambda x: tf.squeeze(x[:, None], 1),
    "stack": lambda x: tf.stack([x, 2.0 * x], 1),
    "strided_slice": lambda x: x[:, 1:6:2],
    "tensordot": lambda x: tf.tensordot(x, tf.ones([6, 2]), 1),
    "tile": lambda x: tf.tile(x, [1, 2]),
    "trace": lambda x: linalg.trace(squares(x)),
    "transpose": lambda x: tf.transpose(matrices(x), [0, 2, 1]),
    "tril": lambda x: kops.tril(squares(x)),
    "unstack": lambda x: tf.unstack(x, axis=1)[2],
    "zeros_like": lambda x: tf.zeros_like(x) + x,
}

OPERATORS = {**ELEMENTWISE, **ACTIVATIONS, **REDUCTIONS, **SHAPES}
