"""Convert a model's signature to one flat graph.

Functions are inlined, identities and bookkeeping are removed. Nodes are TensorFlow's, except for sources of our own:
INPUT, a tensor that is fed; VARIABLE, the value of a variable; TABLE, the handle of a lookup table. Control edges are
dropped: the import keeps what the outputs are computed from, without checks and side effects (asserts, counters).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from freshet_serving.compiler.frameworks import op_def_registry, tf
from freshet_serving.compiler.imports.ops import words
from freshet_serving.processor.errors import BadInput

Ref = tuple[str, int]
"""A tensor: the node that computes it, and the number of the output."""

VARIABLE, TABLE, INPUT = "@variable", "@table", "@input"
SOURCES = frozenset({VARIABLE, TABLE, INPUT, "@rows"})
VARIABLE_OPS = frozenset({"VarHandleOp", "VariableV2", "Variable"})
TABLE_OPS = frozenset({"HashTableV2", "HashTable", "MutableHashTableV2", "MutableHashTable"})
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
CONTROL = frozenset({"If", "While", "Case", "StatelessIf", "StatelessWhile", "StatelessCase"})
SAME = words("Identity IdentityN StopGradient PreventGradient Snapshot PlaceholderWithDefault EnsureShape")
HANDLE = 1
"""The output of a VARIABLE node that is its handle; output 0 is its value."""
DEPTH = 64
INT32, RESOURCE = tf.int32.as_datatype_enum, tf.resource.as_datatype_enum
PRODUCER = tf.version.GRAPH_DEF_VERSION


@dataclass(frozen=True, slots=True, eq=False)
class ForeignNode:
    """An operation; `definition` is the original NodeDef, with attributes but stale names, or None for INPUT."""

    name: str
    op: str
    inputs: tuple[Ref, ...]
    definition: Any


@dataclass(slots=True, eq=False)
class ForeignGraph:
    """A flat graph.

    Attributes:
        nodes: By name.
        library: Functions that control flow nodes call.
        handles: By VARIABLE and TABLE, the tensor in the session that holds it.
        unused: Variables of the model that the graph does not need.
    """

    nodes: dict[str, ForeignNode] = field(default_factory=dict)
    library: Any = None
    handles: dict[str, str] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()

    def ancestors(self, refs: Iterable[Ref], stop: Collection[Ref] = ()) -> list[ForeignNode]:
        """Return the nodes that `refs` are computed from, each after its inputs; none above the tensors of `stop`."""
        ordered: list[ForeignNode] = []
        seen: set[str] = set()
        stack = [(ref[0], False) for ref in refs if ref not in stop]
        while stack:
            name, ready = stack.pop()
            if ready:
                ordered.append(self.nodes[name])
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                stack.extend((r[0], False) for r in self.nodes[name].inputs if r not in stop and r[0] not in seen)
        return ordered

    def graph_def(self, refs: Iterable[Ref], given: Mapping[Ref, str]) -> Any:
        """Return a GraphDef that computes `refs`; all sources on the way must be given by name, others may be."""
        definition = tf.compat.v1.GraphDef()
        definition.versions.producer = PRODUCER
        if self.library is not None:
            definition.library.CopyFrom(self.library)
        for node in self.ancestors(refs, given):
            if node.op in SOURCES:
                raise BadInput(f"graph: {node.name[:80]!r} is a source and must be given")
            copy = definition.node.add()
            copy.CopyFrom(node.definition)
            copy.name, copy.device = node.name, ""
            for stale in ("_class", "_output_shapes"):
                copy.attr.pop(stale, None)
            del copy.input[:]
            copy.input.extend(given[ref] if ref in given else text(ref) for ref in node.inputs)
        return definition


def text(ref: Ref) -> str:
    """Return a tensor's name as GraphDefs and sessions write it."""
    return ref[0] if ref[1] == 0 else f"{ref[0]}:{ref[1]}"


