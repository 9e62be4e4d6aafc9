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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from freshet_serving.compiler.imports.boundary import Boundary
from freshet_serving.processor.backends.base import Artefact, Executable, aligned
from freshet_serving.processor.backends.capsule import unpack
from freshet_serving.processor.backends.cuda import Cuda
from freshet_serving.processor.backends.onnxruntime import OnnxRuntime
from freshet_serving.processor.backends.xla import Xla, device
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, Conflict
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.running.graph_run import GraphRun
from freshet_serving.processor.versions.replica import Replica
from tests.gpu import tensorrt_steps
from tests.gpu.bundled import Check, Figures, Skip, ms, timed
from tests.gpu.http_step import http
from tests.gpu.package import DIVIDED, HISTORIES, MODEL, made_ahead, only

LIBRARIES = ("jax", "jaxlib", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx-cu13-bindings")
LIBRARIES += ("cuda-bindings", "torch", "numpy", "numba")
CLIENTS, ROWS_IN_FLIGHT = 4, 32768
GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,DYNAMIC_SLICE_FUSION"
"""Kinds of kernels that XLA may record; jaxlib refuses a name that it does not have."""


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
    yield "compile, all buckets", ms(time.perf_counter() - started_s)
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
    yield "read back in", ms(load_s)
    yield "error", error


def xla_ahead(check: Check) -> Figures:
    """Machine code that was made without a GPU: loaded, right, and how long a run takes beside one tuned here."""
    target = device(check.device_target, 1).target if check.target == "cuda" else check.device_target
    entries = [e for e in check.manifest.executables if made_ahead(e) and (e.backend, e.target) == ("xla", target)]
    if not entries:
        raise Skip(f"the bundle has no machine code for {target}: make it with --targets")
    if entries[0].library != (here := Xla().library):
        raise Skip(f"the bundle's machine code is of {entries[0].library}, here is {here}")
    program, started_s = Xla().open_program(check.spec), time.perf_counter()
    for e in entries:
        code = unpack(check.reader.file(e.file), e.backend, e.bucket, e.source)
        program.add(Artefact(e.bucket, code, e.weights, e.precision, target))
    yield "loaded, all buckets", ms(time.perf_counter() - started_s)
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
    yield "all buckets", ms(took_s)
    yield "error", check.close(max(errors))


def xla_unrecorded(check: Check) -> Figures:
    """The same without CUDA graphs, which XLA otherwise records runs of several kernels as: compare with step xla."""
    yield from _recorded(check, "")


def xla_recorded(check: Check) -> Figures:
    """The same with all kinds of kernels in CUDA graphs, runs of one kernel too: compare with step xla."""
    yield from _recorded(check, GRAPHS, "--xla_gpu_graph_min_graph_size=1")


def _recorded(check: Check, kinds: str, *flags: str) -> Figures:
    """The step xla with these kinds of kernels in CUDA graphs."""
    if check.target != "cuda":
        raise Skip("CUDA graphs are recorded on NVIDIA GPUs alone")
    before = os.environ.get("XLA_FLAGS", "")
    # Read when the library is loaded, which is why this is a step: each has a process of its own.
    os.environ["XLA_FLAGS"] = " ".join([before, f"--xla_gpu_enable_command_buffer={kinds}", *flags]).strip()
    try:
        yield from xla(check)
    finally:
        os.environ["XLA_FLAGS"] = before


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


def pipeline(check: Check) -> Figures:
    """The engine: CPU stages and device stages against sessions that run the device themselves, and against a CPU."""
    sessions = max(2, (os.cpu_count() or 2) - 1)
    sides: list[tuple[str, Path, dict[str, int]]] = []
    on_device = only(check.bundle, check.folder / "device", "xla", check.device_target)
    sides.append(("sessions run the device", on_device, {}))
    target = device("cuda", 1).target if check.target == "cuda" else ""
    if any(made_ahead(e) and e.backend == "xla" and e.target == target for e in check.manifest.executables):
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
            yield f"{name}, load", ms(time.perf_counter() - started_s)
            worst = max(_asked(check, processor, rows, 0) for rows in (1, 7, 64, 300, 1000))
            yield f"{name}, error", check.close(worst)
            for candidates in (64, 500):
                request = PredictRequest(MODEL, _inputs(check, candidates))
                rate = _load(check, processor, request, candidates)
                yield f"{name}, {candidates} candidates a request", f"{rate:,.0f} rows/s"


def device_rows(check: Check) -> Figures:
    """Rows in the device's memory beside rows sent: right, rows a second, and how busy the device is."""
    on_device = only(check.bundle, check.folder / "rows", "xla", check.device_target)
    sessions = max(2, (os.cpu_count() or 2) - 1)
    config = ProcessorConfig(repository=str(on_device), sessions=sessions, device_stages=2, device_rows_mb=4096)
    alone = check.xla().with_weights(check.weights[0])
    for way in ("rows by place", "rows sent"):
        with ExitStack() as stack:
            if way == "rows sent":
                stack.enter_context(patch.object(Replica, "_place", lambda *arguments: None))
            processor = stack.enter_context(Processor.initialize(config))
            worst = max(_asked(check, processor, rows, 0) for rows in (1, 7, 64, 300, 1000))
            yield f"{way}, error", check.close(worst)
            for candidates in (64, 500, 2000):
                rows = min(candidates, len(check.reference["ids"]))
                before, started_s = _busy_s(processor), time.perf_counter()
                rate = _load(check, processor, PredictRequest(MODEL, _inputs(check, rows)), rows)
                busy = (_busy_s(processor) - before) / (time.perf_counter() - started_s)
                bucket = min((b for b in alone if b >= rows), default=max(alone))
                executable = bucket / timed(check.bound(alone[bucket])[1])
                yield (
                    f"{way}, {rows} candidates a request",
                    f"{rate:,.0f} rows/s, {rate / executable:.2f} of the executable alone, stages busy {busy / 2:.0%}",
                )
            counted = by_name(processor.predictor.replica(MODEL).counted(), "device_rows")
            for name in ("nbytes", "sent_nbytes", "host_rows") if counted else ():
                yield f"{way}, {name}", f"{counted[name]:,.0f}"


def _busy_s(processor: Processor) -> float:
    """Seconds that device stages have run batches."""
    stages: Any = processor.predictor.groups.of(MODEL)._stages
    return sum(stats.busy_s for stats in stages.stats)


def division(check: Check) -> Figures:
    """Device stages with requests divided into the user's part and the candidates': right, and against undivided."""
    yield from _ways(check, DIVIDED, {f"{n} candidates": clicks(n) for n in (2, 64, 500)})


def histories(check: Check) -> Figures:
    """A network over histories through device stages: right for short and full ones, divided and undivided."""
    shapes = ((2, 0), (64, 20), (500, 20), (64, 64), (500, 64))
    yield from _ways(check, HISTORIES, {f"{n} candidates, {events} events": visits(n, events) for n, events in shapes})


def _ways(check: Check, model: str, requests: Mapping[str, dict[str, Any]]) -> Figures:
    """The errors of every request, against ONNX Runtime on the CPU, and rows a second of all but the first."""
    sessions = max(2, (os.cpu_count() or 2) - 1)
    on_cpu = only(check.bundle, check.folder / "cpu", "onnxruntime", model=model)
    on_device = only(check.bundle, check.folder / "device", "xla", check.device_target, model=model)
    asked, expected = {name: PredictRequest(model, inputs) for name, inputs in requests.items()}, {}
    _, *loads = asked.items()
    with Processor.initialize(ProcessorConfig(str(on_cpu), sessions=sessions)) as processor:
        for name, request in asked.items():
            expected[name] = processor.process(request).outputs["score"]
        for name, request in loads:
            rate = _load(check, processor, request, len(expected[name]))
            yield f"onnxruntime on the CPU, {name} a request", f"{rate:,.0f} rows/s"
    with Processor.initialize(ProcessorConfig(str(on_device), sessions=sessions, device_stages=2)) as processor:
        for way, divides in (("divided", True), ("undivided", False)):
            with patch.object(GraphRun, "pays", lambda run, parts, rows, divides=divides: divides and rows > 1):
                for name, request in asked.items():
                    got = processor.process(request).outputs["score"]
                    yield f"{way}, {name}, error", check.close(float(np.abs(got - expected[name]).max()))
                for name, request in loads:
                    rate = _load(check, processor, request, len(expected[name]))
                    yield f"{way}, {name} a request", f"{rate:,.0f} rows/s"


def clicks(candidates: int) -> dict[str, Any]:
    """A request of the divided model: one user and some candidates."""
    tags = [["new", "sale", "gone"][: n % 4] for n in range(candidates)]
    return {
        "user": np.array([7], np.int64),
        "item": np.arange(candidates, dtype=np.int64) % 45,
        "city": Strings.of(["city-1"]),
        "history": Ragged.of([[1, 2, 3, 39]]),
        "tags": Ragged(Strings.of([tag for row in tags for tag in row]), np.cumsum([0] + [len(row) for row in tags])),
        "price": np.linspace(0, 2, candidates, dtype=np.float32),
        "age": np.array([0.4], np.float32),
    }


def visits(candidates: int, events: int) -> dict[str, Any]:
    """A request of the network over histories: one user, their events and some candidates."""
    return {
        "user": np.array([7], np.int64),
        "item": np.arange(candidates, dtype=np.int64) % 45,
        "price": np.linspace(-1, 1, candidates, dtype=np.float32),
        "history.item": Ragged.of([[n * n % 37 for n in range(events)]]),
        "history.action": Ragged.of([[n % 3 for n in range(events)]]),
        "history.watched": Ragged(np.linspace(0, 1, events, dtype=np.float32), np.array([0, events])),
    }


def deltas(check: Check) -> Figures:
    """A delta of rows and dense weights under load, through device stages: every reply is of one generation."""
    yield from _deltas(check, only(check.bundle, check.folder / "deltas", "xla", check.device_target))


def tensorrt_deltas(check: Check) -> Figures:
    """The same served by TensorRT's engines, to which new dense weights are inputs."""
    yield from _deltas(check, tensorrt_steps.with_engines(check, check.folder / "deltas"))


def _deltas(check: Check, repository: Path) -> Figures:
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
    "xla-ahead": xla_ahead,
    "xla": xla,
    "xla-weights": xla_weights,
    "deltas": deltas,
    "device-rows": device_rows,
    "pipeline": pipeline,
    "division": division,
    "histories": histories,
    "http": http,
    "tensorrt": tensorrt_steps.tensorrt,
    "tensorrt-deltas": tensorrt_deltas,
    "tensorrt-weights": tensorrt_steps.tensorrt_weights,
    "xla-unrecorded": xla_unrecorded,
    "xla-recorded": xla_recorded,
    "onnxruntime": onnxruntime,
    "xla-streams": xla_streams,
    "host-memory": host_memory,
    "xla-saved": xla_saved,
}
"""In the order of what is most missed where the time ends before they do."""


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


def _load(check: Check, processor: Processor, request: PredictRequest, candidates: int) -> float:
    """Rows a second of several clients, so that a device has batches to run while others are filled."""
    requests = [request] * max(8, ROWS_IN_FLIGHT // CLIENTS // candidates)
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
