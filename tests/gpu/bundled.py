"""What a step of the GPU check has: the bundle, the device, references, and how close scores must be."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import numpy as np

from freshet_serving.processor.backends import allocator, xla
from freshet_serving.processor.backends.base import Artefact, Executable, IoSpec, Matrix, Program
from freshet_serving.processor.backends.onnxruntime import OnnxRuntime
from freshet_serving.processor.backends.xla import Xla, XlaProgram
from freshet_serving.processor.package.delta import read_delta
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import ExecutableEntry as Entry
from freshet_serving.processor.package.subgraphs import SCORE, subgraphs
from freshet_serving.processor.package.tensors import map_file, parse_tensors
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.running.opening import io_spec
from tests.gpu.package import MODEL, folder_of, made_ahead, only

# Products in float32 may be rounded to TF32 on a GPU; what calibration allows any float32 backend.
CLOSE = {"cuda": 1e-3, "cpu": 1e-5}
REPEATS = 9

Figures = Iterator[tuple[str, str]]
"""As they are found: those before a failure are kept."""


class Skip(Exception):
    """A step that has nothing to run on; says what is missing."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much steps do.

    Attributes:
        bucket: The largest batch size that is run.
        seconds: Length of each load.
        rows: Rows that are under way in a load.
        asked: Requests of each size over HTTP.
        timed_s: Least seconds over which runs of an executable are timed.
    """

    bucket: int
    seconds: float
    rows: int
    asked: int
    timed_s: float


# On a GPU enough to measure it, on a processor just enough to show that everything runs.
SIZES = {"cuda": Sizes(4096, 2.0, 32768, 20, 0.2), "cpu": Sizes(256, 0.1, 1024, 2, 0.0)}


@contextmanager
def device_of(target: str) -> Iterator[None]:
    """With the target "cpu", have XLA's client for the processor in the place of the GPU."""
    if target == "cuda":
        yield
        return
    from tests.support.played_gpu import played_xla

    # A kind for which no bundle has machine code.
    with patch.dict(xla._devices, {("cuda", 0): played_xla("10")}):
        yield


@dataclass(frozen=True)
class Check:
    """What steps of one process share: what one has loaded or compiled, the next does not again.

    Attributes:
        bundle: See tests.gpu.bundle.
        target: "cuda", or "cpu" in device_of().
        folder: To work in.
    """

    bundle: Path
    target: str
    folder: Path

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

    @cached_property
    def weights(self) -> list[dict[str, Matrix]]:
        """Before the delta, and after it."""
        before = self.reader.dense()
        return [before, {**before, **read_delta(self.bundle / "delta.safetensors").dense}]

    @property
    def spec(self) -> IoSpec:
        """Inputs and outputs of the executables."""
        return io_spec(SCORE, subgraphs(self.manifest)[SCORE])

    @property
    def sizes(self) -> Sizes:
        return SIZES[self.target]

    def entries(self, backend: str) -> list[Entry]:
        listed, largest = self.manifest.executables, self.sizes.bucket
        return [e for e in listed if e.backend == backend and not made_ahead(e) and e.bucket <= largest]

    def repository(self, name: str, backend: str, target: str = "", ahead: bool = False, model: str = MODEL) -> Path:
        """A copy of a version that one backend serves alone (package.only), made once for each name."""
        folder = self.folder / model / name
        if not folder.exists():
            only(self.bundle, folder, backend, target, ahead, model, self.sizes.bucket)
        return folder

    @cached_property
    def kind(self) -> str:
        """The kind of GPU, as its machine code is keyed."""
        return xla.device("cuda", 1).target

    @cached_property
    def compiled(self) -> tuple[XlaProgram, float]:
        """All buckets, compiled here from what was made without a GPU, and the seconds that it took."""
        program, started_s = Xla().open_program(self.spec), time.perf_counter()
        for e in self.entries("xla"):
            program.add(Artefact(e.bucket, b"", e.weights, e.precision, "cuda", self.reader.file(e.origin)))
        return program, time.perf_counter() - started_s

    @cached_property
    def alone(self) -> dict[int, Executable]:
        """XLA's executables with the weights before the delta."""
        return self.compiled[0].with_weights(self.weights[0])

    @cached_property
    def alone_s(self) -> dict[int, float]:
        """Seconds of one run of each, with the copies to the device and back."""
        return {bucket: self.timed(self.bound(executable)[1]) for bucket, executable in sorted(self.alone.items())}

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

    def timed(self, run: Callable[[], None]) -> float:
        """Seconds of a run: the median of several, warm."""
        run(), run()
        times: list[float] = []
        began_s = time.perf_counter()
        while len(times) < REPEATS or time.perf_counter() - began_s < self.sizes.timed_s:
            started_s = time.perf_counter()
            run()
            times.append(time.perf_counter() - started_s)
        return statistics.median(times)


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
