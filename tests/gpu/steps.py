"""The steps of the GPU check: what each answers, and the seconds that it may take on a GPU.

A step needs numpy, the processor's own needs (numba, xxhash) and the library that it is about; no TensorFlow, no
compiler. With the target "cpu" XLA's client for the processor takes the GPU's place, and steps do little of everything
(bundled.SIZES), so that the check itself is known to work where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.gpu import engine_steps as engine
from tests.gpu import executable_steps as executable
from tests.gpu import tensorrt_steps as tensorrt
from tests.gpu.bundled import Check, Figures
from tests.gpu.http_step import http


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        answers: What its figures say.
        budget_s: Seconds on an H200, with what it compiles.
        run: Yields figures; raises Skip without what it runs on, or another error.
        alone: True if it sets what a library reads when it is loaded: it then has a process of its own.
    """

    name: str
    answers: str
    budget_s: int
    run: Callable[[Check], Figures]
    alone: bool = False


STEPS = {
    step.name: step
    for step in (
        Step("about", "machine, device and versions", 15, executable.about),
        Step("boundary", "what is sent to the device of a row", 1, executable.boundary),
        Step("xla", "each batch size: compiled here, right, how fast", 20, executable.xla),
        Step("device-rows", "rows in the device's memory beside rows sent; utilisation", 50, engine.device_rows),
        Step("deltas", "rows and dense weights under load: each reply of one generation", 35, engine.deltas),
        Step("division", "requests divided into user and candidates, and undivided", 35, engine.division),
        Step("pipeline", "device stages, sessions that run the device, and the processor", 60, engine.pipeline),
        Step("histories", "a network over histories, divided and undivided", 60, engine.histories),
        Step("http", "freshet serve, one process and two workers", 45, http),
        Step("xla-weights", "what new dense weights cost before the flip", 2, executable.xla_weights),
        Step("xla-ahead", "code made without a GPU: right, beside code tuned here", 5, executable.xla_ahead),
        Step("xla-saved", "machine code of this device, written and read back", 2, executable.xla_saved),
        Step("host-memory", "page-locked memory beside plain memory", 3, executable.host_memory),
        Step("xla-streams", "threads that run the device at once", 8, executable.xla_streams),
        Step("onnxruntime", "ONNX Runtime on the device", 15, executable.onnxruntime),
        Step("tensorrt", "engines: built or made without a GPU; new weights", 25, tensorrt.tensorrt),
        Step("tensorrt-deltas", "the step deltas, by engines", 25, engine.tensorrt_deltas),
        Step("tensorrt-weights", "new weights by refit and by rebuild", 20, tensorrt.tensorrt_weights),
        Step("xla-recorded", "the step xla with all in CUDA graphs", 22, executable.xla_recorded, alone=True),
        Step("xla-unrecorded", "the step xla without CUDA graphs", 22, executable.xla_unrecorded, alone=True),
    )
}
"""In the order of what is most missed where the time ends before they do."""
