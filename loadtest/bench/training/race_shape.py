"""What all sides learn: DeepFM over 8 ids, rows drawn from a power law. numpy alone, for sides that have no more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEATURES, DIM, HIDDEN = 8, 16, (256, 128, 64)
WIDTH = FEATURES * DIM
RATE, DENSE_RATE = 0.05, 0.001
HELD_ROWS = 1 << 19
"""Rows that are held in memory and learned over and over, so that no side waits for a disk."""


@dataclass(frozen=True, slots=True)
class RaceShape:
    """batch_rows: of a step. table_rows: ids of each feature, drawn with a chance of one over their number."""

    batch_rows: int
    table_rows: int = 1_000_000
    seed: int = 0

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """ids [n, FEATURES] and labels [n], of which a network can learn something."""
        random = np.random.default_rng(self.seed)
        # Of the continuous law with density 1 / x on [1, table_rows + 1), cut off.
        ids = np.exp(random.random((HELD_ROWS, FEATURES)) * np.log(self.table_rows + 1.0)).astype(np.int64) - 1
        taste = random.standard_normal((FEATURES, 1 << 16)).astype(np.float32)
        logit = sum(taste[f, ids[:, f] * 2654435761 % (1 << 16)] for f in range(FEATURES)) * 0.7 - 1.0
        return ids, (random.random(HELD_ROWS) < 1 / (1 + np.exp(-logit))).astype(np.float32)

    def steps(self) -> int:
        """Of one pass over the rows."""
        return HELD_ROWS // self.batch_rows
