"""Run dense graphs on ONNX Runtime, from the files that compiler/backends/onnxruntime.py writes.

The artefact holds the graph and, for every weight, only name and shape. The values are passed as constants when the
session is created, so that they are packed: a run takes 1.5 times as long if they are graph inputs. New weights mean a
new session (5 to 15 ms for a million parameters, nearly all without the GIL), never a new compilation. The arrays may
be freed after with_weights().

Rows are symbolic in the artefact, because a static batch size makes no run faster at any bucket from 1 to 256. So one
session serves all buckets. InferenceSession.run is safe from several threads; a binding belongs to one.

Where an artefact has a loop, a run has options through which it can be ended (EndableRun). These say that no CUDA graph
is recorded: from options that do not say so, the library takes 24 microseconds to find it out.

Rejected: recording runs as CUDA graphs, 80 microseconds a run of one row on an H200. The library records in CUDA's
global mode: meanwhile copies of every other thread of the process fail ("operation not permitted when stream is
capturing"), and after a flip all bindings are new. Replays take turns as well, so four threads ran 0.8 times the rows
of one, where XLA's ran 2.9 times (docs/reference/gpu).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np

from freshet_serving.processor.backends.base import (
    WITHOUT_MEMORY,
    Artefact,
    Dims,
    EndableRun,
    EndedRun,
    Executable,
    IoSpec,
    Matrix,
    Program,
    Weights,
    check_buffers,
    check_weights,
    failed,
    missing,
    refused,
    shapes_text,
)
from freshet_serving.processor.backends.onnxfile import external_weights
from freshet_serving.processor.errors import BadInput

WEIGHT_PREFIX = "weights/"
FATAL = 4
BEYOND_ARENA = "available memory of"
LOOP = b"\x22\x04Loop"
"""The op_type of a Loop node as bytes of an ONNX file: the trips of a loop may depend on values."""
ENDED = "terminate flag"
REFUSED = "Error in execution: Non-zero status code returned while running"
"""Begin of the library's message about an operator that fails: for values, or for lack of memory."""


PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


class OnnxRuntime:
    """The backend of the library onnxruntime. Targets: those of PROVIDERS."""

    name = "onnxruntime"

    def __init__(self) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise missing("onnxruntime", "onnxruntime", "gpu") from None
        self.module: Any = onnxruntime
        self.library = f"onnxruntime {onnxruntime.__version__}"

    def targets(self) -> list[str]:
        """Return the targets that the library was built for; a missing device shows when a session starts."""
        offered = self.module.get_available_providers()
        return [target for target, provider in PROVIDERS.items() if provider in offered]

    def load_device(self) -> None:
        """Load CUDA's libraries from NVIDIA's packages; what the library prints of missing ones is dropped."""
        self.module.set_default_logger_severity(FATAL)
        with redirect_stdout(io.StringIO()):
            self.module.preload_dlls()

    def open_program(self, spec: IoSpec, threads: int = 1, runs: int = 1) -> Program:
        """Return an empty program; `runs` is ignored: sessions are shared."""
        return _Program(self, spec, threads)


class _Program:
    """A program whose artefacts of equal bytes share one session."""

    def __init__(self, backend: OnnxRuntime, spec: IoSpec, threads: int) -> None:
        self._backend, self._spec, self._threads = backend, spec, threads
        self._artefacts: dict[int, tuple[Artefact, dict[str, tuple[int, ...]]]] = {}

    def add(self, artefact: Artefact) -> None:
        """Add an artefact after checking its external weights and its target."""
        # The files of all buckets are equal, and the second reading would take as long as the first.
        read = (shapes for other, shapes in self._artefacts.values() if other.data == artefact.data)
        shapes = next(read, None) or external_weights(artefact.data)
        parameters = {WEIGHT_PREFIX + name for name in artefact.weights}
        if shapes.keys() != parameters:
            stray = sorted(shapes.keys() ^ parameters)[0].removeprefix(WEIGHT_PREFIX)
            raise BadInput(
                f"executable: its weights differ from the manifest's: only one of the two has {stray[:64]!r}"
            )
        if artefact.target not in self._backend.targets():
            from freshet_serving.processor.extras import how_to_install

            raise BadInput(
                f"backend onnxruntime: this build does not support {artefact.target[:16]}: {how_to_install('gpu')}"
            )
        self._artefacts[artefact.bucket] = artefact, shapes

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """Create one session for each distinct artefact, and an executable for each bucket."""
        sessions: dict[tuple[bytes, str], _Session] = {}
        loaded: dict[int, Executable] = {}
        for bucket, (artefact, shapes) in self._artefacts.items():
            key = (artefact.data, artefact.target)
            if key not in sessions:
                check_weights(weights, {name: shapes[WEIGHT_PREFIX + name] for name in artefact.weights})
                sessions[key] = self._session(artefact, weights)
            _check_signature(sessions[key].session, bucket, self._spec)
            loaded[bucket] = _Executable(sessions[key], bucket, self._spec)
        return loaded

    def _session(self, artefact: Artefact, weights: Weights) -> _Session:
        library = self._backend.module
        options = library.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.execution_mode = library.ExecutionMode.ORT_SEQUENTIAL
        # The library's log lines name files of its own build; what matters arrives as the exception.
        options.log_severity_level = FATAL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        # Both lists must outlive the constructor below: the options hold addresses. np.asarray, because
        # ascontiguousarray gives a single number a dimension.
        arrays = [np.asarray(weights[name], order="C") for name in artefact.weights]
        values = [library.OrtValue.ortvalue_from_numpy(array) for array in arrays]
        if values:
            options.add_external_initializers([WEIGHT_PREFIX + name for name in artefact.weights], values)
        provider = PROVIDERS[artefact.target]
        if artefact.target != "cpu":
            self._backend.load_device()
        try:
            session = library.InferenceSession(artefact.data, options, providers=[provider], enable_fallback=False)
        except Exception as error:
            raise refused(artefact.bucket, self._backend.library, error) from error
        if session.get_providers()[0] != provider:
            raise BadInput(f"backend onnxruntime: this machine has no usable device for {artefact.target}")
        device = "cpu" if artefact.target == "cpu" else "cuda"
        return _Session(library, session, device, device == "cpu" and LOOP in artefact.data)


