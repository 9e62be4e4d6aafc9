"""A GPU that is played: its memory is the host's, its TensorRT is ONNX Runtime, its XLA the CPU's compiler.

Nothing here proves what a GPU computes or how fast: only that Freshet's calls fit together. Memory is checked as a GPU
would not: a copy or a run outside of what was allocated raises.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

VERSION = "1.0-played"
PLAYED = b"played\0"


class HostRuntime:
    """cuda.bindings.runtime over memory of this process. copied: bytes by direction."""

    class cudaMemcpyKind:
        cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost = 1, 2

    cudaStreamPerThread = 2

    def __init__(self, capability="90"):
        self.capability, self.device, self.locked, self.streams = capability, {}, {}, set()
        self.copied, self.created = {1: 0, 2: 0}, itertools.count(100)

    def cudaGetDeviceCount(self):
        return 0, 1

    def cudaGetDeviceProperties(self, number):
        return 0, SimpleNamespace(major=int(self.capability[:-1]), minor=int(self.capability[-1]))

    def _allocate(self, held, nbytes):
        block = (ctypes.c_uint8 * nbytes)()
        ctypes.memset(block, 0xFF, nbytes)
        held[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    def cudaMalloc(self, nbytes):
        return self._allocate(self.device, nbytes)

    def cudaFree(self, address):
        del self.device[address]
        return (0,)

    def cudaHostAlloc(self, nbytes, flags):
        return self._allocate(self.locked, nbytes)

    def cudaFreeHost(self, address):
        del self.locked[address]
        return (0,)

    def cudaStreamCreate(self):
        self.streams.add(stream := next(self.created))
        return 0, stream

    def cudaStreamDestroy(self, stream):
        self.streams.discard(stream)
        return (0,)

    def cudaStreamSynchronize(self, stream):
        return (0,)

    def cudaMemcpyAsync(self, to, source, nbytes, kind, stream):
        self.there(to if kind == 1 else source, nbytes)
        ctypes.memmove(to, source, nbytes)
        self.copied[kind] += nbytes
        return (0,)

    def there(self, address, nbytes):
        """Raises unless these bytes are memory of the device."""
        if not any(start <= address and address + nbytes <= start + len(b) for start, b in list(self.device.items())):
            raise AssertionError(f"{nbytes} bytes at {address:#x} are no memory of the device")

    def array(self, address, shape):
        """The device's memory as an array."""
        nbytes = 4 * int(np.prod(shape, dtype=np.int64))
        self.there(address, nbytes)
        block = (ctypes.c_float * (nbytes // 4)).from_address(address)
        return np.frombuffer(block, np.float32).reshape(shape)


class ComputeCapability(enum.Enum):
    SM80, SM86, SM89, SM120 = 80, 86, 89, 120


def played_tensorrt():
    """A module `tensorrt` that computes by ONNX Runtime, on the device `runtime`. built: number of engines."""
    import onnx
    import onnxruntime

    module = ModuleType("tensorrt")
    module.__version__, module.built, module.runtime = VERSION, 0, None
    module.ComputeCapability = ComputeCapability
    module.MemoryPoolType, module.BuilderFlag = SimpleNamespace(WORKSPACE=0), SimpleNamespace(REFIT=0)
    module.Weights = np.asarray

    class ILogger:
        class Severity(enum.Enum):
            INTERNAL_ERROR, ERROR, WARNING = 0, 1, 2

    class Tensor:
        def __init__(self, value, network):
            self.name, self.network = value.name, network
            dims = value.type.tensor_type.shape.dim
            self._shape = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims]

        @property
        def shape(self):
            rows = self.network.rows
            return [rows if n == -1 and rows else n for n in self._shape]

        @shape.setter
        def shape(self, shape):
            self.network.rows = next((new for old, new in zip(self._shape, shape) if old == -1), self.network.rows)

    class Network:
        rows = 0

        def __init__(self):
            self.inputs, self.outputs = [], []

        num_inputs = property(lambda self: len(self.inputs))
        num_outputs = property(lambda self: len(self.outputs))

        def get_input(self, i):
            return self.inputs[i]

        def get_output(self, i):
            return self.outputs[i]

    class OnnxParser:
        def __init__(self, network, logger):
            self.network, self.logger = network, logger

        def parse(self, model):
            try:
                graph = onnx.load_from_string(model).graph
            except Exception:
                self.logger.log(ILogger.Severity.ERROR, "this is no ONNX")
                return False
            self.network.model = model
            self.network.inputs = [Tensor(value, self.network) for value in graph.input]
            self.network.outputs = [Tensor(value, self.network) for value in graph.output]
            return True

    class Config:
        num_compute_capabilities = 0
        capability, refittable = "", False

        def set_memory_pool_limit(self, pool, nbytes):
            pass

        def set_flag(self, flag):
            self.refittable = True

        def set_compute_capability(self, capability, number):
            self.capability = str(capability.value)

    class Builder:
        def __init__(self, logger):
            self.logger = logger

        def create_network(self, flags):
            return Network()

        def create_builder_config(self):
            return Config()

        def build_serialized_network(self, network, config):
            module.built += 1
            ends = [*network.inputs, *network.outputs]
            header = {
                "capability": config.capability or module.runtime.capability,
                "refittable": config.refittable,
                "inputs": [end.name for end in network.inputs],
                "shapes": {end.name: list(end.shape) for end in ends},
            }
            return PLAYED + json.dumps(header).encode() + b"\0" + network.model

    class Context:
        def __init__(self, engine):
            self.engine, self.addresses = engine, {}

        def set_tensor_address(self, name, address):
            self.addresses[name] = address
            return name in self.engine.shapes

        def execute_async_v3(self, stream):
            engine, runtime = self.engine, module.runtime
            assert stream in runtime.streams
            inputs = {name: runtime.array(self.addresses[name], engine.shapes[name]) for name in engine.inputs}
            ends = [name for name in engine.shapes if name not in inputs]
            for name, array in zip(ends, engine.session.run(ends, inputs)):
                runtime.array(self.addresses[name], engine.shapes[name])[...] = array
            return True

    class Engine:
        def __init__(self, header, model):
            self.inputs, self.shapes, self.model = header["inputs"], header["shapes"], model
            self.refittable = header["refittable"]
            self.load(model)

        def load(self, model):
            self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

        @property
        def num_io_tensors(self):
            return len(self.shapes)

        def get_tensor_name(self, i):
            return list(self.shapes)[i]

        def get_tensor_shape(self, name):
            return tuple(self.shapes[name])

        def create_execution_context(self):
            return Context(self)

    class Runtime:
        def __init__(self, logger):
            self.logger = logger

        def deserialize_cuda_engine(self, data):
            if not data.startswith(PLAYED):
                return None
            header, _, model = data.removeprefix(PLAYED).partition(b"\0")
            described = json.loads(header)
            return Engine(described, model) if described["capability"] == module.runtime.capability else None

    class Refitter:
        def __init__(self, engine, logger):
            assert engine.refittable
            self.engine, self.model = engine, onnx.load_from_string(engine.model)
            self.weights = {w.name: w for w in self.model.graph.initializer if w.name.startswith("weights/")}

        def get_all_weights(self):
            return list(self.weights)

        def set_named_weights(self, name, values):
            tensor = self.weights[name]
            shaped = np.asarray(values, np.float32).reshape(tuple(tensor.dims))
            tensor.CopyFrom(onnx.numpy_helper.from_array(shaped, name))
            return True

        def refit_cuda_engine(self):
            self.engine.load(self.model.SerializeToString())
            return True

    for kind in (ILogger, Refitter, Builder, OnnxParser, Runtime):
        setattr(module, kind.__name__, kind)
    return module


def put_cuda(monkeypatch, capability="90"):
    """Puts CUDA's runtime into this process; returns it."""
    runtime, bindings = HostRuntime(capability), ModuleType("cuda.bindings")
    bindings.runtime = runtime
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    return runtime


def put_tensorrt(monkeypatch, runtime=None):
    """Puts TensorRT into this process, for that device; returns the module."""
    module = played_tensorrt()
    module.runtime = runtime
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    return module


def played_xla(capability="90"):
    """A GPU for XLA, which counts what is compiled on it."""
    from freshet_serving.processor.backends import xla

    class PlayedDevice(xla._Cpu):
        target = f"cuda-sm_{capability}"

        def __init__(self):
            super().__init__(1)
            self.compiled = 0

        def compile(self, stablehlo):
            self.compiled += 1
            return super().compile(stablehlo)

    return PlayedDevice()


def put_xla(monkeypatch, capability="90"):
    """Puts a GPU for XLA into this process; returns it."""
    from freshet_serving.processor.backends import xla

    device = played_xla(capability)
    monkeypatch.setitem(xla._devices, ("cuda", 0), device)
    return device
