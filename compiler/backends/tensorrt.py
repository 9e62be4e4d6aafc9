"""Compile dense graphs for TensorRT: TensorFlow -> ONNX with the weights as inputs -> one engine per bucket.

The origin beside an engine is that ONNX model. An engine fits one library version and one kind of GPU: the one that is
here, or one that TensorRT-RTX knows and builds ahead for. No GPU runs an engine that was built ahead, so its ONNX model
must give TensorFlow's scores on the CPU, by ONNX Runtime.

The authors have not run engines on hardware: see processor/backends/tensorrt.py.
"""

from __future__ import annotations

from freshet_serving.compiler.backends.base import MAX_ERROR, CompiledGraph, Variant, check_outputs
from freshet_serving.compiler.backends.onnxruntime import to_onnx, with_inputs
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.backends import Artefact
from freshet_serving.processor.backends.onnxruntime import OnnxRuntime
from freshet_serving.processor.backends.tensorrt import EngineBuilder, TensorRt
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.running.given_rows import outputs_of

PROVED_ROWS = 64


def variants() -> list[Variant]:
    return [Variant("tensorrt", target=TensorRt().target)]


def lower(graph: DenseGraph, variant: Variant) -> LoweredGraph:
    builder = TensorRt()
    return LoweredGraph(graph, builder, builder.target)


def lower_ahead(graph: DenseGraph, target: str, precision: str = "float32") -> LoweredGraph:
    """Lower for a kind of GPU that need not be here, in float32.

    Raise BadInput if the library does not build ahead for it, or its ONNX model does not give the graph's scores.
    """
    builder = EngineBuilder()
    if precision != "float32":
        raise BadInput(f"precision: expected float32 for backend tensorrt, got {precision}")
    if target not in (targets := builder.targets()):
        has = f"builds ahead for {', '.join(targets)}" if targets else "does not build ahead"
        raise BadInput(f"target {target}: {builder.library} {has}")
    lowered = LoweredGraph(graph, builder, target, ahead=True)
    lowered.prove()
    return lowered


class LoweredGraph:
    backend = "tensorrt"
    precision = "float32"

    def __init__(self, graph: DenseGraph, builder: EngineBuilder, target: str, ahead: bool = False) -> None:
        self.target, self._ahead = target, target if ahead else ""
        self._builder, self._graph = builder, graph
        self._bare, self._weights = to_onnx(graph)
        self._origin = with_inputs(self._bare)

    @property
    def definition(self) -> bytes:
        return f"{self._builder.library}\0{self.target}\0".encode() + self._origin

    def compile(self, bucket: int) -> CompiledGraph:
        return CompiledGraph(
            data=self._builder.build(self._origin, bucket, self._graph.spec, self._ahead),
            suffix=".engine",
            weights=list(self._weights),
            library=self._builder.library,
            features=[*(f for f in this_machine().features if f in ("x86_64", "aarch64")), self.target],
            origin=self._origin,
            origin_suffix=".onnx",
        )

    def prove(self) -> None:
        """Raise BadInput unless the ONNX model gives the graph's scores on the CPU."""
        rows, program = self._graph.sample(PROVED_ROWS), OnnxRuntime().open_program(self._graph.spec)
        program.add(Artefact(PROVED_ROWS, self._bare, self._weights))
        executable = program.with_weights(self._graph.weights)[PROVED_ROWS]
        check_outputs(outputs_of(executable, rows, self._graph.spec), self._graph.run(rows), MAX_ERROR, "ONNX model")
