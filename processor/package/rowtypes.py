"""Row types: what the rows of a table may be stored as, and which float32 values each type can hold.

numpy has no bfloat16: in memory it is uint16, the upper halves of float32; the file says BF16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHECK_ROWS = 1 << 16
SCALED = 128


@dataclass(frozen=True, slots=True)
class RowType:
    """One row type. code: what kernels know it by; from SCALED on a row comes with a float32 scale, max |x| / 127.
    tag: what a safetensors file calls its elements. dtype: theirs in memory, of no other tag
    (processor.package.tensors). below: magnitudes from here on would round to infinity."""

    code: int
    tag: str
    dtype: np.dtype[Any]
    below: float

    @property
    def scaled(self) -> bool:
        return self.code >= SCALED


ROW_TYPES = {
    "float32": RowType(0, "F32", np.dtype("<f4"), np.inf),
    "float16": RowType(1, "F16", np.dtype("<f2"), 65520.0),
    "bfloat16": RowType(2, "BF16", np.dtype("<u2"), float.fromhex("0x1.ffp127")),
    "int8": RowType(SCALED, "I8", np.dtype("i1"), np.inf),
}
"""All that is said of row types outside of the kernel that converts them (processor.kernels.conversion)."""


def all_below(array: NDArray[np.float32], limit: float) -> bool:
    """Whether every element is a number of a magnitude below `limit`; in blocks, so that no copy is needed."""
    flat = array.reshape(-1)
    return all(bool((np.abs(flat[at : at + CHECK_ROWS]) < limit).all()) for at in range(0, flat.size, CHECK_ROWS))