def _check_signature(session: Any, bucket: int, spec: IoSpec) -> None:
    """Raise BadInput unless the session's inputs and outputs are those of the spec, all float32."""

    def fits(node: Any, dims: Dims) -> bool:
        """Report whether a tensor has these dimensions; a symbol of the model fits the bucket's rows alone."""
        same = [
            dim == n if n is not None else (not isinstance(dim, int) or dim == bucket)
            for dim, n in zip(node.shape, dims)
        ]
        return node.type == "tensor(float)" and len(node.shape) == len(dims) and all(same)

    inputs = {node.name: node for node in session.get_inputs()}
    outputs = {node.name: node for node in session.get_outputs()}
    if inputs.keys() != spec.inputs.keys() or not all(fits(inputs[name], dims) for name, dims in spec.inputs.items()):
        raise BadInput(f"executable b{bucket}: expected inputs {shapes_text(spec.input_shapes(bucket))}")
    if outputs.keys() != spec.outputs.keys():
        raise BadInput(f"executable b{bucket}: expected outputs {sorted(spec.outputs)}, got {sorted(outputs)[:16]}")
    for name, dims in spec.outputs.items():
        if not fits(outputs[name], dims):
            raise BadInput(
                f"executable b{bucket}: expected output {shapes_text({name: spec.output_shapes(bucket)[name]})}"
            )


@dataclass(frozen=True, slots=True)
class _Session:
    """An InferenceSession, the device of its inputs and outputs, and whether its runs can be ended."""

    library: Any
    session: Any
    device: str
    endable: bool = False


class _Executable:
    def __init__(self, session: _Session, bucket: int, spec: IoSpec) -> None:
        self.bucket, self.endable = bucket, session.endable
        self._session, self._spec = session, spec

    def bind_buffers(self, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        check_buffers(self.bucket, self._spec, inputs, outputs)
        if self._session.device != "cpu":
            return _DeviceRun(self._session, self.bucket, inputs, outputs)
        session = self._session.session
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        buffers = tuple(inputs.values()), tuple(outputs.values())
        if not self._session.endable:
            return _Run(session, binding, self.bucket, *buffers)
        options = self._session.library.RunOptions()
        options.log_severity_level = FATAL
        options.add_run_config_entry("gpu_graph_id", "-1")
        return _LoopRun(session, binding, self.bucket, *buffers, options)


@dataclass(frozen=True, slots=True)
class _Run:
    """One prepared run; keeps the buffers alive that the binding points into."""

    session: Any
    binding: Any
    bucket: int
    inputs: tuple[Matrix, ...]
    outputs: tuple[Matrix, ...]
    options: Any = None

    def __call__(self) -> None:
        try:
            self.session.run_with_iobinding(self.binding, self.options)
        except Exception as error:
            # The next batch may be smaller: what this one left behind it is computed again, and must not fail it too.
            for array in self.inputs:
                if array.flags.writeable:
                    array[...] = 0
            text = str(error)
            if ENDED in text:
                raise EndedRun("the model did not finish in time for these inputs") from error
            if text.startswith(REFUSED) and not any(words in text.lower() for words in (*WITHOUT_MEMORY, BEYOND_ARENA)):
                raise BadInput("the model refuses these inputs: an index or a size in it is out of range") from error
            raise failed(self.bucket, "onnxruntime", error) from error


class _LoopRun(_Run, EndableRun):
    """A run that can be ended between two nodes, also those of a loop's body."""

    __slots__ = ()

    def end(self, now: bool) -> None:
        self.options.terminate = now


class _DeviceRun:
    """One prepared run with its own buffers on a device."""

    def __init__(
        self, session: _Session, bucket: int, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]
    ) -> None:
        self._session, self._bucket, self._inputs, self._outputs = session, bucket, inputs, outputs
        self._held = {name: self._allocate(array) for name, array in {**inputs, **outputs}.items()}
        self._binding = session.session.io_binding()
        for name in inputs:
            self._binding.bind_ortvalue_input(name, self._held[name])
        for name in outputs:
            self._binding.bind_ortvalue_output(name, self._held[name])

    def _allocate(self, matrix: Matrix) -> Any:
        values = self._session.library.OrtValue
        return values.ortvalue_from_shape_and_type(list(matrix.shape), np.float32, self._session.device, 0)

    def __call__(self) -> None:
        try:
            for name, array in self._inputs.items():
                self._held[name].update_inplace(array)
            self._session.session.run_with_iobinding(self._binding)
            for name, array in self._outputs.items():
                np.copyto(array, self._held[name].numpy())
        except Exception as error:
            raise failed(self._bucket, "onnxruntime", error) from error


BACKEND = OnnxRuntime
