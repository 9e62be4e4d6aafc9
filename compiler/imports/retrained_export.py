"""Read a retrained model's export as tables and weights for the version that its predecessor was imported as.

The importer's own code reads it, as an import would, but compiles nothing. The export fits if everything else is the
same: inputs, features, tables, stage, and the dense graph, which is verified by running the served one with the new
weights.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import quiet, tf
from freshet_serving.compiler.imports.dense_side import build_dense
from freshet_serving.compiler.imports.foreign import open_source
from freshet_serving.compiler.imports.importer import CLOSE, Importer
from freshet_serving.compiler.imports.importing import ImportOptions
from freshet_serving.processor.backends import Matrix
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.repository import GRAPH, VersionReader

ROWS = 64
# Attributes that name things, or the place where they run.
NAMES = ("shared_name", "container", "_class", "_output_shapes", "use_node_name_sharing")


@dataclass(frozen=True, slots=True)
class RetrainedExport:
    """Contents of an export.

    Attributes:
        tables: By name, keys int64 [n] (hashes of strings) and rows float32 [n, dim].
        dense: Weights by name.
        notes: Differences that cannot be published.
    """

    tables: dict[str, tuple[NDArray[np.int64], Matrix]]
    dense: dict[str, Matrix]
    notes: list[str]


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
        _check(served, manifest)
        stage = draft.stage.write() if draft.stage else b""
        if served.stage is not None and stage_digest(version.file(served.stage.file)) != stage_digest(stage):
            raise _other("the stage before the tables differs (vocabularies, or weights in it)")
        _check_graph(version, graph)
        tables = {name: rows for name, (_, rows) in draft.tables.items()}
    notes = [
        f"table {new.name!r}: the row of unknown keys differs; it stays as it was imported"
        for old, new in _pairs(served, manifest)
        if [*old.default] != [*new.default]
    ]
    return RetrainedExport(tables, graph.weights, notes)


def _other(why: str) -> BadInput:
    return BadInput(f"export: {why}; import it as a new version: freshet import")


def _pairs(served: Manifest, new: Manifest) -> list[tuple[Any, Any]]:
    return [(served.table(table.name), table) for table in new.tables]


def _check(served: Manifest, new: Manifest) -> None:
    """Raise BadInput for the first difference between the manifests."""
    for what, old_names, new_names in (
        ("tables", [t.name for t in served.tables], [t.name for t in new.tables]),
        ("dense weights", [*served.dense], [*new.dense]),
    ):
        if sorted(old_names) != sorted(new_names):
            here = ", ".join(sorted(set(old_names) ^ set(new_names)))[:200]
            raise _other(f"expected the {what} of the served version, found on one side only: {here}")
    for old, table in _pairs(served, new):
        for part in ("dim", "hash_seed"):
            if getattr(old, part) != getattr(table, part):
                raise _other(
                    f"table {old.name!r}: expected {part} {getattr(old, part)} as served, got {getattr(table, part)}"
                )
    for name, shape in served.dense.items():
        if new.dense[name] != shape:
            raise _other(f"dense weight {name!r}: expected shape {shape} as served, got {new.dense[name]}")
    for what in ("inputs", "outputs", "width"):
        if getattr(served, what) != getattr(new, what):
            raise _other(f"its {what} differ from those of the served version")
    # The side of a feature was chosen at import; an export need not repeat it.
    features = [{f.name: replace(f, side="") for f in manifest.features} for manifest in (served, new)]
    if features[0] != features[1]:
        names = sorted(
            name for name in {**features[0], **features[1]} if features[0].get(name) != features[1].get(name)
        )
        raise _other(f"expected the features of the served version, these differ: {', '.join(names)[:200]}")
    if served.transforms != new.transforms:
        raise _other("the transforms of its inputs before the tables differ")
    if (served.stage and served.stage.outputs) != (new.stage and new.stage.outputs):
        raise _other("the stage before the tables differs")


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
        parts = [node.op, name if name.startswith(("input/", "output/")) else "", *fed]
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
            raise _other(f"the network itself differs: output {name!r} differs by {worst:.3g} with the same weights")
