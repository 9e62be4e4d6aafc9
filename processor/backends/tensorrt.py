"""Run dense graphs on TensorRT, from the files that compiler/backends/tensorrt.py writes. NVIDIA GPUs only.

The library is NVIDIA's tensorrt where it is installed, else TensorRT-RTX, which PyPI has and which does not know the
GPUs of compute capability 9.0. An artefact is one engine for one bucket and one kind of GPU; its origin is the ONNX
model from which another version of the library builds it again while the version loads.

Invariants
- Weights are inputs of the network: an engine holds none, so executables of all generations share it. New weights are
  copied to the device once per flip, before it, for all buckets, and freed with the last binding that reads them.
- A binding has its own stream, execution context and device buffers. A run waits for its outputs without the GIL.

Rejected, with figures in docs/how-to/gpu.md: weights inside the engine that are refitted (needs a GPU to build, and a
second copy of every engine per flip), and building the engine again for each flip.

The authors have not run this on hardware. Tests play the library and the device (tests/support/played_gpu.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from freshet_serving.processor.backends.base import (
    Artefact,
    Executable,
    IoSpec,
    Matrix,
    Program,
    Weights,
    check_buffers,
    check_weights,
    missing,
    shapes_text,
)
from freshet_serving.processor.backends.cuda import Cuda
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError

WEIGHT_PREFIX = "weights/"
WORKSPACE_NBYTES = 1 << 30
SAID_CHARACTERS = 200


class EngineBuilder:
    """Builds engines, for the GPU that is here or, with TensorRT-RTX, for one that is not; needs no GPU itself."""

    def __init__(self) -> None:
        """Import the library; raise BadInput if there is none."""
        self.module, self.library = _library()
        self._said = said = list[str]()

        class Log(self.module.ILogger):  # type: ignore[misc, name-defined]
            """Keeps the library's errors, which say why it refuses something, out of the process's output."""

            def __init__(self) -> None:
                # The bindings refuse an object whose own initialiser was not called by name.
                super(Log, self).__init__()

            def log(self, severity: Any, message: str) -> None:
                if severity in (self.Severity.ERROR, self.Severity.INTERNAL_ERROR):
                    said.append(message)

        self.logger = Log()

    def targets(self) -> list[str]:
        """Return the kinds of GPU that engines can be built for without one."""
        kinds = getattr(self.module, "ComputeCapability", None)
        return [f"cuda-sm_{name[2:]}" for name in getattr(kinds, "__members__", {}) if name.startswith("SM")]

    def build(self, model: bytes, bucket: int, spec: IoSpec, target: str = "") -> bytes:
        """Build an engine for `bucket` rows from an ONNX model whose weights are inputs; `target` as of config().

        Raises BadInput if the library cannot compile the model, or it has other inputs or outputs.
        """
        library = self.module
        self._said.clear()
        builder = library.Builder(self.logger)
        network = builder.create_network(0)
        parser = library.OnnxParser(network, self.logger)
        if not parser.parse(model):
            raise BadInput(f"dense graph: cannot be compiled for backend tensorrt: {self._why('it does not parse')}")
        shapes = spec.input_shapes(bucket)
        for tensor in map(network.get_input, range(network.num_inputs)):
            if tensor.name in shapes:
                tensor.shape = shapes.pop(tensor.name)
        ends = {end.name: tuple(end.shape) for end in map(network.get_output, range(network.num_outputs))}
        if shapes or ends != spec.output_shapes(bucket):
            expected = shapes_text(spec.input_shapes(bucket) | spec.output_shapes(bucket))
            raise BadInput(f"dense graph: {self.library}: expected {expected}, got outputs {shapes_text(ends)}")
        engine = builder.build_serialized_network(network, self.config(builder, target))
        if engine is None:
            why = self._why("it does not say why")
            raise BadInput(f"dense graph: {self.library} built no engine for {bucket} rows: {why}")
        return bytes(engine)

    def config(self, builder: Any, target: str) -> Any:
        """Return how to build for one of targets(), or for the GPU that is here ("")."""
        library, config = self.module, builder.create_builder_config()
        config.set_memory_pool_limit(library.MemoryPoolType.WORKSPACE, WORKSPACE_NBYTES)
        if target:
            config.num_compute_capabilities = 1
            config.set_compute_capability(library.ComputeCapability.__members__[f"SM{target.rpartition('_')[2]}"], 0)
        return config

    def _why(self, otherwise: str) -> str:
        return self._said[0].splitlines()[0][:SAID_CHARACTERS] if self._said else otherwise


class TensorRt(EngineBuilder):
    """The backend of the library and of cuda-python, on the GPU that is here."""

    name = "tensorrt"

    def __init__(self) -> None:
        super().__init__()
        self.cuda = Cuda.load("tensorrt")
        self.target = f"cuda-{self.cuda.capability()}"

    def open_program(self, spec: IoSpec, threads: int = 1, runs: int = 1) -> Program:
        return _Program(self, spec)


def _library() -> tuple[Any, str]:
    """Return the library's module, and its name and version; raise BadInput if there is none."""
    try:
        import tensorrt
    except ImportError:
        pass
    else:
        return tensorrt, f"tensorrt {tensorrt.__version__}"
    try:
        # The first loads what the second is linked against.
        import tensorrt_rtx_libs  # noqa: F401
        import tensorrt_rtx_bindings  # isort: skip
    except ImportError:
        raise missing("tensorrt", "tensorrt", "tensorrt") from None
    return tensorrt_rtx_bindings, f"tensorrt_rtx {tensorrt_rtx_bindings.__version__}"


