"""Run dense graphs on XLA through jaxlib's PJRT client alone, from the files that compiler/backends/xla.py writes.

Weights are arguments: new ones are copied to where the device reads them, once per flip, and the executable stays,
shared by all versions of a process that have the same StableHLO. An artefact is a serialised PJRT executable in a
capsule; its origin is a portable StableHLO artifact, from which later jaxlibs compile for another processor or library
without TensorFlow.

On a CPU a run computes in the calling thread if the client has one thread. The session's input buffer is the argument
itself (if 64-byte aligned; else it is copied); outputs are copied out, a few microseconds. A run allocates its outputs
inside PJRT and a handful of Python objects; the GIL is released while it computes.

On a GPU CUDA's runtime copies inputs and outputs where cuda-python is installed: an input has an array on the device
that every run over it overwrites. jax's own transfers are slow: on an H200 a run took 333 microseconds instead of 106
at one row, and 1,391 instead of 365 at 4,096. Machine code is for one kind of GPU, which the target names.

Rejected: jax.experimental.serialize_executable (it pickles); importing jax for a CPU (a second of start-up, which
jaxlib's DLPack conversion and ExecuteResults.disassemble_into_single_device_arrays() cost, too); the fusions of YNNPACK
(they pack the weights again in each run: 1.3 times the time of the plain products at 64 rows on one thread).
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends.base import (
    ALIGNMENT,
    Artefact,
    Executable,
    IoSpec,
    Matrix,
    PartialRun,
    Program,
    Weights,
    aligned,
    check_buffers,
    failed,
    missing,
    refused,
    shapes_text,
)
from freshet_serving.processor.backends.cuda import Cuda
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError

Array = NDArray[Any]

FLOAT32 = np.dtype(np.float32)
CPU_OPTIONS = (("xla_cpu_experimental_ynn_fusion_type", ""),)
_devices: dict[tuple[str, int], Device] = {}
_shared: weakref.WeakValueDictionary[tuple[Device, str, bool], _Loaded] = weakref.WeakValueDictionary()
"""By device, graph, and whether it was deserialised: what was compiled here is no proof of what a file holds."""
_unusable: list[str] = []
"""The reason for no CUDA device, in jax's words: it says so once, and every executable is refused for it."""
_making = threading.Lock()


class Xla:
    """The backend of the library jaxlib. Targets that begin with "cuda" run on a GPU."""

    name = "xla"

    def __init__(self) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        try:
            import jaxlib
            from jaxlib import _jax  # noqa: F401
        except ImportError:
            raise missing("xla", "jaxlib", "xla") from None
        self.library = f"jaxlib {jaxlib.__version__}"

    def open_program(self, spec: IoSpec, threads: int = 1, runs: int = 1) -> XlaProgram:
        """Return an empty program. Concurrent CPU runs share the client's `threads` threads; `runs` is ignored."""
        return XlaProgram(self, spec, threads)


class XlaProgram(Program):
    """A program over PJRT executables; serialize() is for the compiler."""

    def __init__(self, backend: Xla, spec: IoSpec, threads: int) -> None:
        self._backend, self._spec, self._threads = backend, spec, threads
        self._loaded: dict[int, tuple[Artefact, Device, _Loaded]] = {}

    def add(self, artefact: Artefact) -> None:
        """Deserialise an artefact's machine code, or compile its portable form, unless another program has done so."""
        on = device(artefact.target, self._threads)
        keyed = artefact.data or artefact.target != "cuda"
        if keyed and on.target not in ("cpu", artefact.target):
            raise BadInput(f"foreign: compiled for {artefact.target[:32]}, the device here is {on.target}")
        key = on, artefact.graph, bool(artefact.data)
        loaded = _shared.get(key)
        if loaded is None:
            # Two threads may load the same one at once; each then keeps its own.
            loaded = _shared[key] = _Loaded(self._load(artefact, on))
        self._loaded[artefact.bucket] = artefact, on, loaded

    def _load(self, artefact: Artefact, on: Device) -> Any:
        try:
            if artefact.data:
                return on.client.deserialize_executable(artefact.data, on.places, None)
            elif artefact.origin:
                return on.compile(artefact.origin)
            raise Corrupt(f"executable b{artefact.bucket}: has neither compiled code nor a portable form")
        except FreshetError:
            raise
        except Exception as error:
            raise refused(artefact.bucket, self._backend.library, error) from error

    def serialize(self, bucket: int) -> bytes:
        """Return a bucket's executable as machine code."""
        _, on, loaded = self._loaded[bucket]
        code: bytes = on.client.serialize_executable(loaded.executable)
        return code

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """Return all buckets with these weights; those of one device share one copy of them."""
        copies: dict[int, KeptWeights] = {}
        executables: dict[int, Executable] = {}
        for bucket, (artefact, on, loaded) in self._loaded.items():
            arguments = copies.setdefault(id(on), KeptWeights(on, weights)).arguments(artefact.weights)
            executables[bucket] = executable = _Executable(loaded, on, arguments, bucket, self._spec)
            executable.check()
        return executables


