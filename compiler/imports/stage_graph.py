"""Write a stage, the part of a model's sparse side that tables do not replace, as one frozen GraphDef."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.embedding_lookups import Lookup
from freshet_serving.compiler.imports.fed_stage import ROWS
from freshet_serving.compiler.imports.feeds import DENSE, PADDED, FeedSpec
from freshet_serving.compiler.imports.foreign_graph import HANDLE, INPUT, TABLE, VARIABLE, ForeignNode, Ref, text
from freshet_serving.compiler.imports.runner import Runner
from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.package import INTEGERS, PIECE_BITS, PIECES, Input, StageEntry, StageLookup, weight_rows

MAX_NBYTES = 2**31 - (1 << 20)
ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"
"""TensorFlow's name of a variable that each run of a VarHandleOp makes anew (ResourceHandle::ANONYMOUS_NAME)."""


@dataclass(frozen=True, slots=True)
class StageOutput:
    """One output of a stage: a tensor, and for ragged rows the row of each of its values."""

    spec: Input
    values: Ref
    segments: Ref | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StageRowsTensor:
    """A tensor of a stage that the engine fills with rows of a table: `dims` are its sizes after those of its keys."""

    spec: StageLookup
    lookup: Lookup
    dims: tuple[int, ...]

    @property
    def target(self) -> Ref:
        return self.lookup.target


