"""Dense graphs on OpenVINO (oneDNN): loads and runs what compiler/backends/openvino.py wrote.

An artefact is the library's own compiled model with the weights frozen inside, one a bucket: importing one takes a
third of compiling it. Its origin is an ONNX model that takes the weights as inputs; here they are put in as constants,
and the graph is compiled for the bucket. That is what happens when the weights are not the frozen ones: after a delta
with dense weights, in the background, before its flip (some tens of milliseconds a bucket for a million parameters).

precision bfloat16 is a hint of the compilation: weights and activations of the matrix products are rounded. It is for
processors that multiply bfloat16 in hardware; elsewhere the library emulates it at a fiftieth of the speed, so the
manifest names the processor's feature among those that the executable needs. In int8 it is the model that says where
values are quantised (compiler.backends.int8), and weights are as they go in.

Infer requests hold the activations and are dear to make (milliseconds). As many as there may be runs at once are made
with the executable, and warm; a binding takes one of these while there are any, and gives it back when it goes.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from freshet_serving.processor.backends.base import (
    Artefact,
    Executable,
    Matrix,
    Program,
    Weights,
    aligned,
    check_buffers,
    missing,
    refused,
    weights_hash,
)
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError

INPUT = "x"
WEIGHT_PREFIX = "weights/"
PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""What products are computed in that the model itself does not say."""
DEVICE = "CPU"


class OpenVino:
    """processor.backends.base.Backend by the library openvino."""

    name = "openvino"

    def __init__(self) -> None:
        with _untold():
            try:
                import openvino
            except ImportError:
                raise missing("openvino", "openvino", "openvino") from None
        self.module: Any = openvino
        self.library = f"openvino {openvino.__version__.partition('-')[0]}"

    def open_program(self, width: int, outputs: Mapping[str, int], threads: int = 1, runs: int = 1) -> OpenVinoProgram:
        """See processor.backends.base.Backend.open_program."""
        return OpenVinoProgram(self, width, dict(outputs), threads, runs)


@contextmanager
def _untold() -> Iterator[None]:
    """The library's own telemetry stays out: with it, the process would fork and call a host on the Internet. Where the
    telemetry package is not to be had, the library leaves it at that."""
    name = "openvino_telemetry"
    before = sys.modules.get(name, ...)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is ...:
            del sys.modules[name]
        elif isinstance(before, ModuleType):
            sys.modules[name] = before


