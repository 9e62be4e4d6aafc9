"""Find whole numbers of an ONNX graph that float32 does not hold, and write the nodes that hand them over in pieces.

Inputs and outputs of a dense graph are float32. An output of whole numbers is exact if each is handed over in pieces
(processor.package.replies), and so is each input that it may come from: ids that are passed through, gathered or
selected keep their bits, and so does what the graph computes from them in whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import taken
from freshet_serving.compiler.imports.onnx_native.native_reader import NativeModel
from freshet_serving.processor.package import INTEGERS, PIECE_BITS, PIECES

HELD = 1 << 24
"""Whole numbers up to this are exact in float32."""
COUNTING = ("ArgMax", "ArgMin", "Shape", "Size", "NonZero")
"""Operators whose results are places and sizes, whatever the numbers that they read."""
MOVING = (
    "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
)  # fmt: skip
"""Operators whose values are those of their first input."""


def exact_outputs(model: NativeModel) -> tuple[set[str], set[str]]:
    """Return the outputs of whole numbers that may exceed what float32 holds, and the inputs that they come from."""
    makers = {name: node for node in model.proto.graph.node for name in node.output}
    whole = {info.name for info in model.inputs if info.dtype.name in INTEGERS}
    outputs: set[str] = set()
    inputs: set[str] = set()
    for output, dtype in model.outputs.items():
        if dtype not in INTEGERS or output in model.labels:
            continue
        stack, seen = [output], set()
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in whole or _large(model.weights.get(name)):
                outputs.add(output)
                inputs |= {name} & whole
            node = makers.get(name)
            if node is None or node.op_type in COUNTING or (node.op_type == "TopK" and name == node.output[1]):
                continue
            if node.op_type == "Constant" and _large_constant(node):
                outputs.add(output)
            if node.domain == "ai.onnx.ml" and any(_large(np.array(a.ints, np.int64)) for a in node.attribute):
                outputs.add(output)
            read = list(taken(node))
            stack += read[:1] if node.op_type in MOVING else read[1:] if node.op_type == "Where" else read
    return outputs, inputs


def _large(values: Any) -> bool:
    return values is not None and values.dtype.kind in "iu" and bool((np.abs(values.astype(float)) > HELD).any())


def _large_constant(node: Any) -> bool:
    return any(a.name == "value" and _large(numpy_helper.to_array(a.t)) for a in node.attribute)


def taken_apart(name: str, label: str, columns: int) -> tuple[list[Any], list[Any]]:
    """Return nodes that write `columns` whole numbers a row in pieces as `label`, float32, and their constants."""
    start = f"{label}/piece"
    rest, nodes, pieces = f"{start}s", [], []
    nodes.append(helper.make_node("Cast", [name], [f"{start}s/whole"], to=TensorProto.INT64))
    nodes.append(helper.make_node("Reshape", [f"{start}s/whole", f"{start}s/dims"], [rest]))
    for number in range(PIECES):
        piece = rest
        if number < PIECES - 1:
            above, below, piece = (f"{start}{number}/{part}" for part in ("above", "below", "left"))
            nodes.append(helper.make_node("Div", [rest, f"{start}s/size"], [above]))
            nodes.append(helper.make_node("Mul", [above, f"{start}s/size"], [below]))
            nodes.append(helper.make_node("Sub", [rest, below], [piece]))
            rest = above
        pieces.append(f"{start}{number}")
        nodes.append(helper.make_node("Cast", [piece], [pieces[-1]], to=TensorProto.FLOAT))
    nodes.append(helper.make_node("Concat", pieces, [label], axis=1))
    numbers = {"dims": [-1, columns], "size": [1 << PIECE_BITS]}
    return nodes, [numpy_helper.from_array(np.array(n, np.int64), f"{start}s/{part}") for part, n in numbers.items()]


def put_together(parts: Sequence[str], whole: str) -> tuple[list[Any], list[Any]]:
    """Return the nodes that make int64 of an input's pieces, the lowest first, and their constants."""
    nodes, constants, sums = [], [], []
    for number, part in enumerate(parts):
        nodes.append(helper.make_node("Cast", [part], [f"{part}/int64"], to=TensorProto.INT64))
        nodes.append(helper.make_node("Mul", [f"{part}/int64", f"{part}/unit"], [f"{part}/value"]))
        constants.append(numpy_helper.from_array(np.array([1 << number * PIECE_BITS]), f"{part}/unit"))
        sums.append(f"{part}/value")
    for number, value in enumerate(sums[1:]):
        target = whole if number == len(sums) - 2 else f"{value}/sum"
        nodes.append(helper.make_node("Add", [sums[0], value], [target]))
        sums[0] = target
    return nodes, constants
