"""Read a retrained model for a version that is already served, in the way that the version was imported."""

from __future__ import annotations

from pathlib import Path

from freshet_serving.compiler.dense.onnx_dense_graph import OnnxDenseGraph
from freshet_serving.compiler.imports.export_check import RetrainedExport
from freshet_serving.compiler.imports.importing import ImportOptions
from freshet_serving.processor.repository import GRAPH, VersionReader


def read_retrained(source: Path, version: VersionReader, options: ImportOptions) -> RetrainedExport:
    """Read a retrained model as tables and weights of the version that its predecessor was imported as.

    Args:
        source: The export.
        version: The version.
        options: Options of the import.

    Raises:
        BadInput: The export does not fit the version, or cannot be imported.
    """
    if OnnxDenseGraph.stored(version.folder / GRAPH):
        from freshet_serving.compiler.imports.onnx_native.native_export import read_native_export

        return read_native_export(source, version)
    from freshet_serving.compiler.imports.retrained_export import read_export

    return read_export(source, version, options)
