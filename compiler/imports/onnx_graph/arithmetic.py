"""Translate ONNX operators that work element by element, and reductions, to TensorFlow."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.onnx_graph.calls import Call, Translator
from freshet_serving.compiler.imports.ops import words

CAST: dict[int, Any] = {
    code: tf.as_dtype(helper.tensor_dtype_to_np_dtype(code))
    for code in (*range(TensorProto.FLOAT, TensorProto.STRING), *range(TensorProto.BOOL, TensorProto.COMPLEX64), 16)
}
"""By ONNX's number of a type: all numbers and bool; 16 is bfloat16."""


def _divided(call: Call) -> Any:
    x, y = call.x(), call.x(1)
    return tf.truediv(x, y) if tf.as_dtype(x.dtype).is_floating else tf.truncatediv(x, y)


def _power(call: Call) -> Any:
    x, y = call.x(), call.x(1)
    if isinstance(y, np.ndarray) and y.size == 1 and float(y.ravel()[0]) == 2.0:
        return tf.square(x)
    return tf.pow(x, tf.cast(y, tf.as_dtype(x.dtype)))


def _clipped(call: Call) -> Any:
    x = call.x()
    low = call.x(1) if call.has(1) else call.attr("min")
    high = call.x(2) if call.has(2) else call.attr("max")
    x = x if low is None else tf.maximum(x, tf.cast(low, tf.as_dtype(x.dtype)))
    return x if high is None else tf.minimum(x, tf.cast(high, tf.as_dtype(x.dtype)))


def _elu(call: Call) -> Any:
    x, alpha = call.x(), call.attr("alpha", 1.0)
    return tf.nn.elu(x) if alpha == 1.0 else tf.where(x > 0, x, alpha * (tf.exp(tf.minimum(x, 0)) - 1))


def _selu(call: Call) -> Any:
    alpha, gamma = call.attr("alpha", 1.6732632423543772), call.attr("gamma", 1.0507009873554805)
    x = call.x()
    return gamma * tf.where(x > 0, x, alpha * (tf.exp(tf.minimum(x, 0)) - 1))


def _celu(call: Call) -> Any:
    x, alpha = call.x(), call.attr("alpha", 1.0)
    return tf.maximum(x, 0) + tf.minimum(alpha * (tf.exp(tf.minimum(x, 0) / alpha) - 1), 0)


def _gelu(call: Call) -> Any:
    x = call.x()
    if call.attr("approximate", "none") == "tanh":
        return 0.5 * x * (1 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + tf.math.erf(x * math.sqrt(0.5)))


def _prelu(call: Call) -> Any:
    x, slope = call.x(), call.x(1)
    return tf.where(x > 0, x, slope * x)


def _softmax(function: Any) -> Translator:
    def translate(call: Call) -> Any:
        x = call.x()
        if call.opset >= 13:
            return function(x, call.axis(call.attr("axis", -1)))
        axis, rank = call.axis(call.attr("axis", 1)), call.rank()
        if axis == rank - 1:
            return function(x, axis)
        # Before opset 13, softmax treated all dimensions from the axis on as one.
        flat = tf.reshape(x, tf.concat([tf.shape(x)[:axis], [-1]], 0))
        return tf.reshape(function(flat, axis), tf.shape(x))

    return translate


def _along(x: Any, axis: int) -> Any:
    """Compute softmax along any axis, without moving it to the end."""
    if axis == len(x.shape) - 1:
        return tf.nn.softmax(x)
    raised = tf.exp(x - tf.reduce_max(x, axis, keepdims=True))
    return raised / tf.reduce_sum(raised, axis, keepdims=True)


def _reduced(function: Any) -> Translator:
    def translate(call: Call) -> Any:
        x, axes = call.x(), call.ints("axes", 1)
        if not axes:
            if call.attr("noop_with_empty_axes", 0):
                return x
            axes = list(range(call.rank()))
        return function(x, [call.axis(a) for a in axes], keepdims=bool(call.attr("keepdims", 1)))

    return translate


def _folded(function: Any) -> Translator:
    return lambda call: reduce(function, [call.x(i) for i in range(len(call.inputs))])


def _one(function: Any) -> Translator:
    return lambda call: function(call.x())


def _two(function: Any) -> Translator:
    return lambda call: function(call.x(), call.x(1))


def _arg(function: Any) -> Translator:
    def translate(call: Call) -> Any:
        if call.attr("select_last_index", 0):
            raise call.refused("select_last_index is not supported")
        axis = call.axis(call.attr("axis", 0))
        positions = function(call.x(), axis, output_type=tf.int64)
        return tf.expand_dims(positions, axis) if call.attr("keepdims", 1) else positions

    return translate


