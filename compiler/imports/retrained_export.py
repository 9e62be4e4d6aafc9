"""Read a retrained model's export as tables and weights for the version that its predecessor was imported as.

The importer's own code reads it, as an import would, but compiles nothing. The export fits if everything else is the
same: inputs, features, tables, stage, and the dense graph, which is verified by running the served one with the new
weights.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import quiet, tf
from freshet_serving.compiler.imports.dense_side import build_dense
from freshet_serving.compiler.imports.export_check import RetrainedExport, check_same, other_model, table_pairs
from freshet_serving.compiler.imports.foreign import open_source
from freshet_serving.compiler.imports.importer import CLOSE, Importer
from freshet_serving.compiler.imports.importing import ImportOptions
from freshet_serving.processor.backends import Matrix
from freshet_serving.processor.package import TableEntry
from freshet_serving.processor.repository import GRAPH, VersionReader

ROWS = 64
# Attributes that name things, or the place where they run.
NAMES = ("shared_name", "container", "_class", "_output_shapes", "use_node_name_sharing")


def read_export(source: Path, version: VersionReader, options: ImportOptions | None = None) -> RetrainedExport:
    """Read a SavedModel folder or a .keras file as tables and weights of a committed version.

    Args:
        source: The export.
        version: The version.
        options: Options of the import.

    Raises:
        BadInput: The export does not fit the version, or cannot be imported.
    """
    served, options = version.root_manifest, options or ImportOptions()
    with open_source(source, options.signature, options.ragged, options.sparse) as opened, quiet():
        importer = Importer(opened, options.samples, options.user)
        cut = importer.cutter.cut()
        draft, graph = importer.draft(cut), build_dense(cut, importer.shapes, importer.outputs)
        manifest = importer.manifest(served.model, served.version, cut, draft, graph, [])
        check_same(served, manifest)
        stage = draft.stage.write() if draft.stage else b""
        if served.stage is not None and stage_digest(version.file(served.stage.file)) != stage_digest(stage):
            raise other_model("the stage before the tables differs (vocabularies, or weights in it)")
        _check_graph(version, graph)
        tables = {name: _with_unknown(served.table(name), *found) for name, found in draft.tables.items()}
    notes = [
        f"table {new.name!r}: the row of unknown keys differs; it stays as it was imported"
        for old, new in table_pairs(served, manifest)
        if old.unknown_key is None and [*old.default] != [*new.default]
    ]
    return RetrainedExport(tables, graph.weights, notes)


def _with_unknown(
    served: TableEntry, new: TableEntry, rows: tuple[NDArray[np.int64], Matrix]
) -> tuple[NDArray[np.int64], Matrix]:
    """Return a table's keys and rows, with the row of unknown keys if deltas of the served table can bring it."""
    if served.unknown_key is None:
        return rows
    default = np.array(new.default or [0.0] * new.dim, np.float32)
    return np.append(rows[0], served.unknown_key), np.concatenate([rows[1], default[None]])


def stage_digest(data: bytes) -> str:
    """Return a digest of what a stage's graph computes from its inputs.

    It does not depend on the names of inner nodes, which Keras numbers anew in every process.
    """
    definition = tf.compat.v1.GraphDef.FromString(data)
    nodes = {node.name: node for node in definition.node}
    filled = {node.input[0]: node.input[1:] for node in definition.node if node.name.startswith("init/")}
    digests: dict[str, str] = {}

    def digest(name: str, fed: list[str]) -> str:
        node = nodes[name]
        attributes = {key: value for key, value in node.attr.items() if key not in NAMES}
        named = node.op == "Placeholder" or name.startswith("output/")
        parts = [node.op, name if named else "", *fed]
        parts += [f"{key}={attributes[key].SerializeToString(deterministic=True).hex()}" for key in sorted(attributes)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    # Iterative: graphs may be deeper than Python's stack.
    stack = [name for name in nodes if name.startswith("output/")]
    while stack:
        name = stack[-1]
        refs = [ref.lstrip("^") for ref in (*nodes[name].input, *filled.get(name, ()))]
        missing = [ref.partition(":")[0] for ref in refs if ref.partition(":")[0] not in digests]
        if missing:
            stack += missing
            continue
        stack.pop()
        digests[name] = digest(name, [digests[ref.partition(":")[0]] + ref.partition(":")[2] for ref in refs])
    outputs = sorted(digests[name] for name in nodes if name.startswith("output/"))
    library = definition.library.SerializeToString(deterministic=True)
    return hashlib.sha256("".join(outputs).encode() + library).hexdigest()


def _check_graph(version: VersionReader, graph: DenseGraph) -> None:
    """Raise BadInput unless the served dense graph gives what the new one does, with the new weights."""
    served = DenseGraph.load(version.folder / GRAPH, graph.weights)
    given = served.sample(ROWS)
    wanted = graph.run(given)
    for name, got in served.run(given, graph.weights).items():
        if not np.allclose(got, wanted[name], rtol=CLOSE, atol=CLOSE, equal_nan=True):
            worst = float(np.nanmax(np.abs(got - wanted[name])))
            raise other_model(
                f"the network itself differs: output {name!r} differs by {worst:.3g} with the same weights"
            )