@dataclass(frozen=True, slots=True)
class OptionalOutputs:
    """Outputs of further signatures, which are computed only from what is fed already.

    Attributes:
        tensors: Tensors to compute, by signature.
        same: Tensor of theirs -> node that is fed for it.
        allowed: Operations that they may use.
    """

    tensors: Mapping[str, Iterable[str]]
    same: Mapping[str, str]
    allowed: frozenset[str]


def inline(
    graph_def: Any, inputs: Mapping[str, str], outputs: Iterable[str], others: OptionalOutputs | None = None
) -> tuple[ForeignGraph, dict[str, Ref]]:
    """Convert a GraphDef to a flat graph; return it with the place of each output. Raise BadInput if it is invalid.

    Args:
        inputs: Node -> tensor that is fed; each becomes an INPUT node.
        outputs: Tensors to compute ("node:0").
        others: Outputs of further signatures, of which the graph has those that read the same inputs.
    """
    builder = Inliner(graph_def, inputs, others.same if others else {})
    places = {name: builder.resolve(parse(name)) for name in outputs}
    graph = builder.graph
    if others is not None:
        places = _with_others(builder, places, others)
    needed = {node.name: node for node in graph.ancestors(places.values())}
    for node in needed.values():
        if node.op == "Placeholder":
            raise BadInput(f"graph: {node.name[:80]!r} must be fed, but is not among the signature's inputs")
    graph.nodes = needed
    graph.unused = frozenset(graph.handles.keys() - needed.keys())
    graph.handles = {name: handle for name, handle in graph.handles.items() if name in needed}
    graph.library = functions_of([node.definition for node in needed.values() if node.definition], graph_def.library)
    return graph, places


def _with_others(builder: Inliner, places: dict[str, Ref], others: OptionalOutputs) -> dict[str, Ref]:
    """Return the places of the outputs, and of those of further signatures that read exactly the same inputs."""
    graph = builder.graph
    read = {node.name for node in graph.ancestors(places.values()) if node.op == INPUT}
    places = dict(places)
    for tensors in others.tensors.values():
        refs = {name: builder.resolve(parse(name)) for name in tensors}
        try:
            nodes = graph.ancestors(refs.values())
            inner = functions_of([node.definition for node in nodes if node.definition], builder.library)
        except (KeyError, BadInput):
            # A node or a function is missing; the signature that was chosen does not need it.
            continue
        used = {node.op for node in nodes} | {node.op for function in inner.function for node in function.node_def}
        if used <= others.allowed and {node.name for node in nodes if node.op == INPUT} == read:
            places |= refs
    # TensorFlow 2 saves a body for every signature: what they compute alike is looked up and computed once.
    merged = _merge_equal(graph, graph.ancestors(places.values()))
    return {name: (merged.get(node, node), output) for name, (node, output) in places.items()}


def _merge_equal(graph: ForeignGraph, nodes: Iterable[ForeignNode]) -> dict[str, str]:
    """Make readers of equal nodes, each after its inputs, read the first; return its name by the names of all."""
    first: dict[Any, str] = {}
    merged: dict[str, str] = {}
    for node in nodes:
        inputs = tuple((merged.get(name, name), output) for name, output in node.inputs)
        graph.nodes[node.name] = ForeignNode(node.name, node.op, inputs, node.definition)
        operation = op_def_registry.get(node.op)
        if node.op in SOURCES or operation is None or operation.is_stateful:
            continue
        attributes = node.definition.attr
        described = tuple((key, attributes[key].SerializeToString(deterministic=True)) for key in sorted(attributes))
        key = (node.op, inputs, tuple(pair for pair in described if pair[0] not in ("_class", "_output_shapes")))
        merged[node.name] = first.setdefault(key, node.name)
    return merged


