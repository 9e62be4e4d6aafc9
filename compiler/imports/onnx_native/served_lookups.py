"""Find embeddings in an ONNX graph: initialisers that only Gather reads, at ids that an input holds.

A delta of a table must reach every use of it. So an initialiser is a table only if all that reads it can be cut out:
each reader is a `Gather(initialiser [n, d], ids)` of the graph itself, on axis 0, and its ids are values of inputs,
only moved, or with a constant added to each column (fields that share a table). Any other initialiser stays a dense
weight, which a delta replaces as a whole in all its uses.

Which ids a Gather reads is observed, not derived: the nodes above it, if they only move values or add constants, are
run on inputs of zeros, which gives what is added, and on inputs whose values are numbers of places, for two numbers of
rows. What comes out tells for each position the column it comes from, and where the rows lie. Ids may come as floats,
as some libraries keep all features in one matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from freshet_serving.compiler.imports.onnx_graph.bags import BAG, DOMAIN, splits_of
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import needed_messages, taken
from freshet_serving.compiler.imports.onnx_native.native_reader import NativeModel, held, open_session, weight_readers
from freshet_serving.compiler.imports.package_draft import MAX_DIM
from freshet_serving.processor.errors import BadInput, FreshetError

ADDING = frozenset({"Add", "Sub"})
RESHAPING = frozenset({"Flatten", "Reshape", "Shape", "Squeeze", "Transpose", "Unsqueeze"})
MOVING = frozenset({"Cast", "Concat", "Constant", "Gather", "Identity", "Slice", "Split"}) | RESHAPING
SHAPES = ("Shape", "Size")
SIZING = MOVING | ADDING | {"ConstantOfShape", "Div", "Max", "Min", "Mod", "Mul", "Range", "ReduceProd", "Size"}
"""Operators of sizes, as view(-1, n) computes them; what they compute from values of inputs is no id."""
MAX_COLUMNS = 4096
PROBED = (3, 5)
BAG_COMBINERS = ("sum", "mean")
UNCHANGED = ("Cast", "CastLike", "Flatten", "Identity", "Reshape")
ID_TYPES = (np.int64, np.int32, np.float32)
IR_VERSION = 8


@dataclass(frozen=True, slots=True)
class ServedLookup:
    """One Gather whose rows the engine looks up, or one bag whose rows it pools.

    Attributes:
        output: Name of its result.
        table: Name of the initialiser.
        columns: For each row that it reads for a request's row, the input and the column of the id.
        axis: The axis of its result on which the rows lie.
        dims: Sizes of its result without that axis; the first counts the ids if rows and ids share axis 0.
        merged: Whether they share it.
        added: What is added to the id of each column; () for nothing.
        combiner: How a bag pools its rows; "" for a Gather.
    """

    output: str
    table: str
    columns: tuple[tuple[str, int], ...]
    axis: int
    dims: tuple[int, ...]
    merged: bool
    added: tuple[int, ...] = ()
    combiner: str = ""

    @property
    def most_added(self) -> int:
        return max(self.added, default=0)


def find_lookups(model: NativeModel) -> list[ServedLookup]:
    """Return all lookups of initialisers that can be tables; raise BadInput for a bag that the engine cannot pool."""
    graph = model.proto.graph
    readers = weight_readers(model)
    outputs = {info.name for info in graph.output}
    probe = _Probe(model)
    served: list[ServedLookup] = []
    for name, array in model.weights.items():
        fits = array.dtype == np.float32 and array.ndim == 2 and 0 < array.shape[1] <= MAX_DIM and len(array)
        nodes = readers[name]
        if not fits or not nodes or name in outputs:
            continue
        bags = [_pooled(model, node, name, array.shape[1]) for node in nodes]
        if not all(bag or plain_gather(node, name) for node, bag in zip(nodes, bags)):
            continue
        cut = [bag or probe.lookup(node, name, array.shape[1]) for node, bag in zip(nodes, bags)]
        if all(lookup is not None for lookup in cut):
            served += [lookup for lookup in cut if lookup is not None]
    _check_bags(model, {lookup.output for lookup in served})
    return served


def _check_bags(model: NativeModel, cut: set[str]) -> None:
    """Raise BadInput if what is left of a graph needs a bag of ids and offsets, or these inputs themselves."""
    needed = {info.name for info in model.proto.graph.output}
    for node in reversed(model.proto.graph.node):
        if needed.isdisjoint(node.output) or not cut.isdisjoint(node.output):
            continue
        if node.domain == DOMAIN:
            raise BadInput(
                f"graph: EmbeddingBag {node.output[0][:64]!r} of ids and offsets: expected a sum or mean, without "
                "padding and weights, of a table that only lookups by inputs read"
            )
        needed.update(taken(node))
    for name in (name for pair in model.offsets for name in (pair.ids, pair.offsets)):
        if name in needed:
            raise BadInput(f"input {name[:64]!r}: expected ids or offsets of bags that nothing else reads")


def constant_embedding(model: NativeModel, lookups: Sequence[ServedLookup]) -> str:
    """Return the name of an initialiser whose rows are read at ids of a request, but is no table; "" if there is none.

    A product with one-hot ids reads rows as well.
    """
    tables, inputs = {lookup.table for lookup in lookups}, {info.name for info in model.inputs}
    nodes = model.proto.graph.node
    hot = {name for node in nodes if node.op_type == "OneHot" and not node.domain for name in node.output}
    for node in nodes:
        read = [name for name in node.input if name in model.weights and model.weights[name].dtype == np.float32]
        if node.op_type == "MatMul" and read and hot.intersection(node.input):
            return str(read[0])
        if node.op_type == "Gather" and read == [node.input[0]] and read[0] not in tables:
            above = needed_messages(model.proto.graph, [node.input[1]])
            if inputs & {node.input[1], *(name for lookup in above for name in taken(lookup))}:
                return str(read[0])
    return ""


def plain_gather(node: Any, name: str) -> bool:
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return bool(node.op_type == "Gather" and not node.domain and node.input[0] == name and axis == 0) and (
        node.input[1] != name
    )


def _pooled(model: NativeModel, node: Any, table: str, dim: int) -> ServedLookup | None:
    if node.op_type != BAG or node.domain != DOMAIN or node.input[0] != table or node.input[3]:
        return None
    attributes = {a.name: a for a in node.attribute}
    mode = attributes["mode"].s.decode()
    if mode not in BAG_COMBINERS or "padding" in attributes:
        return None
    ids = _moved_from(model, node.input[1])
    pair = next((pair for pair in model.offsets if pair.ids == ids and node.input[2] == splits_of(ids)), None)
    return ServedLookup(node.output[0], table, ((ids, 0),), 0, (dim,), False, (), mode) if pair else None


def _moved_from(model: NativeModel, name: str) -> str:
    """Return the source of a value, before operators that change neither its numbers nor their order."""
    makers = {output: node for node in model.proto.graph.node for output in node.output}
    while name in makers and makers[name].op_type in UNCHANGED and not makers[name].domain:
        name = makers[name].input[0]
    return name


def _only_moves(above: Sequence[Any], inputs: Sequence[str]) -> bool:
    """Report whether nodes only move values of inputs, and add what is computed from none."""
    moved = set(inputs)
    for node in above:
        if node.domain or node.op_type not in SIZING:
            return False
        if node.op_type in SHAPES:
            continue
        read = [name for name in node.input if name in moved]
        if node.op_type in ADDING and read and (read != [node.input[0]] if node.op_type == "Sub" else len(read) > 1):
            return False
        if read:
            if node.op_type not in MOVING | ADDING:
                return False
            moved.update(node.output)
    return True


class _Probe:
    def __init__(self, model: NativeModel) -> None:
        self._proto, self._weights = model.proto, model.weights
        bags = {name for pair in model.offsets for name in (pair.ids, pair.offsets)}
        fixed = [i for i in model.inputs if None not in i.dims[1:] and i.name not in bags]
        self._ids = {i.name: i for i in fixed if i.dtype in ID_TYPES}
        self._first: dict[str, int] = {}
        self._total = 0
        for info in self._ids.values():
            self._first[info.name] = self._total
            self._total += math.prod(n or 1 for n in info.dims[1:])

    def lookup(self, node: Any, table: str, dim: int) -> ServedLookup | None:
        """Return the lookup of a Gather of rows of `dim` numbers, or None if its ids are not values of inputs."""
        above = needed_messages(self._proto.graph, [node.input[1]])
        read = {name for maker in above for name in maker.input} | {node.input[1]}
        inputs = [name for name in self._ids if name in read]
        others = {info.name for info in self._proto.graph.input} - self._weights.keys() - self._ids.keys()
        if not inputs or read & others or not _only_moves(above, inputs):
            return None
        observed = self._observe(above, node.input[1], inputs, read)
        if not observed:
            return None
        small, large, added = observed
        if small.ndim != large.ndim or not small.ndim:
            return None
        grows = [a for a in range(small.ndim) if small.shape[a] != large.shape[a]]
        if len(grows) != 1 or not small.size:
            return None
        (axis,) = grows
        each, rest = divmod(small.shape[axis], PROBED[0])
        if rest or large.shape[axis] != each * PROBED[1] or (each != 1 and axis):
            return None
        rows = np.moveaxis(large, axis, 0).reshape(PROBED[1], -1)
        row, column = np.divmod(rows, self._total)
        if (row != np.arange(PROBED[1])[:, None]).any() or (column != column[0]).any():
            return None
        more = np.moveaxis(added, axis, 0).reshape(PROBED[1], -1)
        if column.shape[1] > MAX_COLUMNS or (more != more[0]).any():
            return None
        beyond = tuple(more[0].tolist()) if more.any() else ()
        dims = (*(() if each == 1 else (each,)), *(n for a, n in enumerate(large.shape) if a != axis), dim)
        columns = tuple(map(self._place, column[0].tolist()))
        if len(set(zip(columns, more[0].tolist()))) > len(set(columns)):
            return None  # One column, and two numbers that are added to it.
        return ServedLookup(node.output[0], table, columns, axis, dims, each != 1, beyond)

    def _place(self, column: int) -> tuple[str, int]:
        name = max((n for n in self._first if self._first[n] <= column), key=self._first.__getitem__)
        return name, column - self._first[name]

    def _observe(self, above: Sequence[Any], name: str, inputs: Sequence[str], read: set[str]) -> list[Any]:
        """Return the places of ids for both numbers of rows, and what is added to them; nothing if they have none."""
        proto = onnx.ModelProto()
        proto.CopyFrom(
            onnx.ModelProto(ir_version=max(8, self._proto.ir_version), opset_import=self._proto.opset_import)
        )
        infos = [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(self._ids[n].dtype), ["rows", *self._ids[n].dims[1:]]
            )
            for n in inputs
        ]
        constants = [held(t, self._weights) for t in self._proto.graph.initializer if t.name in read]
        last = helper.make_node("Identity", [name], ["places"])
        out = [helper.make_empty_tensor_value_info("places")]
        if any("places" in node.output or "places" in node.input for node in above):
            return []
        proto.graph.CopyFrom(helper.make_graph([*above, last], "probe", infos, out, constants))
        observed: list[Any] = []
        try:
            session = open_session(proto, {})
            for rows in PROBED:
                places, zeros = (
                    session.run(["places"], {n: times * self._places(n, rows) for n in inputs})[0] for times in (1, 0)
                )
                if places.dtype.kind not in "iu":
                    return []
                observed.append(places.astype(np.int64) - zeros)
        except FreshetError:
            return []
        except Exception:  # ONNX Runtime's own: an index that the probe's places exceed, for one
            return []
        return [*observed, zeros.astype(np.int64)]

    def _places(self, name: str, rows: int) -> Any:
        info = self._ids[name]
        size = math.prod(n or 1 for n in info.dims[1:])
        place = np.arange(rows)[:, None] * self._total + self._first[name] + np.arange(size)
        return place.astype(info.dtype).reshape(rows, *info.dims[1:])
