"""Staleness: for how long what is served has not been known to be the repository's newest record, and when that is too
long.

It falls to next to nothing with every look that finds nothing newer, so one that is within its bound again stays there
for as long as the bound: no hysteresis is needed, and none is there. A version that is not served yet makes none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Staleness(NamedTuple):
    """Of one version that is served."""

    model: str
    version: int
    seconds: float

    def line(self, bound_s: float) -> str:
        """Why a server with this bound is not ready."""
        return (
            f"model {self.model!r} version {self.version}: what is served was the newest record "
            f"{self.seconds:.0f} s ago, at most {bound_s:g} s wanted"
        )


def find_stale(found: Iterable[Staleness], bound_s: float) -> Staleness | None:
    """The one that is farthest beyond the bound, the first of equals; None where all are within it."""
    beyond = [each for each in found if each.seconds > bound_s]
    return max(beyond, key=lambda each: each.seconds, default=None)
