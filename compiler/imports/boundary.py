"""Describe the boundary between sparse and dense graph, tensor by tensor, for reports.

The sender writes columns of one float32 matrix, row by row, and the receiver reads the same columns. Each output comes
back as one matrix. The engine reads the same facts from the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from freshet_serving.processor.package import Feature, Manifest

RECEIVER = "dense graph"


@dataclass(frozen=True, slots=True)
class BoundaryTensor:
    """One tensor that is handed over.

    Attributes:
        dtype: As the dense graph reads it; it travels as float32 (bool as 0 and 1).
        shape: Of one row.
        columns: First and last + 1 column of the matrix.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    columns: tuple[int, int]
    sender: str

    def to_json(self) -> dict[str, Any]:
        return {
            "tensor": self.tensor,
            "dtype": self.dtype,
            "shape": [-1, *self.shape],
            "columns": list(self.columns),
            "sender": self.sender,
            "receiver": RECEIVER,
        }


def boundary_of(manifest: Manifest) -> list[BoundaryTensor]:
    """Return the tensors handed to a version's whole dense graph, in the order of their columns."""
    staged = {o.name for o in manifest.stage.outputs} if manifest.stage else set()
    return [
        BoundaryTensor(f.name, "float32", (f.width,), (f.offset, f.offset + f.width), sender(f, f.input in staged))
        for f in sorted(manifest.features, key=lambda f: f.offset)
    ]


def sender(feature: Feature, staged: bool) -> str:
    """Return the origin of a feature's columns; `staged`: its input comes from the stage, not from the request."""
    if feature.table:
        pooled = f", {feature.combiner} of the row's {feature.kind}" if feature.kind in ("ids", "strings") else ""
        return f"table {feature.table}{pooled}"
    return "the stage" if staged else "the request"