class _Program:
    def __init__(self, backend: TensorRt, spec: IoSpec) -> None:
        self._backend, self._spec = backend, spec
        self._runtime = backend.module.Runtime(backend.logger)
        self._engines: dict[int, tuple[Artefact, Any, dict[str, tuple[int, ...]]]] = {}

    def add(self, artefact: Artefact) -> None:
        """Deserialise an engine, or build it from its ONNX model, and check its inputs and outputs."""
        bucket, here = artefact.bucket, self._backend.target
        if artefact.target not in ("cuda", here):
            raise BadInput(f"foreign: compiled for {artefact.target[:32]}, the device here is {here}")
        data = artefact.data
        if not data:
            if not artefact.origin:
                raise Corrupt(f"executable b{bucket}: has neither compiled code nor a portable form")
            data = self._backend.build(artefact.origin, bucket, self._spec)
        engine = self._runtime.deserialize_cuda_engine(data)
        if engine is None:
            raise Corrupt(f"executable b{bucket}: refused by {self._backend.library}")
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        shapes = {name: tuple(engine.get_tensor_shape(name)) for name in names}
        ends = {name: shape for name, shape in shapes.items() if not name.startswith(WEIGHT_PREFIX)}
        expected = self._spec.input_shapes(bucket) | self._spec.output_shapes(bucket)
        weights = {name.removeprefix(WEIGHT_PREFIX): shape for name, shape in shapes.items() if name not in ends}
        if ends != expected or weights.keys() != set(artefact.weights):
            raise BadInput(f"executable b{bucket}: expected {shapes_text(expected)} and the listed weights")
        self._engines[bucket] = artefact, engine, weights

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """Return all buckets over one copy of these weights on the device."""
        cuda, placed = self._backend.cuda, dict[str, DeviceBuffer]()
        for _, _, shapes in self._engines.values():
            check_weights(weights, shapes)
            for name in shapes.keys() - placed.keys():
                array = np.ascontiguousarray(weights[name])
                placed[name] = DeviceBuffer(cuda, array.nbytes)
                cuda.copy(placed[name].address, array.ctypes.data, array.nbytes, cuda.to_device)
        return {
            bucket: EngineExecutable(engine, cuda, {WEIGHT_PREFIX + n: placed[n] for n in shapes}, bucket, self._spec)
            for bucket, (_, engine, shapes) in self._engines.items()
        }


class EngineExecutable:
    """An executable: an engine and the weights that its bindings read."""

    def __init__(self, engine: Any, cuda: Cuda, weights: Mapping[str, DeviceBuffer], bucket: int, spec: IoSpec) -> None:
        self.bucket = bucket
        self._engine, self._cuda, self._weights, self._spec = engine, cuda, weights, spec

    def bind_buffers(self, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        check_buffers(self.bucket, self._spec, inputs, outputs)
        context = self._engine.create_execution_context()
        if context is None:
            raise FreshetError(f"tensorrt made no execution context for a batch of {self.bucket} rows")
        tensors = {name: DeviceBuffer(self._cuda, array.nbytes) for name, array in {**inputs, **outputs}.items()}
        buffers = {**self._weights, **tensors}
        for name, buffer in buffers.items():
            if not context.set_tensor_address(name, buffer.address):
                raise FreshetError(f"tensorrt refused the address of {name[:64]!r}")
        stream = self._cuda.call("cudaStreamCreate")
        return _Run(self._cuda, context, stream, buffers, self.bucket, inputs, outputs)


class DeviceBuffer:
    """Device memory that is freed with the object."""

    def __init__(self, cuda: Cuda, nbytes: int) -> None:
        self._cuda = cuda
        self.address = int(cuda.call("cudaMalloc", max(1, nbytes)))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._cuda.call("cudaFree", self.address)


@dataclass(frozen=True, slots=True)
class _Run:
    """One prepared run, on a stream of its own. `buffers` on the device are its tensors and shared weights."""

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
            target = self.buffers[name].address
            call("cudaMemcpyAsync", target, array.ctypes.data, array.nbytes, self.cuda.to_device, self.stream)
        if not self.context.execute_async_v3(int(self.stream)):
            raise FreshetError(f"tensorrt failed on a batch of {self.bucket} rows")
        for name, array in self.outputs.items():
            source = self.buffers[name].address
            call("cudaMemcpyAsync", array.ctypes.data, source, array.nbytes, self.cuda.to_host, self.stream)
        call("cudaStreamSynchronize", self.stream)

    def __del__(self) -> None:
        self.cuda.call("cudaStreamDestroy", self.stream)


BACKEND = TensorRt
