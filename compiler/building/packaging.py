"""Publication: a model as a committed version of a package. Training and import end here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from freshet_serving.compiler.building.calibrate import LabelledRows, Tolerance
from freshet_serving.compiler.building.compile import BUCKETS, compile_graph, variants
from freshet_serving.compiler.building.parts import GraphParts, parts
from freshet_serving.compiler.building.role_compiler import RoleCompiler
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.package import CANDIDATE, WHOLE, ExecutableEntry, Manifest, Output
from freshet_serving.processor.repository import (
    DENSE,
    GRAPH,
    Repository,
    VersionReader,
    VersionWriter,
    carry_warmup,
    table_file,
)

Progress = Callable[[int, int], None]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class LowPrecisionOptions:
    """That a lower precision is wanted: int8, or AUTO for what is fastest within the bound. rows: with their labels, to
    calibrate and to check by."""

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
) -> VersionReader:
    """Compiles the dense graph, writes all files of the version and commits it.

    repository: where the writer writes. draft: the manifest but for what follows from the rest: model and version (the
    writer's), rows of tables, outputs, dense, files, executables, user_width, the note `passes`. tables: by name, the
    tensors of its file (processor.tables.table.packed), asked for one after the other. graph: with the weights to
    publish. progress: called with the buckets that are compiled, and all of them. stage: what draft.stage.file is to
    hold. lower: float32 alone without; with it, where that precision is refused the notes say why. Raises BadInput
    where the graph cannot be compiled, Conflict where the version has come to exist.
    """
    compiled = parts(graph, draft.features, buckets)
    if lower is None:
        executables, notes = _in_float32(writer.folder, compiled, progress), dict[str, Any]()
    else:
        executables, notes = _measured(writer.folder, compiled, draft, lower)
    rows: dict[str, int] = {}
    for name, arrays in tables:
        writer.tensors(table_file(name), arrays)
        rows[name] = len(arrays["keys"])
    if graph.weights:
        writer.tensors(DENSE, graph.weights)
    if draft.stage is not None:
        writer.file(draft.stage.file, stage)
    graph.save(writer.folder / GRAPH)
    carry_warmup(repository, writer.model, draft.inputs, writer)
    manifest = replace(
        draft,
        model=writer.model,
        version=writer.version,
        tables=[replace(table, rows=rows[table.name]) for table in draft.tables],
        outputs=_as_drafted(graph.outputs, draft.outputs),
        dense={name: list(array.shape) for name, array in graph.weights.items()},
        executables=executables,
        user_width=compiled.user_width if any(e.role == CANDIDATE for e in executables) else 0,
        notes={**draft.notes, "passes": compiled.lines(), **notes},
    )
    return VersionReader(writer.commit(manifest), storage=writer.storage, keyring=writer.keyring)


def _as_drafted(outputs: Sequence[Output], drafted: Sequence[Output]) -> list[Output]:
    """The graph's outputs, each as the draft describes it, which may know its shape and type in replies."""
    known = {(output.name, output.columns): output for output in drafted}
    return [known.get((output.name, output.columns), output) for output in outputs]


def _in_float32(folder: Path, compiled: GraphParts, progress: Progress | None) -> list[ExecutableEntry]:
    executables: list[ExecutableEntry] = []
    for role, part in compiled.by_role.items():
        told = _after(len(executables), compiled, progress)
        executables += compile_graph(part.graph, folder, part.buckets, progress=told, role=role)
    return executables


def _measured(
    folder: Path, compiled: GraphParts, draft: Manifest, lower: LowPrecisionOptions
) -> tuple[list[ExecutableEntry], dict[str, Any]]:
    """Executables of ONNX Runtime, whose weights are quantised where they are taken; and notes of what was refused."""
    compiler = RoleCompiler(folder, [], lower.precision, lower.bound)
    wanted = [replace(v, bound=lower.bound.error) for v in variants("onnxruntime") if not v.target]
    calibrations = compiler.all(compiled, draft.features, wanted, lower.rows.x, lower.rows)
    executables = compiler.chosen(calibrations)
    kept = {name for entry in executables for name in (entry.file, entry.origin, entry.rows)}
    for path in (folder / "compiled").rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in kept:
            path.unlink()
    refused = [line for calibration in calibrations.values() for line in calibration.refused]
    notes = {"precision": lower.precision, "refused": [*compiler.skipped, *refused], "max_error": lower.bound.error}
    return executables, {"compile": notes | {"auc_change": calibrations[WHOLE].auc}}


def _after(done: int, compiled: GraphParts, progress: Progress | None) -> Progress | None:
    """A part's progress as that of all parts together."""
    if progress is None:
        return None
    total = sum(len(part.buckets) for part in compiled.by_role.values())
    return lambda more, _: progress(done + more, total)
