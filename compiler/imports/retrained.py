"""Read a retrained model for a version that is already served, in the way that the version was imported."""

from __future__ import annotations

from pathlib import Path

from freshet_serving.compiler.dense.onnx_dense_graph import OnnxDenseGraph
from freshet_serving.compiler.imports.export_check import RetrainedExport, checked_export, other_model
from freshet_serving.compiler.imports.importing import ImportOptions
from freshet_serving.processor.repository import GRAPH, VersionReader


def read_retrained(source: Path, version: VersionReader, options: ImportOptions) -> RetrainedExport:
    """Read an export as tables and weights of the version of its predecessor; raise BadInput if it does not fit."""
    if OnnxDenseGraph.stored(version.folder / GRAPH):
        from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter

        draft = NativeImporter(source, "as the served version").draft()
        return checked_export(draft, version, _same_native_stage, "encoders", _check_native_graph)
    from freshet_serving.compiler.imports.retrained_export import read_export

    return read_export(source, version, options)


def _same_native_stage(served: bytes, new: bytes) -> bool:
    from freshet_serving.compiler.imports.onnx_native.single_rows import without_marks

    return without_marks(served) == without_marks(new)


def _check_native_graph(version: VersionReader, graph: OnnxDenseGraph) -> None:
    served = OnnxDenseGraph.load(version.folder / GRAPH, version.dense(), graph.outputs)
    if served.model != graph.model:
        raise other_model("the network itself differs, or a constant in it (trees, coefficients)")
