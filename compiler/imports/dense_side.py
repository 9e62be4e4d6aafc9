"""Build the dense side of a cut as a DenseGraph: tensors at the cut become columns of x, variables become weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph, signature
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.cut import GraphCut
from freshet_serving.compiler.imports.foreign_graph import VARIABLE, ForeignGraph, ForeignNode, Ref, text
from freshet_serving.compiler.imports.ops import DENSE
from freshet_serving.compiler.imports.shapes import SHAPE_OPERAND, Shapes
from freshet_serving.processor.backends import MATRIX, Dims
from freshet_serving.processor.package import Output

ROWS = "@rows"
"""Op of a source: a shape that depends on the number of rows."""


def build_dense(cut: GraphCut, shapes: Shapes, outputs: Mapping[str, Ref]) -> DenseGraph:
    """Build the dense graph; its outputs are float32 [n, columns] under the given names, whatever shape they had."""
    side = _DenseCopy(cut, shapes)
    refs = {name: side.visit(ref) for name, ref in outputs.items()}
    sources = side.given()
    definition = side.graph.graph_def(refs.values(), sources)
    cut_sizes = {port.ref: port.size for port in cut.ports if port.exact}
    sizes = {name: cut_sizes.get(ref) or shapes.size(ref) for name, ref in outputs.items()}
    used = {name for node in definition.node for name in node.input}
    weights = {side.weights[name]: shapes.runner.constant((name, 0)) for name in side.weights}
    fetches = [f"{ref[0]}:{ref[1]}" for ref in refs.values() if ref not in sources]

    def dense(inputs: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        x = inputs[MATRIX]
        rows = tf.shape(x)[0]
        tensors: dict[Ref, Any] = {}
        for port in cut.ports:
            part = x[:, port.offset : port.offset + port.size]
            if port.exact:
                tensors[port.ref] = part
                continue
            part = tf.reshape(part, (-1, *port.dims))
            tensors[port.ref] = part > 0.5 if port.dtype == tf.bool else tf.cast(part, port.dtype)
        for name, weight in side.weights.items():
            tensors[name, 0] = values[weight]
        for ref, (each, dims, dtype) in side.shapes.items():
            tensors[ref] = tf.cast(tf.stack([rows * each, *dims]), dtype)
        fed = {text(ref): tensor for ref, tensor in tensors.items() if text(ref) in used}
        computed = iter(tf.graph_util.import_graph_def(definition, input_map=fed, return_elements=fetches, name=""))
        results = {}
        for name, ref in refs.items():
            value = tensors[ref] if ref in sources else next(computed)
            results[name] = tf.cast(tf.reshape(value, (-1, sizes[name])), tf.float32)
        return results

    columns = [Output(name, size) for name, size in sorted(sizes.items())]
    input_dims: dict[str, Dims] = {MATRIX: (None, cut.width)}
    function = tf.function(dense, input_signature=signature(input_dims, weights), autograph=False)
    arrays = {n: np.ascontiguousarray(w, np.float32).reshape(np.shape(w)) for n, w in sorted(weights.items())}
    return DenseGraph(function, input_dims, columns, arrays)


class _DenseCopy:
    """Copies the dense side's nodes and replaces what depends on the sparse side by sources."""

    def __init__(self, cut: GraphCut, shapes: Shapes) -> None:
        self.graph = ForeignGraph()  # No dense operation calls a function.
        self.weights: dict[str, str] = {}
        self.shapes: dict[Ref, tuple[int, tuple[int, ...], Any]] = {}
        self._ports = {port.ref for port in cut.ports}
        self._from, self._shapes = shapes.graph, shapes
        self._names = weight_names(shapes.graph)
        self._tainted = self._find_tainted()

    def given(self) -> dict[Ref, str]:
        refs = {*self._ports, *self.shapes, *((name, 0) for name in self.weights)}
        return {ref: text(ref) for ref in refs}

    def visit(self, ref: Ref) -> Ref:
        stack = [ref[0]] if ref not in self._ports else []
        done: set[str] = set()
        while stack:
            name = stack.pop()
            if name in done:
                continue
            done.add(name)
            if name not in self.graph.nodes:
                self.graph.nodes[name] = self._copy(self._from.nodes[name])
            stack.extend(r[0] for r in self.graph.nodes[name].inputs if r not in self._ports)
        return ref

    def _copy(self, node: ForeignNode) -> ForeignNode:
        name, constant = node.name, self._shapes.constant
        if node.op == VARIABLE:
            self.weights[name] = self._names[name]
        elif node.op == "Shape" and name not in constant and self._shapes.rows(node.inputs[0]) is not None:
            each, dims = self._shapes.rows(node.inputs[0]) or (1, ())
            self.shapes[name, 0] = (each, dims, self._shapes.dtype((name, 0)))
            return ForeignNode(name, ROWS, (), None)
        elif node.op == "Erfc":
            return self._erfc(node)
        inputs = list(node.inputs)
        at = SHAPE_OPERAND.get(node.op, -1)
        rows = self._shapes.rows((name, 0))
        if at >= 0 and rows is not None and name not in constant and inputs[at][0] not in constant:
            inputs[at] = self._shape(node, rows)
        for i, ref in enumerate(inputs):
            if ref[0] in self._tainted and (name not in self._tainted):
                inputs[i] = self._frozen(ref)
        return ForeignNode(name, node.op, tuple(inputs), node.definition)

    def _erfc(self, node: ForeignNode) -> ForeignNode:
        erf, sub = f"{node.name}/erf", tf.compat.v1.NodeDef(op="Sub")
        definition = tf.compat.v1.NodeDef(op="Erf")
        for node_def in (definition, sub):
            node_def.attr["T"].CopyFrom(node.definition.attr["T"])
        self.graph.nodes[erf] = ForeignNode(erf, "Erf", node.inputs, definition)
        unit = self._constant(f"{node.name}/one", np.float32(1.0))
        return ForeignNode(node.name, "Sub", (unit, (erf, 0)), sub)

    def _shape(self, node: ForeignNode, rows: tuple[int, tuple[int, ...]]) -> Ref:
        each, dims = rows
        if node.op == "Reshape":
            return self._constant(f"{node.name}/shape", np.array([-1, *dims], np.int32), node, "Tshape")
        dtype = self._shapes.dtype(node.inputs[SHAPE_OPERAND[node.op]])
        ref = (f"{node.name}/rows", 0)
        self.graph.nodes[ref[0]] = ForeignNode(ref[0], ROWS, (), None)
        self.shapes[ref] = (each, dims, dtype)
        return ref

    def _constant(self, name: str, value: Any, node: ForeignNode | None = None, attribute: str = "") -> Ref:
        """Add a constant, of the type that the consuming node declares under `attribute`."""
        definition = tf.compat.v1.NodeDef(op="Const")
        declared = node.definition.attr[attribute].type if node is not None else 0
        tensor = tf.make_tensor_proto(value, tf.as_dtype(declared) if declared else None)
        definition.attr["dtype"].type = tensor.dtype
        definition.attr["value"].tensor.CopyFrom(tensor)
        self.graph.nodes[name] = ForeignNode(name, "Const", (), definition)
        return name, 0

    def _frozen(self, ref: Ref) -> Ref:
        """Return a constant in place of a value that no dense graph can compute, or of no weight."""
        name = f"{ref[0]}/frozen{ref[1] or ''}"
        return (name, 0) if name in self.graph.nodes else self._constant(name, self._shapes.runner.constant(ref))

    def _find_tainted(self) -> set[str]:
        tainted: set[str] = set()
        for node in self._shapes.order:
            if node.name not in self._shapes.constant:
                continue
            float_variable = node.op == VARIABLE and self._shapes.runner.tensor((node.name, 0)).dtype == tf.float32
            dense = float_variable or node.op in DENSE
            if not dense or any(ref[0] in tainted for ref in node.inputs):
                tainted.add(node.name)
        return tainted


def weight_names(graph: ForeignGraph) -> dict[str, str]:
    """Return the name of each variable's weight: its own.

    If a model holds an unused copy of a variable (as Keras's exports do), the used one, "name_1", gets its name back.
    """
    used = [node.name for node in graph.nodes.values() if node.op == VARIABLE]
    names: dict[str, str] = {}
    for name in sorted(used):
        shorter = re.sub(r"_\d+$", "", name)
        free = shorter in graph.unused and shorter not in names.values()
        names[name] = shorter if free else name
    return names
