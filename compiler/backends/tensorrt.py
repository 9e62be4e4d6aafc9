"""Compiles dense graphs for TensorRT: TensorFlow -> ONNX with the weights inside -> an engine for each bucket.

One engine has one profile, of exactly its bucket, and can be refitted: new dense weights go into a copy of it by the
names that they have in the ONNX model. An engine is of one library version and one kind of GPU.

This has not run on hardware by its authors: see processor/backends/tensorrt.py.
"""

from __future__ import annotations

from compiler.backends.base import Compiled, Variant
from compiler.backends.onnxruntime import to_onnx, with_values
from compiler.dense import DenseGraph
from processor.backends.tensorrt import INPUT, PRECISIONS, TensorRt
from processor.errors import BadInput
from processor.machine import this_machine

WORKSPACE_NBYTES = 1 << 30


def variants() -> list[Variant]:
    """See compiler.backends.base.Half.variants."""
    TensorRt()
    return [Variant("tensorrt", precision) for precision in PRECISIONS]


def lower(graph: DenseGraph, variant: Variant) -> Lowered:
    """See compiler.backends.base.Half.lower."""
    return Lowered(graph, variant.precision)


class Lowered:
    """compiler.backends.base.Lowered: an ONNX model with its weights."""

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

    def compile(self, bucket: int) -> Compiled:
        """See compiler.backends.base.Lowered.compile."""
        library, logger = self._backend.module, self._backend.logger
        builder = library.Builder(logger)
        network = builder.create_network(0)
        parser = library.OnnxParser(network, logger)
        if not parser.parse(self._model):
            reasons = "; ".join(str(parser.get_error(i).desc()) for i in range(parser.num_errors))
            raise BadInput(f"dense graph: cannot be compiled for backend tensorrt: {reasons[:200]}")
        config = builder.create_builder_config()
        config.set_memory_pool_limit(library.MemoryPoolType.WORKSPACE, WORKSPACE_NBYTES)
        config.set_flag(library.BuilderFlag.REFIT)
        if self.precision == "float16":
            config.set_flag(library.BuilderFlag.FP16)
        profile = builder.create_optimization_profile()
        shape = (bucket, self._width)
        profile.set_shape(INPUT, shape, shape, shape)
        config.add_optimization_profile(profile)
        engine = builder.build_serialized_network(network, config)
        if engine is None:
            raise BadInput(f"dense graph: {self._backend.library} built no engine for {bucket} rows")
        features = [*(f for f in this_machine().features if f in ("x86_64", "aarch64")), f"cuda-{self._capability}"]
        return Compiled(bytes(engine), ".engine", list(self._weights), self._backend.library, features)
