"""Read an ONNX file that ONNX Runtime is to run as it is.

onnx_reader checks it as every ONNX file: what its tensors claim, where its data lie, how its functions grow. Because
the graph itself is kept, three more rules hold: only operators of ONNX and of ONNX Runtime's own domains, since others
are code that a server does not have; data outside the file only for initialisers of the graph itself, which are read
here; and none of the operators that read files.

An nn.EmbeddingBag, which exporters write as a loop, is written anew (native_bags). The session is one of the file, with
its loops, and all that is made of the rest is compared with what it gives. ZipMap, which makes a dictionary a row, is
replaced by its matrix of probabilities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.onnx_graph.bags import Offsets
from freshet_serving.compiler.imports.onnx_graph.linear_weights import linear_names
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import (
    OURS,
    Array,
    OnnxInput,
    every_node,
    load_proto,
    needed_messages,
    read_graph,
    refill,
    taken,
)
from freshet_serving.compiler.imports.onnx_native.loop_growth import check_loops
from freshet_serving.compiler.imports.onnx_native.native_bags import without_loops
from freshet_serving.compiler.imports.onnx_native.onnx_stage import bounded_options
from freshet_serving.compiler.imports.onnx_native.string_outputs import number_strings
from freshet_serving.compiler.imports.onnx_native.trial import MAX_NBYTES as TRIAL_NBYTES
from freshet_serving.compiler.imports.onnx_native.value_sizes import check_sizes
from freshet_serving.processor.errors import BadInput, TooLarge, first_of

ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"
DOMAINS = (*OURS, ML, MICROSOFT)
NUMBERS = "replies hold numbers, and strings that are taken from constant ones"
READS_FILES = ("EPContext",)
DEFAULT_OPSET = 17
HELD_NBYTES = 1 << 20
MAX_NBYTES = 2**31 - (1 << 20)


@dataclass(frozen=True, slots=True, eq=False)
class NativeModel:
    """A file that ONNX Runtime accepts.

    Attributes:
        proto: Its message: functions inlined, nodes that no output needs left out, bags without loops.
        outputs: Its numeric outputs, with their types as in ONNX Runtime ("float", "int64").
        weights: Its initialisers.
        labels: Of outputs of strings, which the message computes as positions in these.
        offsets: Inputs that are ids and offsets of bags, which the engine pools.
        linear: Names that weights of nn.Linear had in PyTorch before the exporter transposed them, by initialiser.
    """

    proto: Any
    inputs: list[OnnxInput]
    outputs: dict[str, str]
    weights: dict[str, Array]
    session: Any
    notes: list[str]
    labels: dict[str, list[str]] = field(default_factory=dict)
    offsets: list[Offsets] = field(default_factory=list)
    linear: dict[str, str] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        return int(first_of(entry.version for entry in self.proto.opset_import if entry.domain in OURS))


def read_native(path: Path) -> NativeModel:
    """Read a file and open a session of it; raise BadInput if it is refused, TooLarge beyond a limit."""
    proto = load_proto(path)
    _check_operators(proto)
    labels = number_strings(proto)
    inputs, body = read_graph(proto, path.parent)
    notes = _without_dictionaries(proto)
    refill(proto.graph.node, needed_messages(proto.graph, (info.name for info in proto.graph.output)))
    del proto.graph.value_info[:]
    for tensor in proto.graph.initializer:
        # ONNX Runtime reads shapes and axes while it opens a graph, and from the message alone.
        if body.weights[tensor.name].nbytes <= HELD_NBYTES:
            tensor.CopyFrom(held(tensor, body.weights))
    if not any(entry.domain in OURS for entry in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid("", DEFAULT_OPSET))
    nodes, offsets = without_loops(proto, inputs, body)
    if nodes:
        # Sizes inside the loops are not checked, so nothing of them is computed ahead of the trial.
        session = open_session(proto, body.weights, optimised=False)
        del proto.graph.node[:], proto.graph.value_info[:]
        proto.graph.node.extend(nodes)
    check_sizes(proto)
    check_loops(proto)
    if not nodes:
        session = open_session(proto, body.weights)
    outputs = {}
    for info in session.get_outputs():
        kind = re.fullmatch(r"tensor\((float|float16|double|u?int(?:8|16|32|64)|bool)\)", info.type)
        if kind is None:
            notes.append(f"output {info.name[:64]!r} is {info.type[:40]}: left out, because {NUMBERS}")
        else:
            outputs[info.name] = kind[1]
    if not outputs:
        raise BadInput(f"signature: expected at least one output of numbers or labels: {NUMBERS}")
    linear = linear_names(body)
    return NativeModel(proto, inputs, outputs, body.weights, session, notes, labels, offsets, linear)


def open_session(proto: Any, weights: Mapping[str, Array], optimised: bool = True) -> Any:
    """Return a session of a message, on two threads and in bounded memory; raise BadInput or TooLarge if it is refused.

    Args:
        weights: Its initialisers, for those whose data are outside the file.
        optimised: Whether ONNX Runtime may compute constants while it opens the graph.
    """
    if proto.ByteSize() > MAX_NBYTES:
        raise TooLarge(f"source: expected at most {MAX_NBYTES} bytes without external data, got {proto.ByteSize()}")
    options = bounded_options(TRIAL_NBYTES, threads=2)
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    outside = [t.name for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    # Both lists must outlive the constructor below: the options hold addresses.
    arrays = [np.asarray(weights[name], order="C") for name in outside]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
    if outside:
        options.add_external_initializers(outside, values)
    try:
        return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BadInput(
            f"source: ONNX Runtime {onnxruntime.__version__} refuses the graph: {reason_of(error)}"
        ) from None


def held(tensor: Any, weights: Mapping[str, Array]) -> Any:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return onnx.numpy_helper.from_array(np.asarray(weights[tensor.name], order="C"), tensor.name)
    return tensor


def weight_readers(model: NativeModel) -> dict[str, list[Any]]:
    """Return the nodes of the graph itself that read each initialiser, with the bodies inside them."""
    readers: dict[str, list[Any]] = {name: [] for name in model.weights}
    for node in model.proto.graph.node:
        for name in readers.keys() & set(taken(node)):
            readers[name].append(node)
    return readers


def _check_operators(proto: Any) -> None:
    for node in every_node(proto.graph):
        if node.domain not in DOMAINS:
            domains = ", ".join(("ai.onnx", ML, MICROSOFT))
            raise BadInput(
                f"graph: operator {node.op_type[:64]} of {node.domain[:64]!r}: expected one of {domains}: a custom "
                "operator is code that the server does not have"
            )
        if node.op_type in READS_FILES:
            raise BadInput(f"graph: operator {node.op_type} reads a file; refused")
        for attribute in node.attribute:
            inner = [t for graph in (attribute.g, *attribute.graphs) for t in graph.initializer]
            for tensor in (attribute.t, *attribute.tensors, *inner):
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    raise BadInput(
                        f"graph: {node.op_type[:64]} {node.name[:64]!r}: expected its data inside the file, got "
                        "external data, which only initialisers of the graph itself may have"
                    )


def _without_dictionaries(proto: Any) -> list[str]:
    notes = []
    for node in proto.graph.node:
        if node.op_type != "ZipMap" or node.domain != ML or len(node.input) != 1:
            continue
        classes = next((list(a.ints) or [s.decode(errors="replace") for s in a.strings] for a in node.attribute), [])
        order = ", ".join(map(str, classes))[:80]
        notes.append(f"output {node.output[0][:64]!r} is a matrix with a column for each class, in the order {order}")
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
        for info in proto.graph.output:
            if info.name == node.output[0]:
                info.ClearField("type")
    return notes
