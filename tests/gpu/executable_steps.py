"""The steps of the GPU check that run executables alone, without the engine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from freshet_serving.compiler.imports.boundary import boundary_of
from freshet_serving.processor.backends.base import Artefact, Executable, aligned
from freshet_serving.processor.backends.capsule import unpack
from freshet_serving.processor.backends.cuda import Cuda
from freshet_serving.processor.backends.onnxruntime import OnnxRuntime
from freshet_serving.processor.backends.xla import Xla
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.machine import this_machine
from tests.gpu.bundled import Check, Figures, Skip, ms
from tests.gpu.package import made_ahead

LIBRARIES = ("jax", "jaxlib", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx-cu13-bindings")
LIBRARIES += ("cuda-bindings", "torch", "numpy", "numba")
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
    sent = boundary_of(check.manifest)
    if [tensor.columns[1] for tensor in sent[:-1]] != [tensor.columns[0] for tensor in sent[1:]]:
        raise ValueError("columns of the dense input that nobody sends, or that two send")
    yield "tensors sent", str(len(sent))
    yield "bytes a row", str(4 * check.manifest.width)
    yield "bytes a row back", str(4 * sum(output.columns for output in check.manifest.outputs))


def xla(check: Check) -> Figures:
    """Executables from StableHLO that was made without a GPU: compiled here, right, and how long a run takes."""
    yield "compile, all buckets", ms(check.compiled[1])
    for bucket, run_s in check.alone_s.items():
        error = check.close(check.error(check.alone[bucket]))
        yield f"b{bucket}", f"{run_s * 1e6:.0f} us a run, {bucket / run_s:,.0f} rows/s, error {error}"


def xla_saved(check: Check) -> Figures:
    """Machine code of this device: written, read back, right; and refused where it says another kind of device."""
    bucket, kind = check.largest(), check.kind
    code = check.compiled[0].serialize(bucket)
    entry = next(e for e in check.entries("xla") if e.bucket == bucket)
    again = Xla().open_program(check.spec)
    started_s = time.perf_counter()
    again.add(Artefact(bucket, code, entry.weights, entry.precision, kind))
    load_s = time.perf_counter() - started_s
    error = check.close(check.error(again.with_weights(check.weights[0])[bucket]))
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
    if check.target != "cuda":
        raise Skip("machine code of GPUs runs on NVIDIA GPUs alone")
    target = check.kind
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
    for bucket, executable in sorted(program.with_weights(check.weights[0]).items()):
        error, run_s = check.close(check.error(executable)), check.timed(check.bound(executable)[1])
        tuned_us = check.alone_s[bucket] * 1e6
        yield f"b{bucket}", f"{run_s * 1e6:.0f} us a run, tuned here {tuned_us:.0f} us, error {error}"


def xla_weights(check: Check) -> Figures:
    """New dense weights, as a delta brings them: no compile, right, and what they cost before the flip."""
    started_s = time.perf_counter()
    loaded = check.compiled[0].with_weights(check.weights[1])
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
    yield from _streams(check, check.alone[check.largest()])


def host_memory(check: Check) -> Figures:
    """A run from page-locked memory and from plain memory, by every backend that has the device."""
    try:
        cuda = Cuda.load("buffers")
    except BadInput as error:
        raise Skip(str(error)) from None
    bucket = check.largest()
    ways: dict[str, Executable] = {"xla": check.alone[bucket]}
    if check.target in OnnxRuntime().targets():
        ways["onnxruntime"] = check.onnxruntime().with_weights(check.weights[0])[bucket]
    for backend, executable in ways.items():
        for name, allocate in (("plain", aligned), ("page-locked", cuda.page_locked)):
            run_s = check.timed(check.bound(executable, allocate=allocate)[1])
            yield f"{backend}, {name}", f"{run_s * 1e6:.0f} us a run"


def onnxruntime(check: Check) -> Figures:
    """ONNX Runtime on the device: right, with buffers there."""
    backend = OnnxRuntime()
    if check.target not in backend.targets():
        raise Skip(f"{backend.library} here was built without {check.target}: {', '.join(backend.targets())}")
    executables = check.onnxruntime().with_weights(check.weights[0])
    for bucket, executable in sorted(executables.items()):
        error = check.close(check.error(executable))
        run_s = check.timed(check.bound(executable)[1])
        yield f"b{bucket}", f"{run_s * 1e6:.0f} us a run, {bucket / run_s:,.0f} rows/s, error {error}"
    yield from _streams(check, executables[check.largest()])


def _streams(check: Check, executable: Executable) -> Figures:
    """Rows a second of 1, 2 and 4 threads, in the memory that a server binds."""
    for threads in (1, 2, 4):
        runs = [check.bound(executable)[1] for _ in range(threads)]
        yield f"{threads} at once", f"{_together(runs, check.sizes.seconds) * executable.bucket:,.0f} rows/s"


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
