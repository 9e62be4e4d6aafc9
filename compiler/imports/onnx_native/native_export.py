"""Read a retrained ONNX file as tables and weights for the version that ONNX Runtime computes as it is."""

from __future__ import annotations

import operator
from pathlib import Path

from freshet_serving.compiler.dense.onnx_dense_graph import OnnxDenseGraph
from freshet_serving.compiler.imports.export_check import RetrainedExport, checked_export, other_model
from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter
from freshet_serving.processor.repository import GRAPH, VersionReader


def read_native_export(source: Path, version: VersionReader) -> RetrainedExport:
    """Read an ONNX file as tables and weights of a committed version.

    Args:
        source: The file.
        version: The version, imported natively.

    Raises:
        BadInput: The file does not fit the version, or cannot be imported.
    """
    draft = NativeImporter(source, "as the served version").draft()
    return checked_export(draft, version, operator.eq, "encoders", _check_graph)


def _check_graph(version: VersionReader, graph: OnnxDenseGraph) -> None:
    """Raise BadInput unless a version's dense graph is this one."""
    served = OnnxDenseGraph.load(version.folder / GRAPH, version.dense(), graph.outputs)
    if served.model != graph.model:
        raise other_model("the network itself differs, or a constant in it (trees, coefficients)")
