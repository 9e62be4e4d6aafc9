"""Optimizers of embedding rows: how many slots a row needs, and one update of the rows that a batch touched.

The table of them: the kernel of models.embedding.kernels that moves rows has the optimizer's name. It is imported with
the first update, so that a configuration is checked without Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from processor.errors import BadInput

INITIAL_ACCUMULATOR = 0.1

Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowOptimizer:
    """An optimizer of rows. slots_a_row(dim): floats of state for each row, filled with fill(dim) when it is born.

    holds_rows: rows are computed from their slots, so that a row from elsewhere needs slots that give it.
    """

    name: str
    slots_a_row: Callable[[int], int]
    fill: Callable[[int], Float32s]
    holds_rows: bool = False

    def update(self, touched: NDArray[np.int64], sums: Float32s, rows: Float32s, slots: Float32s, rate: float) -> None:
        """Moves rows `touched` [m] of rows [_, dim] and slots [_, slots_a_row] by their gradients `sums` [m, dim]."""
        from models.embedding import kernels

        getattr(kernels, self.name)(touched, sums, rows, slots, np.float32(rate))

    def slots_of(self, rows: Float32s, rate: float) -> Float32s:
        """Slots [n, slots_a_row] of rows [n, dim] whose own are not known: as of new ones, but the rows stay."""
        dim = rows.shape[1]
        slots = np.tile(self.fill(dim), (len(rows), 1))
        if self.holds_rows:
            slots[:, dim:] = -rows * np.sqrt(slots[:, :dim]) / np.float32(rate)
        return slots


def _adagrad_fill(dim: int) -> Float32s:
    return np.full(dim, INITIAL_ACCUMULATOR, np.float32)


def _adam_fill(dim: int) -> Float32s:
    return np.zeros(2 * dim + 1, np.float32)


def _ftrl_fill(dim: int) -> Float32s:
    return np.concatenate([np.full(dim, INITIAL_ACCUMULATOR, np.float32), np.zeros(dim, np.float32)])


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        RowOptimizer("adagrad", lambda dim: dim, _adagrad_fill),
        RowOptimizer("adam", lambda dim: 2 * dim + 1, _adam_fill),
        RowOptimizer("ftrl", lambda dim: 2 * dim, _ftrl_fill, holds_rows=True),
    )
}


def row_optimizer(name: str) -> RowOptimizer:
    """The optimizer of that name; raises BadInput."""
    if name not in OPTIMIZERS:
        raise BadInput(f"optimizer: one of {', '.join(OPTIMIZERS)} wanted, got {name[:40]!r}")
    return OPTIMIZERS[name]
