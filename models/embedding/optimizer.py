"""Optimizers of embedding rows: the state per row, and one update of the rows that a batch touched.

The kernel of an optimizer's name in models.embedding.kernels has its formula; it is imported at the first update, so
that configurations can be checked without Numba.

A row moves only when touched: its moments, decay and steps are counted then. State on the clock of the whole run
(adagrad_decay's accumulators) catches up when the row is touched again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option

INITIAL_ACCUMULATOR = 0.1

Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """Options of row optimizers; each reads some. adagrad_decay never goes below the initial accumulator."""

    initial_accumulator: float = INITIAL_ACCUMULATOR
    l1: float = option(0.0, "L1 regularization of the embeddings: sets unimportant rows to zero (ftrl)")
    l2: float = option(0.0, "L2 regularization of the embeddings (ftrl)")
    beta: float = option(0.0, "number added to the root of the accumulated squares (ftrl)")
    weight_decay: float = option(0.004, "fraction of a row that each of its steps removes, times the rate (adamw)")
    accumulator_decay: float = option(
        0.9, "fraction of the accumulated squares kept after `decay_steps` (adagrad_decay)"
    )
    decay_steps: int = option(100_000, "steps of the run between two decays (adagrad_decay)")

    @staticmethod
    def of(given: RowOptions) -> RowOptions:
        """Return the row options of an object that has them among others."""
        return RowOptions(**{name: getattr(given, name) for name in RowOptions.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class RowOptimizer:
    """An optimizer of rows, with the name of its kernel.

    Attributes:
        slots_a_row: Of dim, the number of floats of state of each row.
        accumulators: Of dim, how many of these, the first, start at initial_accumulator; the others start at 0.
        reads: Names of the RowOptions that it uses.
        holds_rows: Rows are computed from their slots, so an imported row needs slots that reproduce it.
    """

    name: str
    slots_a_row: Callable[[int], int]
    accumulators: Callable[[int], int]
    reads: tuple[str, ...] = ()
    holds_rows: bool = False
    options: RowOptions = RowOptions()

    def fill(self, dim: int) -> Float32s:
        """Return the initial slots [slots_a_row] of a row."""
        slots = np.zeros(self.slots_a_row(dim), np.float32)
        slots[: self.accumulators(dim)] = self.options.initial_accumulator
        return slots

    def update(
        self, touched: NDArray[np.int64], sums: Float32s, rows: Float32s, slots: Float32s, rate: float, step: int
    ) -> None:
        """Update rows and slots in place by gradients `sums` [m, dim] of rows `touched` [m]; steps begin at 1."""
        from freshet_serving.models.embedding import kernels

        options = np.array((rate, step, *_values(self.options)), np.float64)
        getattr(kernels, self.name)(touched, sums, rows, slots, options)

    def slots_of(self, rows: Float32s, rate: float, step: int) -> Float32s:
        """Return slots [n, slots_a_row] for rows [n, dim] without theirs: new ones, but consistent with the values."""
        dim, options = rows.shape[1], self.options
        slots = np.tile(self.fill(dim), (len(rows), 1))
        if self.holds_rows:
            quadratic = (np.sqrt(slots[:, :dim]) + np.float32(options.beta)) / np.float32(rate) + 2 * options.l2
            slots[:, dim:] = -rows * quadratic - np.sign(rows) * np.float32(options.l1)
        if self.name == "adagrad_decay":
            slots[:, dim] = step // options.decay_steps
        return slots


@lru_cache(maxsize=256)
def _values(options: RowOptions) -> tuple[float, ...]:
    # Cached: making it takes longer than updating the rows of a small batch.
    return astuple(options)


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        RowOptimizer("adagrad", lambda dim: dim, lambda dim: dim, ("initial_accumulator",)),
        RowOptimizer(
            "adagrad_decay",
            lambda dim: dim + 1,
            lambda dim: dim,
            ("initial_accumulator", "accumulator_decay", "decay_steps"),
        ),
        RowOptimizer("adam", lambda dim: 2 * dim + 1, lambda dim: 0),
        RowOptimizer("adamw", lambda dim: 2 * dim + 1, lambda dim: 0, ("weight_decay",)),
        RowOptimizer(
            "ftrl",
            lambda dim: 2 * dim,
            lambda dim: dim,
            ("initial_accumulator", "l1", "l2", "beta"),
            holds_rows=True,
        ),
        RowOptimizer("sgd", lambda dim: 0, lambda dim: 0),
    )
}


def row_optimizer(name: str, options: RowOptions | None = None) -> RowOptimizer:
    """Return an optimizer, with RowOptions() by default; raise BadInput for an unknown name."""
    if name not in OPTIMIZERS:
        raise BadInput(f"optimizer: expected one of {', '.join(OPTIMIZERS)}, got {name[:40]!r}")
    return replace(OPTIMIZERS[name], options=RowOptions.of(options or RowOptions()))
