"""The graph that passes work on: nodes, edges and constants of a dense graph, with static shapes.

A Graph is immutable. It is created from a DenseGraph (of_dense), changed by an Edit, and converted back (to_dense).
Weights are placeholders throughout, so nothing that a pass does depends on their values.

Nodes are ordered and named by the structure alone (depth first from the outputs, outputs by name, inputs in order), so
the same graph has the same bytes in every process; nodes that no output needs are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.dense.dense_graph import DenseGraph, signature
from freshet_serving.compiler.frameworks import inlined, op_def_registry, tf
from freshet_serving.processor.backends import Dims
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Output

Ref = tuple[str, int]
"""An output of a node: (node, number)."""
Shape = tuple[int | None, ...]
"""A static shape; None for a dimension that is only known when the graph runs."""
Inferred = tuple[Shape | None, Any, tuple[int | None, int | None]]
"""A tensor's shape if the rank is known, its dtype, and its size for each of PROBED_ROWS."""

X = "x"
MAX_NODES = 100_000
# Larger than any slice of leading rows.
PROBED_ROWS = (1_048_583, 1_048_589)
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
IDENTITIES = frozenset({"Identity", "StopGradient", "PreventGradient", "Snapshot"})


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation: TensorFlow AttrValues by name, those that affect the result, and the value of a constant."""

    op: str
    inputs: tuple[Ref, ...] = ()
    attrs: Mapping[str, Any] | None = None
    value: NDArray[Any] | None = None

    def attr(self, name: str) -> Any:
        value = (self.attrs or {}).get(name)
        return None if value is None else getattr(value, value.WhichOneof("value"))


class Graph:
    """A graph from named inputs and weights, whose shapes it has, to named outputs; nodes are in topological order."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        outputs: Mapping[str, Ref],
        inputs: Mapping[str, Dims],
        weights: Mapping[str, tuple[int, ...]],
        library: Any = None,
    ) -> None:
        """Create a graph.

        Args:
            nodes: In any order, with a placeholder for each input, of its name, and "w<i>" for weight number i by name.
            inputs: Dimensions by name, None for the rows.
            library: Functions that nodes refer to (branches and loops), in TensorFlow's format.
        """
        self.inputs, self.weights, self.library = dict(inputs), dict(weights), library
        self.placeholders = {f"w{i}": name for i, name in enumerate(sorted(weights))}
        self.nodes, self.outputs = _canonical(nodes, outputs, [*self.inputs, *self.placeholders])

    @property
    def width(self) -> int:
        return self.inputs[X][1] or 0

    @classmethod
    def of_dense(cls, dense: DenseGraph) -> Graph:
        """Convert a DenseGraph's function with calls inlined; raise BadInput if it has state of its own."""
        concrete = dense.concrete
        names, inputs_by_name = sorted(dense.weights), sorted(dense.inputs)
        if len(concrete.inputs) != len(inputs_by_name) + len(names):
            raise BadInput("dense graph: expected a function of its input and weights alone, got one with state")
        graph_def = concrete.graph.as_graph_def()
        if any(node.op in CALLS for node in graph_def.node):
            concrete = inlined(concrete)
            graph_def = concrete.graph.as_graph_def()
        if len(graph_def.node) > MAX_NODES:
            raise BadInput(f"dense graph: expected at most {MAX_NODES} nodes, got {len(graph_def.node)}")
        places = [*inputs_by_name, *(f"w{i}" for i in range(len(names)))]
        rename = {tensor.op.name: place for tensor, place in zip(concrete.inputs, places)}
        nodes = {}
        for node in graph_def.node:
            inputs = []
            for text in node.input:
                if not text.startswith("^"):
                    source, _, number = text.partition(":")
                    inputs.append((rename.get(source, source), int(number or 0)))
            nodes[rename.get(node.name, node.name)] = _of_proto(node, tuple(inputs))
        outputs = {}
        for name, tensor in zip(sorted(o.name for o in dense.outputs), concrete.outputs):
            ref = (rename.get(tensor.op.name, tensor.op.name), tensor.value_index)
            # Every trace of a function adds identities at its outputs.
            while nodes[ref[0]].op == "Identity":
                ref = nodes[ref[0]].inputs[0]
            outputs[name] = ref
        shapes = {name: array.shape for name, array in dense.weights.items()}
        library = graph_def.library if graph_def.library.function else None
        return cls(nodes, outputs, dense.inputs, shapes, library)

    def to_dense(self, weights: Mapping[str, NDArray[np.float32]]) -> DenseGraph:
        """Convert to a DenseGraph with weights of the names and shapes of this graph's."""
        specs = signature(self.inputs, {name: np.empty(shape, np.float32) for name, shape in self.weights.items()})

        def dense(inputs: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
            return self.apply({**inputs, **{f"w{i}": values[n] for i, n in enumerate(sorted(values))}}, self.outputs)

        function = tf.function(dense, input_signature=specs, autograph=False)
        function.get_concrete_function()
        outputs = [Output(name, int(self.shape(ref)[1] or 0)) for name, ref in sorted(self.outputs.items())]
        return DenseGraph(function, self.inputs, outputs, {name: weights[name] for name in self.weights})

    def apply(self, feeds: Mapping[str, Any], wanted: Mapping[str, Ref]) -> dict[str, Any]:
        """Compute tensors by name from tensors of the placeholders, inside a function or eagerly."""
        through = {name: ref for name, ref in wanted.items() if ref[0] not in feeds}
        needed = set(_ordered(self.nodes, through.values()))
        message = self._message(n for n in self.nodes if n in needed and n not in feeds)
        used = {f"{name}:0": tensor for name, tensor in feeds.items() if name in needed}
        computed = tf.graph_util.import_graph_def(message, used, [f"{n}:{i}" for n, i in through.values()], name="")
        return dict(zip(through, computed)) | {
            name: tf.identity(feeds[ref[0]]) for name, ref in wanted.items() if ref[0] in feeds
        }

    def to_bytes(self) -> bytes:
        """Serialise the whole graph; equal for equal graphs, in every process."""
        message = self._message(self.nodes)
        for name, (node, number) in sorted(self.outputs.items()):
            message.node.add(name=f"output/{name}", op="Identity", input=[f"{node}:{number}"])
        return bytes(message.SerializeToString(deterministic=True))

    def shape(self, ref: Ref) -> Shape:
        """Return the static shape; raise BadInput for a tensor whose rank is not known before the graph runs."""
        shape = self._inferred[ref][0]
        if shape is None:
            raise BadInput("dense graph: expected tensors of a known rank")
        return shape

    def ranked(self, ref: Ref) -> bool:
        return self._inferred[ref][0] is not None

    def dtype(self, ref: Ref) -> Any:
        return self._inferred[ref][1]

    def size(self, ref: Ref) -> int | None:
        """Return how many elements one more row of x adds to a tensor, along any axis; None if only a run tells."""
        first, second = self._inferred[ref][2]
        return None if first is None or second is None else (second - first) // (PROBED_ROWS[1] - PROBED_ROWS[0])

    def constant(self, ref: Ref) -> NDArray[Any] | None:
        return self.nodes[ref[0]].value

    def producer(self, ref: Ref) -> Node:
        return self.nodes[ref[0]]

    def outputs_of(self, name: str) -> int:
        return self._imported[1][name]

    @cached_property
    def varying(self) -> frozenset[str]:
        """Nodes that depend on inputs, computed for every batch. The others depend on weights and constants alone."""
        names = set(self.inputs)
        for name, node in self.nodes.items():
            if any(source in names for source, _ in node.inputs):
                names.add(name)
        return frozenset(names)

    @cached_property
    def fixed(self) -> frozenset[str]:
        names: set[str] = set()
        for name, node in self.nodes.items():
            inputs = all(source in names for source, _ in node.inputs)
            if inputs and not self.given(name) and name not in self._stateful:
                names.add(name)
        return frozenset(names)

    @cached_property
    def users(self) -> dict[Ref, list[str]]:
        """The nodes that read each tensor, one entry per use; an output of the graph counts as the user ""."""
        readers: dict[Ref, list[str]] = {}
        for name, node in self.nodes.items():
            for ref in node.inputs:
                readers.setdefault(ref, []).append(name)
        for ref in self.outputs.values():
            readers.setdefault(ref, []).append("")
        return readers

    def only_user(self, ref: Ref) -> bool:
        """Return whether a tensor has exactly one use, and not as an output."""
        users = self.users.get(ref, [])
        return len(users) == 1 and users[0] != ""

    def free(self, ref: Ref) -> bool:
        """Return whether a tensor is known before any request: it depends on weights and constants alone."""
        return ref[0] not in self.varying

    def stateful(self, name: str) -> bool:
        return name in self._stateful

    @property
    def _inferred(self) -> dict[Ref, Inferred]:
        return self._imported[0]

    @cached_property
    def _stateful(self) -> frozenset[str]:
        # By the registry: of most graphs between two passes nothing else is read, and an import takes much longer.
        definitions: dict[str, Any] = {op: op_def_registry.get(op) for op in {node.op for node in self.nodes.values()}}
        stateful = {op for op, definition in definitions.items() if definition is None or definition.is_stateful}
        return frozenset(name for name, node in self.nodes.items() if node.op in stateful)

    @cached_property
    def _imported(self) -> tuple[dict[Ref, Inferred], dict[str, int]]:
        """Tensors by TensorFlow's own inference; numbers of outputs."""
        return _inferred_of(
            *(self._message(self.nodes, rows).SerializeToString(deterministic=True) for rows in PROBED_ROWS)
        )

    def given(self, name: str) -> bool:
        """Report whether a node is a placeholder of an input or a weight."""
        return name in self.inputs or name in self.placeholders

    def _message(self, names: Iterable[str], rows: int | None = None) -> Any:
        message = tf.compat.v1.GraphDef()
        message.versions.producer = tf.version.GRAPH_DEF_VERSION
        if self.library is not None:
            message.library.CopyFrom(self.library)
        for name in names:
            node = self.nodes[name]
            proto = message.node.add(name=name, op=node.op)
            proto.input.extend([f"{source}:{number}" for source, number in node.inputs])
            if self.given(name):
                dims = self.inputs.get(name)
                shape: Shape = (
                    self.weights[self.placeholders[name]]
                    if dims is None
                    else (tuple(rows if n is None else n for n in dims))
                )
                proto.attr["dtype"].type = tf.float32.as_datatype_enum
                proto.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
                continue
            if node.value is not None:
                proto.attr["dtype"].type = tf.as_dtype(node.value.dtype).as_datatype_enum
                proto.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(node.value))
            for key, value in (node.attrs or {}).items():
                proto.attr[key].CopyFrom(value)
        return message


