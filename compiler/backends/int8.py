"""Rewrite an ONNX model to int8 matrix products: quantise and dequantise around each, in the form that libraries fuse.

A weight [K, N] stays outside the file in float32. Nodes of the graph compute its scales, one a column, and its int8
values; libraries evaluate them once, when they load the weights. So no code outside this module knows about int8.

The input of a product is quantised to uint8 by a constant scale and zero point, measured on rows beforehand. They never
depend on the batch, so a score depends on its own row alone. Values beyond the range saturate. Of a few ranges the one
with the least square error is used, so that single outliers cost no precision.

Products of uint8 by int8 are exact if the processor has VNNI (processor.machine.Machine.int8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from freshet_serving.processor.backends import Matrix
from freshet_serving.processor.backends.onnxruntime import WEIGHT_PREFIX

LEAST_WEIGHTS = 1024
"""With smaller matrices, quantising costs what the product gains."""
LEVELS, WEIGHT_LEVELS = 255, 127
SMALLEST_SCALE = 1e-30
PARTS = ("Gather", "Slice")
"""Operators that take a part of a weight, as the candidates' side does after the user/candidate split."""
KEPT = (1.0, 0.9999, 0.999, 0.99)
"""Shares of the values that a range must contain, each tried."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A matrix product of a value and a weight, at the index of its node.

    Attributes:
        result: Name of the result that libraries compute in one step with it: after its bias and a ReLU.
    """

    node: int
    value: str
    weight: str
    result: str


@dataclass(frozen=True, slots=True, eq=False)
class QuantParams:
    """Quantisation parameters of a value: uint8 = round(value / columns / scale) + zero_point.

    Attributes:
        columns: float32 [k], None for ones; the weight's rows are multiplied by them.
    """

    scale: float
    zero_point: int
    columns: Matrix | None = None


def products(model: bytes) -> list[MatrixProduct]:
    """Return the products that are large enough to gain from int8, in graph order."""
    graph = onnx.load_from_string(model).graph
    weights = _weights(model)
    return [
        MatrixProduct(i, node.input[0], node.input[1], _result(node.output[0], graph))
        for i, node in enumerate(graph.node)
        if node.op_type == "MatMul"
        and node.input[0] not in weights
        and int(np.prod(weights.get(node.input[1], ()))) >= LEAST_WEIGHTS
    ]


def with_extra_outputs(model: bytes, values: Sequence[str]) -> bytes:
    parsed = onnx.load_from_string(model)
    ends = {end.name for end in (*parsed.graph.input, *parsed.graph.output)}
    for value in dict.fromkeys(values):
        if value not in ends:
            parsed.graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
    return _bytes(parsed)


def measured(values: Matrix, weight: Matrix | None = None) -> QuantParams:
    """Choose the quantisation of a value, float32 [n, k], from its values on some rows.

    With the weight [k, _] that it is multiplied by, columns may have scales of their own.
    """
    values = np.where(np.isfinite(values), values, np.float32(0))
    if weight is None:
        return _best(values)
    candidates = [_best(values / columns, columns) for columns in _columns(values, weight)]
    exact = values @ weight

    def error(by: QuantParams) -> float:
        columns = 1.0 if by.columns is None else by.columns
        scaled = weight * np.reshape(columns, (-1, 1))
        return float(np.square(_rounded(values / columns, by) @ _rounded_weight(scaled) - exact).sum())

    return min(candidates, key=error)


def quantised(model: bytes, chosen: Sequence[MatrixProduct], ranges: Mapping[str, QuantParams]) -> bytes:
    """Return the model with these products in int8; `ranges` are of the values that they read."""
    parsed = onnx.load_from_string(model)
    graph, by_node = parsed.graph, {product.node: product for product in chosen}
    nodes: list[Any] = []
    constants = _Constants(graph)
    weights = _weights(model)
    replaced: dict[str, str] = {}

    def again(name: str, added: list[Any]) -> None:
        nodes.extend(added)
        replaced[name] = added[-1].output[0]

    results = {product.result for product in chosen}
    for i, node in enumerate(graph.node):
        if product := by_node.get(i):
            if product.value not in replaced:
                again(product.value, _of_value(product.value, ranges[product.value], constants))
            if product.weight not in replaced:
                rows = ranges[product.value].columns
                again(product.weight, _of_weight(product.weight, weights[product.weight][1], rows, constants))
            node.input[:] = [replaced[product.value], replaced[product.weight]]
        else:
            node.input[:] = [replaced.get(name, name) if name in results else name for name in node.input]
        nodes.append(node)
        for name in results.intersection(node.output):
            again(name, _of_value(name, ranges[name], constants))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    for i, node in enumerate(copies):
        node.name = f"{i}"
    del graph.node[:]
    graph.node.extend(copies)
    return _bytes(parsed)


