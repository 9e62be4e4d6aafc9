"""Read a retrained ONNX file as tables and weights for the version that ONNX Runtime computes as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from freshet_serving.compiler.dense.onnx_dense_graph import OnnxDenseGraph
from freshet_serving.compiler.imports.export_check import RetrainedExport, check_same, other_model
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
    served = version.root_manifest
    draft = NativeImporter(source, "as the served version").draft(served.model, served.version)
    check_same(served, draft.manifest)
    if served.stage is not None and version.file(served.stage.file) != draft.stage:
        raise other_model("the stage before the tables differs (encoders, or weights in it)")
    graph = OnnxDenseGraph.load(version.folder / GRAPH, version.dense(), served.outputs)
    if graph.model != draft.graph.model:
        raise other_model("the network itself differs, or a constant in it (trees, coefficients)")
    tables = {name: (arrays["keys"], np.asarray(arrays["rows"])) for name, arrays in draft.tables.items()}
    return RetrainedExport(tables, draft.graph.weights, [])
