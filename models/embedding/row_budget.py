"""Memory budget of a table's rows in training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RowBudget:
    """A table's budget: memory for rows with slots and books, and a folder for the rows on disk."""

    nbytes: int
    scratch: Path