def functions_of(definitions: Iterable[Any], library: Any) -> Any:
    """Return the part of a library that these nodes call, directly or not; raise BadInput if a function is missing."""
    functions = {f.signature.name: f for f in library.function}
    reached: dict[str, Any] = {}
    open_nodes = list(definitions)
    while open_nodes:
        definition = open_nodes.pop()
        called = [v.func.name for v in definition.attr.values() if v.HasField("func")]
        called += [f.name for v in definition.attr.values() for f in v.list.func]
        for name in (*called, *([definition.op] if definition.op in functions else [])):
            if name not in functions:
                raise BadInput(f"graph: function {name[:80]!r} is missing")
            if name not in reached:
                reached[name] = functions[name]
                open_nodes.extend(functions[name].node_def)
    part = type(library)()
    part.function.extend(reached[name] for name in sorted(reached))
    return part


class Inliner:
    """Copies the root graph with the bodies of functions in place of calls; its arguments are those of inline()."""

    def __init__(self, graph_def: Any, inputs: Mapping[str, str], same: Mapping[str, str] | None = None) -> None:
        self.graph, self.library = ForeignGraph(), graph_def.library
        self._functions = {f.signature.name: f for f in graph_def.library.function}
        self._bodies: dict[str, tuple[list[Any], list[Ref]]] = {}
        self._alias: dict[Ref, Ref] = {}
        self._copy(graph_def.node, "", 0)
        for name, tensor in inputs.items():
            self.graph.nodes[name] = ForeignNode(name, INPUT, (), None)
            self._alias[parse(tensor)] = (name, 0)
        for tensor, name in (same or {}).items():
            self._alias[parse(tensor)] = (name, 0)
        self._normalise()

    def resolve(self, ref: Ref) -> Ref:
        seen = ref
        while ref in self._alias:
            ref = self._alias[ref]
            if ref == seen:
                raise BadInput("graph: a function returns itself")
        return ref

    def _copy(self, nodes: Iterable[Any], prefix: str, depth: int) -> None:
        if depth > DEPTH:
            raise BadInput(f"graph: expected functions nested at most {DEPTH} deep")
        for definition in nodes:
            name, op = prefix + definition.name, definition.op
            inputs = [(prefix + r[0], r[1]) for r in map(parse, definition.input) if not r[0].startswith("^")]
            if op in CALLS or op in self._functions:
                self._call(definition, name, inputs, depth)
            elif op in SAME and inputs:
                for i, ref in enumerate(inputs):
                    self._alias[name, i] = ref
            else:
                self._add(definition, name, inputs, bool(prefix))

    def _add(self, definition: Any, name: str, inputs: list[Ref], nested: bool) -> None:
        op = definition.op
        if op in VARIABLE_OPS | TABLE_OPS:
            if nested:
                raise BadInput(f"graph: {op} inside a function is not supported: make it part of the model")
            op = VARIABLE if op in VARIABLE_OPS else TABLE
            self.graph.handles[name] = f"{name}:0"
        self.graph.nodes[name] = ForeignNode(name, op, tuple(inputs), definition)

    def _call(self, definition: Any, name: str, inputs: list[Ref], depth: int) -> None:
        called = definition.attr["f"].func.name if definition.op in CALLS else definition.op
        function = self._functions.get(called)
        if function is None:
            raise BadInput(f"graph: function {called[:80]!r} is missing")
        arguments = [argument.name for argument in function.signature.input_arg]
        for argument, ref in zip(arguments, inputs):
            self._alias[f"{name}/{argument}", 0] = ref
        if called not in self._bodies:
            self._bodies[called] = self._body(function)
        body, results = self._bodies[called]
        self._copy(body, f"{name}/", depth + 1)
        for i, (node, output) in enumerate(results):
            self._alias[name, i] = (f"{name}/{node}", output)

    def _body(self, function: Any) -> tuple[list[Any], list[Ref]]:
        """Return a function's nodes and its results; inputs are as in a graph (node:index, not node:argument:index)."""
        first = {node.name: self._outputs(node) for node in function.node_def}

        def ref(name: str) -> Ref:
            node, _, rest = name.partition(":")
            argument, _, index = rest.partition(":")
            return (node, first[node][argument] + int(index or 0)) if argument else (node, 0)

        nodes = []
        for node in function.node_def:
            copy = type(node)()
            copy.CopyFrom(node)
            copy.input[:] = [i if i.startswith("^") else "{}:{}".format(*ref(i)) for i in node.input]
            nodes.append(copy)
        return nodes, [ref(function.ret[result.name]) for result in function.signature.output_arg]

    def _outputs(self, node: Any) -> dict[str, int]:
        """Return the number of the first output under each name of a node's outputs."""
        signature = self._functions[node.op].signature if node.op in self._functions else op_def_registry.get(node.op)
        if signature is None:
            raise BadInput(f"graph: operation {node.op[:64]!r} is not TensorFlow's own")
        first, at = {}, 0
        for output in signature.output_arg:
            first[output.name] = at
            if output.number_attr:
                at += node.attr[output.number_attr].i
            elif output.type_list_attr:
                at += len(node.attr[output.type_list_attr].list.type)
            else:
                at += 1
        return first

    def _normalise(self) -> None:
        """Read variables and gather from them directly; bypass operations that only change the wrapping of values."""
        nodes = self.graph.nodes
        for name, node in list(nodes.items()):
            if node.op == "ReadVariableOp":
                self._alias[name, 0] = node.inputs[0]
                del nodes[name]
            elif node.op == "RaggedTensorToSparse":
                self._alias[name, 1] = node.inputs[-1]
            elif node.op in ("ResourceGather", "ResourceGatherNd"):
                nodes[name] = self._gather(node)
        for name, node in list(nodes.items()):
            inputs: Iterable[Ref] = map(self.resolve, node.inputs)
            if node.op in CONTROL:
                inputs = [self._handle(ref) if handle else ref for ref, handle in zip(inputs, _handles(node))]
            nodes[name] = ForeignNode(name, node.op, tuple(inputs), node.definition)

    def _handle(self, ref: Ref) -> Ref:
        node = self.graph.nodes.get(ref[0])
        return (ref[0], HANDLE) if node is not None and node.op == VARIABLE and ref[1] == 0 else ref

    def _gather(self, node: ForeignNode) -> ForeignNode:
        attr = node.definition.attr
        definition = type(node.definition)(op="GatherV2" if node.op == "ResourceGather" else "GatherNd")
        definition.attr["Tparams"].CopyFrom(attr["dtype"])
        definition.attr["Tindices"].CopyFrom(attr["Tindices"])
        if node.op == "ResourceGatherNd":
            return ForeignNode(node.name, "GatherNd", node.inputs, definition)
        definition.attr["batch_dims"].i = attr["batch_dims"].i
        definition.attr["Taxis"].type = INT32
        axis = f"{node.name}/axis"
        constant = type(node.definition)(op="Const")
        constant.attr["dtype"].type = INT32
        constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(attr["batch_dims"].i, tf.int32, ()))
        self.graph.nodes[axis] = ForeignNode(axis, "Const", (), constant)
        return ForeignNode(node.name, "GatherV2", (*node.inputs, (axis, 0)), definition)


def _handles(node: ForeignNode) -> list[bool]:
    """Return for each input of a control flow node whether it is a handle; it may be a value that is read outside."""
    attr = node.definition.attr
    loop = "While" in node.op
    kinds = list(attr["T" if loop else "Tin"].list.type)
    # Branches have a condition or an index before their inputs.
    return [False] * (len(node.inputs) - len(kinds)) + [kind == RESOURCE for kind in kinds]


def parse(name: str) -> Ref:
    """Parse a tensor's name in a GraphDef; a control edge gives the node with its "^"."""
    node, _, output = name.partition(":")
    return node, int(output or 0)
