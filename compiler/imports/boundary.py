"""The cut between the sparse graph and the dense graph, tensor by tensor: who sends what, and where it is received.

The sender writes columns of one float32 matrix, row by row, and the receiver reads the very same columns. What comes
back is one matrix an output. For reports; the engine reads the same from the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from freshet_serving.processor.package import Feature, Manifest

RECEIVER = "dense graph"


@dataclass(frozen=True, slots=True)
class BoundaryTensor:
    """One tensor that is handed over. dtype: as the dense graph reads it; it travels as float32 (bool as 0 and 1).
    shape: of one row. columns: first and last + 1 of the matrix."""

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    columns: tuple[int, int]
    sender: str
    receiver: str = RECEIVER

    def to_json(self) -> dict[str, Any]:
        """The tensor as reports hold it: shape with -1 for the rows."""
        return {
            "tensor": self.tensor,
            "dtype": self.dtype,
            "shape": [-1, *self.shape],
            "columns": list(self.columns),
            "sender": self.sender,
            "receiver": self.receiver,
        }


@dataclass(frozen=True, slots=True)
class Boundary:
    """The boundary of a dense graph: what is handed over, in the order of its columns; width: of the matrix. outputs:
    what comes back, name -> columns of float32."""

    pairs: tuple[BoundaryTensor, ...]
    width: int
    outputs: Mapping[str, int]

    @classmethod
    def of(cls, manifest: Manifest) -> Boundary:
        """The boundary of a version's whole dense graph."""
        staged = {o.name for o in manifest.stage.outputs} if manifest.stage else set()
        pairs = tuple(
            BoundaryTensor(f.name, "float32", (f.width,), (f.offset, f.offset + f.width), sender(f, f.input in staged))
            for f in sorted(manifest.features, key=lambda f: f.offset)
        )
        return cls(pairs, manifest.width, {o.name: o.columns for o in manifest.outputs})


def sender(feature: Feature, staged: bool) -> str:
    """The sender of a feature's columns. staged: whether its input is the stage's, not the request's or made of it."""
    if feature.table:
        pooled = f", {feature.combiner} of the row's {feature.kind}" if feature.kind in ("ids", "strings") else ""
        return f"table {feature.table}{pooled}"
    return "the stage" if staged else "the request"
