"""How long the longest rows of tables usually are: what a delta's longest row is measured by. Pure.

It begins with rows of the table, and grows with what is served, GROWTH times in an hour at most: who makes rows longer
delta by delta cannot take the measure along.

Cost: three numbers a table.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600.0
GROWTH = 2.0


@dataclass(slots=True)
class _LongestRow:
    length: float
    since_s: float
    then: float


class RowLengths:
    """Of one version's tables."""

    def __init__(self) -> None:
        self._of: dict[str, _LongestRow] = {}

    def longest(self, table: str) -> float | None:
        """Length of a table's longest rows; None before begin()."""
        known = self._of.get(table)
        return None if known is None else known.length

    def begin(self, table: str, length: float, now_s: float) -> None:
        """Rows of a table are at most so long."""
        self._of[table] = _LongestRow(length, now_s, length)

    def served(self, table: str, times: float, now_s: float) -> None:
        """A row is served that is so many times as long as the longest that was known."""
        known = self._of.get(table)
        if known is None or times <= 1:
            return
        if now_s - known.since_s >= HOUR_S:
            known.since_s, known.then = now_s, known.length
        known.length = min(known.length * times, GROWTH * known.then)
