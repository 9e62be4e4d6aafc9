"""Compile a version in a repository: backends, buckets, calibration, and a manifest with the choice.

A manifest that names an incomplete file must never be visible. New files get unique names (a digest of their content),
then the manifest is replaced by one rename. A server that has read the old manifest still finds every file of it: only
files that neither the new manifest nor the previous one names are removed. A lock on the folder, released when the
process ends, allows one compilation of a version at a time. A server uses the result when it next loads the version.

The parts are those of publishing, each compiled separately (parts, subgraph_compiler). A subgraph whose executables
come out the same keeps its files.
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
from freshet_serving.compiler.backends.gpu_targets import prepare
from freshet_serving.compiler.building.bucket_list import bucket_list, interpolated
from freshet_serving.compiler.building.calibrate import AUTO, Calibration, Tolerance, calibrate
from freshet_serving.compiler.building.calibration_rows import (
    calibration_set,
    random_inputs,
    read_labelled,
    read_sample,
)
from freshet_serving.compiler.building.compile import (
    AHEAD,
    BUCKETS,
    AnyDenseGraph,
    build,
    checked_buckets,
    lower,
    parse_variant,
    variants,
)
from freshet_serving.compiler.building.parts import GraphParts, parts
from freshet_serving.compiler.building.subgraph_compiler import SubgraphCompiler
from freshet_serving.compiler.dense.dense_graph import DenseGraph, Tensors
from freshet_serving.compiler.dense.onnx_dense_graph import OnnxDenseGraph
from freshet_serving.compiler.progress import Reporter
from freshet_serving.processor.backends import builtin
from freshet_serving.processor.errors import BadInput, Conflict, FreshetError, NotFound
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.package import (
    PRECISIONS,
    SCORE,
    WHOLE,
    ExecutableEntry,
    File,
    Manifest,
    columns,
    crc32,
    dense_sequences,
    undivided_name,
    user_features,
)
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
from freshet_serving.processor.running import executable_files

COMPILED = "compiled"
AHEAD_PRECISIONS = ("bfloat16", "float16")
PRICED = (1, 8, 64, 256, 1024)
GENERATED_ROWS = 1024


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of a compilation.

    Attributes:
        backends: Such as "xla" or "openvino:bfloat16"; empty for all that are installed except TensorFlow, which is the
            reference and not needed for serving.
        precision: float32, bfloat16, float16 or int8, or AUTO for the fastest within the bound, if there is a
            calibration set to check it with. For `targets`, whose speed nobody measures, AUTO and int8 are float32.
        buckets: Batch sizes; if empty, chosen from `sample`, or else those of the package.
        sample: A Parquet file with the number of rows of each request.
        most: Most buckets to choose.
        data: A Parquet file of labelled rows.
        label: Column of the labels.
        bound: Error bounds for a lower precision.
        targets: Kinds of GPU, such as cuda-sm_90, to compile for without such a GPU: by XLA, and before it by TensorRT
            if that is one of `backends`.
    """

    backends: tuple[str, ...] = ()
    precision: str = AUTO
    buckets: tuple[int, ...] = ()
    sample: Path | None = None
    most: int = 6
    data: Path | None = None
    label: str = "label"
    bound: Tolerance = field(default_factory=Tolerance)
    targets: tuple[str, ...] = ()

    @property
    def ahead(self) -> list[str]:
        """Backends that compile for `targets`, the preferred one first."""
        named = {text.partition(":")[0] for text in self.backends}
        return [backend for backend in AHEAD if backend == "xla" or backend in named]

    @property
    def ahead_precision(self) -> list[str]:
        """The lower precision of `targets`, if it is one of a GPU's: the CPU may lack it, and serves float32 then."""
        return [p for p in AHEAD_PRECISIONS if self.targets and p == self.precision]


@dataclass(frozen=True, slots=True)
class CompileReport:
    """The report of compile_version(): the calibration of the whole graph, and of its parts by subgraph.

    Attributes:
        skipped: Variants that could not be compiled here, each with the reason.
    """

    manifest: Manifest
    calibration: Calibration
    others: dict[str, Calibration]
    passes: list[str]
    skipped: list[str]
    notes: list[str] = field(default_factory=list)

    @property
    def chosen(self) -> dict[int, ExecutableEntry]:
        first: dict[int, ExecutableEntry] = {}
        for entry in self.manifest.executables:
            if entry.subgraph == undivided_name(self.manifest) and entry.measured_on:
                first.setdefault(entry.bucket, entry)
        return first


