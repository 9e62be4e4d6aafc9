"""Translate ONNX operators of network layers, and EmbeddingBag, to TensorFlow."""

from __future__ import annotations

from typing import Any

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.onnx_graph.bags import BAG
from freshet_serving.compiler.imports.onnx_graph.calls import Call, Translator, length


def _product(call: Call) -> Any:
    a, b = call.x(), call.x(1)
    if 1 in call.flipped and call.rank() >= 2:
        return tf.matmul(a, call.flipped[1], transpose_b=True)
    left, right = call.rank() == 1, call.rank(1) == 1
    a, b = a[tf.newaxis, :] if left else a, b[:, tf.newaxis] if right else b
    product = tf.matmul(a, b)
    product = tf.squeeze(product, -2) if left else product
    return tf.squeeze(product, -1) if right else product


def _gemm(call: Call) -> Any:
    flip = bool(call.attr("transA", 0)), bool(call.attr("transB", 0))
    product = tf.matmul(call.x(), call.x(1), transpose_a=flip[0], transpose_b=flip[1])
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    product = product if alpha == 1.0 else product * alpha
    if not call.has(2):
        return product
    return product + (call.x(2) if beta == 1.0 else call.x(2) * beta)


def _batch_norm(call: Call) -> Any:
    if call.attr("training_mode", 0) or len(call.node.outputs) > 1:
        raise call.refused("expected a model in evaluation mode: call model.eval() before the export")
    rank = call.rank()
    scale, bias, mean, variance = (call.x(i) for i in range(1, 5))
    if rank > 2:
        shape = [1, -1, *([1] * (rank - 2))]
        scale, bias, mean, variance = (tf.reshape(v, shape) for v in (scale, bias, mean, variance))
    return (call.x() - mean) * (tf.math.rsqrt(variance + call.attr("epsilon", 1e-5)) * scale) + bias


def _layer_norm(call: Call) -> Any:
    x, rank = call.x(), call.rank()
    axes = list(range(call.axis(call.attr("axis", -1)), rank))
    apart = x - tf.reduce_mean(x, axes, keepdims=True)
    variance = tf.reduce_mean(tf.square(apart), axes, keepdims=True)
    scaled = apart * tf.math.rsqrt(variance + call.attr("epsilon", 1e-5)) * call.x(1)
    return [scaled + call.x(2) if call.has(2) else scaled]


def _rms_norm(call: Call) -> Any:
    x, rank = call.x(), call.rank()
    axes = list(range(call.axis(call.attr("axis", -1)), rank))
    square = tf.reduce_mean(tf.square(x), axes, keepdims=True)
    return x * tf.math.rsqrt(square + call.attr("epsilon", 1e-5)) * call.x(1)


def _lp_norm(call: Call) -> Any:
    axis, x = call.axis(call.attr("axis", -1)), call.x()
    if call.attr("p", 2) == 1:
        return x / tf.reduce_sum(tf.abs(x), axis, keepdims=True)
    return x / tf.sqrt(tf.reduce_sum(tf.square(x), axis, keepdims=True))


def _dropout(call: Call) -> Any:
    if len(call.node.outputs) > 1 and call.node.outputs[1]:
        return [tf.identity(call.x()), tf.ones_like(call.x(), tf.bool)]
    return tf.identity(call.x())


def _bag(call: Call) -> Any:
    table, ids = call.x(), call.x(1)
    ids = ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)
    return _ragged(call, table, ids, call.x(2)) if call.has(2) else _matrix(call, table, ids)


def _matrix(call: Call, table: Any, ids: Any) -> Any:
    mode, padding, rows = call.attr("mode"), call.attr("padding"), tf.gather(table, ids)
    if call.has(3):
        rows = rows * call.x(3)[:, :, tf.newaxis]
    if padding is None:
        return {"sum": tf.reduce_sum, "mean": tf.reduce_mean, "max": tf.reduce_max}[mode](rows, 1)
    counts = tf.not_equal(ids, tf.cast(padding, ids.dtype))[:, :, tf.newaxis]
    number = tf.reduce_sum(tf.cast(counts, rows.dtype), 1)
    if mode == "max":
        most = tf.reduce_max(tf.where(counts, rows, rows.dtype.min), 1)
        return tf.where(number > 0, most, tf.zeros_like(most))
    total = tf.reduce_sum(tf.where(counts, rows, tf.zeros_like(rows)), 1)
    return total if mode == "sum" else total / tf.maximum(number, tf.ones_like(number))


def _ragged(call: Call, table: Any, ids: Any, splits: Any) -> Any:
    mode, padding, splits = call.attr("mode"), call.attr("padding"), tf.cast(splits, tf.int64)
    segments = tf.RaggedTensor.from_row_splits(ids, splits, validate=False).value_rowids()
    count = length(splits, 0) - 1
    weights = call.x(3) if call.has(3) else None
    if padding is not None:
        valid = tf.not_equal(ids, tf.cast(padding, ids.dtype))
        ids, segments = tf.boolean_mask(ids, valid), tf.boolean_mask(segments, valid)
        weights = tf.boolean_mask(weights, valid) if weights is not None else None
    if mode == "max" or weights is not None:
        rows = tf.gather(table, ids)
        rows = rows if weights is None else rows * weights[:, tf.newaxis]
        if mode == "sum":
            return tf.math.unsorted_segment_sum(rows, segments, count)
        if mode == "mean":
            return tf.math.unsorted_segment_mean(rows, segments, count)
        most = tf.math.unsorted_segment_max(rows, segments, count)
        number = tf.math.unsorted_segment_sum(tf.ones_like(segments), segments, count)
        return tf.where(number[:, tf.newaxis] > 0, most, tf.zeros_like(most))
    # Written as tf.nn.embedding_lookup_sparse does, which later steps recognise.
    distinct, at = tf.unique(ids)
    pooled = {
        "sum": tf.raw_ops.SparseSegmentSumWithNumSegments,
        "mean": tf.raw_ops.SparseSegmentMeanWithNumSegments,
    }[mode]
    return pooled(data=tf.gather(table, distinct), indices=at, segment_ids=segments, num_segments=count)


TRANSLATORS: dict[str, Translator] = {
    "MatMul": _product,
    "Gemm": _gemm,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "LpNormalization": _lp_norm,
    "Dropout": _dropout,
    BAG: _bag,
    "Einsum": lambda call: tf.einsum(call.attr("equation"), *(call.x(i) for i in range(len(call.inputs)))),
}
"""Operator -> function that translates a call of it."""
