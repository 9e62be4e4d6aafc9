"""Compiles a version that lies in a repository: backends, buckets, calibration, and a manifest with what was chosen.

What may never be seen: a manifest that names a file which is not whole. New files get names of their own (a digest of
their content), then the manifest is replaced by one rename. A server that has read the old manifest still finds every
file of it: only what neither the new manifest nor the one before names is removed. One compile works on a version at a
time, by a lock on its folder that goes with the process. A server takes what was compiled when it next loads the
version.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from compiler.backends.base import Lowered, Variant
from compiler.calibrate import Bound, Calibration, calibrate, variant_name
from compiler.compile import (
    BACKENDS,
    BUCKETS,
    build,
    checked_buckets,
    lower,
    parse_variant,
    variants,
)
from compiler.dense import DenseGraph, Matrix
from compiler.ladder import interpolated, ladder
from compiler.rows import drawn_rows, read_labelled, read_sample
from processor.errors import BadInput, Conflict, FreshetError, NotFound
from processor.executables import executable_files
from processor.machine import this_machine
from processor.package.atomic import atomic_file
from processor.package.manifest import Executable, File, Manifest
from processor.package.tensors import crc32
from processor.package.version import GRAPH, MANIFEST, VersionReader
from processor.repository import Repository
from processor.userside import WHOLE

COMPILED = "compiled"
PRICED = (1, 8, 64, 256, 1024)
# Not by itself: TensorFlow is the reference, and serving needs none.
UNASKED = tuple(backend for backend in BACKENDS if backend != "tensorflow")


class Reporter(Protocol):
    """Who is told how it goes."""

    def begin(self, what: str, total: int | None) -> None: ...

    def advance(self, done: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """backends: such as "xla" or "openvino:bfloat16"; empty for all that are installed. buckets: given, or empty: from
    `sample`, a Parquet file of rows a request, at most `most`; or else those of the package. data: a Parquet file of
    labelled rows. max_error, max_auc_change: how far a lower precision may be off."""

    backends: tuple[str, ...] = ()
    buckets: tuple[int, ...] = ()
    sample: Path | None = None
    most: int = 6
    data: Path | None = None
    label: str = "label"
    bound: Bound = field(default_factory=Bound)


@dataclass(frozen=True, slots=True)
class Report:
    """What compile_version() did. skipped: variants that could not be compiled here, and why."""

    manifest: Manifest
    calibration: Calibration
    skipped: list[str]

    @property
    def chosen(self) -> dict[int, Executable]:
        first: dict[int, Executable] = {}
        for entry in self.manifest.executables:
            if entry.role == WHOLE:
                first.setdefault(entry.bucket, entry)
        return first


def compile_version(folder: Path, options: Options, reporter: Reporter) -> Report:
    """Compiles, calibrates and commits; raises BadInput, NotFound or Conflict, and then leaves the version as it
    was."""
    with _alone(folder):
        reader = VersionReader(folder)
        before = reader.manifest
        reader.verify(before.files.keys() - executable_files(before))
        if not any(name.startswith(f"{GRAPH}/") for name in before.files):
            raise BadInput(f"version {before.version} of {before.model!r} has no graph to compile")
        graph = DenseGraph.load(folder / GRAPH, reader.dense())
        wanted, skipped = _wanted(options.backends)
        labelled = None if options.data is None else read_labelled(reader, options.data, options.label)
        buckets = _buckets(graph, reader, options)
        kept = _files(folder)
        try:
            entries = _build_all(graph, folder, wanted, buckets, skipped, reporter)
            reporter.begin("measuring", len(buckets))
            calibration = calibrate(
                graph,
                folder,
                entries,
                _rows(graph, reader, max(buckets)),
                options.bound,
                labelled,
                advance=lambda: reporter.advance(1),
            )
            manifest = _manifest(before, folder, calibration, skipped, options)
            text = manifest.to_json()
        except BaseException:
            _remove(folder, _files(folder) - kept)
            raise
        with atomic_file(folder / MANIFEST) as file:
            file.write(text)
        _remove(folder, _files(folder) - executable_files(manifest) - executable_files(before))
    return Report(manifest, calibration, skipped)


def find_version(target: str, repository: str | None, version: int | None) -> Path:
    """The folder that `freshet compile` is to work on: a path, or with a repository a model and a version of it."""
    if repository is None:
        folder = Path(target).absolute()
        if version is not None:
            raise BadInput("version: wanted only together with --repository")
        if not (folder / MANIFEST).is_file():
            raise NotFound(f"{target}: no version of a model; give its folder, or --repository and the model's name")
        return folder
    store = Repository(repository)
    known = store.versions(target)
    if not known or (version is not None and version not in known):
        named = "" if version is None else f" version {version}"
        raise NotFound(f"model {target!r}{named} is not in the repository")
    return store.folder(target, version or max(known))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        raise BadInput("package: a version's folder wanted") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Conflict("another compile of this version is at work") from None
        yield
    finally:
        os.close(fd)


def _wanted(backends: Sequence[str]) -> tuple[list[Variant], list[str]]:
    """What to compile, and why the rest is not. A backend that was asked for by name and precision is compiled in that
    precision only."""
    wanted, skipped = [], []
    for text in backends or UNASKED:
        asked = parse_variant(text)
        try:
            found = variants(asked.backend)
        except FreshetError as error:
            skipped.append(str(error))
            continue
        if ":" in text:
            found = [v for v in found if v.precision == asked.precision]
            if not found:
                skipped.append(f"backend {asked.backend}: this machine does not compute in {asked.precision}")
        wanted += [v for v in found if v not in wanted]
    if not wanted:
        raise BadInput(f"backends: none can be compiled here: {'; '.join(skipped)}")
    return wanted, skipped


def _build_all(
    graph: DenseGraph,
    folder: Path,
    wanted: Sequence[Variant],
    buckets: Sequence[int],
    skipped: list[str],
    reporter: Reporter,
) -> list[Executable]:
    entries: list[Executable] = []
    for variant in wanted:
        reporter.begin(f"compiling for {variant}", len(buckets))
        try:
            lowered = lower(graph, variant)
            made = []
            for bucket in buckets:
                made.append(build(lowered, bucket, folder))
                reporter.advance(1)
        except FreshetError as error:
            skipped.append(f"{variant}: {error}")
            continue
        entries += made
    if not entries:
        raise BadInput(f"no backend could compile the graph: {'; '.join(skipped)}")
    return entries


def _buckets(graph: DenseGraph, reader: VersionReader, options: Options) -> list[int]:
    if options.buckets:
        return checked_buckets(options.buckets)
    if options.sample is None:
        return sorted({e.bucket for e in reader.manifest.executables if e.role == WHOLE}) or list(BUCKETS)
    return ladder(
        read_sample(options.sample), options.most, interpolated(_prices(graph, _rows(graph, reader, max(PRICED))))
    )


def _rows(graph: DenseGraph, reader: VersionReader, rows: int) -> Matrix:
    """What executables are compared on. An imported graph brings its own examples: numbers that its stage would never
    give may be NaN in one library and none in another."""
    return graph.sample(rows) if reader.manifest.stage else drawn_rows(reader, rows)


def _prices(graph: DenseGraph, rows: Matrix) -> dict[int, float]:
    """Seconds of a run at some batch sizes, by the backend whose one artefact runs at any."""
    lowered: Lowered = lower(graph, Variant("onnxruntime"))
    with tempfile.TemporaryDirectory(prefix="freshet-") as aside:
        entries = [build(lowered, bucket, Path(aside)) for bucket in PRICED]
        found = calibrate(graph, Path(aside), entries, rows)
    return {e.bucket: e.cost_us for e in found.measured}


def _manifest(
    before: Manifest, folder: Path, calibration: Calibration, skipped: Sequence[str], options: Options
) -> Manifest:
    # The parts of a divided graph stay as they were published.
    executables = calibration.chosen() + [e for e in before.executables if e.role != WHOLE]
    files = {name: file for name, file in before.files.items() if name not in executable_files(before)}
    named = replace(before, executables=executables)
    for name in sorted(executable_files(named)):
        data = (folder / name).read_bytes()
        files[name] = File(len(data), crc32(data))
    measured = [
        {"variant": variant_name(e), "bucket": e.bucket, "cost_us": e.cost_us, "error": e.error}
        for e in calibration.measured
    ]
    notes: dict[str, Any] = {
        "machine": this_machine().name,
        "measured": measured,
        "flip_ms": calibration.flip_ms,
        "refused": calibration.refused,
        "skipped": list(skipped),
        "max_error": options.bound.error,
    }
    if calibration.auc:
        notes["auc_change"] = calibration.auc
    return replace(named, files=files, notes={**before.notes, "compile": notes})


def _files(folder: Path) -> set[str]:
    """Everything below compiled/, relative to the version's folder."""
    return {p.relative_to(folder).as_posix() for p in (folder / COMPILED).rglob("*") if p.is_file()}


def _remove(folder: Path, names: set[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)
    for path in sorted((folder / COMPILED).glob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