def compile_version(
    folder: Path,
    options: CompileOptions,
    reporter: Reporter,
    storage: VersionStorage | None = None,
    keyring: Keyring = NO_KEYS,
) -> CompileReport:
    """Compile, calibrate and commit a version. On an error the version stays as it was.

    Raises:
        BadInput: The version cannot be compiled with these options.
        NotFound: A file of the version is missing.
        Conflict: Another compilation of the version is running.
    """
    if options.targets:
        prepare(options.targets)
    with _alone(folder):
        reader = VersionReader(folder, storage=storage, keyring=keyring)
        reader.fetch()
        before = reader.manifest
        reader.verify(before.files.keys() - executable_files(before))
        if not any(name.startswith(f"{GRAPH}/") for name in before.files):
            raise BadInput(f"version {before.version} of {before.model!r} has no graph to compile")
        graph = _graph(reader)
        labelled = None if options.data is None else read_labelled(reader, options.data, options.label)
        buckets = _buckets(graph, reader, options)
        recorded = calibration_set(reader, labelled)
        tried, skipped = _wanted(options, recorded is not None)
        old_files = _files(folder)
        try:
            graph_parts = parts(graph, before.features, buckets, dense_sequences(before.sequences))
            rows = _rows(graph, reader, max(*buckets, GENERATED_ROWS)) if recorded is None else recorded
            notes = [] if recorded is not None else _unchecked(options)
            compiling = SubgraphCompiler(folder, skipped, options.precision, options.bound, reporter)
            calibrations = compiling.all(graph_parts, before.features, tried, rows, labelled)
            allowed = (AUTO, *options.ahead_precision, *(e.precision for e in calibrations[WHOLE].measured))
            if options.precision not in allowed:
                why = [*calibrations[WHOLE].refused, *skipped]
                raise BadInput(f"precision {options.precision}: {'; '.join(why)}")
            here = {entry.target for entry in calibrations[WHOLE].measured}
            elsewhere = [target for target in options.targets if target not in here]
            checked = {WHOLE: rows}
            if graph_parts.user_split is not None:
                checked[SCORE] = graph_parts.user_split.inputs(rows, columns(user_features(before.features)))[1]
            precision = next(iter(options.ahead_precision), "float32")
            ahead = compiling.ahead(graph_parts, calibrations, elsewhere, options.ahead, precision, checked, labelled)
            manifest = _manifest(before, folder, graph_parts, calibrations, compiling, options, ahead)
            manifest = sealed(manifest, folder, keyring, before)
            text = manifest.to_json()
        except BaseException:
            _remove(folder, _files(folder) - old_files)
            raise
        for name in sorted(executable_files(manifest)):
            reader.storage.send(name)
        reader.storage.replace(MANIFEST, text)
        obsolete = _files(folder) - executable_files(manifest) - executable_files(before)
        for name in sorted(obsolete):
            reader.storage.remove(name)
        _remove(folder, obsolete)
    others = {name: calibration for name, calibration in calibrations.items() if name != WHOLE}
    return CompileReport(manifest, calibrations[WHOLE], others, graph_parts.lines(), skipped, notes)


def find_version(target: str, repository: str | None, version: int | None) -> VersionReader:
    """Return the version for `freshet compile`: the target is its path, or with a repository the model's name."""
    if repository is None:
        folder = Path(target).absolute()
        if version is not None:
            raise BadInput("version: only allowed with --repository")
        if not (folder / MANIFEST).is_file():
            raise NotFound(f"{target}: not a version of a model; give its folder, or --repository and the model's name")
        return VersionReader(folder)
    return open_repository(repository).version(target, version)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        raise BadInput("package: expected a version's folder") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Conflict("another compile of this version is running") from None
        yield
    finally:
        os.close(fd)


def _wanted(options: CompileOptions, checked: bool) -> tuple[list[Variant], list[str]]:
    """Return the variants to compile, and why others are skipped; `checked`: there is a calibration set.

    A backend requested with a precision is compiled in that precision only.
    """
    chosen: list[Variant] = []
    skipped: list[str] = []
    precisions = {"float32", options.precision} - {AUTO}
    if options.precision == AUTO and checked:
        precisions |= {*PRECISIONS}
    for text in options.backends or builtin():
        variant = parse_variant(text)
        try:
            available = variants(variant.backend)
        except FreshetError as error:
            skipped.append(str(error))
            continue
        if ":" in text:
            available = [v for v in available if v.precision == variant.precision]
            if not available:
                skipped.append(f"backend {variant.backend}: this machine cannot compute in {variant.precision}")
        else:
            available = [v for v in available if v.precision in precisions]
        chosen += [v for v in available if v not in chosen]
    if not chosen:
        raise BadInput(f"backends: none can be compiled here: {'; '.join(skipped)}")
    if options.precision not in (AUTO, *options.ahead_precision, *(v.precision for v in chosen)):
        raise BadInput(f"precision: no backend here computes in {options.precision}; {AUTO} uses what is available")
    return [replace(v, bound=options.bound.error) for v in chosen], skipped


