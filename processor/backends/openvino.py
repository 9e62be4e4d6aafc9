"""Run dense graphs on OpenVINO (oneDNN), from the files that compiler/backends/openvino.py writes.

An artefact is the library's own compiled model with the weights frozen inside, one per bucket: importing it takes a
third of the time of compiling. Its origin is an ONNX model that has the weights as inputs. Other weights (after a
delta, in the background, before its flip) are inserted as constants and the graph is compiled for the bucket: some tens
of milliseconds per bucket for a million parameters.

Precision bfloat16 is a hint for the compilation: weights and activations of the matrix products are rounded. Processors
without it emulate it at a fiftieth of the speed, so the manifest lists the feature. For int8 the model itself defines
where values are quantised (compiler.backends.int8), and weights are passed unchanged.

Infer requests take milliseconds to create. As many as there may be concurrent runs are created and warmed with the
executable; a binding takes one while there are any, and gives it back when it is freed.
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
    weights_hash,
)
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError

WEIGHT_PREFIX = "weights/"
PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""The precision of products that the model itself does not specify."""
DEVICE = "CPU"


class OpenVino:
    """The backend of the library openvino."""

    name = "openvino"

    def __init__(self) -> None:
        with _untold():
            try:
                import openvino
            except ImportError:
                raise missing("openvino", "openvino", "openvino") from None
        self.module: Any = openvino
        self.library = f"openvino {openvino.__version__.partition('-')[0]}"

    def open_program(self, spec: IoSpec, threads: int = 1, runs: int = 1) -> OpenVinoProgram:
        return OpenVinoProgram(self, spec, threads, runs)


@contextmanager
def _untold() -> Iterator[None]:
    """Keep out the library's telemetry, which would fork and call a host on the Internet."""
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
    """A program over compiled models; compile() and export() are for the compiler."""

    def __init__(self, backend: OpenVino, spec: IoSpec, threads: int, runs: int) -> None:
        self._backend, self._spec = backend, spec
        self._threads, self._runs = threads, runs
        self._core = backend.module.Core()
        self._artefacts: dict[int, Artefact] = {}
        self._imported: dict[int, Any] = {}

    def add(self, artefact: Artefact) -> None:
        """Import an artefact's compiled model, or keep its portable form to compile."""
        if artefact.precision not in PRECISIONS:
            expected = ", ".join(PRECISIONS)
            raise BadInput(
                f"executable b{artefact.bucket}: precision: expected one of {expected}, got {artefact.precision}"
            )
        if artefact.data:
            try:
                model = self._core.import_model(artefact.data, DEVICE, self._options(artefact))
            except Exception as error:
                raise refused(artefact.bucket, self._backend.library, error) from error
            self._check_signature(model, artefact.bucket)
            self._imported[artefact.bucket] = model
        elif not artefact.origin:
            raise Corrupt(f"executable b{artefact.bucket}: has neither compiled code nor a portable form")
        self._artefacts[artefact.bucket] = artefact

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """Return all buckets with these weights, compiling those whose frozen weights differ."""
        loaded: dict[int, Executable] = {}
        hashes: dict[tuple[str, ...], str] = {}
        for bucket, artefact in sorted(self._artefacts.items()):
            # The imported model serves the first weights only: later ones differ, so its memory is not kept for them.
            model = self._imported.pop(bucket, None)
            if model is not None:
                names = tuple(artefact.weights)
                if names not in hashes:
                    hashes[names] = weights_hash(weights, names)
                if hashes[names] != artefact.frozen:
                    model = None
            if model is None:
                model = self.compile(artefact, weights)
            loaded[bucket] = _Executable(model, bucket, self._spec, self._runs)
        return loaded

    def compile(self, artefact: Artefact, weights: Weights) -> Any:
        """Compile the portable form with these weights inside; Corrupt without one, BadInput for unfit weights."""
        library = self._backend.module
        if not artefact.origin:
            raise Corrupt(
                f"executable b{artefact.bucket}: weights other than the frozen ones require its portable form"
            )
        try:
            model = self._core.read_model(artefact.origin)
            for parameter in list(model.get_parameters()):
                name = parameter.get_friendly_name()
                if name.startswith(WEIGHT_PREFIX):
                    name = name.removeprefix(WEIGHT_PREFIX)
                    check_weights(weights, {name: tuple(parameter.get_output_shape(0))})
                    constant = library.op.Constant(np.asarray(weights[name], order="C"))
                    parameter.output(0).replace(constant.output(0))
                    model.remove_parameter(parameter)
            model.reshape({name: list(shape) for name, shape in self._spec.input_shapes(artefact.bucket).items()})
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
            # The library's compiler of small kernels crashes on graphs whose biases are zeros (2026.4) and is no faster
            # here.
            "SNIPPETS_MODE": "DISABLE",
        }

    def _check_signature(self, model: Any, bucket: int) -> None:
        inputs, outputs = self._spec.input_shapes(bucket), self._spec.output_shapes(bucket)
        got = {name: tuple(port.shape) for port in model.inputs for name in port.names}
        if len(model.inputs) != len(inputs) or any(got.get(name) != shape for name, shape in inputs.items()):
            raise BadInput(f"executable b{bucket}: expected inputs {shapes_text(inputs)}")
        ends = {name: tuple(port.shape) for port in model.outputs for name in port.names}
        for name, shape in outputs.items():
            if ends.get(name) != shape:
                raise BadInput(f"executable b{bucket}: expected output {shapes_text({name: shape})}")


class _Executable:
    """A compiled model and warm infer requests for it."""

    def __init__(self, model: Any, bucket: int, spec: IoSpec, runs: int) -> None:
        self.bucket = bucket
        self._model, self._spec = model, spec
        self._spare: deque[Any] = deque()
        buffers = spec.allocate_inputs(bucket) | spec.allocate_outputs(bucket)
        warm = [_Run(model.create_infer_request(), bucket, buffers, self._spare) for _ in range(runs)]
        for run in warm:
            run()

    def bind_buffers(self, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        check_buffers(self.bucket, self._spec, inputs, outputs)
        request = None
        with suppress(IndexError):
            request = self._spare.popleft()
        return _Run(request or self._model.create_infer_request(), self.bucket, {**inputs, **outputs}, self._spare)


@dataclass(frozen=True, slots=True)
class _Run:
    """One prepared run: an infer request, given back to `spare` when freed, and the buffers it keeps alive."""

    request: Any
    bucket: int
    buffers: Mapping[str, Matrix]
    spare: deque[Any]

    def __post_init__(self) -> None:
        from openvino import Tensor

        for name, array in self.buffers.items():
            self.request.set_tensor(name, Tensor(array, shared_memory=True))

    def __del__(self) -> None:
        self.spare.append(self.request)

    def __call__(self) -> None:
        try:
            self.request.infer()
        except Exception as error:
            raise failed(self.bucket, "openvino", error) from error


BACKEND = OpenVino
