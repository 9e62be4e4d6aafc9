"""Translate an ONNX graph to a TensorFlow function, operator by operator, by one table.

Weights are variables under the file's names, which are PyTorch's own unless the exporter has computed with them. Known
sizes are inserted as numbers, so that what depends on the batch alone is separate from data; a graph that only reads
sizes of its batch is dense.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.feeds import plain
from freshet_serving.compiler.imports.onnx_graph import arithmetic, networks, rearranging
from freshet_serving.compiler.imports.onnx_graph.bags import DOMAIN
from freshet_serving.compiler.imports.onnx_graph.branches import chosen_branch
from freshet_serving.compiler.imports.onnx_graph.calls import BatchLast, Call
from freshet_serving.compiler.imports.onnx_graph.linear_weights import ANONYMOUS, linear_names
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import (
    DYNAMIC,
    Array,
    OnnxBody,
    OnnxNode,
    needed_nodes,
    values_read,
)
from freshet_serving.processor.errors import BadInput, FreshetError

TRANSLATORS = arithmetic.TRANSLATORS | rearranging.TRANSLATORS | networks.TRANSLATORS
MAX_FOLDED = 1 << 16
SIZING = frozenset({"Shape", "Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Cast", "Identity", "Reshape"})

Sizes = list[int | None]


@dataclass(slots=True, eq=False)
class Weights:
    """The weights of a graph by initialiser; `flipped` has original names of those an exporter has transposed."""

    variables: dict[str, Any] = field(default_factory=dict)
    flipped: dict[str, str] = field(default_factory=dict)


def weights_of(body: OnnxBody) -> Weights:
    """Return variables for the initialisers that the outputs depend on, under the names that deltas will use."""
    needed = {name for node in needed_nodes(body) for name in values_read(node)} | set(body.outputs)
    renamed = linear_names(body)
    weights = Weights()
    labels: set[str] = set()
    for name, array in body.weights.items():
        is_constant = array.size == 1 and ANONYMOUS.fullmatch(name)
        if name not in needed or not _floats(array) or is_constant:
            continue
        original = renamed.get(name, name)
        label = plain(original.replace("/", ".")).lstrip("_") or "weight"
        if label.lower() in labels:
            raise BadInput(f"initialiser {name[:64]!r}: another name differs only in case or punctuation")
        labels.add(label.lower())
        if original != name:
            weights.flipped[name] = original
            array = np.ascontiguousarray(array.T)
        weights.variables[name] = tf.Variable(array, name=label)
    return weights


def _floats(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


class Translation:
    """Translates one graph, within a function that is being traced; `given` are the tensors of its inputs."""

    def __init__(self, body: OnnxBody, weights: Weights, opset: int, given: Mapping[str, Any]) -> None:
        self._body, self._opset = body, opset
        self._values: dict[str, Any] = {"": None, **body.weights, **body.constants, **weights.variables, **given}
        self._sizes: dict[str, Sizes] = {}
        self._flipped: dict[str, Any] = {}
        for name in weights.flipped:
            variable = weights.variables[name]
            self._values[name] = tf.transpose(variable)
            self._flipped[name] = variable

    def run(self) -> dict[str, Any]:
        for node in needed_nodes(self._body):
            self._add(node)
        return {name: tf.convert_to_tensor(_whole(self._values[name])) for name in self._body.outputs}

    def _branch(self, node: OnnxNode, body: OnnxBody) -> None:
        self._values |= body.weights | body.constants
        for inner in needed_nodes(body):
            self._add(inner)
        self._values.update((name, self._values[result]) for name, result in zip(node.outputs, body.outputs))

    def _add(self, node: OnnxNode) -> None:
        # Known sizes may decide a branch.
        if (body := chosen_branch(node, self._values)) is not None:
            self._branch(node, body)
            return
        translate = TRANSLATORS.get(node.op) if node.domain in ("", DOMAIN) else None
        if translate is None:
            where = node.domain[:64] or "ai.onnx"
            fixed = f": its condition is not known before a request; {DYNAMIC}" if node.op == "If" else ""
            raise BadInput(f"graph: operator {node.op[:64]} of {where} (opset {self._opset}) is not supported{fixed}")
        inputs = [self._values[name] for name in node.inputs]
        raw = {i: value for i, value in enumerate(inputs) if isinstance(value, BatchLast)}
        flipped = {i: self._flipped[name] for i, name in enumerate(node.inputs) if name in self._flipped}
        sizes = {i: self._sizes[name] for i, name in enumerate(node.inputs) if name in self._sizes}
        call = Call(node, [_whole(value) for value in inputs], self._opset, flipped, raw, sizes)
        try:
            translated = self._folded(call, translate) if _small(call.inputs) else translate(call)
        except FreshetError:
            raise
        except (ValueError, TypeError, IndexError, OverflowError, tf.errors.OpError) as error:
            raise BadInput(f"graph: {call.label} is not one of ONNX: {reason_of(error)}") from None
        results = translated if isinstance(translated, list) else [translated]
        named = [name for name in node.outputs if name]
        if len(named) > len(results):
            raise call.refused(f"expected {len(results)} outputs, got {len(named)}")
        for name, value in zip(node.outputs, results):
            # NumPy scalars are not arrays, which later operators test for.
            self._values[name] = np.asarray(value) if isinstance(value, np.generic) else value
            # A few operators that double their input would otherwise exhaust memory.
            if tf.is_tensor(value) and _count(value) > max(map(_count, call.inputs), default=0):
                call.bounded(_count(value))
        if node.op == "Transpose" and isinstance(inputs[0], tf.Variable) and inputs[0].shape.rank == 2:
            self._flipped[node.outputs[0]] = inputs[0]
        if node.op in SIZING and not node.domain:
            self._size(call, node.outputs[0])

    def _folded(self, call: Call, translate: Any) -> Any:
        """Compute integers that follow from constants at once, as constants."""
        with tf.init_scope():
            translated = translate(call)
            parts = translated if isinstance(translated, list) else [translated]
            return [part.numpy() if tf.is_tensor(part) else part for part in parts]

    def _size(self, call: Call, name: str) -> None:
        """Record what is known of a list of sizes; if all are known, it becomes a constant."""
        known_sizes = _sizes_of(call, [self._sizes.get(n) for n in call.node.inputs])
        value = self._values[name]
        if known_sizes is None or isinstance(value, np.ndarray | BatchLast) or value.dtype not in (tf.int64, tf.int32):
            return
        if None not in known_sizes and value.shape.rank in (0, 1):
            kind = value.dtype.as_numpy_dtype
            self._values[name] = np.array(known_sizes, kind) if value.shape.rank else np.array(known_sizes[0], kind)
        elif value.shape.rank in (0, 1):
            self._sizes[name] = known_sizes


def _whole(value: Any) -> Any:
    return value.tensor() if isinstance(value, BatchLast) else value


def _count(value: Any) -> int:
    shape = () if value is None or getattr(value.shape, "rank", 0) is None else tuple(value.shape)
    return math.prod(size for size in shape if size is not None)


def _small(inputs: Sequence[Any]) -> bool:
    values = [value for value in inputs if value is not None]
    return bool(values) and all(
        isinstance(v, np.ndarray) and v.dtype.kind in "iub" and v.size <= MAX_FOLDED for v in values
    )


def _sizes_of(call: Call, of_inputs: list[Sizes | None]) -> Sizes | None:
    """Return what is known of the numbers that an operator computes from sizes; None if it computes something else."""
    op = call.node.op
    if op == "Shape":
        shape = call.x().shape
        dims = list(shape) if isinstance(call.x(), np.ndarray) or shape.rank is not None else None
        return None if dims is None else dims[call.attr("start", 0) : call.attr("end")]
    if op == "Concat":
        parts = [_numbers(value) if sizes is None else sizes for value, sizes in zip(call.inputs, of_inputs)]
        return None if None in parts else [size for part in parts for size in part or []]
    sizes = of_inputs[0]
    if sizes is None:
        return None
    if op == "Gather":
        at = call.x(1)
        fits = isinstance(at, np.ndarray) and all(-len(sizes) <= i < len(sizes) for i in at.ravel())
        return [sizes[int(i)] for i in at.ravel()] if fits else None
    if op == "Slice":
        bounds = [call.constant(i).ravel() for i in (1, 2)]
        step = int(call.constant(4).ravel()[0]) if call.has(4) else 1
        return sizes[int(bounds[0][0]) : int(bounds[1][0]) : step] if len(bounds[0]) == 1 else None
    return sizes


def _numbers(value: Any) -> Sizes | None:
    whole = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1 and value.size <= 64
    return [int(v) for v in value] if whole else None
