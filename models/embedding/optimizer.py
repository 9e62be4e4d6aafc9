"""Optimizers of embedding rows: how many slots a row needs, and one update of the rows that a batch touched.

The table of them: the kernel of models.embedding.kernels that moves rows has the optimizer's name. It is imported with
the first update, so that a configuration is checked without Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from processor.errors import BadInput

INITIAL_ACCUMULATOR = 0.1

Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowOptimizer:
    """An optimizer of rows. slots_a_row(dim): floats of state for each row.

    accumulators(dim): how many of these, the first ones, begin at initial_accumulator; the others begin at 0.
    holds_rows: rows are computed from their slots, so that a row from elsewhere needs slots that give it.
    """

    name: str
    slots_a_row: Callable[[int], int]
    accumulators: Callable[[int], int]
    holds_rows: bool = False
    initial_accumulator: float = INITIAL_ACCUMULATOR

    @property
    def accumulates(self) -> bool:
        """Whether there is anything that initial_accumulator says."""
        return self.accumulators(1) > 0

    def fill(self, dim: int) -> Float32s:
        """The slots [slots_a_row] of a row that is born."""
        slots = np.zeros(self.slots_a_row(dim), np.float32)
        slots[: self.accumulators(dim)] = self.initial_accumulator
        return slots

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


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        RowOptimizer("adagrad", lambda dim: dim, lambda dim: dim),
        RowOptimizer("adam", lambda dim: 2 * dim + 1, lambda dim: 0),
        RowOptimizer("ftrl", lambda dim: 2 * dim, lambda dim: dim, holds_rows=True),
    )
}


def row_optimizer(name: str, initial_accumulator: float = INITIAL_ACCUMULATOR) -> RowOptimizer:
    """The optimizer of that name, whose accumulators begin there; raises BadInput."""
    if name not in OPTIMIZERS:
        raise BadInput(f"optimizer: one of {', '.join(OPTIMIZERS)} wanted, got {name[:40]!r}")
    return replace(OPTIMIZERS[name], initial_accumulator=initial_accumulator)
