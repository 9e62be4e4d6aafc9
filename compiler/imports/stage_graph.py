"""Write a stage, the part of a model's sparse side that tables do not replace, as one frozen GraphDef."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.feeds import DENSE, PADDED, FeedSpec
from freshet_serving.compiler.imports.foreign_graph import HANDLE, INPUT, TABLE, VARIABLE, ForeignNode, Ref, text
from freshet_serving.compiler.imports.runner import Runner
from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.package import Input

MAX_NBYTES = 2**31 - (1 << 20)


@dataclass(frozen=True, slots=True)
class StageOutput:
    """One output of a stage: a tensor, and for ragged rows the row of each of its values."""

    spec: Input
    values: Ref
    segments: Ref | None = None


class StageWriter:
    """Collects a stage's outputs, then writes the graph that computes them."""

    def __init__(self, runner: Runner, inputs: Sequence[FeedSpec]) -> None:
        self._runner, self._graph = runner, runner.graph
        self._inputs = {node: fed for fed in inputs for node in fed.nodes}
        self.outputs: list[StageOutput] = []

    def add(self, spec: Input, values: Ref, segments: Ref | None = None) -> str:
        """Add an output, unless the same tensors have one already; return its name.

        Args:
            spec: The output.
            values: Its tensor.
            segments: For ragged rows, the row of each value.
        """
        for known in self.outputs:
            if (known.values, known.segments, known.spec.dtype) == (values, segments, spec.dtype):
                return known.spec.name
        self.outputs.append(StageOutput(spec, values, segments))
        return spec.name

    @property
    def refs(self) -> list[Ref]:
        """The tensors that the stage outputs."""
        return [ref for o in self.outputs for ref in (o.values, o.segments) if ref is not None]

    @property
    def nodes(self) -> list[ForeignNode]:
        """The nodes that the stage runs."""
        return self._graph.ancestors(self.refs)

    def write(self) -> bytes:
        """Return the stage's graph; raise TooLarge if it exceeds the limit of a GraphDef."""
        nodes = self.nodes
        given: dict[Ref, str] = {}
        extra = tf.compat.v1.GraphDef()
        nbytes = 0
        for node in nodes:
            if node.op == INPUT:
                given[node.name, 0] = node.name
                self._placeholder(extra, node.name)
            elif node.op == VARIABLE:
                nbytes += self._variable(extra, node, given, self._handled(node, nodes))
            elif node.op == TABLE:
                nbytes += self._table(extra, node, given)
        if nbytes > MAX_NBYTES:
            raise TooLarge("stage: it would hold more than 2 GiB of constants, which no TensorFlow graph can")
        definition = self._graph.graph_def(self.refs, given)
        definition.node.extend(extra.node)
        for output in self.outputs:
            self._identity(definition, f"output/{output.spec.name}", output.values, given)
            if output.segments is not None:
                self._identity(definition, f"output/{output.spec.name}/segments", output.segments, given)
        data: bytes = definition.SerializeToString(deterministic=True)
        return data

    def _handled(self, variable: ForeignNode, nodes: Sequence[ForeignNode]) -> bool:
        return any((variable.name, HANDLE) in node.inputs for node in nodes)

    def _placeholder(self, definition: Any, name: str) -> None:
        fed = self._inputs[name]
        node = definition.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = self._runner.tensor((name, 0)).dtype.as_datatype_enum
        if fed.kind in (DENSE, PADDED):
            for size in (-1, *(fed.dims if fed.kind == DENSE else (-1,))):
                node.attr["shape"].shape.dim.add(size=size)
        else:
            node.attr["shape"].shape.unknown_rank = True

    def _variable(self, definition: Any, node: ForeignNode, given: dict[Ref, str], handled: bool) -> int:
        value = self._runner.constant((node.name, 0))
        given[node.name, 0] = self._constant(definition, f"{node.name}/value", value)
        if handled:
            given[node.name, HANDLE] = node.name
            handle = definition.node.add(name=node.name, op="VarHandleOp")
            for key in ("dtype", "shape"):
                handle.attr[key].CopyFrom(node.definition.attr[key])
            handle.attr["shared_name"].s = node.name.encode()
            assign = definition.node.add(name=f"init/{len(definition.node)}", op="AssignVariableOp")
            assign.input.extend([node.name, given[node.name, 0]])
            assign.attr["dtype"].CopyFrom(node.definition.attr["dtype"])
        return int(value.nbytes)

    def _table(self, definition: Any, node: ForeignNode, given: dict[Ref, str]) -> int:
        keys, values = self._runner.table((node.name, 0))
        given[node.name, 0] = node.name
        table = definition.node.add()
        table.CopyFrom(node.definition)
        table.name, table.device = node.name, ""
        del table.input[:]
        for key in ("_class", "_output_shapes"):
            table.attr.pop(key, None)
        table.attr["shared_name"].s = node.name.encode()
        table.attr["container"].s = b""
        number = len(definition.node)
        fill = definition.node.add(name=f"init/{number}", op="LookupTableImportV2")
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

    def _identity(self, definition: Any, name: str, ref: Ref, given: Mapping[Ref, str]) -> None:
        node = definition.node.add(name=name, op="Identity")
        node.input.append(given.get(ref, text(ref)))
        node.attr["T"].type = self._runner.tensor(ref).dtype.as_datatype_enum


def _nbytes(array: Any) -> int:
    if array.dtype == object:
        return int(sum(len(value) + 4 for value in array.ravel()))
    return int(np.asarray(array).nbytes)
