"""Run dense graphs on TensorRT, from the files that compiler/backends/tensorrt.py writes. NVIDIA GPUs only.

An artefact is one engine, built for exactly one bucket (one profile) and refittable. New weights are refitted into a
second copy of the engine, made from the same bytes beside the live one: a refit in place would affect concurrent runs.

A binding has its own stream, execution context and device buffers: a run copies x over, computes, copies the outputs
back and waits, without the GIL.

The authors have not run this on hardware: their machine has neither the library nor a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from freshet_serving.processor.backends.base import (
    Artefact,
    Executable,
    IoSpec,
    Matrix,
    Program,
    Weights,
    check_buffers,
    missing,
    shapes_text,
)
from freshet_serving.processor.backends.cuda import Cuda
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError

WEIGHT_PREFIX = "weights/"
PRECISIONS = ("float32", "float16")
WORKSPACE_NBYTES = 1 << 30


class TensorRt:
    """The backend of the libraries tensorrt and cuda-python."""

    name = "tensorrt"

    def __init__(self) -> None:
        try:
            import tensorrt
        except ImportError:
            raise missing("tensorrt", "tensorrt", "tensorrt") from None
        self.module: Any = tensorrt
        self.cuda = Cuda.load("tensorrt")
        self.library = f"tensorrt {tensorrt.__version__}"
        self.logger = tensorrt.Logger(tensorrt.Logger.ERROR)

    def open_program(self, spec: IoSpec, threads: int = 1, runs: int = 1) -> Program:
        """Return an empty program; `threads` and `runs` are ignored."""
        return _Program(self, spec)

    def build(self, model: bytes, bucket: int, spec: IoSpec, precision: str) -> bytes:
        """Build an engine for exactly `bucket` rows.

        Args:
            model: An ONNX model with its weights inside.
            bucket: Number of rows.
            spec: Inputs and outputs of the model.
            precision: One of PRECISIONS.

        Raises:
            BadInput: The library cannot compile the model.
        """
        library = self.module
        builder = library.Builder(self.logger)
        network = builder.create_network(0)
        parser = library.OnnxParser(network, self.logger)
        if not parser.parse(model):
            reasons = "; ".join(str(parser.get_error(i).desc()) for i in range(parser.num_errors))
            raise BadInput(f"dense graph: cannot be compiled for backend tensorrt: {reasons[:200]}")
        config = builder.create_builder_config()
        config.set_memory_pool_limit(library.MemoryPoolType.WORKSPACE, WORKSPACE_NBYTES)
        config.set_flag(library.BuilderFlag.REFIT)
        if precision == "float16":
            config.set_flag(library.BuilderFlag.FP16)
        profile = builder.create_optimization_profile()
        for name, shape in spec.input_shapes(bucket).items():
            profile.set_shape(name, shape, shape, shape)
        config.add_optimization_profile(profile)
        engine = builder.build_serialized_network(network, config)
        if engine is None:
            raise BadInput(f"dense graph: {self.library} built no engine for {bucket} rows")
        return bytes(engine)


class _Program:
    """A program over refittable engines."""

    def __init__(self, backend: TensorRt, spec: IoSpec) -> None:
        self._backend, self._spec = backend, spec
        self._runtime = backend.module.Runtime(backend.logger)
        self._artefacts: dict[int, Artefact] = {}

    def add(self, artefact: Artefact) -> None:
        """Deserialise an engine and check its inputs and outputs."""
        engine = self._engine(artefact)
        bucket = artefact.bucket
        shapes = {
            engine.get_tensor_name(i): engine.get_tensor_shape(engine.get_tensor_name(i))
            for i in range(engine.num_io_tensors)
        }
        expected = self._spec.input_shapes(bucket) | self._spec.output_shapes(bucket)
        if {name: tuple(shape) for name, shape in shapes.items()} != expected:
            raise BadInput(f"executable b{bucket}: expected {shapes_text(expected)}")
        self._artefacts[bucket] = artefact

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """Return all buckets, each with a new copy of its engine refitted with these weights."""
        return {
            bucket: _Executable(self._refitted(artefact, weights), self._backend.cuda, bucket, self._spec)
            for bucket, artefact in self._artefacts.items()
        }

    def _engine(self, artefact: Artefact) -> Any:
        engine = self._runtime.deserialize_cuda_engine(artefact.data)
        if engine is None:
            raise Corrupt(f"executable b{artefact.bucket}: refused by {self._backend.library}")
        return engine

    def _refitted(self, artefact: Artefact, weights: Weights) -> Any:
        """Return a copy of the engine with these weights."""
        engine, library = self._engine(artefact), self._backend.module
        refitter = library.Refitter(engine, self._backend.logger)
        for name in refitter.get_all_weights():
            if not name.startswith(WEIGHT_PREFIX):
                continue
            own = name.removeprefix(WEIGHT_PREFIX)
            if own not in weights:
                raise BadInput(f"dense weight {own[:64]!r} is missing")
            if not refitter.set_named_weights(name, library.Weights(weights[own].reshape(-1))):
                raise BadInput(f"dense weight {own[:64]!r}: refused by {self._backend.library}")
        if not refitter.refit_cuda_engine():
            raise BadInput(f"executable b{artefact.bucket}: {self._backend.library} refused the weights")
        return engine


class _Executable:
    """An executable: an engine with its weights."""

    def __init__(self, engine: Any, cuda: Cuda, bucket: int, spec: IoSpec) -> None:
        self.bucket = bucket
        self._engine, self._cuda, self._spec = engine, cuda, spec

    def bind_buffers(self, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        """Create an execution context, device buffers and a stream for these buffers."""
        check_buffers(self.bucket, self._spec, inputs, outputs)
        context = self._engine.create_execution_context()
        buffers = {name: DeviceBuffer(self._cuda, array.nbytes) for name, array in {**inputs, **outputs}.items()}
        for name, buffer in buffers.items():
            context.set_tensor_address(name, int(buffer.address))
        stream = self._cuda.call("cudaStreamCreate")
        return _Run(self._cuda, context, stream, buffers, self.bucket, inputs, outputs)


class DeviceBuffer:
    """Device memory that is freed with the object."""

    def __init__(self, cuda: Cuda, nbytes: int) -> None:
        self._cuda = cuda
        self.address = cuda.call("cudaMalloc", nbytes)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._cuda.call("cudaFree", self.address)


@dataclass(frozen=True, slots=True)
class _Run:
    """One prepared run, on a stream of its own."""

    cuda: Cuda
    context: Any
    stream: Any
    buffers: Mapping[str, DeviceBuffer]
    bucket: int
    inputs: Mapping[str, Matrix]
    outputs: Mapping[str, Matrix]

    def __call__(self) -> None:
        call = self.cuda.call
        for name, array in self.inputs.items():
            there = self.buffers[name].address
            call("cudaMemcpyAsync", there, array.ctypes.data, array.nbytes, self.cuda.to_device, self.stream)
        if not self.context.execute_async_v3(int(self.stream)):
            raise FreshetError(f"tensorrt failed on a batch of {self.bucket} rows")
        for name, array in self.outputs.items():
            source = self.buffers[name].address
            call("cudaMemcpyAsync", array.ctypes.data, source, array.nbytes, self.cuda.to_host, self.stream)
        call("cudaStreamSynchronize", self.stream)

    def __del__(self) -> None:
        self.cuda.call("cudaStreamDestroy", self.stream)


BACKEND = TensorRt