def _cast(call: Call) -> Any:
    to = CAST.get(call.attr("to", 0))
    if to is None:
        raise call.refused(f"a cast to type {call.attr('to')} is not supported")
    return tf.cast(call.x(), to)


def _infinite(call: Call) -> Any:
    if not call.attr("detect_negative", 1) or not call.attr("detect_positive", 1):
        raise call.refused("expected detect_negative=1 and detect_positive=1")
    return tf.math.is_inf(call.x())


TRANSLATORS: dict[str, Translator] = {
    **{name: _one(getattr(tf, name.lower())) for name in words("Abs Sqrt Exp Tanh Sigmoid Floor Sign Sin Cos Round")},
    **{name: _one(getattr(tf.math, name.lower())) for name in words("Erf Log Sinh Cosh Tan Asin Acos Atan Ceil")},
    **{name: _one(getattr(tf.nn, name.lower())) for name in words("Relu Softplus Softsign")},
    "Neg": _one(tf.negative),
    "Reciprocal": _one(tf.math.reciprocal),
    "Not": _one(tf.logical_not),
    "Identity": _one(tf.identity),
    "IsNaN": _one(tf.math.is_nan),
    "IsInf": _infinite,
    "Add": _two(tf.add),
    "Sub": _two(tf.subtract),
    "Mul": _two(tf.multiply),
    "Div": _divided,
    "Pow": _power,
    "And": _two(tf.logical_and),
    "Or": _two(tf.logical_or),
    "Xor": _two(tf.math.logical_xor),
    "Mod": lambda call: (tf.truncatemod if call.attr("fmod", 0) else tf.math.floormod)(call.x(), call.x(1)),
    "Equal": _two(tf.equal),
    "Less": _two(tf.less),
    "LessOrEqual": _two(tf.less_equal),
    "Greater": _two(tf.greater),
    "GreaterOrEqual": _two(tf.greater_equal),
    "Max": _folded(tf.maximum),
    "Min": _folded(tf.minimum),
    "Sum": _folded(tf.add),
    "Mean": lambda call: _folded(tf.add)(call) / len(call.inputs),
    "Clip": _clipped,
    "Elu": _elu,
    "Selu": _selu,
    "Celu": _celu,
    "Gelu": _gelu,
    "PRelu": _prelu,
    "LeakyRelu": lambda call: tf.nn.leaky_relu(call.x(), call.attr("alpha", 0.01)),
    "ThresholdedRelu": lambda call: tf.where(call.x() > call.attr("alpha", 1.0), call.x(), tf.zeros_like(call.x())),
    "Mish": lambda call: call.x() * tf.tanh(tf.nn.softplus(call.x())),
    "Swish": lambda call: call.x() * tf.sigmoid(call.attr("alpha", 1.0) * call.x()),
    "HardSigmoid": lambda call: tf.clip_by_value(call.attr("alpha", 0.2) * call.x() + call.attr("beta", 0.5), 0.0, 1.0),
    "HardSwish": lambda call: call.x() * tf.clip_by_value(call.x() / 6 + 0.5, 0.0, 1.0),
    "Softmax": _softmax(_along),
    "LogSoftmax": _softmax(lambda x, axis: x - tf.reduce_logsumexp(x, axis, keepdims=True)),
    "ReduceSum": _reduced(tf.reduce_sum),
    "ReduceMean": _reduced(tf.reduce_mean),
    "ReduceMax": _reduced(tf.reduce_max),
    "ReduceMin": _reduced(tf.reduce_min),
    "ReduceProd": _reduced(tf.reduce_prod),
    "ReduceSumSquare": _reduced(lambda x, axes, keepdims: tf.reduce_sum(tf.square(x), axes, keepdims)),
    "ReduceL1": _reduced(lambda x, axes, keepdims: tf.reduce_sum(tf.abs(x), axes, keepdims)),
    "ReduceL2": _reduced(lambda x, axes, keepdims: tf.sqrt(tf.reduce_sum(tf.square(x), axes, keepdims))),
    "ReduceLogSum": _reduced(lambda x, axes, keepdims: tf.math.log(tf.reduce_sum(x, axes, keepdims))),
    "ReduceLogSumExp": _reduced(tf.reduce_logsumexp),
    "ArgMax": _arg(tf.argmax),
    "ArgMin": _arg(tf.argmin),
    "Where": lambda call: tf.where(call.x(), call.x(1), call.x(2)),
    "Cast": _cast,
    "CastLike": lambda call: tf.cast(call.x(), tf.as_dtype(call.x(1).dtype)),
}
"""Operator -> function that translates a call of it."""
