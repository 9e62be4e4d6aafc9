"""Translate ONNX operators that move values to TensorFlow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.onnx_graph.calls import BatchLast, Call, Translator, length, sizes

FAR = 2**31 - 1


def _concat(call: Call) -> Any:
    return tf.concat([call.x(i) for i in range(len(call.inputs))], call.axis(call.attr("axis", 0)))


def _reshape(call: Call) -> Any:
    x, shape = call.x(), call.x(1)
    moved = call.raw.get(0)
    if moved is not None and moved.batch_first.shape.rank == 2:
        target = call.sizes.get(1, [])
        if len(target) == 2 and target[1] is None:
            return moved
    if isinstance(shape, np.ndarray):
        keep = () if call.attr("allowzero", 0) else np.flatnonzero(shape == 0).tolist()
        parts = [length(x, i) if i in keep else int(size) for i, size in enumerate(shape.tolist())]
        is_static = all(isinstance(part, int) for part in parts)
        # One size may be inferred from the others: preferably the batch's.
        unknown = [i for i, part in enumerate(parts) if not isinstance(part, int)]
        if len(unknown) == 1 and -1 not in [part for part in parts if isinstance(part, int)]:
            parts[unknown[0]], is_static = -1, True
        shape = parts if is_static else tf.stack([tf.cast(part, tf.int64) for part in parts])
    elif call.sizes.get(1, []).count(None) == 1 and -1 not in call.sizes[1]:
        shape = [-1 if size is None else size for size in call.sizes[1]]
    return tf.reshape(x, shape)


def _transpose(call: Call) -> Any:
    rank = call.rank()
    perm = [call.axis(a) for a in call.attr("perm", list(reversed(range(rank))))]
    moved = call.raw.get(0)
    if moved is not None:
        # Position of each dimension with the batch in front.
        at = [(axis + 1) % rank for axis in perm]
        return moved.batch_first if at == list(range(rank)) else tf.transpose(moved.batch_first, at)
    if rank > 1 and perm[-1] == 0 and length(call.x(), 0) is not None and call.x().shape[0] is None:
        rest = [0, *perm[:-1]]
        return BatchLast(call.x() if rest == list(range(rank)) else tf.transpose(call.x(), rest))
    return tf.transpose(call.x(), perm)


def _flatten(call: Call) -> Any:
    rank, axis = call.rank(), int(call.attr("axis", 1))
    axis = axis + rank if axis < 0 else axis
    moved = call.raw.get(0)
    if moved is not None and axis == rank - 1:
        inner = sizes(moved.batch_first)[1:]
        return BatchLast(tf.reshape(moved.batch_first, [-1, math.prod(inner)]))
    parts = sizes(call.x())
    if all(isinstance(size, int) for size in parts[axis:]):
        return tf.reshape(call.x(), [-1, math.prod(parts[axis:])])
    return tf.reshape(call.x(), tf.stack([tf.cast(math.prod(parts[:axis]), tf.int64), tf.constant(-1, tf.int64)]))


def _squeeze(call: Call) -> Any:
    axes, x = call.ints("axes", 1), call.x()
    if axes is None and x.shape.rank is not None:
        # A size that is free is the batch's: it stays, although the file would squeeze it for one row.
        axes = [axis for axis, size in enumerate(x.shape.as_list()) if size == 1]
    elif axes is None:
        return tf.squeeze(x)
    return tf.squeeze(x, [call.axis(a) for a in axes]) if axes else x


def _unsqueeze(call: Call) -> Any:
    x, axes = call.x(), call.ints("axes", 1) or []
    rank = call.rank() + len(axes)
    for axis in sorted(call.axis(a, rank) for a in axes):
        x = tf.expand_dims(x, axis)
    return x


def _slice(call: Call) -> Any:
    x, rank = call.x(), call.rank()
    starts, ends = _numbers(call, 1), _numbers(call, 2)
    axes = [int(a) for a in call.constant(3).ravel()] if call.has(3) else list(range(len(starts)))
    steps = [int(s) for s in call.constant(4).ravel()] if call.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise call.refused("expected starts, ends, axes and steps of one length")
    parts = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps):
        parts[call.axis(axis)] = slice(_near(start), _near(end), step)
    return x[tuple(parts)]


def _numbers(call: Call, i: int) -> list[Any]:
    value = call.x(i)
    if isinstance(value, np.ndarray):
        return [int(v) for v in value.ravel()]
    if value.shape.rank != 1 or value.shape[0] is None:
        raise call.refused(f"input {i}: expected a list of known length")
    return [value[k] for k in range(value.shape[0])]


def _near(bound: Any) -> Any:
    return None if isinstance(bound, int) and abs(bound) >= FAR else bound


def _split(call: Call) -> Any:
    axis, count = call.axis(call.attr("axis", 0)), len(call.node.outputs)
    parts = call.ints("split", 1)
    if parts is None:
        whole = length(call.x(), axis)
        if not isinstance(whole, int):
            raise call.refused("expected a dimension of known size")
        each = -(-whole // count)
        parts = [min(each, max(0, whole - each * i)) for i in range(count)]
    return tf.split(call.x(), parts, axis)


def _expand(call: Call) -> Any:
    x, shape = tf.convert_to_tensor(call.x()), call.x(1)
    if isinstance(shape, np.ndarray):
        call.bounded(int(np.prod([max(1, int(s)) for s in shape.ravel()], dtype=object)))
        if (shape == 1).all() and len(shape) <= call.rank():
            return x
    shape = tf.cast(shape, tf.int64)
    return tf.broadcast_to(x, tf.broadcast_dynamic_shape(tf.shape(x, out_type=tf.int64), shape))


def _tile(call: Call) -> Any:
    if isinstance(call.x(), np.ndarray):
        call.bounded(call.x().size * int(np.prod(call.constant(1).astype(object))))
    return tf.tile(call.x(), call.x(1))


def _shape(call: Call) -> Any:
    dims = tf.shape(call.x(), out_type=tf.int64)
    return dims[call.attr("start", 0) : call.attr("end")]


def _filled(call: Call) -> Any:
    value = np.asarray(call.attr("value", np.zeros(1, np.float32)))
    if isinstance(call.x(), np.ndarray):
        call.bounded(int(np.prod(call.x().astype(object))))
    return tf.fill(call.x(), value.ravel()[0])


def _range(call: Call) -> Any:
    values = [call.x(i) for i in range(3)]
    if all(isinstance(value, np.ndarray) for value in values):
        start, limit, step = (float(value.ravel()[0]) for value in values)
        if step == 0:
            raise call.refused("expected a step other than 0")
        call.bounded(int(max(0.0, min(1e18, (limit - start) / step))))
    return tf.range(*(tf.reshape(value, ()) for value in values))


def _gather(call: Call) -> Any:
    x, indices, axis = call.x(), call.x(1), call.axis(call.attr("axis", 0))
    moved = call.raw.get(0)
    if moved is not None and isinstance(indices, np.ndarray) and axis < call.rank() - 1 and indices.ndim == 1:
        return BatchLast(
            tf.gather(moved.batch_first, _counted(indices, length(moved.batch_first, axis + 1)), axis=axis + 1)
        )
    if isinstance(indices, np.ndarray):
        if indices.ndim == 0:
            parts: list[Any] = [slice(None)] * call.rank()
            parts[axis] = int(indices)
            return x[tuple(parts)]
        return tf.gather(x, _counted(indices, length(x, axis)), axis=axis)
    if isinstance(x, tf.Variable):
        # Ids without a row have no key; counting them from the end would give them one.
        return tf.gather(x, _whole(indices), axis=axis)
    indices = _whole(indices)
    return tf.gather(x, tf.where(indices < 0, indices + tf.cast(length(x, axis), indices.dtype), indices), axis=axis)


def _whole(indices: Any) -> Any:
    return indices if indices.dtype in (tf.int32, tf.int64) else tf.cast(indices, tf.int64)


def _counted(indices: Any, size: Any) -> Any:
    """Return constant indices counted from the front."""
    if (indices >= 0).all():
        return indices
    return (np if isinstance(size, int) else tf).where(indices < 0, indices + size, indices)


def _gather_elements(call: Call) -> Any:
    axis, rank = call.axis(call.attr("axis", 0)), call.rank()
    swap = list(range(rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    x, indices = tf.transpose(call.x(), swap), tf.transpose(_whole(tf.convert_to_tensor(call.x(1))), swap)
    indices = tf.where(indices < 0, indices + tf.cast(length(x, rank - 1), indices.dtype), indices)
    return tf.transpose(tf.gather(x, indices, axis=rank - 1, batch_dims=rank - 1), swap)


def _gather_nd(call: Call) -> Any:
    batch, moved, indices = int(call.attr("batch_dims", 0)), call.raw.get(0), call.x(1)
    if moved is None or batch or not isinstance(indices, np.ndarray) or indices.shape[-1:] != (call.rank() - 1,):
        return tf.gather_nd(call.x(), _whole(tf.convert_to_tensor(indices)), batch_dims=batch)
    inner = sizes(moved.batch_first)[1:]
    if indices.ndim != 2 or not all(isinstance(size, int) for size in inner):
        return tf.gather_nd(call.x(), indices)
    flat = np.ravel_multi_index(tuple(np.mod(indices, inner).T), inner)
    return BatchLast(tf.gather(tf.reshape(moved.batch_first, [-1, math.prod(inner)]), flat, axis=1))


def _scatter_nd(call: Call) -> Any:
    if call.attr("reduction", "none") != "none":
        raise call.refused("expected updates that replace values (reduction none)")
    return tf.tensor_scatter_nd_update(call.x(), _whole(tf.convert_to_tensor(call.x(1))), call.x(2))


def _trilu(call: Call) -> Any:
    k = int(call.constant(1)) if call.has(1) else 0
    x, row, column = call.x(), length(call.x(), -2), length(call.x(), -1)
    ahead = tf.range(column)[tf.newaxis, :] - tf.range(row)[:, tf.newaxis]
    inside = ahead >= k if call.attr("upper", 1) else ahead <= k
    return tf.where(inside, x, tf.zeros_like(x))


def _top(call: Call) -> Any:
    x, k, axis, rank = call.x(), int(call.constant(1).ravel()[0]), call.axis(call.attr("axis", -1)), call.rank()
    if axis != rank - 1:
        raise call.refused("expected the last axis")
    sign = 1 if call.attr("largest", 1) else -1
    values, at = tf.math.top_k(x if sign > 0 else -x, k)
    return [values if sign > 0 else -values, tf.cast(at, tf.int64)]


def _summed(call: Call) -> Any:
    axis = call.axis(int(call.constant(1).ravel()[0]))
    return tf.cumsum(call.x(), axis, exclusive=bool(call.attr("exclusive", 0)), reverse=bool(call.attr("reverse", 0)))


def _one_hot(call: Call) -> Any:
    depth, values = int(call.constant(1).ravel()[0]), call.x(2)
    indices = _whole(tf.convert_to_tensor(call.x()))
    call.bounded(depth)
    return tf.one_hot(
        tf.where(indices < 0, indices + depth, indices), depth, values[1], values[0], call.attr("axis", -1)
    )


def _padded(call: Call) -> Any:
    if call.attr("mode", "constant") != "constant" or call.has(3):
        raise call.refused("expected constants on all axes")
    pads = call.constant(1).ravel().reshape(2, -1).T
    call.bounded(int(np.abs(pads.astype(object)).sum()))
    if (pads < 0).any():
        raise call.refused("expected pads of 0 or more")
    return tf.pad(call.x(), pads, constant_values=tf.reshape(call.x(2), ()) if call.has(2) else 0)


TRANSLATORS: dict[str, Translator] = {
    "Concat": _concat,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Split": _split,
    "Expand": _expand,
    "Tile": _tile,
    "Shape": _shape,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "Trilu": _trilu,
    "TopK": _top,
    "CumSum": _summed,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Size": lambda call: tf.size(call.x(), out_type=tf.int64),
}
"""Operator -> function that translates a call of it."""