def _unchecked(options: CompileOptions) -> list[str]:
    advice = "give --data with labelled rows, or record requests (freshet recordings warmup)"
    if options.precision == "float32" or any(":" in text for text in options.backends):
        return []
    if options.precision == AUTO:
        return [f"precision: only float32, because a lower one cannot be checked: {advice}"]
    return [f"precision: {options.precision} was calibrated and checked on generated rows: for real ones, {advice}"]


def _graph(reader: VersionReader) -> AnyDenseGraph:
    path, weights = reader.folder / GRAPH, reader.dense()
    if OnnxDenseGraph.stored(path):
        return OnnxDenseGraph.load(path, weights, reader.manifest.outputs)
    return DenseGraph.load(path, weights)


def _buckets(graph: AnyDenseGraph, reader: VersionReader, options: CompileOptions) -> list[int]:
    if options.buckets:
        return checked_buckets(options.buckets)
    listed = undivided_name(reader.manifest)
    if options.sample is None:
        return sorted({e.bucket for e in reader.manifest.executables if e.subgraph == listed}) or list(BUCKETS)
    return bucket_list(
        read_sample(options.sample), options.most, interpolated(_prices(graph, _rows(graph, reader, max(PRICED))))
    )


def _rows(graph: AnyDenseGraph, reader: VersionReader, rows: int) -> Tensors:
    """Return the rows to compare executables on.

    An imported graph has its own examples: numbers that its stage would never give may be NaN in one library and not in
    another, and an ONNX graph may read ids and positions, which random numbers are not.
    """
    has_examples = reader.manifest.stage is not None or isinstance(graph, OnnxDenseGraph)
    return graph.sample(rows) if has_examples else random_inputs(reader, rows)


def _prices(graph: AnyDenseGraph, rows: Tensors) -> dict[int, float]:
    """Return the cost of a run at some batch sizes, with the backend whose single artefact runs at any size."""
    lowered: LoweredGraph = lower(graph, Variant("onnxruntime"))
    with tempfile.TemporaryDirectory(prefix="freshet-") as aside:
        entries = [build(lowered, bucket, Path(aside)) for bucket in PRICED]
        calibration = calibrate(graph, Path(aside), entries, rows)
    return {e.bucket: e.cost_us for e in calibration.measured}


def _manifest(
    before: Manifest,
    folder: Path,
    graph_parts: GraphParts,
    calibrations: Mapping[str, Calibration],
    compiling: SubgraphCompiler,
    options: CompileOptions,
    ahead: list[ExecutableEntry],
) -> Manifest:
    # Preferred where there is such a GPU; elsewhere they are refused, and what was measured here serves.
    executables = ahead + compiling.chosen(calibrations)
    files = {name: file for name, file in before.files.items() if name not in executable_files(before)}
    described = graph_parts.described(before, executables)
    for name in sorted(executable_files(described)):
        data = (folder / name).read_bytes()
        files[name] = File(len(data), crc32(data))
    whole = calibrations[WHOLE]
    notes: dict[str, Any] = {
        "machine": this_machine().name,
        "passes": graph_parts.lines(),
        "measured": _measured(whole),
        "flip_ms": whole.flip_ms,
        "refused": [line for calibration in calibrations.values() for line in calibration.refused],
        "skipped": list(compiling.skipped),
        "precision": options.precision,
        "max_error": options.bound.error,
    }
    if options.targets:
        notes["targets"] = list(options.targets)
    if len(calibrations) > 1:
        notes["parts"] = {name: _measured(c) for name, c in calibrations.items() if name != WHOLE}
    if whole.auc:
        notes["auc_change"] = whole.auc
    return replace(described, files=files, notes={**before.notes, "compile": notes})


def _measured(calibration: Calibration) -> list[dict[str, Any]]:
    return [
        {"variant": e.variant, "bucket": e.bucket, "cost_us": e.cost_us, "error": e.error} for e in calibration.measured
    ]


def _files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in (folder / COMPILED).rglob("*") if p.is_file()}


def _remove(folder: Path, names: set[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)
    for path in sorted((folder / COMPILED).glob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
