"""Decide when a delta is due: by rows, by time, or by how far the weights have moved. Takes a clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.publish_section import PublishConfig

LOOK_S = 0.2
"""Minimum seconds between two comparisons of the weights: copying them takes as long as a small step."""

Weights = Mapping[str, NDArray[np.float32]]


class DeltaRules:
    """The rules of [publish], applied to the training since the last delta."""

    def __init__(
        self,
        publish: PublishConfig,
        weights: Callable[[], Weights],
        now_s: Callable[[], float],
        changed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start as if a delta had just been published.

        Args:
            weights: Returns the network's current weights.
            now_s: Clock.
            changed: Returns whether something besides rows is to be published, such as an entity.
        """
        self._publish, self._weights, self._now_s, self._changed = publish, weights, now_s, changed
        self.published()

    def learned(self, rows: int) -> None:
        self.rows += rows

    def published(self) -> None:
        """Reset all rules after a publish."""
        self.rows, self._since_s = 0, self._now_s()
        self._looked_s = self._asked_s = self._since_s
        self._before = self._weights() if self._publish.delta_movement else {}

    def due(self) -> bool:
        """Return True if a delta is to be published now."""
        publish = self._publish
        if not self.rows:
            return self._changed_alone()
        if publish.delta_rows and self.rows >= publish.delta_rows:
            return True
        now_s = self._now_s()
        if publish.delta_seconds and now_s - self._since_s >= publish.delta_seconds:
            return True
        if not publish.delta_movement or now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        return movement(self._before, self._weights()) >= publish.delta_movement

    def left(self) -> bool:
        """Return True if there is something to publish at the end."""
        return self.rows > 0 or self._changed()

    def _changed_alone(self) -> bool:
        """Return True if, without rows, something besides has waited for long enough; asks every delta_seconds."""
        now_s, wait_s = self._now_s(), self._publish.delta_seconds
        if not wait_s or now_s - self._asked_s < wait_s:
            return False
        self._asked_s = now_s
        return self._changed()


def movement(before: Weights, now: Weights) -> float:
    """Return how far tensors have moved relative to their norm, treating all of them as one vector.

    Args:
        before: Weights by name.
    """
    moved = sum(float(np.square(now[name] - array, dtype=np.float64).sum()) for name, array in before.items())
    norm = sum(float(np.square(array, dtype=np.float64).sum()) for array in before.values())
    return math.sqrt(moved / norm) if norm else 0.0