class OpenVinoProgram(Program):
    """processor.backends.base.Program; compile() and export() are for the compiler."""

    def __init__(self, backend: OpenVino, width: int, columns: dict[str, int], threads: int, runs: int) -> None:
        self._backend, self._width, self._columns = backend, width, columns
        self._threads, self._runs = threads, runs
        self._core = backend.module.Core()
        self._artefacts: dict[int, Artefact] = {}
        self._imported: dict[int, Any] = {}

    def add(self, artefact: Artefact) -> None:
        """See processor.backends.base.Program.add."""
        if artefact.precision not in PRECISIONS:
            wanted = ", ".join(PRECISIONS)
            raise BadInput(f"executable b{artefact.bucket}: precision one of {wanted} wanted, got {artefact.precision}")
        if artefact.data:
            try:
                model = self._core.import_model(artefact.data, DEVICE, self._options(artefact))
            except Exception as error:
                raise refused(artefact.bucket, self._backend.library, error) from error
            self._check_signature(model, artefact.bucket)
            self._imported[artefact.bucket] = model
        elif not artefact.origin:
            raise Corrupt(f"executable b{artefact.bucket}: neither compiled code nor what to compile it from")
        self._artefacts[artefact.bucket] = artefact

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """See processor.backends.base.Program.with_weights."""
        loaded: dict[int, Executable] = {}
        hashes: dict[tuple[str, ...], str] = {}
        for bucket, artefact in sorted(self._artefacts.items()):
            # What was imported serves the first weights only: later ones differ, and its memory is not kept for them.
            model = self._imported.pop(bucket, None)
            if model is not None:
                names = tuple(artefact.weights)
                if names not in hashes:
                    hashes[names] = weights_hash(weights, names)
                if hashes[names] != artefact.frozen:
                    model = None
            if model is None:
                model = self.compile(artefact, weights)
            loaded[bucket] = _Executable(model, bucket, self._width, self._columns, self._runs)
        return loaded

    def compile(self, artefact: Artefact, weights: Weights) -> Any:
        """The artefact's origin with the weights inside, compiled for its bucket and precision."""
        library = self._backend.module
        if not artefact.origin:
            raise Corrupt(f"executable b{artefact.bucket}: other weights than the frozen ones want its portable form")
        try:
            model = self._core.read_model(artefact.origin)
            for parameter in list(model.get_parameters()):
                name = parameter.get_friendly_name()
                if name.startswith(WEIGHT_PREFIX):
                    weight = _weight(weights, name.removeprefix(WEIGHT_PREFIX), parameter)
                    constant = library.op.Constant(np.asarray(weight, order="C"))
                    parameter.output(0).replace(constant.output(0))
                    model.remove_parameter(parameter)
            model.reshape([artefact.bucket, self._width])
            compiled = self._core.compile_model(model, DEVICE, self._options(artefact))
        except FreshetError:
            raise
        except Exception as error:
            raise refused(artefact.bucket, self._backend.library, error) from error
        self._check_signature(compiled, artefact.bucket)
        return compiled

    def _options(self, artefact: Artefact) -> dict[str, Any]:
        return {
            "INFERENCE_PRECISION_HINT": PRECISIONS[artefact.precision],
            "NUM_STREAMS": self._runs,
            "INFERENCE_NUM_THREADS": self._runs * self._threads,
            "ENABLE_CPU_PINNING": False,
            # Its compiler of small kernels crashes on graphs whose biases are zeros (2026.4), and gains nothing here.
            "SNIPPETS_MODE": "DISABLE",
        }

    def _check_signature(self, model: Any, bucket: int) -> None:
        """Raises BadInput unless the model maps x [bucket, width] to the outputs [bucket, columns]."""
        got = {name: tuple(port.shape) for port in model.inputs for name in port.names}
        if len(model.inputs) != 1 or got.get(INPUT) != (bucket, self._width):
            raise BadInput(f"executable b{bucket}: one input {INPUT!r} float32 [{bucket}, {self._width}] wanted")
        ends = {name: tuple(port.shape) for port in model.outputs for name in port.names}
        for name, n in self._columns.items():
            if ends.get(name) != (bucket, n):
                raise BadInput(f"executable b{bucket}: output {name!r} float32 [{bucket}, {n}] wanted")


def _weight(weights: Weights, name: str, parameter: Any) -> Matrix:
    shape = tuple(parameter.get_output_shape(0))
    if name not in weights:
        raise BadInput(f"dense weight {name[:64]!r} is missing")
    array = weights[name]
    if array.dtype != np.float32 or array.shape != shape:
        got = f"{array.dtype} {list(array.shape)}"
        raise BadInput(f"dense weight {name[:64]!r}: float32 {list(shape)} wanted, got {got}")
    return array


class _Executable:
    """processor.backends.base.Executable: a compiled model and warm requests for it."""

    def __init__(self, model: Any, bucket: int, width: int, columns: dict[str, int], runs: int) -> None:
        self.bucket = bucket
        self._model, self._width, self._columns = model, width, columns
        self._spare: deque[Any] = deque()
        x, outputs = aligned((bucket, width)), {n: aligned((bucket, c)) for n, c in columns.items()}
        warm = [_Run(model.create_infer_request(), x, outputs, self._spare) for _ in range(runs)]
        for run in warm:
            run()

    def bind_buffers(self, x: Matrix, outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        """See processor.backends.base.Executable.bind_buffers."""
        check_buffers(self.bucket, self._width, self._columns, x, outputs)
        request = None
        with suppress(IndexError):
            request = self._spare.popleft()
        return _Run(request or self._model.create_infer_request(), x, outputs, self._spare)


@dataclass(frozen=True, slots=True)
class _Run:
    """One prepared run: a request whose tensors are the session's own buffers, held so that they stay. spare: where the
    request goes when the run does."""

    request: Any
    x: Matrix
    outputs: Mapping[str, Matrix]
    spare: deque[Any]

    def __post_init__(self) -> None:
        from openvino import Tensor

        self.request.set_tensor(INPUT, Tensor(self.x, shared_memory=True))
        for name, array in self.outputs.items():
            self.request.set_tensor(name, Tensor(array, shared_memory=True))

    def __del__(self) -> None:
        self.spare.append(self.request)

    def __call__(self) -> None:
        try:
            self.request.infer()
        except Exception as error:
            raise FreshetError(f"openvino failed on a batch of {len(self.x)} rows") from error


BACKEND = OpenVino
