"""What a step of the GPU check has: the bundle, the device, references, and how close scores must be."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from freshet_serving.processor.backends import allocator
from freshet_serving.processor.backends.base import Artefact, Executable, IoSpec, Matrix, Program
from freshet_serving.processor.backends.onnxruntime import OnnxRuntime
from freshet_serving.processor.backends.xla import Xla, XlaProgram
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.package.delta import read_delta
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import ExecutableEntry as Entry
from freshet_serving.processor.package.subgraphs import SCORE, subgraphs
from freshet_serving.processor.package.tensors import map_file, parse_tensors
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.running.opening import io_spec
from tests.gpu.package import folder_of, made_ahead

# Products in float32 may be rounded to TF32 on a GPU; what calibration allows any float32 backend.
CLOSE = {"cuda": 1e-3, "cpu": 1e-5}
REPEATS, LEAST_S = 9, 0.2

Figures = Iterator[tuple[str, str]]
"""As they are found: those before a failure are kept."""


class Skip(Exception):
    """A step that has nothing to run on; says what is missing."""


@dataclass(frozen=True)
class Check:
    """bundle: see tests.gpu.bundle. target: cuda or cpu. folder: to work in. seconds: of each load."""

    bundle: Path
    target: str
    folder: Path
    seconds: float = 3.0

    @cached_property
    def reader(self) -> VersionReader:
        return VersionReader(folder_of(self.bundle / "repository"))

    @cached_property
    def manifest(self) -> Manifest:
        return self.reader.manifest

    @cached_property
    def reference(self) -> dict[str, np.ndarray]:
        tensors = parse_tensors(map_file(self.bundle / "reference.safetensors"), "reference")
        return {name: np.array(array) for name, array in tensors.arrays.items()}

    @property
    def weights(self) -> list[dict[str, Matrix]]:
        """Before the delta, and after it."""
        before = self.reader.dense()
        return [before, {**before, **read_delta(self.bundle / "delta.safetensors").dense}]

    @property
    def spec(self) -> IoSpec:
        """Inputs and outputs of the executables."""
        return io_spec(SCORE, subgraphs(self.manifest)[SCORE])

    def entries(self, backend: str) -> list[Entry]:
        return [e for e in self.manifest.executables if e.backend == backend and not made_ahead(e)]

    @property
    def device_target(self) -> str:
        """As executables of XLA are keyed."""
        return "cuda" if self.target == "cuda" else this_machine().target

    def xla(self) -> XlaProgram:
        """All buckets, compiled here from what was made without a GPU."""
        program = Xla().open_program(self.spec)
        for e in self.entries("xla"):
            program.add(Artefact(e.bucket, b"", e.weights, e.precision, self.device_target, self.reader.file(e.origin)))
        return program

    def onnxruntime(self) -> Program:
        """All buckets, for the device."""
        program = OnnxRuntime().open_program(self.spec)
        for e in self.entries("onnxruntime"):
            program.add(Artefact(e.bucket, self.reader.file(e.file), e.weights, target=self.target))
        return program

    def buckets(self) -> list[int]:
        return sorted(e.bucket for e in self.entries("xla"))

    def largest(self) -> int:
        return self.buckets()[-1]

    def error(self, executable: Executable, step: int = 0) -> float:
        """The largest difference from TensorFlow over as many reference rows as the bucket takes."""
        outputs, run = self.bound(executable, step)
        run()
        rows = min(executable.bucket, len(self.reference["score0"]))
        return float(np.abs(outputs["score"][:rows] - self.reference[f"score{step}"][:rows]).max())

    def close(self, error: float) -> str:
        """The error in words; raises when it is too large."""
        if not error <= CLOSE[self.target]:
            raise ValueError(f"scores are off by {error:.2g} from TensorFlow's, at most {CLOSE[self.target]:g} wanted")
        return f"{error:.1e}"

    def bound(
        self, executable: Executable, step: int = 0, allocate: Callable[[tuple[int, ...]], Matrix] | None = None
    ) -> tuple[dict[str, Matrix], Callable[[], None]]:
        """The executable over reference rows: outputs, and its run, by default in a server's memory."""
        bucket, allocate = executable.bucket, allocate or allocator([self.target])
        inputs = {name: allocate(shape) for name, shape in self.spec.input_shapes(bucket).items()}
        outputs = {name: allocate(shape) for name, shape in self.spec.output_shapes(bucket).items()}
        inputs["x"][...] = np.resize(self.reference[f"x{step}"], inputs["x"].shape)
        return outputs, executable.bind_buffers(inputs, outputs)


def timed(run: Callable[[], None]) -> float:
    """Seconds of a run: the median of several, warm."""
    run(), run()
    times: list[float] = []
    began_s = time.perf_counter()
    while len(times) < REPEATS or time.perf_counter() - began_s < LEAST_S:
        started_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
