"""Compile dense graphs for OpenVINO: TensorFlow -> ONNX -> the library's own compiled model, exported.

The exported model has the weights frozen inside and fits one library version and one kind of processor. Its origin is
stored beside it: the ONNX model with the weights as inputs, which the processor's half compiles again for other
weights, library versions or processors.
"""

from __future__ import annotations

from freshet_serving.compiler.backends.base import CompiledGraph, Variant
from freshet_serving.compiler.backends.int8_choice import in_int8
from freshet_serving.compiler.backends.onnxruntime import to_onnx, with_inputs
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.backends import Artefact, weights_hash
from freshet_serving.processor.backends.openvino import PRECISIONS, OpenVino
from freshet_serving.processor.machine import this_machine


def variants() -> list[Variant]:
    OpenVino()
    has = {"float32": True, "bfloat16": this_machine().bfloat16, "int8": bool(this_machine().int8)}
    return [Variant("openvino", precision) for precision in PRECISIONS if has[precision]]


def lower(graph: DenseGraph, variant: Variant) -> LoweredGraph:
    return LoweredGraph(graph, variant)


class LoweredGraph:
    backend = "openvino"

    def __init__(self, graph: DenseGraph, variant: Variant) -> None:
        self.precision = variant.precision
        self.target = this_machine().target
        self._graph = graph
        model, self._weights = to_onnx(graph)
        if self.precision == "int8":
            model = in_int8(model, self._weights, graph, variant.bound)
        self._origin = with_inputs(model)
        self._frozen = weights_hash(graph.weights, self._weights)
        self._backend = OpenVino()
        self._program = self._backend.open_program(graph.spec)

    @property
    def definition(self) -> bytes:
        machine = " ".join(sorted(this_machine().features))
        return f"{self._backend.library}\0{machine}\0{self._frozen}\0".encode() + self._origin

    def compile(self, bucket: int) -> CompiledGraph:
        artefact = Artefact(bucket, b"", self._weights, self.precision, self.target, self._origin)
        exported = self._program.compile(artefact, self._graph.weights).export_model()
        return CompiledGraph(
            data=exported.read(),
            suffix=".ov",
            weights=list(self._weights),
            library=self._backend.library,
            features=sorted(this_machine().features),
            frozen=self._frozen,
            origin=self._origin,
            origin_suffix=".onnx",
        )
