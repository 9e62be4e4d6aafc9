"""Publication: a trainer's state as a full version, or what changed as one delta, in the model repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler.building.compile import BUCKETS, compile_graph
from compiler.building.parts import Parts, parts
from compiler.dense.dense_graph import DenseGraph
from processor.package.delta import Delta, write_delta
from processor.package.manifest import Executable, Manifest
from processor.package.repository import Repository
from processor.package.version import DENSE, GRAPH, VersionWriter, table_file
from processor.package.warmup import carry_warmup
from processor.tables.table import packed

MOST_COUNTED = 2**32 - 1

Progress = Callable[[int, int], None]
Rows = tuple[NDArray[np.int64], NDArray[np.float32]]


def publish_version(
    repository: Path,
    draft: Manifest,
    version: int,
    tables: Mapping[str, Rows],
    graph: DenseGraph,
    created_at: float,
    event_time: tuple[float, float] | None = None,
    buckets: Sequence[int] = BUCKETS,
    progress: Progress | None = None,
    counts: Mapping[str, NDArray[np.int64]] | None = None,
) -> Path:
    """Writes, compiles and commits <repository>/<model>/<version>; returns its folder.

    tables: by name, keys int64 [n] and rows float32 [n, dim]. graph: the dense graph with the weights to publish.
    created_at, event_time: Unix seconds. counts: by name, how often training met each key, int64 [n]; a server whose
    memory is bounded starts with the rows that were met most. Raises Conflict when the version exists.
    """
    with VersionWriter(repository, draft.model, version) as writer:
        for name, (keys, rows) in tables.items():
            met = counts.get(name) if counts else None
            frequencies = None if met is None else np.minimum(met, MOST_COUNTED).astype(np.uint32)
            writer.tensors(table_file(name), packed(keys, rows, draft.table(name).dtype, frequencies))
        writer.tensors(DENSE, graph.weights)
        graph.save(writer.folder / GRAPH)
        carry_warmup(Repository(repository), draft.model, draft.inputs, writer)
        compiled = parts(graph, draft.features, buckets)
        executables: list[Executable] = []
        for role, part in compiled.by_role.items():
            told = _after(len(executables), compiled, progress)
            executables += compile_graph(part.graph, writer.folder, part.buckets, progress=told, role=role)
        manifest = replace(
            draft,
            version=version,
            created_at=created_at,
            event_time=list(event_time or ()),
            tables=[replace(t, rows=len(tables[t.name][0])) for t in draft.tables],
            outputs=graph.outputs,
            dense={name: list(array.shape) for name, array in graph.weights.items()},
            executables=executables,
            user_width=compiled.user_width,
        )
        return writer.commit(manifest)


def _after(done: int, compiled: Parts, progress: Progress | None) -> Progress | None:
    """A part's progress as that of all parts together."""
    if progress is None:
        return None
    total = sum(len(part.buckets) for part in compiled.by_role.values())
    return lambda more, _: progress(done + more, total)


def publish_delta(repository: Path, delta: Delta) -> Path:
    """Commits a delta to its version's folder; returns its path."""
    path = Repository(repository).delta_path(delta.model, delta.version, delta.step)
    path.parent.mkdir(exist_ok=True)
    write_delta(path, delta)
    return path
