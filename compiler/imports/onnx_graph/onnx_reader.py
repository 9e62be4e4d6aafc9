"""Read an ONNX file from an untrusted source as plain data: nodes, constants, inputs, outputs.

Nothing is allocated on the file's word: a tensor's bytes must be present, and as many as its shape needs, before an
array is made of them. External data is read from the file's own folder only. Functions are inlined after a check for
cycles and exponential growth. Nodes must come after their inputs, as ONNX requires, so there are no cycles between them
either. The meaning of operators is not considered here.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.processor.errors import BadInput, FreshetError, TooLarge
from freshet_serving.processor.extras import needed
from freshet_serving.processor.package import read_file

with needed("importing an ONNX file"):
    import onnx
    from onnx import helper, inliner, numpy_helper

MAX_NBYTES = 2 << 30
MAX_EXTERNAL_NBYTES = 64 << 30
MAX_NODES = 10_000
DEPTH = 16
OPSETS = range(11, 25)
OURS = ("", "ai.onnx")
WHOLE_NUMBERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
NUMBERS = frozenset({"float32", "float64", "float16", "bfloat16", "bool"} | WHOLE_NUMBERS)
DYNAMIC = (
    "export it with a batch of any size: dynamic_axes={name: {0: 'batch'}}, or with dynamo=True "
    "dynamic_shapes={name: {0: torch.export.Dim('batch')}}"
)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class OnnxNode:
    """One operator; a left out input is "", attributes are numbers, lists, bytes, arrays and bodies."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class OnnxBody:
    """A graph, or the body of a loop or branch: `weights` are its initialisers, `constants` those of Constant nodes."""

    inputs: list[str]
    outputs: list[str]
    nodes: list[OnnxNode]
    weights: dict[str, Array]
    constants: dict[str, Array]

    def value(self, name: str) -> Array | None:
        return self.weights[name] if name in self.weights else self.constants.get(name)


@dataclass(frozen=True, slots=True, eq=False)
class OnnxInput:
    """An input: `dtype` is object for strings; `dims` has None for a free dimension, as the first always is."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A file as it was read. `inputs` leaves out the initialisers that old files list among them."""

    inputs: list[OnnxInput]
    body: OnnxBody
    opset: int


def read_onnx(path: Path) -> OnnxModel:
    proto = load_proto(path)
    opset = _opset(proto)
    inputs, body = read_graph(proto, path.parent)
    return OnnxModel(inputs, body, opset)


def read_graph(proto: Any, folder: Path) -> tuple[list[OnnxInput], OnnxBody]:
    """Return the inputs and the graph of load_proto()'s message as plain data.

    Raise BadInput if the graph is broken or circular, or its data are outside the folder; TooLarge beyond a limit.
    """
    try:
        body = _Reader(folder.resolve()).body(proto.graph, set(), 0)
        inputs = [_input(info) for info in proto.graph.input if info.name not in body.weights]
    except FreshetError:
        raise
    except Exception:
        # A well-formed message may still have invalid fields, such as names that are not text.
        raise BadInput("source: the ONNX file is damaged: a name or a number in it cannot be read") from None
    body.inputs = [info.name for info in inputs]
    return inputs, body


def load_proto(path: Path) -> Any:
    """Return an ONNX file's message with its functions inlined; nothing else is checked."""
    nbytes = path.stat().st_size
    if nbytes > MAX_NBYTES:
        raise TooLarge(f"source: expected an .onnx file of at most {MAX_NBYTES} bytes, got {nbytes}")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(read_file(path, MAX_NBYTES).tobytes())
    except Exception:
        raise BadInput("source: not an ONNX file, or a part of one") from None
    if not proto.ir_version or not proto.graph.node or not proto.graph.output:
        raise BadInput("source: not an ONNX file, or a part of one")
    return _inlined(proto)


def every_node(graph: Any) -> Iterator[Any]:
    yield from _every(graph.node, 0)


def bodies_of(node: Any) -> list[Any]:
    return [g for a in node.attribute for g in (*([a.g] if a.HasField("g") else []), *a.graphs)]


def types_held(graph: Any) -> set[str]:
    """Return the types of a message's inputs, outputs, weights, constants and casts, as NumPy names them."""
    codes = {info.type.tensor_type.elem_type for info in (*graph.input, *graph.output, *graph.value_info)}
    codes |= {tensor.data_type for tensor in graph.initializer}
    for node in every_node(graph):
        for attribute in node.attribute:
            codes.add(attribute.t.data_type)
            codes |= {tensor.data_type for tensor in attribute.g.initializer}
            if node.op_type == "Cast" and attribute.name == "to":
                codes.add(attribute.i)
    types = onnx.TensorProto.DataType
    return {types.Name(code).lower() for code in codes & set(types.values())}