class StageWriter:
    """Collects a stage's outputs, then writes the graph that computes them.

    Attributes:
        rows: Tensors that the engine fills, and that the stage does not compute.
        weights: By variable, the lookup by which the engine hands it over whole.
    """

    def __init__(self, runner: Runner, inputs: Sequence[FeedSpec]) -> None:
        self._runner, self._graph = runner, runner.graph
        self._inputs = {node: fed for fed in inputs for node in fed.nodes}
        self.outputs: list[StageOutput] = []
        self.rows: list[StageRowsTensor] = []
        self.weights: dict[str, StageLookup] = {}

    def add(self, spec: Input, values: Ref, segments: Ref | None = None) -> str:
        """Add an output, unless its tensors have one; return its name. `segments` has the row of each ragged value."""
        for output in self.outputs:
            if (output.values, output.segments, output.spec.dtype) == (values, segments, spec.dtype):
                return output.spec.name
        self.outputs.append(StageOutput(spec, values, segments))
        return spec.name

    @property
    def refs(self) -> list[Ref]:
        return [ref for o in self.outputs for ref in (o.values, o.segments) if ref is not None]

    @property
    def nodes(self) -> list[ForeignNode]:
        return self._graph.ancestors(self._wanted, {row.target for row in self.rows})

    @property
    def _wanted(self) -> list[Ref]:
        """The stage's outputs, and the keys whose shapes its rows have."""
        return [*self.refs, *(row.lookup.source for row in self.rows)]

    def entry(self, runtime: str, file: str) -> StageEntry:
        return StageEntry(
            runtime,
            file,
            [o.spec for o in self.outputs],
            [*{row.spec.name: row.spec for row in self.rows}.values(), *self.weights.values()],
        )

    @property
    def constants(self) -> list[str]:
        return [node.name for node in self.nodes if node.op == VARIABLE and node.name not in self.weights]

    def write(self) -> bytes:
        """Return the stage's graph; raise TooLarge if it exceeds the limit of a GraphDef."""
        nodes = self.nodes
        names: dict[Ref, str] = {}
        extra = tf.compat.v1.GraphDef()
        nbytes = 0
        for node in nodes:
            if node.op == INPUT:
                names[node.name, 0] = node.name
                self._placeholder(extra, node.name)
            elif node.op == VARIABLE:
                handled = any((node.name, HANDLE) in reader.inputs for reader in nodes)
                nbytes += self._variable(extra, node, names, handled)
            elif node.op == TABLE:
                nbytes += self._table(extra, node, names)
        if nbytes > MAX_NBYTES:
            raise TooLarge("stage: it would hold more than 2 GiB of constants, which no TensorFlow graph can")
        names |= {row.target: f"{ROWS}{n}/shaped" for n, row in enumerate(self.rows)}
        definition = self._graph.graph_def(self._wanted, names)
        for name, dim in {row.spec.name: row.lookup.dim for row in self.rows}.items():
            self._rows_of(extra, name, dim)
        for row in self.rows:
            self._filled(extra, row, names)
        definition.node.extend(extra.node)
        for output in self.outputs:
            dtype = self._runner.tensor(output.values).dtype
            if dtype.name in INTEGERS and output.spec.dtype == "float32":
                self._pieces(definition, f"output/{output.spec.name}", output, names)
            else:
                self._identity(definition, f"output/{output.spec.name}", output.values, names)
            if output.segments is not None:
                self._identity(definition, f"output/{output.spec.name}/segments", output.segments, names)
        return bytes(definition.SerializeToString(deterministic=True))

    def _placeholder(self, definition: Any, name: str) -> None:
        fed = self._inputs[name]
        node = _node(definition, name, "Placeholder", dtype=self._runner.tensor((name, 0)).dtype)
        if fed.kind in (DENSE, PADDED):
            for size in (-1, *(fed.dims if fed.kind == DENSE else (-1,))):
                node.attr["shape"].shape.dim.add(size=size)
        else:
            node.attr["shape"].shape.unknown_rank = True

    def _rows_of(self, definition: Any, name: str, dim: int) -> None:
        node = _node(definition, f"{ROWS}{name}", "Placeholder", dtype=tf.float32)
        for size in (-1, dim):
            node.attr["shape"].shape.dim.add(size=size)

    def _filled(self, definition: Any, rows: StageRowsTensor, names: Mapping[Ref, str]) -> None:
        """Add the nodes that bring rows into the shape of their keys."""
        source, shaped = rows.lookup.source, names[rows.target]
        name = shaped.removesuffix("/shaped")
        keys, dtype = names.get(source, text(source)), self._runner.tensor(source).dtype
        shape = _node(definition, f"{name}/keys", "Shape", [keys], T=dtype, out_type=tf.int32)
        dims = self._constant(definition, f"{name}/dims", np.array(rows.dims, np.int32))
        axis = self._constant(definition, f"{name}/axis", np.int32(0))
        whole = _node(definition, f"{name}/shape", "ConcatV2", [shape.name, dims, axis], T=tf.int32, Tidx=tf.int32)
        whole.attr["N"].i = 2
        _node(definition, shaped, "Reshape", [f"{ROWS}{rows.spec.name}", whole.name], T=tf.float32, Tshape=tf.int32)

    def _variable(self, definition: Any, node: ForeignNode, names: dict[Ref, str], handled: bool) -> int:
        value = self._runner.constant((node.name, 0))
        if node.name in self.weights:
            self._weight(definition, node, value.shape, names, handled)
            return 0
        names[node.name, 0] = self._constant(definition, f"{node.name}/value", value)
        if handled:
            names[node.name, HANDLE] = self._handle(definition, node, node.name, node.name.encode())
            self._assign(definition, node, f"init/{len(definition.node)}", [node.name, names[node.name, 0]])
        return int(value.nbytes)

    def _handle(self, definition: Any, node: ForeignNode, name: str, shared_name: bytes) -> str:
        handle = definition.node.add(name=name, op="VarHandleOp")
        for key in ("dtype", "shape"):
            handle.attr[key].CopyFrom(node.definition.attr[key])
        handle.attr["shared_name"].s = shared_name
        return name

    def _assign(self, definition: Any, node: ForeignNode, name: str, inputs: Sequence[str]) -> None:
        assign = definition.node.add(name=name, op="AssignVariableOp", input=inputs)
        assign.attr["dtype"].CopyFrom(node.definition.attr["dtype"])

    def _weight(
        self, definition: Any, node: ForeignNode, shape: tuple[int, ...], names: dict[Ref, str], handled: bool
    ) -> None:
        """Add a weight that a run is given; for bodies of control flow, in a variable that each run has for itself."""
        spec = self.weights[node.name]
        self._rows_of(definition, spec.name, weight_rows(shape)[1])
        dims = self._constant(definition, f"{node.name}/dims", np.array(shape, np.int32))
        value, assign = f"{node.name}/value", f"{node.name}/assign"
        _node(definition, value, "Reshape", [f"{ROWS}{spec.name}", dims], T=tf.float32, Tshape=tf.int32)
        names[node.name, 0] = value
        if handled:
            handle = self._handle(definition, node, f"{node.name}/own", ANONYMOUS)
            self._assign(definition, node, assign, [handle, value])
            _node(definition, node.name, "Identity", [handle, f"^{assign}"], T=tf.resource)
            names[node.name, HANDLE] = node.name

    def _table(self, definition: Any, node: ForeignNode, names: dict[Ref, str]) -> int:
        keys, values = self._runner.table((node.name, 0))
        names[node.name, 0] = node.name
        table = definition.node.add()
        table.CopyFrom(node.definition)
        table.name, table.device = node.name, ""
        del table.input[:]
        for key in ("_class", "_output_shapes"):
            table.attr.pop(key, None)
        table.attr["shared_name"].s = node.name.encode()
        table.attr["container"].s = b""
        fill = definition.node.add(name=f"init/{len(definition.node)}", op="LookupTableImportV2")
        fill.input.append(node.name)
        fill.input.append(self._constant(definition, f"{node.name}/keys", keys))
        fill.input.append(self._constant(definition, f"{node.name}/values", values))
        fill.attr["Tin"].CopyFrom(node.definition.attr["key_dtype"])
        fill.attr["Tout"].CopyFrom(node.definition.attr["value_dtype"])
        return _nbytes(keys) + _nbytes(values)

    def _constant(self, definition: Any, name: str, value: Any) -> str:
        node = definition.node.add(name=name, op="Const")
        tensor = tf.make_tensor_proto(value)
        node.attr["dtype"].type = tensor.dtype
        node.attr["value"].tensor.CopyFrom(tensor)
        return name

    def _pieces(self, definition: Any, name: str, output: StageOutput, names: Mapping[Ref, str]) -> None:
        """Add the pieces of an output's whole numbers (processor.package.replies)."""
        nodes: list[Any] = []

        def add(op: str, *inputs: str, **types: Any) -> str:
            nodes.append(_node(definition, f"{name}/{len(nodes)}", op, inputs, **types))
            return str(nodes[-1].name)

        def constant(value: Any) -> str:
            nodes.append(None)
            return self._constant(definition, f"{name}/{len(nodes)}/constant", value)

        dtype = self._runner.tensor(output.values).dtype
        whole = add("Cast", names.get(output.values, text(output.values)), SrcT=dtype, DstT=tf.int64)
        shape = constant(np.array([-1, output.spec.columns // PIECES], np.int32))
        whole = add("Reshape", whole, shape, T=tf.int64, Tshape=tf.int32)
        size = constant(np.int64(1 << PIECE_BITS))
        above = add("FloorDiv", whole, size, T=tf.int64)
        pieces = [add("FloorMod", part, size, T=tf.int64) for part in (whole, above)]
        pieces.append(add("FloorDiv", above, size, T=tf.int64))
        pieces = [add("Cast", part, SrcT=tf.int64, DstT=tf.float32) for part in pieces]
        axis = constant(np.int32(1))
        joined = _node(definition, name, "ConcatV2", [*pieces, axis], T=tf.float32, Tidx=tf.int32)
        joined.attr["N"].i = PIECES

    def _identity(self, definition: Any, name: str, ref: Ref, names: Mapping[Ref, str]) -> None:
        _node(definition, name, "Identity", [names.get(ref, text(ref))], T=self._runner.tensor(ref).dtype)


def _node(definition: Any, name: str, op: str, inputs: Sequence[str] = (), **types: Any) -> Any:
    """Add a node with these dtypes as attributes, and return it."""
    node = definition.node.add(name=name, op=op, input=inputs)
    for key, dtype in types.items():
        node.attr[key].type = dtype.as_datatype_enum
    return node


def _nbytes(array: Any) -> int:
    if array.dtype == object:
        return int(sum(len(value) + 4 for value in array.ravel()))
    return int(np.asarray(array).nbytes)
