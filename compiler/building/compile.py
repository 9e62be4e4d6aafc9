"""Compile a dense graph for every bucket, and verify each result before it can be published."""

from __future__ import annotations

import hashlib
import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from freshet_serving.compiler.backends import native_onnx
from freshet_serving.compiler.backends.base import CompilerBackend, LoweredGraph, Variant, check_outputs
from freshet_serving.compiler.dense.onnx_dense_graph import OnnxDenseGraph, Tensors
from freshet_serving.processor.backends import builtin, pack
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import (
    PRECISIONS,
    SCORE,
    ExecutableEntry,
    Manifest,
    atomic_file,
    batch_symbol,
    sha256,
    write_tensors,
)
from freshet_serving.processor.running import OpenedPrograms, open_programs
from freshet_serving.processor.running.bounded import MAX_ROWS, row_errors
from freshet_serving.processor.running.given_rows import outputs_of

if TYPE_CHECKING:  # it imports TensorFlow, which an import for ONNX Runtime does without
    from freshet_serving.compiler.dense.dense_graph import DenseGraph

AnyDenseGraph: TypeAlias = "DenseGraph | OnnxDenseGraph"

BUCKETS = (1, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
BACKENDS = (*builtin(), "tensorflow")
AHEAD = ("tensorrt", "xla")
"""Backends that compile for GPUs that need not be there."""
TOLERANCE = 1e-3
DIGEST_DIGITS = 12


def compile_graph(
    graph: AnyDenseGraph,
    version_folder: Path,
    buckets: Sequence[int] = BUCKETS,
    backend: str = "onnxruntime",
    progress: Callable[[int, int], None] | None = None,
    subgraph: str = SCORE,
) -> list[ExecutableEntry]:
    """Compile a graph and write compiled/<backend>-<target>/<subgraph>-rows<bucket>.* into the version's folder.

    The caller adds the files to manifest.files. Every executable is run once against TensorFlow.

    Args:
        backend: Backend and optional precision.
        progress: progress(done, total), called after every bucket.

    Raises:
        BadInput: A backend or bucket is unknown, or the backend cannot express the graph or computes something else.
    """
    buckets = checked_buckets(buckets)
    entries: list[ExecutableEntry] = []
    lowered = lower(graph, parse_variant(backend))
    for done, bucket in enumerate(buckets, 1):
        entries.append(build(lowered, bucket, version_folder, subgraph))
        if progress is not None:
            progress(done, len(buckets))
    _prove(graph, version_folder, entries)
    return entries


def checked_buckets(buckets: Sequence[int]) -> list[int]:
    ascending = sorted(set(buckets))
    if not ascending or ascending[0] < 1:
        raise BadInput(f"buckets: expected positive batch sizes, got {ascending[:8]}")
    return ascending


def parse_variant(text: str) -> Variant:
    """Parse a backend and a precision, such as openvino:bfloat16; raise BadInput if one is unknown."""
    backend, _, precision = text.strip().partition(":")
    if backend not in BACKENDS:
        raise BadInput(f"backend: expected one of {', '.join(BACKENDS)}, got {backend[:64]!r}")
    if precision not in ("", *PRECISIONS):
        raise BadInput(f"backend {backend}: expected precision one of {', '.join(PRECISIONS)}, got {precision[:64]!r}")
    return Variant(backend, precision or "float32")


def variants(backend: str) -> list[Variant]:
    return _backend_module(backend).variants()


def lower(graph: AnyDenseGraph, variant: Variant) -> LoweredGraph:
    if isinstance(graph, OnnxDenseGraph):
        return native_onnx.lower(graph, variant)
    return _backend_module(variant.backend).lower(graph, variant)


def lower_ahead(graph: AnyDenseGraph, target: str, backend: str = "xla", precision: str = "float32") -> LoweredGraph:
    """Translate a graph, by one of AHEAD, for a kind of GPU that gpu_targets.prepare() has seen, or raise BadInput."""
    if isinstance(graph, OnnxDenseGraph):
        return native_onnx.lower(graph, Variant(backend, precision, target))
    lowered: LoweredGraph = _backend_module(backend).lower_ahead(graph, target, precision)  # type: ignore[attr-defined]
    return lowered


def build(lowered: LoweredGraph, bucket: int, version_folder: Path, subgraph: str = SCORE) -> ExecutableEntry:
    """Compile one bucket and write its files, with digests in their names: no file of an older manifest is replaced."""
    compiled = lowered.compile(bucket)
    precision = "" if lowered.precision == "float32" else f"-{lowered.precision}"
    relative = f"compiled/{lowered.backend}-{lowered.target}{precision}/{subgraph}"
    source = source_hash(lowered, bucket)
    data = pack(compiled.data, lowered.backend, bucket, source) if compiled.machine_code else compiled.data
    return ExecutableEntry(
        backend=lowered.backend,
        target=lowered.target,
        bucket=bucket,
        file=_write(version_folder, f"{relative}-{batch_symbol(subgraph)}{bucket}", compiled.suffix, data),
        source=source,
        weights=compiled.weights,
        precision=lowered.precision,
        library=compiled.library,
        features=list(compiled.features),
        sha256=sha256(data) if compiled.machine_code else "",
        frozen=compiled.frozen,
        origin=_write(version_folder, f"{relative}-origin", compiled.origin_suffix, compiled.origin)
        if compiled.origin
        else "",
        subgraph=subgraph,
    )


def source_hash(lowered: LoweredGraph, bucket: int) -> str:
    """Return the sha256 of definition, bucket and backend: an executable with an equal source is up to date."""
    digest = hashlib.sha256(lowered.definition)
    digest.update(f"\0{lowered.backend}\0{lowered.target}\0{lowered.precision}\0{bucket}".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class UncommittedPackage:
    """A processor.running.opening.Package of files that no manifest lists yet."""

    folder: Path
    manifest: Manifest

    def file(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


def load(graph: AnyDenseGraph, version_folder: Path, entries: Sequence[ExecutableEntry]) -> OpenedPrograms:
    """Load uncommitted entries of one subgraph exactly as a server would, for one thread."""
    listed = Manifest("compile", 0, "", 0.0, [], [], [], graph.outputs, graph.width, {}, {}, list(entries))
    package = UncommittedPackage(version_folder, listed)
    return open_programs(package, graph.spec, subgraph=entries[0].subgraph)


def largest_error(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    return float(row_errors(got, expected).max(initial=0.0))


def _prove(graph: AnyDenseGraph, version_folder: Path, entries: Sequence[ExecutableEntry]) -> None:
    """Raise BadInput unless every executable computes what TensorFlow does on the graph's examples, or random rows."""
    rows = graph.sample(max(e.bucket for e in entries))
    expected = graph.run(rows)
    for program in load(graph, version_folder, entries).programs:
        for bucket, executable in program.with_weights(graph.weights).items():
            got = outputs_of(executable, graph.resized(rows, bucket), graph.spec)
            check_outputs(got, expected, TOLERANCE, f"executable b{bucket}")


def write_rows(version_folder: Path, subgraph: str, inputs: Tensors) -> str:
    """Write the rows with which a server checks a lower precision; return the file's name, relative to the folder."""
    file = io.BytesIO()
    write_tensors(file, {name: np.ascontiguousarray(rows[:MAX_ROWS], np.float32) for name, rows in inputs.items()}, {})
    return _write(version_folder, f"compiled/{subgraph}-checked", ".safetensors", file.getvalue())


def _backend_module(backend: str) -> CompilerBackend:
    return cast(CompilerBackend, importlib.import_module(f"freshet_serving.compiler.backends.{backend}"))


def _write(version_folder: Path, stem: str, suffix: str, data: bytes) -> str:
    name = f"{stem}.{sha256(data)[:DIGEST_DIGITS]}{suffix}"
    path = version_folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with atomic_file(path) as file:
            file.write(data)
    return name
