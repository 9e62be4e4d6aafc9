"""Compile a graph that ONNX Runtime computes as it is: the graph is its own executable, for every bucket."""

from __future__ import annotations

from dataclasses import dataclass

from freshet_serving.compiler.backends.base import CompiledGraph, Variant
from freshet_serving.compiler.dense.onnx_dense_graph import BACKEND, OnnxDenseGraph
from freshet_serving.processor.errors import BadInput


def lower(graph: OnnxDenseGraph, variant: Variant) -> NativeLowered:
    """Return the graph for its one backend; raise BadInput for another, or for a lower precision."""
    if (variant.backend, variant.precision, variant.target or "cpu") != (BACKEND, "float32", "cpu"):
        raise BadInput(
            f"backend {variant}: expected a graph that the compiler has translated, got an ONNX graph, which {BACKEND} "
            "computes as it is, in float32 on the CPU"
        )
    return NativeLowered(graph.model, list(graph.weights))


@dataclass(slots=True)
class NativeLowered:
    """The graph as its backend loads it: the same bytes for every bucket, since its rows are symbolic."""

    definition: bytes
    weights: list[str]
    backend: str = BACKEND
    target: str = "cpu"
    precision: str = "float32"

    def compile(self, bucket: int) -> CompiledGraph:
        return CompiledGraph(self.definition, ".onnx", self.weights)
