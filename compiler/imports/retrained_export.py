"""Read a retrained model's export as tables and weights for the version that its predecessor was imported as.

The importer's own code reads it, but compiles nothing. All else must be the same: inputs, features, tables, stage, and
the dense graph, which is verified by running the served one with the new weights.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import quiet, tf
from freshet_serving.compiler.imports.export_check import RetrainedExport, checked_export, other_model
from freshet_serving.compiler.imports.foreign import open_source
from freshet_serving.compiler.imports.importer import Importer
from freshet_serving.compiler.imports.importing import ImportOptions
from freshet_serving.compiler.imports.package_proof import CLOSE
from freshet_serving.processor.repository import GRAPH, VersionReader

ROWS = 64
# Attributes that name things, or the place where they run.
NAMES = ("shared_name", "container", "_class", "_output_shapes", "use_node_name_sharing")


def read_export(source: Path, version: VersionReader, options: ImportOptions | None = None) -> RetrainedExport:
    """Read a SavedModel folder or a .keras file as tables and weights of a version; BadInput if it does not fit."""
    options = options or ImportOptions()
    with open_source(source, options.signature, options.ragged, options.sparse) as opened, quiet():
        importer = Importer(opened, options.samples, options.user)
        draft = importer.package(importer.cutter.cut(), [])
        same_stage = lambda served, exported: stage_digest(served) == stage_digest(exported)  # noqa: E731
        return checked_export(draft, version, same_stage, "vocabularies", _check_graph)


def stage_digest(data: bytes) -> str:
    """Return a digest of what a stage's graph computes, without names of inner nodes, which Keras numbers anew."""
    definition = tf.compat.v1.GraphDef.FromString(data)
    nodes = {node.name: node for node in definition.node}
    filled = {node.input[0]: node.input[1:] for node in definition.node if node.name.startswith("init/")}
    digests: dict[str, str] = {}

    def digest(name: str, fed: list[str]) -> str:
        node = nodes[name]
        attributes = {key: value for key, value in node.attr.items() if key not in NAMES}
        keeps_name = node.op == "Placeholder" or name.startswith("output/")
        parts = [node.op, name if keeps_name else "", *fed]
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
    rows = served.sample(ROWS)
    expected = graph.run(rows)
    for name, got in served.run(rows, graph.weights).items():
        if not np.allclose(got, expected[name], rtol=CLOSE, atol=CLOSE, equal_nan=True):
            worst = float(np.nanmax(np.abs(got - expected[name])))
            raise other_model(
                f"the network itself differs: output {name!r} differs by {worst:.3g} with the same weights"
            )