def _weights(model: bytes) -> dict[str, tuple[int, int]]:
    """Return the shapes of all matrices that depend on weights alone: weights, and parts of them."""
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(model)).graph
    dims_of = {t.name: tuple(t.dims) for t in graph.initializer if t.data_location == TensorProto.EXTERNAL}
    fixed = {t.name for t in graph.initializer}
    shapes = {value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim) for value in graph.value_info}
    for node in graph.node:
        if node.op_type in PARTS and node.input[0] in dims_of and fixed.issuperset(node.input[1:]):
            dims_of[node.output[0]] = shapes.get(node.output[0], ())
    return {name: (dims[0], dims[1]) for name, dims in dims_of.items() if len(dims) == 2 and 0 not in dims}


def _result(value: str, graph: Any) -> str:
    outputs = {end.name for end in graph.output}
    for kinds in (("Add",), ("Relu",)):
        readers = [node for node in graph.node if value in node.input]
        if value in outputs or len(readers) != 1 or readers[0].op_type not in kinds:
            break
        value = readers[0].output[0]
    return value


class _Constants:
    def __init__(self, graph: Any) -> None:
        self._graph, self._names = graph, dict[bytes, str]()

    def of(self, array: Any) -> str:
        tensor = numpy_helper.from_array(np.asarray(array), "")
        key = tensor.SerializeToString(deterministic=True)
        if key not in self._names:
            self._names[key] = tensor.name = f"int8/{len(self._names)}"
            self._graph.initializer.append(tensor)
        return self._names[key]


def _of_value(name: str, by: QuantParams, constants: _Constants) -> list[Any]:
    steps = [constants.of(np.float32(by.scale)), constants.of(np.uint8(by.zero_point))]
    nodes, value = list[Any](), name
    if by.columns is not None:
        value = f"{name}/even"
        nodes.append(helper.make_node("Mul", [name, constants.of(1 / by.columns)], [value]))
    return [
        *nodes,
        helper.make_node("QuantizeLinear", [value, *steps], [f"{name}/uint8"]),
        helper.make_node("DequantizeLinear", [f"{name}/uint8", *steps], [f"{name}/again"]),
    ]


def _of_weight(name: str, columns: int, rows: Matrix | None, constants: _Constants) -> list[Any]:
    """Return the nodes that quantise and dequantise a weight; `rows` are factors of its rows, applied before."""

    def part(key: str) -> str:
        return f"int8/{key}/{name.removeprefix(WEIGHT_PREFIX)}"

    nodes, value = list[Any](), name
    if rows is not None:
        value = part("even")
        nodes.append(helper.make_node("Mul", [name, constants.of(rows.reshape(-1, 1))], [value]))
    largest, smallest = constants.of(np.float32(WEIGHT_LEVELS)), constants.of(np.float32(SMALLEST_SCALE))
    by = [part("scale"), constants.of(np.zeros(columns, np.int8))]
    return [
        *nodes,
        helper.make_node("Abs", [value], [part("size")]),
        helper.make_node("ReduceMax", [part("size")], [part("largest")], axes=[0], keepdims=0),
        helper.make_node("Div", [part("largest"), largest], [part("step")]),
        helper.make_node("Max", [part("step"), smallest], [by[0]]),
        helper.make_node("QuantizeLinear", [value, *by], [part("values")], axis=1),
        helper.make_node("DequantizeLinear", [part("values"), *by], [part("again")], axis=1),
    ]


def _columns(values: Matrix, weight: Matrix) -> list[Matrix]:
    """Return the column scales to try (Xiao et al., 2023: SmoothQuant).

    They are ones, those that even out the weight's rows or the value's columns, and some in between.
    """
    largest, rows = np.abs(values).max(axis=0), np.abs(weight).max(axis=1)
    # The scale of a column that was always 0 does not matter.
    largest = np.where(largest > 0, largest, largest.max(initial=SMALLEST_SCALE))
    rows = np.maximum(rows, rows.max(initial=SMALLEST_SCALE) * 1e-3)
    scales = [largest**share / rows ** (1 - share) for share in (0.5, 0.75, 1.0)]
    return [np.ones_like(largest), *((f / f.mean()).astype(np.float32) for f in scales)]


def _best(values: Matrix, columns: Matrix | None = None) -> QuantParams:
    finite = values.reshape(-1).astype(np.float64)
    ends = (np.quantile(finite, [1 - share, share]).tolist() for share in KEPT)
    ranges = [_range(low, high, columns) for low, high in ends]
    return min(ranges, key=lambda r: float(np.square(finite - _rounded(finite, r)).sum()))


def _range(low: float, high: float, columns: Matrix | None) -> QuantParams:
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / LEVELS, SMALLEST_SCALE)
    return QuantParams(float(scale), int(np.clip(round(-low / scale), 0, LEVELS)), columns)


def _rounded(values: Any, by: QuantParams) -> Any:
    """Return values, columns divided already, after quantising and dequantising."""
    return (np.clip(np.rint(values / by.scale) + by.zero_point, 0, LEVELS) - by.zero_point) * by.scale


def _rounded_weight(weight: Matrix) -> Matrix:
    scales = np.maximum(np.abs(weight).max(axis=0) / WEIGHT_LEVELS, SMALLEST_SCALE)
    rounded: Matrix = np.rint(weight / scales) * scales
    return rounded


def _bytes(model: Any) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))
