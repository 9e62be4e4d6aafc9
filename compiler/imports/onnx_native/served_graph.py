"""Rewrite an ONNX graph as the dense graph of a package: one matrix in, named matrices out, weights by name alone.

The inputs that the graph still reads, and what each lookup gives, are columns of "x": they are sliced out, brought into
the shape and type that the graph expects, and the graph itself follows unchanged. Its values get a prefix, so that none
has the name of an input, an output or a weight of the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from freshet_serving.compiler.imports.feeds import plain
from freshet_serving.compiler.imports.onnx_graph.linear_weights import ANONYMOUS
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import (
    OURS,
    OnnxInput,
    bodies_of,
    every_node,
    needed_messages,
    taken,
)
from freshet_serving.compiler.imports.onnx_native.native_reader import MAX_NBYTES, NativeModel, held
from freshet_serving.compiler.imports.onnx_native.served_lookups import ServedLookup
from freshet_serving.compiler.imports.onnx_native.whole_outputs import exact_outputs, put_together, taken_apart
from freshet_serving.compiler.imports.package_draft import label_of
from freshet_serving.processor.backends import MATRIX, Matrix
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.package import PIECES

WEIGHT_PREFIX = "weights/"
INNER, MADE = "graph/", "freshet/"
ELSEWHERE = "weights"
IR_VERSION = 8
SLICE_BY_INPUTS = 10
SPLIT_TOLD = 18
SHAPED_BY_VALUE = ("Resize", "Upsample")
"""Operators whose inputs beside the first ONNX Runtime reads while it opens the graph."""


@dataclass(frozen=True, slots=True)
class MatrixSlot:
    """Columns of x: of an input that the graph reads, exact ones in pieces, or of lookups of the same rows."""

    offset: int
    width: int
    given: OnnxInput | None = None
    lookups: tuple[ServedLookup, ...] = ()
    exact: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ServedGraph:
    """The rewritten graph.

    Attributes:
        slots: What lies in the columns of x.
        width: Columns of x.
        columns: Columns of each output, by its name in the package.
        names: The file's name of each output.
        weights: By their names in the package.
        operators: Operators that remain, in order.
    """

    model: bytes
    slots: list[MatrixSlot]
    width: int
    columns: dict[str, int]
    names: dict[str, str]
    weights: dict[str, Matrix]
    operators: list[str]


def package_name(name: str) -> str:
    return plain(name.replace("/", ".")).lstrip("_") or "weight"


def rewrite(model: NativeModel, lookups: Sequence[ServedLookup], columns: Mapping[str, int]) -> ServedGraph:
    """Return the dense graph, without the lookups; `columns` are those of each output, by the file's name.

    Raise BadInput if names clash or no input is read, TooLarge if constants, which stay inside, exceed a limit.
    """
    cut = {lookup.output for lookup in lookups}
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    nodes_left = [node for node in proto.graph.node if cut.isdisjoint(node.output)]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes_left)
    nodes = needed_messages(proto.graph, columns)
    read = {name for node in nodes for name in taken(node)} | set(columns)
    exact, pieced = exact_outputs(model)
    slots = _slots(model, lookups, read, pieced)
    if not slots:
        raise BadInput("graph: expected outputs that depend on an input")
    width = slots[-1].offset + slots[-1].width
    labels = output_labels(columns)
    weights, initialisers, renamed, turned = _initialisers(model, read)
    rename: Callable[[str], str] = lambda name: renamed.get(name, INNER + name) if name else ""  # noqa: E731
    opset = model.opset
    constants = list(_shapes(slots, columns, labels, opset))
    unpacked = [node for slot in slots for node in _unpacked(slot, width, opset, constants)]
    inner = [renamed_node(node, rename) for node in nodes]
    last = []
    for name, label in labels.items():
        if name in exact:
            nodes_of, held_by = taken_apart(rename(name), label, columns[name])
            last += nodes_of
            constants += held_by
        else:
            last += _output(rename(name), label, columns[name])
    columns = {name: size * PIECES if name in exact else size for name, size in columns.items()}
    x = [helper.make_tensor_value_info(MATRIX, TensorProto.FLOAT, ["rows", width])]
    results = [helper.make_tensor_value_info(labels[n], TensorProto.FLOAT, ["rows", columns[n]]) for n in columns]
    served = helper.make_model(
        helper.make_graph([*unpacked, *turned, *inner, *last], "dense", x, results, [*initialisers, *constants]),
        producer_name="freshet",
        ir_version=max(IR_VERSION, model.proto.ir_version),
        opset_imports=[
            helper.make_opsetid("" if entry.domain in OURS else entry.domain, entry.version)
            for entry in model.proto.opset_import
        ],
    )
    if served.ByteSize() > MAX_NBYTES:
        raise TooLarge(f"graph: expected at most {MAX_NBYTES} bytes of constants, got {served.ByteSize()}")
    operators = [node.op_type for node in nodes]
    data = served.SerializeToString(deterministic=True)
    names = {label: name for name, label in labels.items()}
    return ServedGraph(data, slots, width, {labels[n]: columns[n] for n in columns}, names, weights, operators)


def _slots(model: NativeModel, lookups: Sequence[ServedLookup], read: set[str], pieced: set[str]) -> list[MatrixSlot]:
    slots: list[MatrixSlot] = []
    at = 0
    groups: dict[tuple[Any, ...], list[ServedLookup]] = {}
    for lookup in lookups:
        if lookup.output in read:
            groups.setdefault((lookup.table, lookup.columns, lookup.added, lookup.combiner), []).append(lookup)
    for info in model.inputs:
        if info.name in read:
            size = math.prod(n or 1 for n in info.dims[1:]) * (PIECES if info.name in pieced else 1)
            slots.append(MatrixSlot(at, size, info, exact=info.name in pieced))
            at += size
    for group in groups.values():
        size = len(group[0].columns) * group[0].dims[-1]
        slots.append(MatrixSlot(at, size, None, tuple(group)))
        at += size
    return slots


def output_labels(columns: Mapping[str, int]) -> dict[str, str]:
    """Return the package's name of each output, by the file's name; raise BadInput if two have the same."""
    labels: dict[str, str] = {}
    for name in columns:
        label = label_of(name)
        if label in labels.values():
            raise BadInput(f"output {name[:64]!r}: expected outputs whose names differ in letters and digits")
        labels[name] = label
    return labels


def _initialisers(model: NativeModel, read: set[str]) -> tuple[dict[str, Matrix], list[Any], dict[str, str], list[Any]]:
    """Return the weights by package name, the messages of all initialisers, their new names, and transpositions."""
    weights: dict[str, Matrix] = {}
    turned: list[Any] = []
    initialisers, renamed = [], {}
    opening = {n for node in every_node(model.proto.graph) if node.op_type in SHAPED_BY_VALUE for n in node.input[1:]}
    for tensor in model.proto.graph.initializer:
        if tensor.name not in read:
            continue
        array = model.weights[tensor.name]
        constant = tensor.name in opening or (array.size == 1 and ANONYMOUS.fullmatch(tensor.name))
        message = TensorProto()
        if array.dtype != np.float32 or not array.size or constant:
            message.CopyFrom(held(tensor, model.weights))
            message.name = INNER + tensor.name
        else:
            original = model.linear.get(tensor.name)
            name = package_name(original or tensor.name)
            if name.lower() in {other.lower() for other in weights}:
                raise BadInput(f"initialiser {tensor.name[:64]!r}: another name differs only in case or punctuation")
            if original is not None:
                array = array.T
                turned.append(helper.make_node("Transpose", [WEIGHT_PREFIX + name], [INNER + tensor.name], perm=[1, 0]))
            else:
                renamed[tensor.name] = WEIGHT_PREFIX + name
            weights[name] = np.ascontiguousarray(array).reshape(array.shape)
            message = TensorProto(data_type=TensorProto.FLOAT, dims=array.shape, data_location=TensorProto.EXTERNAL)
            message.external_data.add(key="location", value=ELSEWHERE)
            message.name = WEIGHT_PREFIX + name
        initialisers.append(message)
    return weights, initialisers, renamed, turned


def renamed_node(node: Any, rename: Callable[[str], str]) -> Any:
    """Return a copy of a node, and of the bodies inside it, with other names of values."""
    copy = type(node).FromString(node.SerializeToString())
    copy.input[:] = [rename(name) for name in node.input]
    copy.output[:] = [rename(name) for name in node.output]
    copy.ClearField("doc_string")
    if copy.domain in OURS:
        copy.domain = ""
    for graph in bodies_of(copy):
        for info in (*graph.input, *graph.output):
            info.name = rename(info.name)
        for tensor in graph.initializer:
            tensor.name = rename(tensor.name)
        del graph.value_info[:]
        inner = [renamed_node(body_node, rename) for body_node in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
    return copy


def _unpacked(slot: MatrixSlot, width: int, opset: int, constants: list[Any]) -> list[Any]:
    """Return the nodes that bring columns of x into the form that the graph reads; `constants` gets what they read."""
    start = f"{MADE}{slot.offset}"
    part = MATRIX
    nodes = []
    if slot.width != width:
        part = f"{start}/columns"
        if opset < SLICE_BY_INPUTS:
            last = [slot.offset + slot.width]
            nodes.append(helper.make_node("Slice", [MATRIX], [part], starts=[slot.offset], ends=last, axes=[1]))
        else:
            names = [f"{start}/first", f"{start}/last", f"{MADE}axis"]
            nodes.append(helper.make_node("Slice", [MATRIX, *names], [part]))
    if slot.given is not None:
        name = INNER + slot.given.name
        shaped = f"{start}/shaped" if slot.given.dtype != np.float32 else name
        if slot.exact:
            parts = [f"{start}/piece{number}" for number in range(PIECES)]
            # Without sizes it splits evenly, which version 18 wants to be told.
            split: dict[str, Any] = {"num_outputs": PIECES} if opset >= SPLIT_TOLD else {}
            nodes.append(helper.make_node("Split", [part], parts, axis=1, **split))
            part = f"{start}/whole"
            sum_nodes, held_by = put_together(parts, part)
            nodes += sum_nodes
            constants += held_by
        if len(slot.given.dims) == 2 and not slot.exact:
            nodes.append(helper.make_node("Identity", [part], [shaped]))
        else:
            nodes.append(helper.make_node("Reshape", [part, f"{start}/dims"], [shaped]))
        if shaped != name:
            kind = helper.np_dtype_to_tensor_dtype(slot.given.dtype)
            nodes.append(helper.make_node("Cast", [shaped], [name], to=kind))
        return nodes
    for number, lookup in enumerate(slot.lookups):
        name = INNER + lookup.output
        shaped = name if lookup.axis == 0 else f"{start}/shaped{number}"
        nodes.append(helper.make_node("Reshape", [part, f"{start}/dims{number}"], [shaped]))
        if lookup.axis:
            order = [*range(1, lookup.axis + 1), 0, *range(lookup.axis + 1, len(lookup.dims) + 1)]
            nodes.append(helper.make_node("Transpose", [shaped], [name], perm=order))
    return nodes


def _output(name: str, label: str, columns: int) -> list[Any]:
    wide = f"{MADE}out/{label}"
    return [
        helper.make_node("Cast", [name], [wide], to=TensorProto.FLOAT),
        helper.make_node("Reshape", [wide, f"{wide}/dims"], [label]),
    ]


def _shapes(slots: Sequence[MatrixSlot], columns: Mapping[str, int], labels: Mapping[str, str], opset: int) -> Any:
    def sizes(name: str, *values: int) -> Any:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    if opset >= SLICE_BY_INPUTS:
        yield sizes(f"{MADE}axis", 1)
    for slot in slots:
        start = f"{MADE}{slot.offset}"
        if opset >= SLICE_BY_INPUTS:
            yield sizes(f"{start}/first", slot.offset)
            yield sizes(f"{start}/last", slot.offset + slot.width)
        if slot.given is not None:
            yield sizes(f"{start}/dims", *(-1 if n is None else n for n in slot.given.dims))
        for number, lookup in enumerate(slot.lookups):
            yield sizes(f"{start}/dims{number}", -1, *(lookup.dims[1:] if lookup.merged else lookup.dims))
    for name in columns:
        yield sizes(f"{MADE}out/{labels[name]}/dims", -1, columns[name])