class Edit:
    """Changes to a graph: new nodes, and replacements of tensors. done() applies them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._nodes: dict[str, Node] = {}
        self._instead: dict[Ref, Ref] = {}

    @property
    def changes(self) -> int:
        return len(self._instead)

    def replace(self, old: Ref, new: Ref) -> None:
        if old != new:
            self._instead[old] = new

    def replaced(self, ref: Ref) -> bool:
        return ref in self._instead

    def add(self, op: str, *inputs: Ref, **attrs: Any) -> Ref:
        """Add a node and return its first output; attributes have no default, not even T."""
        name = f"+{len(self._nodes)}"
        self._nodes[name] = Node(op, inputs, {key: _attr(value) for key, value in attrs.items()})
        return name, 0

    def constant(self, value: Any, dtype: Any = np.float32) -> Ref:
        name = f"+{len(self._nodes)}"
        self._nodes[name] = Node("Const", value=np.asarray(value, dtype))
        return name, 0

    def copy(self, node: Node, inputs: Sequence[Ref]) -> str:
        name = f"+{len(self._nodes)}"
        self._nodes[name] = replace(node, inputs=tuple(inputs))
        return name

    def binary(self, op: str, a: Ref, b: Ref) -> Ref:
        """Add AddV2, Sub, Mul, RealDiv, Pow, Maximum or Minimum of float32 tensors."""
        return self.add(op, a, b, T=tf.float32)

    def unary(self, op: str, a: Ref) -> Ref:
        return self.add(op, a, T=tf.float32)

    def matmul(self, a: Ref, b: Ref) -> Ref:
        """Add a product of matrices [m, k] and [k, n]."""
        return self.add("MatMul", a, b, T=tf.float32, transpose_a=False, transpose_b=False)

    def bias(self, a: Ref, b: Ref) -> Ref:
        """Add [rows, n] + [n]."""
        return self.add("BiasAdd", a, b, T=tf.float32, data_format=b"NHWC")

    def reshape(self, a: Ref, shape: Sequence[int]) -> Ref:
        return self.add("Reshape", a, self.constant(shape, np.int32), T=tf.float32, Tshape=tf.int32)

    def concat(self, parts: Sequence[Ref], axis: int = 1, dtype: Any = tf.float32) -> Ref:
        if len(parts) == 1:
            return parts[0]
        return self.add("ConcatV2", *parts, self.constant(axis, np.int32), T=dtype, N=len(parts), Tidx=tf.int32)

    def slice(self, a: Ref, rank: int, axis: int, start: int, stop: int, dtype: Any = tf.float32) -> Ref:
        return self.slices(a, rank, {axis: (start, stop)}, dtype)

    def slices(self, a: Ref, rank: int, spans: Mapping[int, tuple[int, int]], dtype: Any = tf.float32) -> Ref:
        begin = [spans.get(i, (0, 0))[0] for i in range(rank)]
        end = [spans.get(i, (0, 0))[1] for i in range(rank)]
        mask = sum(1 << i for i in range(rank) if i not in spans)
        ends = (self.constant(v, np.int32) for v in (begin, end, [1] * rank))
        masks = dict(begin_mask=mask, end_mask=mask, ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0)
        return self.add("StridedSlice", a, *ends, T=dtype, Index=tf.int32, **masks)

    def gather(self, a: Ref, indices: Sequence[int], axis: int = 0) -> Ref:
        places = (self.constant(indices, np.int32), self.constant(axis, np.int32))
        return self.add("GatherV2", a, *places, Tparams=tf.float32, Tindices=tf.int32, Taxis=tf.int32, batch_dims=0)

    def sum(self, a: Ref, axes: Sequence[int], keep: bool = False) -> Ref:
        return self.add("Sum", a, self.constant(axes, np.int32), T=tf.float32, Tidx=tf.int32, keep_dims=keep)

    def transpose(self, a: Ref, order: Sequence[int]) -> Ref:
        return self.add("Transpose", a, self.constant(order, np.int32), T=tf.float32, Tperm=tf.int32)

    def done(self, outputs: Mapping[str, Ref] | None = None, inputs: Mapping[str, Dims] | None = None) -> Graph:
        """Return the graph with all changes applied, and other outputs or inputs; itself if nothing was replaced."""
        graph = self.graph
        if not self._instead and outputs is None and inputs is None:
            # The same object: what was inferred of it need not be inferred again.
            return graph

        def final(ref: Ref) -> Ref:
            seen = set()
            while ref in self._instead and ref not in seen:
                seen.add(ref)
                ref = self._instead[ref]
            return ref

        nodes = {
            name: replace(node, inputs=tuple(final(ref) for ref in node.inputs))
            for name, node in (*graph.nodes.items(), *self._nodes.items())
        }
        ends = {name: final(ref) for name, ref in (graph.outputs if outputs is None else outputs).items()}
        return Graph(nodes, ends, graph.inputs if inputs is None else inputs, graph.weights, graph.library)


# The same graph comes by again: after a pass without changes, as a dense graph, with a next version's weights. Most
# misses are of graphs that a pass has just made: a larger cache would save 9 of 580 in the tests of passes.
@lru_cache(maxsize=16)
def _inferred_of(*messages: bytes) -> tuple[dict[Ref, Inferred], dict[str, int]]:
    """Return the tensors of a graph by TensorFlow's own inference, and the nodes' numbers of outputs.

    Inferred for two numbers of rows: a dimension that is the same for both is static. With symbolic rows, a dimension
    computed from another tensor's shape would be unknown.
    """
    tensors: dict[Ref, Inferred] = {}
    numbers = {}
    for message in messages:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(message), name="")
            for op in graph.get_operations():
                numbers[op.name] = len(op.outputs)
                for number, tensor in enumerate(op.outputs):
                    ref, dims, size = (op.name, number), None, tensor.shape.num_elements()
                    if tensor.shape.rank is not None:
                        dims = tuple(tensor.shape.as_list())
                        if ref in tensors:
                            dims = _common(tensors[ref][0], dims)
                    first = tensors[ref][2][0] if ref in tensors else size
                    tensors[ref] = (dims, tensor.dtype, (first, size))
    return tensors, numbers


def _of_proto(node: Any, inputs: tuple[Ref, ...]) -> Node:
    if node.op == "Const":
        return Node("Const", value=tf.make_ndarray(node.attr["value"].tensor))
    return Node(node.op, inputs, {key: value for key, value in sorted(node.attr.items()) if key[0] != "_"})


def _attr(value: Any) -> Any:
    message = tf.compat.v1.AttrValue()
    if isinstance(value, bool):
        message.b = value
    elif isinstance(value, int):
        message.i = value
    elif isinstance(value, bytes):
        message.s = value
    else:
        message.type = value.as_datatype_enum
    return message


def _common(a: Shape | None, b: Shape) -> Shape | None:
    return tuple(n if n == m else None for n, m in zip(a, b)) if a is not None and len(a) == len(b) else None


def _ordered(nodes: Mapping[str, Node], refs: Iterable[Ref]) -> Iterator[str]:
    """Iterate over the nodes that the tensors need, each once and after its inputs: depth first, inputs in order."""
    seen: set[str] = set()
    stack = [(name, False) for name, _ in reversed(list(refs))]
    while stack:
        name, ready = stack.pop()
        if ready:
            yield name
        elif name not in seen:
            seen.add(name)
            stack.append((name, True))
            stack.extend((source, False) for source, _ in reversed(nodes[name].inputs))


def _canonical(
    nodes: Mapping[str, Node], outputs: Mapping[str, Ref], placeholders: Sequence[str]
) -> tuple[dict[str, Node], dict[str, Ref]]:
    """Return the nodes that the outputs need, renamed by position, and the outputs.

    Placeholders keep their names and order, are all present, and come first.
    """
    ordered_outputs = dict(sorted(outputs.items()))
    nodes = {**nodes, **{name: Node("Placeholder") for name in placeholders}}
    names = {name: name for name in placeholders}
    order: list[str] = []
    for name in _ordered(nodes, ordered_outputs.values()):
        if name not in names:
            names[name] = f"n{len(order)}"
            order.append(name)
    first = {name: Node("Placeholder") for name in placeholders}
    rest = {
        names[name]: replace(nodes[name], inputs=tuple((names[n], i) for n, i in nodes[name].inputs)) for name in order
    }
    return {**first, **rest}, {name: (names[n], i) for name, (n, i) in ordered_outputs.items()}
