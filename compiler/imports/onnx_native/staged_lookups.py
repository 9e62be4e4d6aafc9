"""Find and cut the embeddings of an ONNX graph that is a stage: the engine looks up their rows, for any length.

As in served_lookups, an initialiser is a table only if all that reads it are `Gather(initialiser [n, d], ids)` of the
graph itself whose ids are values of inputs, only moved. But lengths are free here, so the places of ids are no columns.
Instead the graph finds them itself: the nodes above the ids are copied, and their copies move the numbers of an
input's values (0, 1, ... in the shape of the input) instead of the values. The rows of all values, which the engine
hands over in their order, are gathered by what comes out:

    Gather(table, move(ids))  =  Gather(rows of ids, move(numbers of ids))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from freshet_serving.compiler.imports.fed_stage import ROWS
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import needed_messages
from freshet_serving.compiler.imports.onnx_native.native_reader import NativeModel, weight_readers
from freshet_serving.compiler.imports.onnx_native.served_graph import package_name, renamed_node
from freshet_serving.compiler.imports.onnx_native.served_lookups import MOVING, SHAPES, SIZING, plain_gather
from freshet_serving.compiler.imports.package_draft import MAX_DIM

OPSET = 11
"""The first with Range."""
EMPTY_OPSET = 14
"""The first whose Reshape can make a tensor without values."""
WHOLE = (TensorProto.INT32, TensorProto.INT64)
MOVED = "places/"


@dataclass(frozen=True, slots=True)
class StagedLookup:
    """One Gather of a stage at ids that are values of `inputs`, whose rows the engine looks up in a table."""

    output: str
    table: str
    inputs: tuple[str, ...]

    @property
    def columns(self) -> list[tuple[str, int]]:
        return [(name, 0) for name in self.inputs]

    @property
    def most_added(self) -> int:
        return 0


def find_staged_lookups(model: NativeModel) -> tuple[list[StagedLookup], list[str]]:
    """Return the lookups of all initialisers that can be tables, and notes on the embeddings that stay constants."""
    graph = model.proto.graph
    readers = weight_readers(model)
    outputs = {info.name for info in graph.output}
    lookups: list[StagedLookup] = []
    notes: list[str] = []
    for name, array in model.weights.items():
        nodes = readers[name]
        gathers = [node for node in nodes if plain_gather(node, name)]
        if array.ndim != 2 or not gathers:
            continue
        why = ""
        cut = [_lookup(model, node, name) for node in gathers]
        if array.dtype != np.float32 or not 0 < array.shape[1] <= MAX_DIM or not len(array):
            why = f"it is {array.dtype.name} of shape {list(array.shape)}"
        elif len(gathers) < len(nodes) or name in outputs:
            others = sorted({node.op_type for node in nodes} - {"Gather"}) or ["a body of the graph"]
            why = f"{others[0]} reads it too"
        elif model.opset < OPSET:
            why = f"the graph is of opset {model.opset}; {OPSET} or later can be cut"
        elif None in cut:
            why = "its ids are computed in the graph"
        if why:
            notes.append(f"embedding {name[:64]!r} is a constant, which takes no deltas: {why}")
        else:
            lookups += [lookup for lookup in cut if lookup is not None]
    return lookups, notes


def _lookup(model: NativeModel, node: Any, table: str) -> StagedLookup | None:
    ids = {item.name for item in model.inputs if item.dtype in (np.int64, np.int32)}
    others = {item.name for item in model.inputs} - ids
    moved, read = set(ids), set[str]()
    for item in needed_messages(model.proto.graph, [node.input[1]]):
        data = set(item.input) if item.op_type == "Concat" else {item.input[0]} if item.input else set()
        rest = set(item.input) - data
        kind = next((a.i for a in item.attribute if a.name == "to"), 0) if item.op_type == "Cast" else TensorProto.INT64
        if item.op_type not in SIZING or item.domain or kind not in WHOLE or not others.isdisjoint(item.input):
            return None
        if item.op_type in SHAPES:
            continue
        if item.op_type not in MOVING and (data | rest) & moved:
            return None
        if data & moved:
            # Values that decide where others go, and ids that the graph has itself, are no values of inputs alone.
            if rest & moved or not data <= moved:
                return None
            moved.update(item.output)
            read |= data & ids
        elif rest & moved:
            return None
    if node.input[1] not in moved:
        return None
    read |= {node.input[1]} & ids
    return StagedLookup(node.output[0], table, tuple(item.name for item in model.inputs if item.name in read))


def rows_names(lookups: Sequence[StagedLookup]) -> dict[tuple[str, str], str]:
    labels: dict[tuple[str, str], str] = {}
    for lookup in lookups:
        for name in lookup.inputs:
            label = f"{package_name(lookup.table)}.{package_name(name)}"[:112]
            if (lookup.table, name) not in labels:
                labels[lookup.table, name] = label if label not in labels.values() else f"{label}-{len(labels)}"
    return labels


def lookup_inputs(model: NativeModel, rows: Mapping[tuple[str, str], str]) -> list[Any]:
    """Return the stage's inputs that hold rows; `rows` names those of each table and input."""
    return [
        helper.make_tensor_value_info(ROWS + name, TensorProto.FLOAT, ["values", model.weights[table].shape[1]])
        for (table, _), name in rows.items()
    ]


def lookup_nodes(
    model: NativeModel, lookup: StagedLookup, rows: Mapping[tuple[str, str], str], rename: Callable[[str], str]
) -> list[Any]:
    """Return the nodes of the stage that give the result of a lookup; `rows` names those of each table and input."""
    (node,) = [n for n in model.proto.graph.node if lookup.output in n.output]
    above = needed_messages(model.proto.graph, [node.input[1]])
    moved = {name for n in above for name in n.output} | set(lookup.inputs)
    prefix = f"{MOVED}{lookup.output}/"
    first, step = f"{prefix}first", f"{prefix}step"
    # Without it, a length of 0 would mean "as in the input".
    empty: dict[str, Any] = {"allowzero": 1} if model.opset >= EMPTY_OPSET else {}
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, np.int64)))
        for name, value in ((first, 0), (step, 1))
    ]
    for n, name in enumerate(lookup.inputs):
        size, shape, end, numbers = (f"{prefix}{n}/{part}" for part in ("size", "shape", "end", "numbers"))
        nodes += [
            helper.make_node("Size", [rename(name)], [size]),
            helper.make_node("Shape", [rename(name)], [shape]),
            helper.make_node("Add", [first, size], [end]),
            helper.make_node("Range", [first, end, step], [numbers]),
            helper.make_node("Reshape", [numbers, shape], [f"{prefix}of/{name}"], **empty),
        ]
        first = end
    copies = [renamed_node(n, lambda name: f"{prefix}of/{name}" if name in moved else rename(name)) for n in above]
    for copy in copies:
        # The originals may stay, for other readers, and ONNX Runtime refuses two nodes of one name.
        copy.name = copy.name and f"{prefix}{copy.name}"
    nodes += copies
    parts = [ROWS + rows[lookup.table, name] for name in lookup.inputs]
    pool = parts[0]
    if len(parts) > 1:
        pool = f"{prefix}rows"
        nodes.append(helper.make_node("Concat", parts, [pool], axis=0))
    return [*nodes, helper.make_node("Gather", [pool, f"{prefix}of/{node.input[1]}"], [rename(lookup.output)])]
