"""The steps of the GPU check: each runs in a process of its own and raises, skips or returns figures.

A step needs numpy, the processor's own needs (numba, xxhash) and the library that it is about; no TensorFlow, no
compiler. With the target "cpu" everything that has a counterpart there runs on the processor, so that the check itself
is known to work where there is no GPU.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from freshet_serving.compiler.imports.boundary import Boundary
from freshet_serving.processor.backends.base import Artefact, Executable, IoSpec, Matrix, Program, aligned
from freshet_serving.processor.backends.cuda import Cuda, allocator
from freshet_serving.processor.backends.onnxruntime import OnnxRuntime
from freshet_serving.processor.backends.xla import Xla, XlaProgram, device
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, Conflict
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.package.delta import read_delta
from freshet_serving.processor.package.manifest import ExecutableEntry as Entry
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.subgraphs import SCORE, subgraphs
from freshet_serving.processor.package.tensors import map_file, parse_tensors
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.running.opening import io_spec, unpack
from tests.gpu.package import MODEL, folder_of, made_ahead, only

# Products in float32 may be rounded to TF32 on a GPU; what calibration allows any float32 backend.
CLOSE = {"cuda": 1e-3, "cpu": 1e-5}
LIBRARIES = ("jax", "jaxlib", "onnxruntime", "onnxruntime-gpu", "tensorrt", "cuda-bindings", "torch", "numpy", "numba")
REPEATS, LEAST_S = 9, 0.2
CLIENTS, ROWS_IN_FLIGHT = 4, 32768

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

    def largest(self) -> int:
        return max(e.bucket for e in self.entries("xla"))

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


def about(check: Check) -> Figures:
    """Device, driver and versions."""
    yield "machine", this_machine().name
    yield "cores", str(os.cpu_count())
    if check.target == "cuda":
        import jax

        gpu = jax.devices("cuda")[0]
        yield "GPU", str(gpu.device_kind)
        yield "compute capability", str(gpu.compute_capability)
    for name in LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"


def boundary(check: Check) -> Figures:
    """The tensors that the CPU sends and the device receives, from the manifest alone."""
    cut = Boundary.of(check.manifest)
    if [p.columns[1] for p in cut.pairs[:-1]] != [p.columns[0] for p in cut.pairs[1:]]:
        raise ValueError("columns of the dense input that nobody sends, or that two send")
    yield "tensors sent", str(len(cut.pairs))
    yield "bytes a row", str(4 * cut.width)
    yield "bytes a row back", str(4 * sum(cut.outputs.values()))


def xla(check: Check) -> Figures:
    """Executables from StableHLO that was made without a GPU: compiled here, right, and how long a run takes."""
    started_s = time.perf_counter()
    program = check.xla()
    yield "compile, all buckets", _ms(time.perf_counter() - started_s)
    for bucket, executable in sorted(program.with_weights(check.weights[0]).items()):
        error = check.close(check.error(executable))
        run_s = timed(check.bound(executable)[1])
        yield f"b{bucket}", f"{run_s * 1e6:.0f} us a run, {bucket / run_s:,.0f} rows/s, error {error}"


def xla_saved(check: Check) -> Figures:
    """Machine code of this device: written, read back, right; and refused where it says another kind of device."""
    program, bucket = check.xla(), check.largest()
    code = program.serialize(bucket)
    entry = next(e for e in check.entries("xla") if e.bucket == bucket)
    kind = device(check.device_target, 1).target if check.target == "cuda" else check.device_target
    again = Xla().open_program(check.spec)
    started_s = time.perf_counter()
    again.add(Artefact(bucket, code, entry.weights, entry.precision, kind))
    load_s = time.perf_counter() - started_s
    error = check.close(check.error(again.with_weights(check.weights[0])[bucket]))
    if check.target == "cuda":
        try:
            again.add(Artefact(bucket, code, entry.weights, entry.precision, "cuda-sm_00"))
        except BadInput:
            pass
        else:
            raise ValueError("code that says another kind of GPU was loaded")
    yield "key", kind
    yield "bytes", f"{len(code):,}"
    yield "read back in", _ms(load_s)
    yield "error", error


def xla_ahead(check: Check) -> Figures:
    """Machine code that was made without a GPU: loaded, right, and how long a run takes beside one tuned here."""
    target = device(check.device_target, 1).target if check.target == "cuda" else check.device_target
    entries = [e for e in check.manifest.executables if made_ahead(e) and e.target == target]
    if not entries:
        raise Skip(f"the bundle has no machine code for {target}: make it with --targets")
    if entries[0].library != (here := Xla().library):
        raise Skip(f"the bundle's machine code is of {entries[0].library}, here is {here}")
    program, started_s = Xla().open_program(check.spec), time.perf_counter()
    for e in entries:
        code = unpack(check.reader.file(e.file), e.backend, e.bucket, e.source)
        program.add(Artefact(e.bucket, code, e.weights, e.precision, target))
    yield "loaded, all buckets", _ms(time.perf_counter() - started_s)
    tuned = check.xla().with_weights(check.weights[0])
    for bucket, executable in sorted(program.with_weights(check.weights[0]).items()):
        error = check.close(check.error(executable))
        run_s, tuned_s = (timed(check.bound(e)[1]) for e in (executable, tuned[bucket]))
        yield f"b{bucket}", f"{run_s * 1e6:.0f} us a run, tuned here {tuned_s * 1e6:.0f} us, error {error}"


def xla_weights(check: Check) -> Figures:
    """New dense weights, as a delta brings them: no compile, right, and what they cost before the flip."""
    program, (before, after) = check.xla(), check.weights
    program.with_weights(before)
    started_s = time.perf_counter()
    loaded = program.with_weights(after)
    took_s = time.perf_counter() - started_s
    errors = [check.error(executable, step=1) for executable in loaded.values()]
    yield "all buckets", _ms(took_s)
    yield "error", check.close(max(errors))


def xla_streams(check: Check) -> Figures:
    """Several threads at once, each with buffers of its own: what runs of the largest bucket gain."""
    yield from _streams(check, check.xla().with_weights(check.weights[0])[check.largest()])


def host_memory(check: Check) -> Figures:
    """A run from page-locked memory and from plain memory, by every backend that has the device."""
    try:
        cuda = Cuda.load("buffers")
    except BadInput as error:
        raise Skip(str(error)) from None
    bucket = check.largest()
    ways: dict[str, Executable] = {"xla": check.xla().with_weights(check.weights[0])[bucket]}
    if check.target in OnnxRuntime().targets():
        ways["onnxruntime"] = check.onnxruntime().with_weights(check.weights[0])[bucket]
    for backend, executable in ways.items():
        for name, allocate in (("plain", aligned), ("page-locked", cuda.page_locked)):
            run_s = timed(check.bound(executable, allocate=allocate)[1])
            yield f"{backend}, {name}", f"{run_s * 1e6:.0f} us a run"


def onnxruntime(check: Check) -> Figures:
    """ONNX Runtime on the device: right, with buffers there."""
    backend = OnnxRuntime()
    if check.target not in backend.targets():
        raise Skip(f"{backend.library} here was built without {check.target}: {', '.join(backend.targets())}")
    for bucket, executable in sorted(check.onnxruntime().with_weights(check.weights[0]).items()):
        error = check.close(check.error(executable))
        run_s = timed(check.bound(executable)[1])
        yield f"b{bucket}", f"{run_s * 1e6:.0f} us a run, {bucket / run_s:,.0f} rows/s, error {error}"
    yield from _streams(check, check.onnxruntime().with_weights(check.weights[0])[check.largest()])


def tensorrt(check: Check) -> Figures:
    """TensorRT: an engine from ONNX, right, and refitted with new weights."""
    from freshet_serving.processor.backends.tensorrt import PRECISIONS, TensorRt

    if check.target != "cuda":
        raise Skip("TensorRT runs on NVIDIA GPUs alone")
    try:
        backend = TensorRt()
    except BadInput as error:
        raise Skip(str(error)) from None
    bucket = check.largest()
    for precision in PRECISIONS:
        started_s = time.perf_counter()
        engine = backend.build((check.bundle / "dense.onnx").read_bytes(), bucket, check.spec, precision)
        yield f"{precision}, build", _ms(time.perf_counter() - started_s)
        program = backend.open_program(check.spec)
        names = sorted(check.weights[0])
        program.add(Artefact(bucket, engine, names, precision, "cuda"))
        for step, weights in enumerate(check.weights):
            started_s = time.perf_counter()
            executable = program.with_weights(weights)[bucket]
            refit_s, error = time.perf_counter() - started_s, check.error(executable, step)
            told = check.close(error) if precision == "float32" else f"{error:.1e}"
            run_s = timed(check.bound(executable, step)[1])
            what = f"{precision}, weights of step {step}"
            yield what, f"refit {_ms(refit_s)}, {run_s * 1e6:.0f} us a run, error {told}"


def pipeline(check: Check) -> Figures:
    """The engine: CPU stages and device stages against sessions that run the device themselves, and against a CPU."""
    sessions = max(2, (os.cpu_count() or 2) - 1)
    sides: list[tuple[str, Path, dict[str, int]]] = []
    on_device = only(check.bundle, check.folder / "device", "xla", check.device_target)
    sides.append(("sessions run the device", on_device, {}))
    target = device("cuda", 1).target if check.target == "cuda" else ""
    if any(made_ahead(e) and e.target == target for e in check.manifest.executables):
        ahead = only(check.bundle, check.folder / "ahead", "xla", target, ahead=True)
        sides.append(("made without a GPU, device stages: 2", ahead, {"device_stages": 2}))
    sides += [(f"device stages: {n}", on_device, {"device_stages": n}) for n in (1, 2, 4)]
    if check.target == "cuda" and check.target in OnnxRuntime().targets():
        as_onnx = only(check.bundle, check.folder / "onnxruntime", "onnxruntime", check.target)
        sides += [(f"onnxruntime, device stages: {n}", as_onnx, {"device_stages": n}) for n in (1, 2)]
    sides.append(("onnxruntime on the CPU", only(check.bundle, check.folder / "cpu", "onnxruntime"), {}))
    for name, repository, options in sides:
        config = ProcessorConfig(repository=str(repository), sessions=sessions, **options)  # type: ignore[arg-type]
        started_s = time.perf_counter()
        with Processor.initialize(config) as processor:
            yield f"{name}, load", _ms(time.perf_counter() - started_s)
            worst = max(_asked(check, processor, rows, 0) for rows in (1, 7, 64, 300, 1000))
            yield f"{name}, error", check.close(worst)
            for candidates in (64, 500):
                rate = _load(check, processor, candidates)
                yield f"{name}, {candidates} candidates a request", f"{rate:,.0f} rows/s"


def deltas(check: Check) -> Figures:
    """A delta of rows and dense weights under load, through device stages: every reply is of one generation."""
    repository = only(check.bundle, check.folder / "deltas", "xla", check.device_target)
    data = (check.bundle / "delta.safetensors").read_bytes()
    wrong: list[float] = []
    answered = [0, 0]
    stop = threading.Event()
    with Processor.initialize(ProcessorConfig(repository=str(repository), sessions=2, device_stages=2)) as processor:

        def ask(seed: int) -> None:
            random = np.random.default_rng(seed)
            while not stop.is_set():
                rows = int(random.integers(1, 400))
                reply = processor.process(PredictRequest(MODEL, _inputs(check, rows)))
                step = reply.generation.step
                answered[step] += 1
                wrong.append(float(np.abs(reply.outputs["score"] - check.reference[f"score{step}"][:rows]).max()))

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        try:
            took = []
            for turn in range(5):
                time.sleep(check.seconds / 10)
                took.append(processor.apply_delta(MODEL, data=data).apply_ms)
                time.sleep(check.seconds / 10)
                if turn < 4:
                    processor.rollback(MODEL, replace(processor.predictor.manifest(MODEL)[1], step=0))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    if not all(answered):
        raise Conflict(f"replies of both generations wanted, got {answered}")
    yield "replies", f"{answered[0]} before and {answered[1]} after the delta"
    yield "largest error", check.close(max(wrong))
    yield "to serve a delta with all dense weights", f"{statistics.median(took):.1f} ms"


STEPS: dict[str, Callable[[Check], Figures]] = {
    "about": about,
    "boundary": boundary,
    "xla": xla,
    "xla-saved": xla_saved,
    "xla-ahead": xla_ahead,
    "xla-weights": xla_weights,
    "xla-streams": xla_streams,
    "host-memory": host_memory,
    "onnxruntime": onnxruntime,
    "tensorrt": tensorrt,
    "pipeline": pipeline,
    "deltas": deltas,
}


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


def _streams(check: Check, executable: Executable) -> Figures:
    """Rows a second of 1, 2 and 4 threads, in the memory that a server binds."""
    for threads in (1, 2, 4):
        runs = [check.bound(executable)[1] for _ in range(threads)]
        yield f"{threads} at once", f"{_together(runs, check.seconds) * executable.bucket:,.0f} rows/s"


def _together(runs: Sequence[Callable[[], None]], seconds: float) -> float:
    """Runs a second of all of them at once, each on a thread of its own."""
    done, stop = [0] * len(runs), threading.Event()

    def work(i: int) -> None:
        while not stop.is_set():
            runs[i]()
            done[i] += 1

    for run in runs:
        run()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(runs))]
    started_s = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - started_s)


def _inputs(check: Check, rows: int) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(check.reference[name][:rows]) for name in ("ids", "floats")}


def _asked(check: Check, processor: Processor, rows: int, step: int) -> float:
    """How far the scores of the first reference rows are off."""
    rows = min(rows, len(check.reference["ids"]))
    reply = processor.process(PredictRequest(MODEL, _inputs(check, rows)))
    return float(np.abs(reply.outputs["score"] - check.reference[f"score{step}"][:rows]).max())


def _load(check: Check, processor: Processor, candidates: int) -> float:
    """Rows a second of several clients, so that a device has batches to run while others are filled."""
    requests = [PredictRequest(MODEL, _inputs(check, candidates))] * max(8, ROWS_IN_FLIGHT // CLIENTS // candidates)
    processor.batch_process(requests)
    rows, stop = [0] * CLIENTS, threading.Event()

    def ask(client: int) -> None:
        while not stop.is_set():
            for reply in processor.batch_process(requests):
                if isinstance(reply, Exception):
                    errors.append(reply)
                    return
            rows[client] += candidates * len(requests)

    errors: list[Exception] = []
    threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
    started_s = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(check.seconds)
    stop.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(rows) / (time.perf_counter() - started_s)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
