"""Optimizers of embedding rows: how many slots a row needs, and one update of the rows that a batch touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.embedding import kernels
from processor.errors import BadInput

INITIAL_ACCUMULATOR = 0.1


@dataclass(frozen=True, slots=True)
class RowOptimizer:
    """slots_a_row(dim) floats of state for each row, filled with fill(dim) when the row is born; update() moves rows.

    update(touched int64 [m], sums float32 [m, dim], rows [_, dim], slots [_, slots], rate).
    """

    name: str
    slots_a_row: Callable[[int], int]
    fill: Callable[[int], NDArray[np.float32]]
    update: Callable[..., None]


def _adagrad_fill(dim: int) -> NDArray[np.float32]:
    return np.full(dim, INITIAL_ACCUMULATOR, np.float32)


def _adam_fill(dim: int) -> NDArray[np.float32]:
    return np.zeros(2 * dim + 1, np.float32)


def _ftrl_fill(dim: int) -> NDArray[np.float32]:
    return np.concatenate([np.full(dim, INITIAL_ACCUMULATOR, np.float32), np.zeros(dim, np.float32)])


OPTIMIZERS = {
    "adagrad": RowOptimizer("adagrad", lambda dim: dim, _adagrad_fill, kernels.adagrad),
    "adam": RowOptimizer("adam", lambda dim: 2 * dim + 1, _adam_fill, kernels.adam),
    "ftrl": RowOptimizer("ftrl", lambda dim: 2 * dim, _ftrl_fill, kernels.ftrl),
}


def row_optimizer(name: str) -> RowOptimizer:
    """The optimizer of that name; raises BadInput."""
    if name not in OPTIMIZERS:
        raise BadInput(f"optimizer: one of {', '.join(OPTIMIZERS)} wanted, got {name[:40]!r}")
    return OPTIMIZERS[name]
