"""The version that was replaced last, and how long it stays loaded: the bake time.

A version that has just lost its traffic stays loaded for `bake_s` seconds, so that the way back takes one store and no
load. It is one version at most: the next switch ends it, and so does a lack of memory, which two versions may cause.

Costs: one comparison a poll; memory is read once a second, and only while a version stays.
"""

from __future__ import annotations

from collections.abc import Callable

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.cores import free_memory

LEAST_FREE = 0.2
"""Share of the memory that must be free for a replaced version to stay."""
LOOK_S = 1.0


class BakeTime:
    """The replaced version of one model. Used under its model's lock.

    Attributes:
        number: The version that stays loaded, 0 for none.
    """

    def __init__(self, clock: Clock, free: Callable[[], float] = free_memory) -> None:
        """Start without a replaced version.

        Args:
            clock: Source of time.
            free: Returns the share of the memory that is free.
        """
        self._clock, self._free = clock, free
        self.number, self._since_s, self._next_s = 0, 0.0, 0.0

    def begin(self, number: int) -> None:
        """Keep a version that has just been replaced, instead of any other."""
        self.number, self._since_s = number, self._clock.now_s()
        self._next_s = self._since_s

    def end_if_due(self, bake_s: float) -> bool:
        """End the bake time if it has passed, or memory is short; return True if it has just ended.

        Args:
            bake_s: Seconds for which a version stays.
        """
        now_s = self._clock.now_s()
        if not self.number or now_s < min(self._next_s, self._since_s + bake_s):
            return False
        self._next_s = now_s + LOOK_S
        if now_s - self._since_s < bake_s and self._free() >= LEAST_FREE:
            return False
        self.number = 0
        return True
