"""Write an ONNX file as a stage, and the dense graph that passes the stage's outputs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import every_node, taken
from freshet_serving.compiler.imports.onnx_native.native_reader import DEFAULT_OPSET, NativeModel, held
from freshet_serving.compiler.imports.onnx_native.onnx_stage import RECURRENT_KEY
from freshet_serving.compiler.imports.onnx_native.served_graph import INNER, IR_VERSION, renamed_node
from freshet_serving.compiler.imports.onnx_native.staged_lookups import StagedLookup, lookup_inputs, lookup_nodes
from freshet_serving.compiler.imports.onnx_native.staged_weights import StagedWeight, weight_input, weight_nodes
from freshet_serving.compiler.imports.onnx_native.whole_outputs import taken_apart
from freshet_serving.processor.backends import MATRIX
from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.package import PIECES

MAX_NBYTES = 256 << 20
RECURRENT = ("GRU", "LSTM", "RNN")


def stage_model(
    model: NativeModel,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    lookups: Sequence[StagedLookup] = (),
    rows: Mapping[tuple[str, str], str] = MappingProxyType({}),
    exact: Mapping[str, int] = MappingProxyType({}),
    weights: Sequence[StagedWeight] = (),
) -> bytes:
    """Return the stage; raise TooLarge if it exceeds the limit of an executable.

    Args:
        inputs: The package's name of each input, by the file's.
        outputs: The stage's name of each output, by the file's.
        rows: Name of the rows of each table and input.
        exact: Outputs that are written in pieces, each with its whole numbers of a row.
    """
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    names = {name: f"input/{label}" for name, label in inputs.items()}

    def rename(name: str) -> str:
        return names.get(name, INNER + name) if name else ""

    cut = {item.output: lookup_nodes(model, item, rows, rename) for item in lookups}
    proto_nodes = [(cut.get(node.output[0]) if node.output else None, node) for node in graph.node]
    nodes = [results for replaced, node in proto_nodes for results in replaced or [renamed_node(node, rename)]]
    nodes = [results for item in weights for results in weight_nodes(item, rename)] + nodes
    stage_inputs = [info for info in graph.input if info.name in inputs]
    results = {info.name: info for info in graph.output}
    pieces: list[Any] = []
    for name, label in outputs.items():
        if name in exact:
            apart, constants = taken_apart(rename(name), f"output/{label}", exact[name])
            nodes += apart
            pieces += constants
            columns = exact[name] * PIECES
            results[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", columns])
        else:
            nodes.append(helper.make_node("Identity", [rename(name)], [f"output/{label}"]))
    for info in stage_inputs:
        info.name = rename(info.name)
    for name, label in outputs.items():
        results[name].name = f"output/{label}"
    read = {name for node in nodes for name in taken(node)}
    handed = {item.tensor for item in weights}
    read_tensors = [t for t in graph.initializer if rename(t.name) in read and t.name not in handed]
    initialisers = [held(tensor, model.weights) for tensor in read_tensors]
    for tensor in initialisers:
        tensor.name = rename(tensor.name)
    initialisers += pieces
    stage_inputs += lookup_inputs(model, rows) + [weight_input(item) for item in weights]
    served = helper.make_graph(nodes, "stage", stage_inputs, [results[name] for name in outputs], initialisers)
    graph.CopyFrom(served)
    proto.ir_version = max(IR_VERSION, proto.ir_version)
    del proto.metadata_props[:]
    if any(node.op_type in RECURRENT for node in every_node(graph)):
        proto.metadata_props.add(key=RECURRENT_KEY, value="yes")
    if proto.ByteSize() > MAX_NBYTES:
        raise TooLarge(f"stage: expected at most {MAX_NBYTES} bytes, got {proto.ByteSize()}")
    return bytes(proto.SerializeToString(deterministic=True))


def passing_model(columns: Mapping[str, int]) -> bytes:
    """Return the dense graph that gives the columns of x, output after output."""
    nodes, constants, out, at = [], [], [], 0
    for label, count in columns.items():
        bounds = [f"{label}/first", f"{label}/last", "axis"]
        constants += [numpy_helper.from_array(np.array([n]), name) for n, name in zip((at, at + count), bounds)]
        nodes.append(helper.make_node("Slice", [MATRIX, *bounds], [label]))
        out.append(helper.make_tensor_value_info(label, TensorProto.FLOAT, ["rows", count]))
        at += count
    constants.append(numpy_helper.from_array(np.array([1]), "axis"))
    x = [helper.make_tensor_value_info(MATRIX, TensorProto.FLOAT, ["rows", at])]
    graph = helper.make_graph(nodes, "dense", x, out, constants)
    opsets = [helper.make_opsetid("", DEFAULT_OPSET)]
    model = helper.make_model(graph, producer_name="freshet", ir_version=IR_VERSION, opset_imports=opsets)
    return bytes(model.SerializeToString(deterministic=True))
