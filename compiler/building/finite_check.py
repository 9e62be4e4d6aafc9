"""Refuse tables with rows that are not numbers, all that can be refused without labelled rows. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput

CHECKED_ROWS = 1 << 16
NOT_JUDGED: Mapping[str, Any] = {
    "gate": {"verdict": "unjudged", "unjudged": ["not judged: no held-out rows; only NaN and infinity are refused"]}
}
"""Notes of a version that comes without labelled rows, so that no gate can compare it with the one before."""


def check_rows(name: str, rows: NDArray[Any]) -> None:
    """Raise BadInput for rows [n, dim] of a table that are not finite; a piece of them is in memory at a time."""
    for first in range(0, len(rows) if rows.dtype.kind == "f" else 0, CHECKED_ROWS):
        if not np.isfinite(rows[first : first + CHECKED_ROWS]).all():
            raise BadInput(f"table {name!r}: expected finite rows, got NaN or infinity")