def taken(node: Any) -> Iterator[str]:
    """Iterate over the values that a message's node reads, including those of bodies inside it."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (info.name for info in graph.output)
            for inner in graph.node:
                yield from taken(inner)


def _opset(proto: Any) -> int:
    versions = {entry.version for entry in proto.opset_import if entry.domain in OURS}
    if len(versions) != 1:
        raise BadInput(f"source: expected one opset of ai.onnx, got {sorted(versions) or 'none'}")
    (opset,) = versions
    if opset not in OPSETS:
        raise BadInput(f"source: expected opset {OPSETS[0]} to {OPSETS[-1]}, got {opset}")
    return int(opset)


def _inlined(proto: Any) -> Any:
    if not proto.functions:
        _count(proto.graph.node, {}, 0)
        return proto
    functions = {(f.domain, f.name): f for f in proto.functions}
    called = {
        key: {(n.domain, n.op_type) for n in _every(f.node, 0)} & functions.keys() for key, f in functions.items()
    }
    sizes: dict[tuple[str, str], int] = {}
    try:
        for key in graphlib.TopologicalSorter(called).static_order():
            sizes[key] = _count(functions[key].node, sizes, 0)
    except graphlib.CycleError:
        raise BadInput("graph: a function calls itself") from None
    _count(proto.graph.node, sizes, 0)
    try:
        return inliner.inline_local_functions(proto)
    except Exception:
        raise BadInput("graph: its functions cannot be inlined") from None


def _every(nodes: Iterable[Any], depth: int) -> Iterator[Any]:
    if depth > DEPTH:
        raise BadInput(f"graph: expected bodies nested at most {DEPTH} deep")
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _every(graph.node, depth + 1)


def _count(nodes: Iterable[Any], sizes: Mapping[tuple[str, str], int], depth: int) -> int:
    count = sum(sizes.get((node.domain, node.op_type), 1) for node in _every(nodes, depth))
    if count > MAX_NODES:
        raise TooLarge(f"graph: expected at most {MAX_NODES} operators")
    return count


def _input(info: Any) -> OnnxInput:
    where = f"input {info.name[:64]!r}"
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
        raise BadInput(f"{where}: expected a tensor with a shape")
    dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
    if not dims or dims[0] is not None:
        got = f"got {dims[0]}" if dims else "got a single number"
        raise BadInput(f"{where}: expected a first dimension of any size, {got}: {DYNAMIC}")
    return OnnxInput(info.name, _dtype(tensor.elem_type, where), dims)


def _dtype(code: int, where: str) -> np.dtype[Any]:
    try:
        name = onnx.TensorProto.DataType.Name(code)
        dtype: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{where}: expected a type of ONNX, got number {code}") from None
    if dtype.name not in NUMBERS and name != "STRING":
        raise BadInput(f"{where}: expected one of {', '.join(sorted(NUMBERS))}, got {name.lower()}")
    return dtype


class _Reader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[Path, int] = {}
        self._external = 0

    def body(self, graph: Any, values: set[str], depth: int) -> OnnxBody:
        """Read a graph, which may use the values of the graph around it."""
        if depth > DEPTH:
            raise BadInput(f"graph: expected bodies nested at most {DEPTH} deep")
        if graph.sparse_initializer:
            raise BadInput("graph: expected dense initialisers, got a sparse one")
        weights: dict[str, Array] = {}
        constants: dict[str, Array] = {}
        nodes: list[OnnxNode] = []
        declared: list[str] = []

        def make(name: str) -> None:
            if name in values:
                raise BadInput(f"graph: two values are called {name[:64]!r}")
            values.add(name)
            declared.append(name)

        for tensor in graph.initializer:
            make(tensor.name)
            weights[tensor.name] = self.tensor(tensor, f"initialiser {tensor.name[:64]!r}")
        inputs = [info.name for info in graph.input]
        for name in inputs:
            if name not in weights:
                make(name)
        for proto in graph.node:
            for name in proto.input:
                if name and name not in values:
                    raise BadInput(f"graph: {_label(proto)} uses {name[:64]!r} before any operator outputs it")
            node = self.node(proto, values, depth)
            for name in filter(None, node.outputs):
                make(name)
            if node.op == "Constant" and not node.domain:
                constants[node.outputs[0]] = _constant(node)
            else:
                nodes.append(node)
        outputs = [info.name for info in graph.output]
        for name in outputs:
            if name not in values:
                raise BadInput(f"graph: no operator outputs its output {name[:64]!r}")
        values.difference_update(declared)
        return OnnxBody(inputs, outputs, nodes, weights, constants)

    def node(self, proto: Any, values: set[str], depth: int) -> OnnxNode:
        attributes = {a.name: self.attribute(a, proto, values, depth) for a in proto.attribute}
        domain = "" if proto.domain in OURS else proto.domain
        return OnnxNode(proto.op_type, domain, proto.name, tuple(proto.input), tuple(proto.output), attributes)

    def attribute(self, proto: Any, owner: Any, values: set[str], depth: int) -> Any:
        kinds = onnx.AttributeProto
        if proto.type == kinds.GRAPH:
            return self.body(proto.g, values, depth + 1)
        if proto.type == kinds.TENSOR:
            return self.tensor(proto.t, _label(owner))
        plain = (kinds.FLOAT, kinds.INT, kinds.STRING, kinds.FLOATS, kinds.INTS, kinds.STRINGS)
        if proto.ref_attr_name or proto.type not in plain:
            raise BadInput(f"graph: {_label(owner)}: attribute {proto.name[:64]!r} has an unsupported type")
        value = helper.get_attribute_value(proto)
        return list(value) if proto.type in plain[3:] else value

    def tensor(self, proto: Any, where: str) -> Array:
        """Return a tensor's array, after a check that its bytes match its shape."""
        dtype = _dtype(proto.data_type, where)
        dims, count = list(proto.dims), 1
        for dim in dims:
            if dim < 0:
                raise BadInput(f"{where}: expected a shape of positive numbers, got {dims[:8]}")
            count *= dim
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            return self._outside(proto, dtype, count, where).reshape(dims)
        present = (
            len(proto.raw_data) // max(1, dtype.itemsize) if proto.HasField("raw_data") else self._held(proto, dtype)
        )
        if present != count or (proto.HasField("raw_data") and len(proto.raw_data) != count * dtype.itemsize):
            raise BadInput(f"{where}: expected {count} numbers for its shape {dims[:8]}, got {present}")
        try:
            return np.asarray(numpy_helper.to_array(proto)).astype(dtype, copy=False).reshape(dims)
        except FreshetError:
            raise
        except Exception as error:
            raise BadInput(f"{where}: its numbers cannot be read: {reason_of(error)}") from None

    def _held(self, proto: Any, dtype: np.dtype[Any]) -> int:
        fields = (proto.float_data, proto.int32_data, proto.int64_data, proto.double_data, proto.uint64_data)
        return max(*(len(field) for field in fields), len(proto.string_data))

    def _outside(self, proto: Any, dtype: np.dtype[Any], count: int, where: str) -> Array:
        entries = {entry.key: entry.value for entry in proto.external_data}
        path = self._file(entries.get("location", ""), where)
        nbytes = count * dtype.itemsize
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", nbytes))
        except ValueError:
            raise BadInput(f"{where}: expected integers as offset and length of its data") from None
        if dtype.hasobject or length != nbytes or offset < 0 or offset + nbytes > self._sizes[path]:
            raise BadInput(f"{where}: expected {nbytes} bytes of data inside its file, got {length} at {offset}")
        self._external += nbytes
        # Otherwise one file could be referenced over and over.
        if self._external > min(MAX_EXTERNAL_NBYTES, sum(self._sizes.values())):
            raise TooLarge("source: the data of initialisers overlap, or exceed the limit")
        return np.fromfile(path, dtype.newbyteorder("<"), count, offset=offset).astype(dtype, copy=False)

    def _file(self, location: str, where: str) -> Path:
        try:
            path = (self._folder / location).resolve()
            inside = path.is_relative_to(self._folder) and path.is_file()
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not location or not inside:
            raise BadInput(f"{where}: its data file is missing or outside the model's folder")
        if path not in self._sizes:
            self._sizes[path] = path.stat().st_size
        return path