class KeptWeights:
    """The weights of one flip on a device: one copy of each that is asked for."""

    def __init__(self, on: Device, weights: Weights) -> None:
        self._on, self._weights, self._kept = on, weights, dict[str, Any]()

    def arguments(self, names: Sequence[str]) -> list[Any]:
        """Return the arguments of these weights; raise BadInput if one is missing."""
        for name in names:
            if name not in self._kept:
                if name not in self._weights:
                    raise BadInput(f"dense weight {name[:64]!r} is missing")
                self._kept[name] = self._on.keep(self._weights[name])
        return [self._kept[name] for name in names]


class _Loaded:
    """A PJRT executable, held by all that run it."""

    __slots__ = ("__weakref__", "executable")

    def __init__(self, executable: Any) -> None:
        self.executable = executable


Refill = Callable[[int], Any]
"""Makes an argument of so many first rows of its input; those behind are those of earlier runs, or of the input."""


class Device(Protocol):
    """A PJRT client and the one device of it that is used; for a CPU the manifest's features specify the target."""

    client: Any
    places: Any
    target: str

    def compile(self, stablehlo: bytes) -> Any:
        """Compile a portable StableHLO artifact for this device."""

    def keep(self, array: Array) -> Any:
        """Return a copy of the array as an argument."""

    def argument(self, x: Matrix) -> tuple[Any, Refill | None]:
        """Return x as the argument of all runs, or a function that makes the argument of one run."""

    def handler(self, shape: tuple[int, ...], dtype: np.dtype[Any] = FLOAT32) -> Any:
        """Return the handler that makes an array of one result."""

    def fetch(self, result: Any, into: Matrix) -> None:
        """Copy a result out once it is ready."""


def device(target: str, threads: int) -> Device:
    """Return the device of a target, created once per process; a CPU client has `threads`. BadInput if missing."""
    kind = "cuda" if target.startswith("cuda") else "cpu"
    key = (kind, threads if kind == "cpu" else 0)
    with _making:
        if key not in _devices:
            _devices[key] = _Cpu(threads) if kind == "cpu" else cuda()
        return _devices[key]


