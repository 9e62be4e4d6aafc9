"""What the rows of a table may be stored as, and which float32 values each type can hold.

numpy has no bfloat16: in memory it is uint16, the upper halves of float32; the file says BF16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHECK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class RowType:
    """dtype: of the stored elements. below: magnitudes from here on would round to infinity. scaled: a row comes with
    a float32 scale, max |x| / 127."""

    dtype: np.dtype[Any]
    below: float
    scaled: bool = False


ROW_TYPES = {
    "float32": RowType(np.dtype("<f4"), np.inf),
    "float16": RowType(np.dtype("<f2"), 65520.0),
    "bfloat16": RowType(np.dtype("<u2"), float.fromhex("0x1.ffp127")),
    "int8": RowType(np.dtype("i1"), np.inf, scaled=True),
}


def all_below(array: NDArray[np.float32], limit: float) -> bool:
    """Whether every element is a number of a magnitude below `limit`; in blocks, so that no copy is needed."""
    flat = array.reshape(-1)
    return all(bool((np.abs(flat[at : at + CHECK_ROWS]) < limit).all()) for at in range(0, flat.size, CHECK_ROWS))