def needed_messages(graph: Any, outputs: Iterable[str]) -> list[Any]:
    """Return the nodes of a message's graph that some values are computed from, in order."""
    values, nodes = set(outputs), []
    for node in reversed(graph.node):
        if not values.isdisjoint(node.output):
            nodes.append(node)
            values.update(taken(node))
    return nodes[::-1]


def refill(field: Any, messages: Iterable[Any]) -> None:
    """Replace the messages of a repeated field, by copies: some may lie in it."""
    copies = [type(message).FromString(message.SerializeToString()) for message in messages]
    del field[:]
    field.extend(copies)


def needed_nodes(body: OnnxBody) -> list[OnnxNode]:
    values, nodes = set(body.outputs), []
    for node in reversed(body.nodes):
        if not values.isdisjoint(node.outputs):
            nodes.append(node)
            values.update(values_read(node))
    return nodes[::-1]


def values_read(node: OnnxNode) -> Iterable[str]:
    """Iterate over the values that a node reads, including those of bodies inside it."""
    yield from node.inputs
    for inner in node.attributes.values():
        if isinstance(inner, OnnxBody):
            yield from inner.outputs
            for other in inner.nodes:
                yield from values_read(other)


def _constant(node: OnnxNode) -> Array:
    if len(node.attributes) == 1 and len(node.outputs) == 1:
        ((name, value),) = node.attributes.items()
        if name == "value":
            return np.asarray(value)
        kinds: dict[str, Any] = {"float": np.float32, "int": np.int64, "string": object}
        kind = name.removeprefix("value_").removesuffix("s")
        if kind in kinds:
            return np.array(value, kinds[kind])
    raise BadInput(f"graph: Constant {node.name[:64]!r}: expected one value of a supported type")


def _label(proto: Any) -> str:
    return f"{proto.op_type[:64]} {proto.name[:64]!r}"