class _Cpu:
    """A CPU device. The client's pool has `threads` threads; with one, runs compute in the calling thread."""

    target = "cpu"

    def __init__(self, threads: int) -> None:
        from jaxlib import _jax, xla_client

        before = os.environ.get("PJRT_NPROC")
        os.environ["PJRT_NPROC"] = str(threads)
        try:
            self.client = xla_client.make_cpu_client(asynchronous=False)
        finally:
            if before is None:
                del os.environ["PJRT_NPROC"]
            else:
                os.environ["PJRT_NPROC"] = before
        place = self.client.local_devices()[0]
        self.places = _jax.DeviceList((place,))
        sharding = _single_device(self.places, place)
        semantics = _jax.HostBufferSemantics.ZERO_COPY
        put = _jax.batched_device_put

        def view(array: Array) -> Any:
            return put(
                _AbstractValue(array.shape, array.dtype), sharding, [array], [place], True, False, semantics, False
            )

        self._view = view
        self._sharding = sharding

    def compile(self, stablehlo: bytes) -> Any:
        return self.client.compile_and_load(stablehlo, self.places, _options(CPU_OPTIONS))

    def keep(self, array: Array) -> Any:
        copy = aligned((-(-array.nbytes // 4),)).view(np.uint8)[: array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return self._view(copy)

    def argument(self, x: Matrix) -> tuple[Any, Refill | None]:
        if x.ctypes.data % ALIGNMENT == 0 and x.flags.writeable:
            return self._view(x), None
        copy = aligned(x.shape)
        buffer = self._view(copy)

        def refill(rows: int) -> Any:
            np.copyto(copy[:rows], x[:rows])
            return buffer

        return buffer, refill

    def handler(self, shape: tuple[int, ...], dtype: np.dtype[Any] = FLOAT32) -> Any:
        return _result_handler(_AbstractValue(shape, dtype), self._sharding)

    def fetch(self, result: Any, into: Matrix) -> None:
        result.block_until_ready()
        ctypes.memmove(into.ctypes.data, result.unsafe_buffer_pointer(), into.nbytes)


@dataclass(frozen=True, slots=True)
class _AbstractValue:
    """The attributes of an abstract value that jaxlib needs and jax would provide."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any] = FLOAT32
    weak_type: bool = False


def _single_device(places: Any, place: Any) -> Any:
    """Return a placement on one device with the attributes that jax would provide: importing jax takes a second."""
    from jaxlib import _jax, xla_client

    class DevicePlace(_jax.SingleDeviceSharding):  # type: ignore[misc]
        memory_kind = None
        _internal_device_list = places

        def _to_xla_hlo_sharding(self, rank: int) -> Any:
            return xla_client.HloSharding.replicate()

    return DevicePlace(place)


@contextmanager
def stablehlo_dialects() -> Iterator[Any]:
    """Yield a context of MLIR that knows StableHLO."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    with ir.Context() as context:
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        stablehlo.register_dialect(context)
        yield context


def cuda() -> Device:
    """Return the first CUDA device, through jax's plug-in; raise BadInput with what is missing."""
    if find_spec("jax_plugins") is None:
        raise missing("xla", "jax with CUDA", "gpu")
    # Else the first process takes three quarters of the device's memory, and a second worker gets none.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with _kept_errors() as errors:
        try:
            return JaxDevice("cuda", _copying())
        except ImportError:
            raise missing("xla", "jax with CUDA", "gpu") from None
        except RuntimeError:
            _unusable.extend(f": {error[:200]}" for error in errors[:1])
            why = next(iter(_unusable), "")
            raise BadInput(f"backend xla: this machine has no usable CUDA device{why}") from None


@contextmanager
def _kept_errors() -> Iterator[list[str]]:
    """Keep what jax logs while it looks for devices out of the log; yield the messages of errors."""
    logger, errors = logging.getLogger("jax._src.xla_bridge"), list[str]()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                raised = record.exc_info[1] if record.exc_info else None
                errors.append(str(raised or record.getMessage()).partition("\n")[0])

    handler, propagate = Kept(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield errors
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _copying() -> Cuda | None:
    """Return CUDA's runtime; None if cuda-python is not installed."""
    try:
        return Cuda.load("xla")
    except BadInput:
        return None


class JaxDevice:
    """The first device of one of jax's platforms, which imports jax. In use: "cuda"; tests use "cpu"."""

    def __init__(self, platform: str, copying: Cuda | None = None) -> None:
        """Open the device; `copying` copies inputs and outputs, None for jax to do so."""
        import jax
        from jaxlib import _jax

        self._place = jax.devices(platform)[0]
        capability = str(getattr(self._place, "compute_capability", ""))
        self.target = f"{platform}-sm_{capability.replace('.', '')}" if capability else platform
        self.client: Any = self._place.client
        self.places = _jax.DeviceList((self._place,))
        self._put, self._copying = jax.device_put, copying
        self._inputs: dict[int, tuple[weakref.ref[Matrix], Any]] = {}
        self._aval, self._sharding = jax.core.ShapedArray, jax.sharding.SingleDeviceSharding(self._place)

    def compile(self, stablehlo: bytes) -> Any:
        return self.client.compile_and_load(stablehlo, self.places, _options(()))

    def keep(self, array: Array) -> Any:
        # Copy, and wait for it: the caller may change the array as soon as this returns.
        return self._put(array.copy(), self._place).block_until_ready()

    def argument(self, x: Matrix) -> tuple[Any, Refill | None]:
        cuda = self._copying
        if cuda is None:
            return None, lambda rows: self._put(x, self._place)
        held = self._held(x)
        address, source, row_nbytes = held.unsafe_buffer_pointer(), x.ctypes.data, x.nbytes // len(x)

        def refill(rows: int) -> Any:
            # The owner of x runs one binding of it at a time, so nobody reads what this overwrites.
            cuda.copy(address, source, rows * row_nbytes, cuda.to_device)
            return held

        return held, refill

    def _held(self, x: Matrix) -> Any:
        """Return the array on the device that runs over x read, one for all executables that are bound to x."""
        key = id(x)
        entry = self._inputs.get(key)
        if entry is None or entry[0]() is not x:
            entry = weakref.ref(x, lambda _: self._inputs.pop(key, None)), self.keep(x)
            self._inputs[key] = entry
        return entry[1]

    def handler(self, shape: tuple[int, ...], dtype: np.dtype[Any] = FLOAT32) -> Any:
        return _result_handler(self._aval(shape, dtype), self._sharding)

    def fetch(self, result: Any, into: Matrix) -> None:
        if self._copying is None:
            np.copyto(into, np.asarray(result))
        else:
            result.block_until_ready()
            address = result.unsafe_buffer_pointer()
            self._copying.copy(into.ctypes.data, address, into.nbytes, self._copying.to_host)


def _result_handler(value: Any, sharding: Any) -> Any:
    """Return the handler that makes an array of one result, without checks that would need jax."""
    from jaxlib import xla_client
    from jaxlib.version import __version_info__ as version

    # jaxlib 0.11 has no such checks any more, and no argument that turns them off.
    no_checks = (True,) if version < (0, 11) else ()
    return xla_client.array_result_handler(value, sharding, True, *no_checks)


def _options(overrides: Sequence[tuple[str, str]]) -> Any:
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    options.env_option_overrides = list(overrides)
    return options


class _Executable:
    """A PJRT executable with its weights in place."""

    def __init__(self, loaded: _Loaded, on: Device, weights: list[Any], bucket: int, spec: IoSpec) -> None:
        self.bucket = bucket
        self._loaded, self._on, self._weights, self._spec = loaded, on, weights, spec

    def bind_buffers(self, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        check_buffers(self.bucket, self._spec, inputs, outputs)
        # Arguments are the inputs in the spec's order, then the weights; results come in the order of their names.
        sources = tuple([inputs[name] for name in self._spec.inputs])
        ends = [outputs[name] for name in sorted(outputs)]
        arguments, refills = [], []
        for number, (array, dims) in enumerate(zip(sources, self._spec.inputs.values())):
            argument, refill = self._on.argument(array)
            arguments.append(argument)
            if refill is not None:
                refills.append((number, refill, 0 if None in dims else len(array)))
        handlers = [self._on.handler(end.shape) for end in ends]
        arguments += self._weights
        parts = self._loaded.executable, self._on, self.bucket, arguments, sources, ends, handlers
        return _SendingRun(*parts, refills, self.bucket) if refills else _Run(*parts)

    def check(self) -> None:
        """Run once; raise BadInput unless inputs and outputs have the expected sizes."""
        spec, bucket = self._spec, self.bucket
        run = self.bind_buffers(spec.allocate_inputs(bucket), spec.allocate_outputs(bucket))
        assert isinstance(run, _Run)
        try:
            nbytes = [int(result.on_device_size_in_bytes()) for result in run.results()]
        except Exception as error:
            inputs = shapes_text(spec.input_shapes(bucket))
            raise BadInput(f"executable b{bucket}: expected {inputs} and the listed weights") from error
        expected = [4 * math.prod(shape) for _, shape in sorted(spec.output_shapes(bucket).items())]
        if nbytes != expected:
            raise BadInput(f"executable b{bucket}: expected outputs of {expected} bytes, got {nbytes[:16]}")


@dataclass(slots=True)
class _Run:
    """One prepared run. `arguments` are one for each input, then the weights; `inputs` keeps the buffers alive."""

    executable: Any
    on: Device
    bucket: int
    arguments: list[Any]
    inputs: tuple[Matrix, ...]
    ends: list[Matrix]
    handlers: list[Any]

    def results(self) -> list[Any]:
        arrays: list[Any] = self.executable.execute_sharded(self.arguments).consume_with_handlers(self.handlers)
        return arrays

    def __call__(self) -> None:
        try:
            for result, end in zip(self.results(), self.ends):
                self.on.fetch(result, end)
        except Exception as error:
            raise failed(self.bucket, "xla", error) from error


@dataclass(slots=True)
class _SendingRun(_Run, PartialRun):
    """A run whose inputs are copied; `refills` are an argument's number, its maker and its rows (0: the run's)."""

    refills: Sequence[tuple[int, Refill, int]]
    rows: int

    def results(self) -> list[Any]:
        for number, refill, fixed in self.refills:
            self.arguments[number] = refill(fixed or self.rows)
        self.rows = self.bucket
        return _Run.results(self)


BACKEND = Xla
