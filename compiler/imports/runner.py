"""Run the flat graph of an opened model: evaluate any tensor, fed at any tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.foreign import ForeignModel
from freshet_serving.compiler.imports.foreign_graph import (
    HANDLE,
    INPUT,
    SOURCES,
    TABLE,
    VARIABLE,
    ForeignGraph,
    Ref,
    text,
)
from freshet_serving.processor.errors import BadInput

SCOPE = "flat"


class Runner:
    """The flat graph next to the model's own in one session, so that both read the same variables and tables."""

    def __init__(self, source: ForeignModel) -> None:
        self.graph: ForeignGraph = source.graph
        self._session, self._holder = source.session, source.session.graph
        self._tensors: dict[Ref, Any] = {}
        self._constants: dict[Ref, NDArray[Any]] = {}
        self._exports: dict[Ref, Any] = {}
        dtypes = {node: dtype for fed in source.inputs for node, dtype in _dtypes(fed)}
        with self._holder.as_default():
            for node in self.graph.nodes.values():
                if node.op == INPUT:
                    self._tensors[node.name, 0] = tf.compat.v1.placeholder(dtypes[node.name])
                elif node.op in (VARIABLE, TABLE):
                    self._source(node.name, node.op, node.definition)
            definition = self.graph.graph_def(source.outputs.values(), {ref: text(ref) for ref in self._tensors})
            used = {name for node in definition.node for name in node.input}
            tensors = {text(ref): tensor for ref, tensor in self._tensors.items() if text(ref) in used}
            try:
                tf.graph_util.import_graph_def(definition, input_map=tensors, name=SCOPE)
            except ValueError as error:
                raise BadInput(f"graph: not supported by this TensorFlow: {reason_of(error)}") from None

    def _source(self, name: str, op: str, definition: Any) -> None:
        handle = self._holder.get_tensor_by_name(self.graph.handles[name])
        self._tensors[name, 0] = handle
        if op == VARIABLE and handle.dtype == tf.resource:
            dtype = tf.as_dtype(definition.attr["dtype"].type)
            self._tensors[name, 0] = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            self._tensors[name, HANDLE] = handle
        elif op == VARIABLE:
            self._tensors[name, 0] = tf.identity(handle)

    def tensor(self, ref: Ref) -> Any:
        """Return the tensor in the session's graph, for its dtype and static shape."""
        if ref not in self._tensors:
            self._tensors[ref] = self._holder.get_tensor_by_name(f"{SCOPE}/{ref[0]}:{ref[1]}")
        return self._tensors[ref]

    def outputs(self, name: str) -> list[Ref]:
        if self.graph.nodes[name].op in SOURCES:
            return [(name, 0)]
        try:
            return [(name, i) for i in range(len(self._holder.get_operation_by_name(f"{SCOPE}/{name}").outputs))]
        except KeyError:
            return []

    def run(self, refs: Sequence[Ref], feeds: Mapping[str, Any], given: Mapping[Ref, Any] | None = None) -> list[Any]:
        """Evaluate tensors, fed by INPUT node; given values replace computed ones. BadInput if the model refuses."""
        fed = {self._tensors[name, 0]: array for name, array in feeds.items() if (name, 0) in self._tensors}
        fed |= {self.tensor(ref): array for ref, array in (given or {}).items()}
        try:
            values: list[Any] = self._session.run([self.tensor(ref) for ref in refs], fed)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            # A session says by the latter two that a value has another shape or type than its tensor.
            raise BadInput(f"graph: the model refuses these inputs: {reason_of(error)}") from None
        return values

    def constant(self, ref: Ref) -> NDArray[Any]:
        if ref not in self._constants:
            (value,) = self.run([ref], {})
            array = np.asarray(value)
            if array.nbytes > 1 << 20:
                return array
            self._constants[ref] = array
        return self._constants[ref]

    def table(self, ref: Ref) -> tuple[NDArray[Any], NDArray[Any]]:
        definition = self.graph.nodes[ref[0]].definition
        keys, values = tf.as_dtype(definition.attr["key_dtype"].type), tf.as_dtype(definition.attr["value_dtype"].type)
        if ref not in self._exports:
            with self._holder.as_default():
                self._exports[ref] = tf.raw_ops.LookupTableExportV2(
                    table_handle=self._tensors[ref], Tkeys=keys, Tvalues=values
                )
        exported = self._session.run(self._exports[ref])
        return exported[0], exported[1]


def _dtypes(fed: Any) -> Iterable[tuple[str, Any]]:
    dtype = tf.string if fed.dtype.kind == "O" else tf.as_dtype(fed.dtype)
    for node in fed.nodes:
        yield node, dtype if node.endswith("/values") or len(fed.nodes) == 1 else tf.int64
