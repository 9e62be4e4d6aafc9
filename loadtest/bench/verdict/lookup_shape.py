"""What both sides look up and pool: lists of ids, drawn from a power law. numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TABLES, ROWS, DIM, BATCH_ROWS = 8, 200_000, 128, 512
MOST_IDS = 39
SEED = 0

Int64s = NDArray[np.int64]


def lists() -> tuple[list[Int64s], list[Int64s]]:
    """Of each table ids [n] below ROWS, and where the lists of the BATCH_ROWS rows begin [BATCH_ROWS + 1]. An id's
    chance is one over its rank; ranks lie all over the table."""
    random = np.random.default_rng(SEED)
    ids, splits = [], []
    for _ in range(TABLES):
        lengths = random.integers(1, MOST_IDS + 1, BATCH_ROWS)
        ranks = np.exp(random.random(int(lengths.sum())) * np.log(ROWS)).astype(np.int64) - 1
        ids.append(random.permutation(ROWS)[ranks])
        splits.append(np.concatenate([[0], np.cumsum(lengths)]))
    return ids, splits
