"""Write dense graphs for TensorFlow itself: a GraphDef with inputs and weights as placeholders.

It is the reference that every other backend is checked against, and a way to serve a graph that no other backend can
express, on a machine that has TensorFlow.
"""

from __future__ import annotations

from freshet_serving.compiler.backends.base import CompiledGraph, Variant
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf


def variants() -> list[Variant]:
    return [Variant("tensorflow")]


def lower(graph: DenseGraph, variant: Variant) -> LoweredGraph:
    return LoweredGraph(graph)


class LoweredGraph:
    """One GraphDef for all buckets; rows are symbolic."""

    backend = "tensorflow"
    precision = "float32"
    target = "cpu"

    def __init__(self, graph: DenseGraph) -> None:
        self._names = graph.weight_names
        with tf.Graph().as_default() as drawn:
            inputs = {n: tf.compat.v1.placeholder(tf.float32, dims, n) for n, dims in graph.inputs.items()}
            weights = {
                name: tf.compat.v1.placeholder(tf.float32, graph.weights[name].shape, f"weight_{i}")
                for i, name in enumerate(self._names)
            }
            outputs = graph.function(inputs, weights)
            for i, output in enumerate(graph.outputs):
                tf.identity(outputs[output.name], name=f"output_{i}")
        self._graph_def: bytes = drawn.as_graph_def().SerializeToString(deterministic=True)

    @property
    def definition(self) -> bytes:
        return self._graph_def

    def compile(self, bucket: int) -> CompiledGraph:
        return CompiledGraph(self._graph_def, ".pb", list(self._names))
