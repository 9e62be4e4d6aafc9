"""Write nn.EmbeddingBag, which exporters spell as a loop over rows, as operators that a server computes in one step.

A bag over a matrix of ids becomes a Gather and a reduction, whose ids are found like any others (served_lookups). A bag
with ids and offsets as inputs becomes one node of our own, which never runs: the engine looks up and pools its rows,
and the node is cut out (served_lookups, served_graph). That both give what the file gives is verified on samples, like
everything else of an import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from freshet_serving.compiler.imports.onnx_graph.bags import BAG, DOMAIN, MODES, Offsets, find_bags, splits_of
from freshet_serving.compiler.imports.onnx_graph.branches import decided
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import (
    OURS,
    OnnxBody,
    OnnxInput,
    OnnxModel,
    OnnxNode,
    needed_nodes,
    taken,
)

LEAST = float(np.finfo(np.float32).min)
REDUCTIONS = {mode: op for op, mode in MODES.items()}
AXES_AS_INPUT = {"ReduceSum": 13, "ReduceMean": 18, "ReduceMax": 18, "Unsqueeze": 13}
"""By operator, the first opset whose axes are an input."""


def without_loops(proto: Any, inputs: Sequence[OnnxInput], body: OnnxBody) -> tuple[list[Any], list[Offsets]]:
    """Return a graph's nodes without the loops that are bags, and the pairs of inputs that are ids and offsets.

    Nothing is returned for a graph without bags, with bags of computed ids, or where a body is in a branch that is
    decided, or reads its values.
    """
    opset = next((int(entry.version) for entry in proto.opset_import if entry.domain in OURS), 0)
    # Nothing else that is read here looks at a version.
    simple, offsets = find_bags(OnnxModel(list(inputs), decided(body), opset))
    nodes = needed_nodes(simple)
    bags = [node for node in nodes if node.op == BAG and node.domain == DOMAIN]
    file_nodes = {tuple(node.output): node for node in proto.graph.node}
    inner = [node for node in nodes if any(isinstance(value, OnnxBody) for value in node.attributes.values())]
    splits = {splits_of(pair.ids) for pair in offsets} | {""}
    # A bag of computed ids, such as the values of a matrix under a mask, stays the loop that it is.
    if (
        not bags
        or any(node.inputs[2] not in splits for node in bags)
        or any(node.outputs not in file_nodes for node in inner)
    ):
        return [], []
    types = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    constants = {name: array for name, array in (simple.constants | simple.weights).items() if name not in types}
    written: list[Any] = []
    for node in nodes:
        written += _pooled(node, opset) if node in bags else [_message(node, file_nodes.get(node.outputs), types)]
    for info, name in zip(proto.graph.output, simple.outputs):
        # The result of a branch that is no branch any more.
        written += [helper.make_node("Identity", [name], [info.name])] if name != info.name else []
    read = {name for node in written for name in taken(node)} | set(simple.outputs)
    removed = {name for node in proto.graph.node for name in node.output} - constants.keys()
    if read & removed - {name for node in written for name in node.output}:
        return [], []
    pairs = [pair for pair in offsets if any(node.inputs[2] == splits_of(pair.ids) for node in bags)]
    return [*(_constant(name, constants[name]) for name in constants if name in read), *written], pairs


def _message(node: OnnxNode, file_node: Any, types: Mapping[str, int]) -> Any:
    """Return the message of a node: the file's, if it is there, with inputs as they are called now."""
    if node.op == "CastLike" and not node.domain and node.inputs[1] in types:
        # Dynamo's exporter casts what a bag gives to the type of its table; that is no lookup.
        return helper.make_node("Cast", node.inputs[:1], node.outputs, node.name, to=types[node.inputs[1]])
    if file_node is None:
        values = node.attributes.items()
        attributes = {n: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for n, v in values}
        return helper.make_node(node.op, node.inputs, node.outputs, node.name, domain=node.domain, **attributes)
    message = type(file_node).FromString(file_node.SerializeToString())
    message.input[:] = node.inputs
    return message


def _constant(name: str, value: Any) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), name))


def _pooled(node: OnnxNode, opset: int) -> list[Any]:
    (out,), (table, ids, splits, weights) = node.outputs, node.inputs
    mode, padding = str(node.attributes["mode"]), node.attributes["padding"]
    if splits:
        more = {} if padding is None else {"padding": padding}
        return [helper.make_node(BAG, [table, ids, splits, weights], [out], domain=DOMAIN, mode=mode, **more)]
    bag = _Made(f"{out}/bag", opset)
    whole = bag.add("Cast", ids, to=TensorProto.INT64)
    rows = bag.add("Gather", table, whole)
    if weights:
        rows = bag.add("Mul", rows, bag.along("Unsqueeze", 2, weights))
    if padding is None:
        bag.along(REDUCTIONS[mode], 1, rows, out=out)
        return bag.nodes
    valid = bag.add("Not", bag.add("Equal", whole, bag.constant(np.int64(padding))))
    # [n, entries, 1], beside rows [n, entries, dim].
    valid = bag.along("Unsqueeze", 2, valid)
    count = bag.along("ReduceSum", 1, bag.add("Cast", valid, to=TensorProto.FLOAT))
    if mode == "max":
        most = bag.along("ReduceMax", 1, bag.add("Where", valid, rows, bag.constant(np.float32(LEAST))))
        zero = bag.constant(np.float32(0))
        bag.add("Where", bag.add("Greater", count, zero), most, zero, out=out)
        return bag.nodes
    total = bag.add("Where", valid, rows, bag.constant(np.float32(0)))
    if mode == "sum":
        bag.along("ReduceSum", 1, total, out=out)
    else:
        least = bag.add("Max", count, bag.constant(np.float32(1)))
        bag.add("Div", bag.along("ReduceSum", 1, total), least, out=out)
    return bag.nodes


class _Made:
    """Nodes that are made for one bag, whose values have names of their own."""

    def __init__(self, prefix: str, opset: int) -> None:
        self.nodes: list[Any] = []
        self._prefix, self._opset = prefix, opset

    def add(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        out = out or f"{self._prefix}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], **attributes))
        return out

    def along(self, op: str, axis: int, source: str, out: str = "") -> str:
        more = {} if op == "Unsqueeze" else {"keepdims": 0}
        if self._opset < AXES_AS_INPUT[op]:
            return self.add(op, source, out=out, axes=[axis], **more)
        return self.add(op, source, self.constant(np.array([axis], np.int64)), out=out, **more)

    def constant(self, value: Any) -> str:
        name = f"{self._prefix}/{len(self.nodes)}"
        self.nodes.append(_constant(name, value))
        return name
