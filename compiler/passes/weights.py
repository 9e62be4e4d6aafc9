"""What follows from weights alone, taken out of the graph: computed once for new weights, never for a batch.

A backend for which weights are constants (ONNX Runtime, OpenVINO) folds such work itself when it makes an executable.
One that takes them as arguments (XLA) would repeat it with every batch; it compiles two functions instead:

    prepare  {weight: value} -> {derived weight: value}      run by the writer before a flip
    graph    (x, {weight or derived weight: value}) -> outputs

Weights that the graph reads as they are keep their names and are no business of prepare's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.dense.dense_graph import DenseGraph, signature
from compiler.frameworks import tf
from compiler.passes.graph import Edit, Graph, Ref

Weights = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """prepare: a tf.function, {weight: value} -> {derived weight: value}, for all weights of the model; of one
    signature (prepare.input_signature). graph: what is left, its weights filled in. derived: names, in order."""

    prepare: Callable[[Mapping[str, Any]], dict[str, Any]]
    graph: DenseGraph
    derived: list[str]

    def weights(self, raw: Weights) -> dict[str, NDArray[np.float32]]:
        """What the graph takes, of other weights of the model: TensorFlow's answer, the reference."""
        made = self.prepare({name: tf.constant(value) for name, value in raw.items()}) if self.derived else {}
        derived = {name: value.numpy() for name, value in made.items()}
        return {name: derived[name] if name in derived else raw[name] for name in self.graph.weights}


def split_weights(dense: DenseGraph) -> Prepared:
    """The dense graph as these two; where nothing follows from weights alone, prepare has nothing to return."""
    graph = Graph.of_dense(dense)
    prefix = "prepared/"
    while any(name.startswith(prefix) for name in graph.weights):
        prefix = f"_{prefix}"
    edge = [ref for ref in graph.users if _cut(graph, ref)]
    derived = {f"{prefix}{i:04d}": ref for i, ref in enumerate(edge)}
    raw = {name: np.zeros(shape, np.float32) for name, shape in graph.weights.items()}

    def prepare(values: Mapping[str, Any]) -> dict[str, Any]:
        return graph.apply({f"w{i}": values[name] for i, name in enumerate(sorted(values))}, derived)

    function = tf.function(prepare, input_signature=signature(graph.width, raw)[1:], autograph=False)
    function.get_concrete_function()
    values = {name: tf.constant(value) for name, value in dense.weights.items()}
    made = {name: value.numpy() for name, value in function(values).items()} if derived else {}
    left = _without(graph, derived, made)
    weights = {name: made[name] if name in made else dense.weights[name] for name in left.weights}
    return Prepared(function, left.to_dense(weights), list(derived))


def _cut(graph: Graph, ref: Ref) -> bool:
    """Whether a tensor is made of weights and read by what is computed for every batch."""
    name = ref[0]
    made = graph.free(ref) and name not in graph.fixed and name not in graph.placeholders
    whole = graph.ranked(ref) and None not in graph.shape(ref) and graph.dtype(ref) == tf.float32
    return made and whole and any(user in graph.varying for user in graph.users[ref])


def _without(graph: Graph, derived: Mapping[str, Ref], made: Weights) -> Graph:
    """The graph that takes derived weights as they are, of the others only those that it reads."""
    edit = Edit(graph)
    for name, ref in derived.items():
        edit.replace(ref, edit.weight(name, made[name].shape))
    return edit.done().of_read_weights()
