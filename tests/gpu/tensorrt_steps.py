"""The steps of the GPU check that are about TensorRT: engines that are served, and the other ways to new weights."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from freshet_serving.processor.backends.base import Artefact
from freshet_serving.processor.backends.capsule import pack, unpack
from freshet_serving.processor.backends.tensorrt import EngineExecutable, TensorRt
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.package.manifest_entries import ExecutableEntry as Entry
from freshet_serving.processor.package.whole_files import sha256
from freshet_serving.processor.repository.version import VersionReader
from tests.gpu.bundled import Check, Figures, Skip, ms
from tests.gpu.engines import Refittable, refit
from tests.gpu.package import folder_of, relist

MODEL, FROZEN = "inputs.onnx", "dense.onnx"


def backend_of(check: Check) -> TensorRt:
    """TensorRT on this GPU; raises Skip with what is missing."""
    if check.target != "cuda":
        raise Skip("TensorRT runs on NVIDIA GPUs alone")
    try:
        return TensorRt()
    except BadInput as error:
        raise Skip(str(error)) from None


def tensorrt(check: Check) -> Figures:
    """TensorRT: engines made without a GPU where the bundle has this GPU's, else built here; right; new weights."""
    backend, (before, after) = backend_of(check), check.weights
    program = backend.open_program(check.spec)
    entries = {e.bucket: e for e in check.manifest.executables if (e.backend, e.target) == ("tensorrt", backend.target)}
    model, started_s, ahead = (check.bundle / MODEL).read_bytes(), time.perf_counter(), 0
    for bucket in check.buckets():
        entry = entries.get(bucket)
        if entry is not None and entry.library == backend.library:
            code, ahead = unpack(check.reader.file(entry.file), "tensorrt", bucket, entry.source), ahead + 1
        else:
            code = backend.build(model, bucket, check.spec)
        program.add(Artefact(bucket, code, sorted(before), target=backend.target))
    yield "library", backend.library
    yield (
        f"{ahead} of {len(check.buckets())} engines made without a GPU; all loaded",
        ms(time.perf_counter() - started_s),
    )
    for bucket, executable in sorted(program.with_weights(before).items()):
        error, run_s = check.close(check.error(executable)), check.timed(check.bound(executable)[1])
        yield f"b{bucket}", f"{run_s * 1e6:.0f} us a run, {bucket / run_s:,.0f} rows/s, error {error}"
    started_s = time.perf_counter()
    changed = program.with_weights(after)
    took_s = time.perf_counter() - started_s
    yield "new weights as inputs, all buckets", ms(took_s)
    yield "error", check.close(max(check.error(executable, 1) for executable in changed.values()))


def tensorrt_weights(check: Check) -> Figures:
    """TensorRT: new dense weights by a refit and by a rebuild, which are not served, and their engines' runs."""
    backend, (before, after), bucket = backend_of(check), check.weights, check.largest()
    frozen = (check.bundle / FROZEN).read_bytes()
    started_s = time.perf_counter()
    built = backend.build(frozen, bucket, check.spec)
    yield "weights inside, build anew", ms(time.perf_counter() - started_s)
    runtime = backend.module.Runtime(backend.logger)
    inside = EngineExecutable(runtime.deserialize_cuda_engine(built), backend.cuda, {}, bucket, check.spec)
    yield "weights inside, a run", f"{check.timed(check.bound(inside)[1]) * 1e6:.0f} us"
    try:
        engine = Refittable().build(frozen, bucket, check.spec)
    except FreshetError as error:
        yield "to be refitted", f"not built: {error}"
        return
    for step, weights in enumerate((before, after)):
        started_s = time.perf_counter()
        copy = refit(backend, engine, weights)
        took_s = time.perf_counter() - started_s
        executable = EngineExecutable(copy, backend.cuda, {}, bucket, check.spec)
        error = check.close(check.error(executable, step))
        run_s = check.timed(check.bound(executable, step)[1])
        yield f"refitted, weights of step {step}", f"{ms(took_s)}, {run_s * 1e6:.0f} us a run, error {error}"


def with_engines(check: Check, repository: Path) -> Path:
    """A copy of the bundle's version that engines, built here, serve alone."""
    backend, folder = backend_of(check), folder_of(repository)
    shutil.copytree(folder_of(check.bundle / "repository"), folder)
    model, entries = (check.bundle / MODEL).read_bytes(), []
    weights = sorted(VersionReader(folder).dense())
    for bucket in check.buckets():
        data = pack(backend.build(model, bucket, check.spec), "tensorrt", bucket, source := "0" * 64)
        (folder / (name := f"compiled/b{bucket}.engine")).write_bytes(data)
        entry = Entry("tensorrt", backend.target, bucket, name, source, weights, library=backend.library)
        entries.append(replace(entry, features=[backend.target], sha256=sha256(data)))
    relist(folder, entries)
    return repository
