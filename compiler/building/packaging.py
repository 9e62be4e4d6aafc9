"""Publish a model as a committed version of a package: the last step of training and import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.compiler.building.calibrate import LabelledRows, Tolerance
from freshet_serving.compiler.building.compile import BUCKETS, compile_graph, variants
from freshet_serving.compiler.building.package_files import Arrays, write_files
from freshet_serving.compiler.building.parts import GraphParts, parts
from freshet_serving.compiler.building.subgraph_compiler import SubgraphCompiler
from freshet_serving.compiler.building.unlabelled_review import unlabelled_notes
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import WHOLE, ExecutableEntry, Manifest, Output, dense_sequences
from freshet_serving.processor.repository import Repository, VersionReader, VersionWriter

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Review:
    """Verdict of a gate on a version that is written but not committed: notes for it, and whether it is refused."""

    notes: Mapping[str, Any]
    refused: bool


@dataclass(frozen=True, slots=True)
class LowPrecisionOptions:
    """Publish in int8, or AUTO for the fastest precision within the bound, calibrated and checked on the rows."""

    precision: str
    rows: LabelledRows
    bound: Tolerance = field(default_factory=Tolerance)


def publish(
    repository: Repository,
    writer: VersionWriter,
    draft: Manifest,
    tables: Iterable[tuple[str, Arrays]],
    graph: DenseGraph,
    buckets: Sequence[int] = BUCKETS,
    progress: Progress | None = None,
    stage: bytes = b"",
    lower: LowPrecisionOptions | None = None,
    review: Callable[[VersionReader], Review] | None = None,
) -> VersionReader:
    """Compile the dense graph, write all files of the version and commit it, or a candidate if the review refuses it.

    Args:
        draft: The manifest except for what follows from the rest: model and version (the writer's), rows of tables,
            outputs, dense, files, executables, graphs, the note `passes`.
        tables: By name, the tensors of each file (processor.tables.table.packed), consumed one after another.
        graph: The dense graph, with the weights to publish.
        progress: Called with the number of compiled buckets and their total.
        stage: Content of draft.stage.file.
        lower: None for float32 alone. If the lower precision is refused, the notes give the reason.
        review: Judges the version as it will be served, before it is committed.

    Raises:
        BadInput: The graph cannot be compiled, or a weight is not a number.
        Conflict: The version has been created meanwhile.
    """
    compiled = parts(graph, draft.features, buckets, dense_sequences(draft.sequences))
    if lower is None:
        executables, notes = _in_float32(writer.folder, compiled, progress), dict[str, Any]()
    else:
        executables, notes = _measured(writer.folder, compiled, draft, lower)
    if invalid := [name for name, weight in graph.weights.items() if np.isnan(weight).any()]:
        raise BadInput(f"dense weight {invalid[0][:64]!r}: expected numbers, got NaN")
    rows = write_files(repository, writer, draft, tables, graph, stage)
    manifest = replace(
        draft,
        model=writer.model,
        version=writer.version,
        tables=[replace(table, rows=rows[table.name]) for table in draft.tables],
        outputs=_as_drafted(graph.outputs, draft.outputs),
        dense={name: list(array.shape) for name, array in graph.weights.items()},
        notes={**draft.notes, "passes": compiled.lines(), **notes},
    )
    manifest = compiled.described(manifest, executables)
    storage, candidate = writer.storage, None
    if review is None and "gate" in manifest.notes:
        manifest = replace(manifest, notes={**manifest.notes, **unlabelled_notes(repository, writer.preview(manifest))})
    if review is not None:
        reviewed = review(writer.preview(manifest))
        manifest = replace(manifest, notes={**manifest.notes, **reviewed.notes})
        if reviewed.refused:
            storage = candidate = repository.candidate_storage(writer.model, writer.version)
    return VersionReader(writer.commit(manifest, candidate), storage=storage, keyring=writer.keyring)


def _as_drafted(outputs: Sequence[Output], drafted: Sequence[Output]) -> list[Output]:
    """Return the graph's outputs, each as the draft describes it: it may know an output's shape and type in replies."""
    by_name = {(output.name, output.columns): output for output in drafted}
    return [by_name.get((output.name, output.columns), output) for output in outputs]


def _in_float32(folder: Path, compiled: GraphParts, progress: Progress | None) -> list[ExecutableEntry]:
    executables: list[ExecutableEntry] = []
    for name, part in compiled.by_subgraph.items():
        report = _after(len(executables), compiled, progress)
        executables += compile_graph(part.graph, folder, part.buckets, progress=report, subgraph=compiled.listed(name))
    return executables


def _measured(
    folder: Path, compiled: GraphParts, draft: Manifest, lower: LowPrecisionOptions
) -> tuple[list[ExecutableEntry], dict[str, Any]]:
    compiler = SubgraphCompiler(folder, [], lower.precision, lower.bound)
    tried = [replace(v, bound=lower.bound.error) for v in variants("onnxruntime") if not v.target]
    calibrations = compiler.all(compiled, draft.features, tried, lower.rows.inputs, lower.rows)
    executables = compiler.chosen(calibrations)
    used = {name for entry in executables for name in (entry.file, entry.origin, entry.rows)}
    for path in (folder / "compiled").rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in used:
            path.unlink()
    refused = [line for calibration in calibrations.values() for line in calibration.refused]
    notes = {"precision": lower.precision, "refused": [*compiler.skipped, *refused], "max_error": lower.bound.error}
    return executables, {"compile": notes | {"auc_change": calibrations[WHOLE].auc}}


def _after(done: int, compiled: GraphParts, progress: Progress | None) -> Progress | None:
    if progress is None:
        return None
    total = sum(len(part.buckets) for part in compiled.by_subgraph.values())
    return lambda more, _: progress(done + more, total)
