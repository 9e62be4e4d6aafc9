"""Memory budget of a table's rows in training, and the policy for which rows stay in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CACHES = LFU, LRU = "lfu", "lru"
"""Policies for rows to leave memory: least often read, ties by oldest read (lfu), or least recently read (lru)."""


@dataclass(frozen=True, slots=True)
class RowBudget:
    """A table's memory budget.

    Attributes:
        nbytes: Memory for rows, their slots and books.
        cache: One of CACHES.
        scratch: Folder for the rows on disk.
    """

    nbytes: int
    cache: str
    scratch: Path
