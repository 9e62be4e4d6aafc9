"""Hold a request's columns as transforms read them: values one after another, and where each row begins.

A column of one row is broadcast to the rows of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Transform

MAX_VALUES = 1 << 24


class FlatColumn(NamedTuple):
    """A column's values one after another: `width` per row, or by splits."""

    values: Any
    rows: int
    width: int = 1
    splits: NDArray[np.int64] | None = None

    def like(self, values: Any) -> FlatColumn:
        return self._replace(values=values)

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Ends of the rows' values, int64 [rows + 1]."""
        return np.arange(self.rows + 1, dtype=np.int64) * self.width if self.splits is None else self.splits


def rows_of(t: Transform, given: Sequence[FlatColumn]) -> int:
    """Return the row count of columns side by side; columns of one row are broadcast."""
    rows = {f.rows for f in given} - {1}
    if len(rows) > 1:
        first, second = sorted(rows)[:2]
        raise BadInput(f"{named(t)}: expected columns with equal numbers of rows (or 1), got {first} and {second}")
    return max(rows, default=1)


def check_count(t: Transform, count: int) -> None:
    if count > MAX_VALUES:
        raise BadInput(f"{named(t)}: expected a result of at most {MAX_VALUES} values, got {count}")


def named(t: Transform) -> str:
    return f"inputs {', '.join(t.inputs)[:120]}"
