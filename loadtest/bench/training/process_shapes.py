"""What one process and several learn beside each other: rows of a power law, in three shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.bench.training.race_shape import DENSE_RATE, RATE

HELD_NBYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ProcessShape:
    """features: each with a table of its own of table_rows ids, drawn with a chance of one over their number. length:
    ids of a feature in each row, added up. hidden: units of the network's layers."""

    features: int
    length: int
    batch_rows: int
    table_rows: int
    hidden: tuple[int, ...]
    dim: int = 16

    @property
    def held_batches(self) -> int:
        return max(4, HELD_NBYTES // (8 * self.features * self.length * self.batch_rows))

    def ids(self) -> NDArray[np.int64]:
        """[batches, features, rows * length]"""
        random = np.random.default_rng(0)
        found = np.empty((self.held_batches, self.features, self.batch_rows * self.length), np.int64)
        for batch in found:
            # Of the continuous law with density 1 / x on [1, table_rows + 1), cut off.
            batch[:] = np.exp(random.random(batch.shape) * np.log(self.table_rows + 1.0)).astype(np.int64) - 1
        return found

    def labels(self) -> NDArray[np.float32]:
        random = np.random.default_rng(1)
        return (random.random((self.held_batches, self.batch_rows)) < 0.3).astype(np.float32)

    def config(self) -> dict[str, Any]:
        """Sections of a training file."""
        kind = {"kind": "id"} if self.length == 1 else {"kind": "ids", "combiner": "sum"}
        return {
            "model": {"name": "processes", "hidden": list(self.hidden)},
            "data": {"path": "rows.parquet", "label": "label"},
            "features": {f"f{f}": {**kind, "dim": self.dim} for f in range(self.features)},
            "train": {
                "batch_rows": self.batch_rows,
                "optimizer": "adagrad",
                "learning_rate": RATE,
                "initial_accumulator": 0.1,
                "dense_learning_rate": DENSE_RATE,
            },
        }


SHAPES = {
    "histories": ProcessShape(8, 20, 2048, 1_000_000, (16,)),
    "single ids": ProcessShape(26, 1, 4096, 300_000, (16,)),
    "deepfm": ProcessShape(8, 1, 4096, 1_000_000, (256, 128, 64)),
}
"""Two in which rows are most of the work, and the network of loadtest.bench.training.race."""
