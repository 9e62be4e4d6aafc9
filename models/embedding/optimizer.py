"""Optimizers of embedding rows: how many slots a row needs, and one update of the rows that a batch touched.

The table of them: the kernel of models.embedding.kernels that moves rows has the optimizer's name, and its formula. It
is imported with the first update, so that a configuration is checked without Numba.

A row moves by its own history alone: moments, weight decay and steps are counted when it is touched. What follows the
clock of the whole run (the accumulators of adagrad_decay) is made up for when a row is touched again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option

INITIAL_ACCUMULATOR = 0.1

Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """Options of row optimizers; each reads some of them.

    Attributes:
        initial_accumulator: Where the squares begin that are added up, and where adagrad_decay keeps them from falling
            below.
    """

    initial_accumulator: float = INITIAL_ACCUMULATOR
    l1: float = field(default=0.0, metadata=option("rows that hardly matter become zero (ftrl)"))
    l2: float = field(default=0.0, metadata=option("of the embeddings (ftrl)"))
    beta: float = field(default=0.0, metadata=option("added to the root of the squares (ftrl)"))
    weight_decay: float = field(
        default=0.004, metadata=option("a row loses so much of itself at each of its steps, times the rate (adamw)")
    )
    accumulator_decay: float = field(
        default=0.9, metadata=option("what is left of the squares after `decay_steps` (adagrad_decay)")
    )
    decay_steps: int = field(default=100_000, metadata=option("steps of the run (adagrad_decay)"))

    @staticmethod
    def of(given: RowOptions) -> RowOptions:
        """These alone, of something that has more."""
        return RowOptions(**{name: getattr(given, name) for name in RowOptions.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class RowOptimizer:
    """An optimizer of rows. slots_a_row(dim): floats of state for each row.

    accumulators(dim): how many of these, the first ones, begin at initial_accumulator; the others begin at 0.
    reads: names of RowOptions that count. holds_rows: rows are computed from their slots, so that a row from elsewhere
    needs slots that give it.
    """

    name: str
    slots_a_row: Callable[[int], int]
    accumulators: Callable[[int], int]
    reads: tuple[str, ...] = ()
    holds_rows: bool = False
    options: RowOptions = RowOptions()

    def fill(self, dim: int) -> Float32s:
        """The slots [slots_a_row] of a row that is born."""
        slots = np.zeros(self.slots_a_row(dim), np.float32)
        slots[: self.accumulators(dim)] = self.options.initial_accumulator
        return slots

    def update(
        self, touched: NDArray[np.int64], sums: Float32s, rows: Float32s, slots: Float32s, rate: float, step: int
    ) -> None:
        """Moves rows `touched` [m] of rows [_, dim] and slots [_, slots_a_row] by their gradients `sums` [m, dim].
        step: of the run, from 1."""
        from freshet_serving.models.embedding import kernels

        options = np.array((rate, step, *_values(self.options)), np.float64)
        getattr(kernels, self.name)(touched, sums, rows, slots, options)

    def slots_of(self, rows: Float32s, rate: float, step: int) -> Float32s:
        """Slots [n, slots_a_row] of rows [n, dim] whose own are not known: as of new ones, but the rows stay."""
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
    """Kept, as making them takes longer than moving the rows of a small batch."""
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
    """The optimizer of that name with these options; raises BadInput."""
    if name not in OPTIMIZERS:
        raise BadInput(f"optimizer: one of {', '.join(OPTIMIZERS)} wanted, got {name[:40]!r}")
    return replace(OPTIMIZERS[name], options=RowOptions.of(options or RowOptions()))
