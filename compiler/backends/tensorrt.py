"""Compile dense graphs for TensorRT: TensorFlow -> ONNX with the weights inside -> one engine per bucket.

An engine has one profile, for exactly its bucket, and can be refitted: new dense weights go into a copy of it by their
names in the ONNX model. An engine fits one library version and one kind of GPU.

The authors have not run this on hardware: see processor/backends/tensorrt.py.
"""

from __future__ import annotations

from freshet_serving.compiler.backends.base import CompiledGraph, Variant
from freshet_serving.compiler.backends.onnxruntime import to_onnx, with_values
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.backends.tensorrt import PRECISIONS, TensorRt
from freshet_serving.processor.machine import this_machine


def variants() -> list[Variant]:
    TensorRt()
    return [Variant("tensorrt", precision) for precision in PRECISIONS]


def lower(graph: DenseGraph, variant: Variant) -> LoweredGraph:
    return LoweredGraph(graph, variant.precision)


class LoweredGraph:
    """An ONNX model with its weights."""

    backend = "tensorrt"

    def __init__(self, graph: DenseGraph, precision: str) -> None:
        self._backend = TensorRt()
        self.precision = precision
        self._capability = self._backend.cuda.capability()
        self.target = f"cuda-{self._capability}"
        self._spec = graph.spec
        self._bare, self._weights = to_onnx(graph)
        self._model = with_values(self._bare, graph.weights)

    @property
    def definition(self) -> bytes:
        return f"{self._backend.library}\0{self._capability}\0{self.precision}\0".encode() + self._bare

    def compile(self, bucket: int) -> CompiledGraph:
        engine = self._backend.build(self._model, bucket, self._spec, self.precision)
        features = [*(f for f in this_machine().features if f in ("x86_64", "aarch64")), f"cuda-{self._capability}"]
        return CompiledGraph(engine, ".engine", list(self._weights), self._backend.library, features)
