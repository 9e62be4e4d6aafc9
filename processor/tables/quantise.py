"""Convert rows of float32 to the type that a table stores, and back: the one way for export, deltas and serving.

An export quantises whole tables here, a server each delta's rows on arrival, by the same kernel (kernels.conversion): a
version and its deltas hold the same bits as a version that is published whole.

|stored - x| is at most, for a row of largest magnitude m: float16 2**-11 |x| (2**-25 below 2**-14), bfloat16 2**-8 |x|,
int8 m / 254, each apart from the last bit of a float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels import conversion
from freshet_serving.processor.package import ROW_TYPES, all_below


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows as a table stores them: [n, dim] of the type's dtype; scales float32 [n], or [0] if the type has none."""

    rows: NDArray[Any]
    scales: NDArray[np.float32]


def quantise(rows: NDArray[np.float32], dtype: str) -> StoredRows:
    """Convert float32 rows [n, dim] to a row type; raise BadInput if it cannot hold a number."""
    kind = ROW_TYPES[dtype]
    if not all_below(rows, kind.below):
        raise BadInput(f"rows: expected finite numbers below {kind.below:g} for {dtype}")
    source = np.ascontiguousarray(rows, np.float32)
    stored = np.empty(source.shape, kind.dtype)
    scales = np.empty(len(source) if kind.scaled else 0, np.float32)
    row_nbytes = source.shape[1] * kind.dtype.itemsize
    conversion.store_rows(
        kind.code,
        stored.ctypes.data,
        row_nbytes,
        scales.ctypes.data,
        source.ctypes.data,
        len(source),
        source.shape[1],
    )
    return StoredRows(stored, scales)


def dequantise(stored: StoredRows, dtype: str) -> NDArray[np.float32]:
    """Return stored rows as float32 [n, dim], exactly as the kernels read them."""
    source = np.ascontiguousarray(stored.rows)
    scales = np.ascontiguousarray(stored.scales)
    rows = np.empty(source.shape, np.float32)
    row_nbytes = source.shape[1] * source.itemsize
    conversion.load_rows(
        ROW_TYPES[dtype].code,
        rows.ctypes.data,
        source.ctypes.data,
        row_nbytes,
        scales.ctypes.data,
        len(source),
        source.shape[1],
    )
    return rows
