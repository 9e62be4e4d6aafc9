"""Interface of a whole table in training, for checkpoints, publishing and overwriting.

Its rows may be in one process (models.embedding.variable) or distributed over several (models.parallel.gathered_table).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.admission import Arrays
from freshet_serving.models.embedding.variable import Changes

Int64s = NDArray[np.int64]


class TrainedFilter(Protocol):
    """The part of an admission filter (models.embedding.admission) that checkpoints use."""

    def export(self) -> Arrays: ...
    def changes(self) -> Arrays: ...
    def restore(self, arrays: Arrays) -> None: ...


class TrainedTable(Protocol):
    """The table's methods, documented in EmbeddingVariable."""

    name: str
    dim: int

    @property
    def slots_nbytes(self) -> int: ...
    @property
    def admission(self) -> TrainedFilter: ...
    def __len__(self) -> int: ...
    def changes(self) -> Changes: ...
    def clear_changed(self) -> None: ...
    def export(self) -> Changes: ...
    def pieces(self, rows: int) -> Iterator[Changes]: ...
    def restore(self, changes: Changes) -> None: ...
    def mark(self, changes: Changes) -> None: ...
    def overwrite(self, keys: Int64s, rows: NDArray[np.float32], removed: Int64s, rate: float, step: int) -> None: ...
