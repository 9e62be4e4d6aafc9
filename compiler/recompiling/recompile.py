"""Compiles a version that lies in a repository: backends, buckets, calibration, and a manifest with what was chosen.

What may never be seen: a manifest that names a file which is not whole. New files get names of their own (a digest of
their content), then the manifest is replaced by one rename. A server that has read the old manifest still finds every
file of it: only what neither the new manifest nor the one before names is removed. One compile works on a version at a
time, by a lock on its folder that goes with the process. A server takes what was compiled when it next loads the
version.

What is compiled is what publishing compiles (compiler.building.parts): the graph after the passes and, where features
are the user's, the two parts of the user-once division, each role for itself (compiler.building.role_compiler). A role
whose executables come out the same keeps its files.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from freshet_serving.compiler.backends.base import LoweredGraph, Variant
from freshet_serving.compiler.building.bucket_list import bucket_list, interpolated
from freshet_serving.compiler.building.calibrate import AUTO, Calibration, Tolerance, calibrate, variant_name
from freshet_serving.compiler.building.compile import BUCKETS, build, checked_buckets, lower, parse_variant, variants
from freshet_serving.compiler.building.parts import GraphParts, parts
from freshet_serving.compiler.building.role_compiler import RoleCompiler
from freshet_serving.compiler.dense.dense_graph import DenseGraph, Matrix
from freshet_serving.compiler.progress import Reporter
from freshet_serving.compiler.recompiling.calibration_rows import (
    calibration_set,
    random_inputs,
    read_labelled,
    read_sample,
)
from freshet_serving.processor.backends import builtin, executable_files
from freshet_serving.processor.errors import BadInput, Conflict, FreshetError, NotFound
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.package import CANDIDATE, PRECISIONS, WHOLE, ExecutableEntry, File, Manifest, crc32
from freshet_serving.processor.repository import (
    GRAPH,
    MANIFEST,
    NO_KEYS,
    Keyring,
    VersionReader,
    VersionStorage,
    open_repository,
    sealed,
)

COMPILED = "compiled"
PRICED = (1, 8, 64, 256, 1024)
GENERATED_ROWS = 1024


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """backends: such as "xla" or "openvino:bfloat16"; empty for all that are installed,
    but for TensorFlow: it is the reference, and serving needs none. precision: float32, bfloat16 or int8, or AUTO for
    what is fastest within the bound, where there are rows of practice to check it by. buckets: given, or empty: from
    `sample`, a Parquet file of rows a request, at most `most`; or else those of the package. data: a Parquet file of
    labelled rows. max_error, max_auc_change: how far a lower precision may be off."""

    backends: tuple[str, ...] = ()
    precision: str = AUTO
    buckets: tuple[int, ...] = ()
    sample: Path | None = None
    most: int = 6
    data: Path | None = None
    label: str = "label"
    bound: Tolerance = field(default_factory=Tolerance)


@dataclass(frozen=True, slots=True)
class CompileReport:
    """The report of what compile_version() did. calibration: of the whole graph; others: of its parts, by role. passes:
    what was done to the graph before. skipped: variants that could not be compiled here, and why."""

    manifest: Manifest
    calibration: Calibration
    others: dict[str, Calibration]
    passes: list[str]
    skipped: list[str]
    told: list[str] = field(default_factory=list)

    @property
    def chosen(self) -> dict[int, ExecutableEntry]:
        first: dict[int, ExecutableEntry] = {}
        for entry in self.manifest.executables:
            if entry.role == WHOLE:
                first.setdefault(entry.bucket, entry)
        return first


def compile_version(
    folder: Path,
    options: CompileOptions,
    reporter: Reporter,
    storage: VersionStorage | None = None,
    keyring: Keyring = NO_KEYS,
) -> CompileReport:
    """Compiles, calibrates and commits. place: where the version lives, if not in the folder. Raises BadInput, NotFound
    or Conflict, and then leaves the version as it was."""
    with _alone(folder):
        reader = VersionReader(folder, storage=storage, keyring=keyring)
        reader.fetch()
        before = reader.manifest
        reader.verify(before.files.keys() - executable_files(before))
        if not any(name.startswith(f"{GRAPH}/") for name in before.files):
            raise BadInput(f"version {before.version} of {before.model!r} has no graph to compile")
        graph = DenseGraph.load(folder / GRAPH, reader.dense())
        labelled = None if options.data is None else read_labelled(reader, options.data, options.label)
        buckets = _buckets(graph, reader, options)
        given = calibration_set(reader, labelled)
        wanted, skipped = _wanted(options, given is not None)
        kept = _files(folder)
        try:
            found = parts(graph, before.features, buckets)
            rows = _rows(graph, reader, max(*buckets, GENERATED_ROWS)) if given is None else given
            told = [] if given is not None else _unchecked(options)
            compiling = RoleCompiler(folder, skipped, options.precision, options.bound, reporter)
            calibrations = compiling.all(found, before.features, wanted, rows, labelled)
            if options.precision not in (AUTO, *(e.precision for e in calibrations[WHOLE].measured)):
                why = [*calibrations[WHOLE].refused, *skipped]
                raise BadInput(f"precision {options.precision}: {'; '.join(why)}")
            manifest = _manifest(before, folder, found, calibrations, compiling, options)
            manifest = sealed(manifest, folder, keyring, before)
            text = manifest.to_json()
        except BaseException:
            _remove(folder, _files(folder) - kept)
            raise
        for name in sorted(executable_files(manifest)):
            reader.storage.send(name)
        reader.storage.replace(MANIFEST, text)
        outdone = _files(folder) - executable_files(manifest) - executable_files(before)
        for name in sorted(outdone):
            reader.storage.remove(name)
        _remove(folder, outdone)
    others = {role: calibration for role, calibration in calibrations.items() if role != WHOLE}
    return CompileReport(manifest, calibrations[WHOLE], others, found.lines(), skipped, told)


def find_version(target: str, repository: str | None, version: int | None) -> VersionReader:
    """The version that `freshet compile` is to work on: a path, or with a repository a model and a version of it."""
    if repository is None:
        folder = Path(target).absolute()
        if version is not None:
            raise BadInput("version: wanted only together with --repository")
        if not (folder / MANIFEST).is_file():
            raise NotFound(f"{target}: no version of a model; give its folder, or --repository and the model's name")
        return VersionReader(folder)
    return open_repository(repository).version(target, version)


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


def _wanted(options: CompileOptions, checked: bool) -> tuple[list[Variant], list[str]]:
    """What to compile, and why the rest is not. A backend that was asked for by name and precision is compiled in that
    precision only. checked: there are rows of practice."""
    wanted: list[Variant] = []
    skipped: list[str] = []
    precisions = {"float32", options.precision} - {AUTO}
    if options.precision == AUTO and checked:
        precisions |= {*PRECISIONS}
    for text in options.backends or builtin():
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
        else:
            found = [v for v in found if v.precision in precisions]
        wanted += [v for v in found if v not in wanted]
    if not wanted:
        raise BadInput(f"backends: none can be compiled here: {'; '.join(skipped)}")
    if options.precision not in (AUTO, *(v.precision for v in wanted)):
        raise BadInput(f"precision: no backend here computes in {options.precision}; {AUTO} takes what there is")
    return [replace(v, bound=options.bound.error) for v in wanted], skipped


def _unchecked(options: CompileOptions) -> list[str]:
    """What there is to say where no rows of practice are."""
    wanted = "--data with labelled rows, or recorded requests (freshet recordings warmup), let"
    if options.precision == "float32" or any(":" in text for text in options.backends):
        return []
    if options.precision == AUTO:
        return [f"precision: float32 alone, as there is nothing to check a lower one by: {wanted} it be faster"]
    return [f"precision: {options.precision} was calibrated and checked on generated rows: {wanted} it be on real ones"]


def _buckets(graph: DenseGraph, reader: VersionReader, options: CompileOptions) -> list[int]:
    if options.buckets:
        return checked_buckets(options.buckets)
    if options.sample is None:
        return sorted({e.bucket for e in reader.manifest.executables if e.role == WHOLE}) or list(BUCKETS)
    return bucket_list(
        read_sample(options.sample), options.most, interpolated(_prices(graph, _rows(graph, reader, max(PRICED))))
    )


def _rows(graph: DenseGraph, reader: VersionReader, rows: int) -> Matrix:
    """What executables are compared on. An imported graph brings its own examples: numbers that its stage would never
    give may be NaN in one library and none in another."""
    return graph.sample(rows) if reader.manifest.stage else random_inputs(reader, rows)


def _prices(graph: DenseGraph, rows: Matrix) -> dict[int, float]:
    """Seconds of a run at some batch sizes, by the backend whose one artefact runs at any."""
    lowered: LoweredGraph = lower(graph, Variant("onnxruntime"))
    with tempfile.TemporaryDirectory(prefix="freshet-") as aside:
        entries = [build(lowered, bucket, Path(aside)) for bucket in PRICED]
        found = calibrate(graph, Path(aside), entries, rows)
    return {e.bucket: e.cost_us for e in found.measured}


def _manifest(
    before: Manifest,
    folder: Path,
    found: GraphParts,
    calibrations: Mapping[str, Calibration],
    compiling: RoleCompiler,
    options: CompileOptions,
) -> Manifest:
    executables = compiling.chosen(calibrations)
    files = {name: file for name, file in before.files.items() if name not in executable_files(before)}
    user_width = found.user_width if CANDIDATE in calibrations else 0
    named = replace(before, executables=executables, user_width=user_width)
    for name in sorted(executable_files(named)):
        data = (folder / name).read_bytes()
        files[name] = File(len(data), crc32(data))
    whole = calibrations[WHOLE]
    notes: dict[str, Any] = {
        "machine": this_machine().name,
        "passes": found.lines(),
        "measured": _measured(whole),
        "flip_ms": whole.flip_ms,
        "refused": [line for calibration in calibrations.values() for line in calibration.refused],
        "skipped": list(compiling.skipped),
        "precision": options.precision,
        "max_error": options.bound.error,
    }
    if len(calibrations) > 1:
        notes["parts"] = {role: _measured(c) for role, c in calibrations.items() if role != WHOLE}
    if whole.auc:
        notes["auc_change"] = whole.auc
    return replace(named, files=files, notes={**before.notes, "compile": notes})


def _measured(calibration: Calibration) -> list[dict[str, Any]]:
    return [
        {"variant": variant_name(e), "bucket": e.bucket, "cost_us": e.cost_us, "error": e.error}
        for e in calibration.measured
    ]


def _files(folder: Path) -> set[str]:
    """Everything below compiled/, relative to the version's folder."""
    return {p.relative_to(folder).as_posix() for p in (folder / COMPILED).rglob("*") if p.is_file()}


def _remove(folder: Path, names: set[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)
    for path in sorted((folder / COMPILED).glob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
