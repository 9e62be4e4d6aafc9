"""The report of an import as plain data: where each part of the model went, and why.

It is kept in the manifest's notes; `freshet inspect --graph` prints and draws it. Needs no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from freshet_serving.compiler.imports.boundary import BoundaryTensor
from freshet_serving.processor.package import Feature


def import_report(
    source: str,
    signature: str,
    notes: Sequence[str],
    sides: Mapping[str, Mapping[str, int]],
    boundary: Iterable[Mapping[str, Any]],
    weights: Iterable[NDArray[Any]],
    rows: Iterable[NDArray[Any]],
    flops: int = 0,
    reasons: Mapping[str, str] | None = None,
    staged: Iterable[Mapping[str, str]] = (),
    **stage: Sequence[str],
) -> dict[str, Any]:
    """Return the report of an import.

    Args:
        source: Kind of the model's file.
        sides: The number of each operation in "dense" (in executables), "stage" (once a request, on the CPU) and
            "tables" (replaced by lookups).
        boundary: Every tensor that is handed over, as a pair of sender and receiver.
        rows: Rows of the tables.
        flops: Of the dense graph, for one row.
        reasons: By operation, the reason why it is not dense.
        staged: By tensor that the stage hands over, the reason why the engine does not compute it itself.
        stage: Further lists on the stage: constants are the variables that it holds itself.
    """
    return {
        "source": source,
        "signature": signature,
        "notes": list(notes),
        "sides": {side: dict(counts) for side, counts in sides.items()},
        "reasons": dict(reasons or {}),
        "staged": list(staged),
        "boundary": list(boundary),
        **{part: list(lines) for part, lines in stage.items()},
        "flops": flops,
        "nbytes": {
            "weights": sum(int(array.nbytes) for array in weights),
            "tables": sum(int(array.nbytes) for array in rows),
        },
    }


def described_pair(pair: BoundaryTensor, op: str, features: Sequence[Feature]) -> dict[str, Any]:
    """Return a tensor of the boundary as reports contain it; `features` send it, the first in the columns first."""
    return {**pair.to_json(), "op": op, "input": features[0].input, "features": len(features)}
