"""Write the files of a version before it is committed: tables, weights, stage, dense graph. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from freshet_serving.compiler.building.compile import AnyDenseGraph
from freshet_serving.compiler.building.finite_check import check_rows
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.repository import DENSE, GRAPH, Repository, VersionWriter, carry_warmup, table_file

Arrays = Mapping[str, NDArray[Any]]


def write_files(
    repository: Repository,
    writer: VersionWriter,
    draft: Manifest,
    tables: Iterable[tuple[str, Arrays]],
    graph: AnyDenseGraph,
    stage: bytes = b"",
) -> dict[str, int]:
    """Write all but executables and manifest; return the rows of each table. Raise BadInput if one is not finite.

    Tables are the tensors of each file (processor.tables.table.packed), consumed one after another.
    """
    rows: dict[str, int] = {}
    for name, arrays in tables:
        check_rows(name, arrays["rows"])
        writer.tensors(table_file(name), arrays)
        rows[name] = len(arrays["keys"])
    if graph.weights:
        writer.tensors(DENSE, graph.weights)
    if draft.stage is not None:
        writer.file(draft.stage.file, stage)
    graph.save(writer.folder / GRAPH)
    carry_warmup(repository, writer.model, draft.inputs, writer)
    return rows
