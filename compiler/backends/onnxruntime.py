"""Compile dense graphs for ONNX Runtime: TensorFlow -> ONNX, weights by name and shape only.

The artefact is an ONNX model whose weights are initialisers with external data, at a location that no file ever has:
processor/backends/onnxruntime.py supplies the values from memory. Its rows are symbolic, because ONNX Runtime gains
nothing from a static batch; so the files of all buckets are equal, and the processor loads them once.

The same graph gives the same bytes in every process: nodes are ordered and values named by the graph's structure, never
by the converter's counters.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx
import tf2onnx
from onnx import TensorProto, helper

from freshet_serving.compiler.backends.base import CompiledGraph, Variant
from freshet_serving.compiler.backends.int8_choice import in_int8
from freshet_serving.compiler.backends.layer_norms import fuse_layer_norms
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.backends.onnxruntime import WEIGHT_PREFIX, OnnxRuntime
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.machine import this_machine

# ONNX Runtime has read both since 1.14.
OPSET = 17
IR_VERSION = 8
ELSEWHERE = "weights"
# Read by tf2onnx.
IN_PLACE = "TF2ONNX_CATCH_ERRORS"


def variants() -> list[Variant]:
    targets = OnnxRuntime().targets()
    lower = [Variant("onnxruntime", "int8")] if "cpu" in targets and this_machine().int8 else []
    return [*(Variant("onnxruntime", target="" if target == "cpu" else target) for target in targets), *lower]


def lower(graph: DenseGraph, variant: Variant) -> LoweredGraph:
    return LoweredGraph(graph, variant)


class LoweredGraph:
    """An ONNX model with symbolic rows; in int8, only machines with int8 products read it."""

    backend = "onnxruntime"

    def __init__(self, graph: DenseGraph, variant: Variant) -> None:
        self.target, self.precision = variant.target or "cpu", variant.precision
        self.model, self.weights = to_onnx(graph)
        if self.precision == "int8":
            self.model = in_int8(self.model, self.weights, graph, variant.bound)

    @property
    def definition(self) -> bytes:
        return f"tf2onnx {tf2onnx.__version__}\0".encode() + self.model

    def compile(self, bucket: int) -> CompiledGraph:
        features = [this_machine().int8] if self.precision == "int8" else []
        return CompiledGraph(self.model, ".onnx", list(self.weights), features=features)


def to_onnx(graph: DenseGraph) -> tuple[bytes, list[str]]:
    """Return the graph as ONNX without its weights, and their names; raise BadInput if it cannot be converted."""
    return _canonical(_convert(graph), graph)


def with_inputs(model: bytes) -> bytes:
    """Return the model with its weights as graph inputs, under the names of the initialisers."""
    parsed = onnx.load_from_string(model)
    constants = []
    for tensor in parsed.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            parsed.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, list(tensor.dims)))
        else:
            constants.append(tensor)
    del parsed.graph.initializer[:]
    parsed.graph.initializer.extend(constants)
    return bytes(parsed.SerializeToString(deterministic=True))


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the converter's log; what it could not convert shows in the result."""
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _in_place() -> Iterator[None]:
    """Let the converter's passes change the graph itself, which fails where one of them fails.

    By default each works on a deep copy, so that one that fails can be left out: a third of a conversion's time.
    """
    before = os.environ.get(IN_PLACE)
    os.environ[IN_PLACE] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[IN_PLACE]
        else:
            os.environ[IN_PLACE] = before


def _convert(graph: DenseGraph) -> Any:
    """Return the graph as the converter writes it: inputs by name and "weight_<i>", outputs by name."""

    def converted() -> Any:
        return tf2onnx.convert.from_function(graph.function, graph.signature, OPSET, custom_rewriter=[_choosing])[0]

    with _quietly():
        try:
            with _in_place():
                model = converted()
        except Exception:
            try:
                model = converted()
            except Exception as error:
                raise BadInput("dense graph: cannot be converted for backend onnxruntime") from error
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx.ml") or not onnx.defs.has(node.op_type, node.domain):
            raise BadInput(f"dense graph: operator {node.op_type} is not supported by backend onnxruntime")
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise BadInput(f"dense graph: control flow ({node.op_type}) is not supported by backend onnxruntime")
    fuse_layer_norms(model)
    return model


def _choosing(_: Any, nodes: Any) -> Any:
    """Translate tf.where to a selection: by default it is a product by 0, which turns an infinity there into NaN."""
    for node in nodes:
        if node.type in ("Select", "SelectV2"):
            node.set_attr("handles_nan", True)
    return nodes


def _canonical(model: Any, graph: DenseGraph) -> tuple[bytes, list[str]]:
    """Return the model's bytes in canonical names and order with weights moved out, and the names of its weights."""
    producers = {out: node for node in model.graph.node for out in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    weight_of = {f"weight_{i}": name for i, name in enumerate(graph.weight_names)}
    outputs = [output.name for output in graph.outputs]
    if {v.name for v in model.graph.output} != set(outputs):
        raise BadInput("dense graph: an output that is one of the inputs is not supported by backend onnxruntime")

    names: dict[str, str] = {name: name for name in ("", *graph.inputs, *outputs)}
    initializers: list[TensorProto] = []
    weights: list[str] = []

    def source(value: str) -> None:
        if value in names:
            return
        if value in constants:
            names[value] = f"constants/{len(initializers)}"
            tensor = TensorProto()
            tensor.CopyFrom(constants[value])
        elif value in weight_of:
            names[value] = WEIGHT_PREFIX + weight_of[value]
            tensor = _placeholder(graph.weights[weight_of[value]].shape)
            weights.append(weight_of[value])
        else:
            raise BadInput("dense graph: cannot be converted for backend onnxruntime")
        tensor.name = names[value]
        initializers.append(tensor)

    nodes: list[Any] = []
    for node in _ordered(outputs, producers):
        for value in node.input:
            if value not in producers:
                source(value)
        for i, value in enumerate(node.output):
            if value not in names:
                names[value] = f"values/{len(nodes)}.{i}"
        named = onnx.NodeProto()
        named.CopyFrom(node)
        named.name = f"{len(nodes)}"
        named.ClearField("doc_string")
        named.input[:] = [names[v] for v in node.input]
        named.output[:] = [names[v] for v in node.output]
        attributes = sorted(node.attribute, key=lambda a: a.name)
        del named.attribute[:]
        named.attribute.extend(attributes)
        nodes.append(named)

    inputs, results = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [n or "rows" for n in dims]) for name, dims in ends]
        for ends in (graph.spec.inputs.items(), graph.spec.outputs.items())
    )
    opsets = [helper.make_opsetid("", OPSET)]
    if any(node.domain for node in nodes):
        opsets.append(helper.make_opsetid("ai.onnx.ml", 3))
    renamed = helper.make_model(
        helper.make_graph(nodes, "dense", inputs, results, initializers),
        producer_name="freshet",
        ir_version=IR_VERSION,
        opset_imports=opsets,
    )
    return renamed.SerializeToString(deterministic=True), weights


def _placeholder(shape: tuple[int, ...]) -> Any:
    tensor = TensorProto(data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=ELSEWHERE)
    return tensor


def _ordered(outputs: list[str], producers: dict[str, Any]) -> list[Any]:
    ordered: list[Any] = []
    seen: set[int] = set()
    stack = [(producers[name], False) for name in reversed(outputs)]
    while stack:
        node, ready = stack.pop()
        if ready:
            ordered.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((producers[v], False) for v in reversed(node.input) if v in producers)
    return ordered
