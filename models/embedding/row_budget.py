"""How much memory the rows of a table may take in training, and which of them stay there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CACHES = LFU, LRU = "lfu", "lru"
"""Who leaves: those read least often, of them those longest ago; or those read longest ago."""


@dataclass(frozen=True, slots=True)
class RowBudget:
    """nbytes: memory for rows, their slots and books. cache: one of CACHES. scratch: a folder for what is on disk."""

    nbytes: int
    cache: str
    scratch: Path
