"""Compiles dense graphs for TensorRT: TensorFlow -> ONNX with the weights inside -> an engine for each bucket.

One engine has one profile, of exactly its bucket, and can be refitted: new dense weights go into a copy of it by the
names that they have in the ONNX model. An engine is of one library version and one kind of GPU.

This has not run on hardware by its authors: see processor/backends/tensorrt.py.
"""

from __future__ import annotations

from freshet_serving.compiler.backends.base import CompiledGraph, Variant
from freshet_serving.compiler.backends.onnxruntime import to_onnx, with_values
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.backends.tensorrt import PRECISIONS, TensorRt
from freshet_serving.processor.machine import this_machine


def variants() -> list[Variant]:
    """See compiler.backends.base.CompilerBackend.variants."""
    TensorRt()
    return [Variant("tensorrt", precision) for precision in PRECISIONS]


def lower(graph: DenseGraph, variant: Variant) -> LoweredGraph:
    """See compiler.backends.base.CompilerBackend.lower."""
    return LoweredGraph(graph, variant.precision)


class LoweredGraph:
    """compiler.backends.base.LoweredGraph: an ONNX model with its weights."""

    backend = "tensorrt"

    def __init__(self, graph: DenseGraph, precision: str) -> None:
        self._backend = TensorRt()
        self.precision = precision
        self._capability = self._backend.cuda.capability()
        self.target = f"cuda-{self._capability}"
        self._width = graph.width
        self._bare, self._weights = to_onnx(graph)
        self._model = with_values(self._bare, graph.weights)

    @property
    def definition(self) -> bytes:
        return f"{self._backend.library}\0{self._capability}\0{self.precision}\0".encode() + self._bare

    def compile(self, bucket: int) -> CompiledGraph:
        """See compiler.backends.base.LoweredGraph.compile."""
        engine = self._backend.build(self._model, bucket, self._width, self.precision)
        features = [*(f for f in this_machine().features if f in ("x86_64", "aarch64")), f"cuda-{self._capability}"]
        return CompiledGraph(engine, ".engine", list(self._weights), self._backend.library, features)
