"""When a delta is due, and when a full version: by rows, by time, by how far the weights have moved. Takes a clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.publish_section import PublishConfig

LOOK_S = 0.2
"""Weights are compared once in this time at most: to copy them takes as long as a small step."""

Weights = Mapping[str, NDArray[np.float32]]


class DeltaRules:
    """The rules of [publish], applied to what has been learned since the last delta."""

    def __init__(self, publish: PublishConfig, weights: Callable[[], Weights], now_s: Callable[[], float]) -> None:
        """weights: the network's, as they are. A delta has just been published."""
        self._publish, self._weights, self._now_s = publish, weights, now_s
        self.published()

    def learned(self, rows: int) -> None:
        self.rows += rows

    def published(self) -> None:
        """A delta carries all that was learned so far."""
        self.rows, self._since_s = 0, self._now_s()
        self._looked_s = self._since_s
        self._before = self._weights() if self._publish.delta_movement else {}

    def due(self) -> bool:
        """Whether what was learned is to be published now."""
        publish = self._publish
        if not self.rows:
            return False
        if publish.delta_rows and self.rows >= publish.delta_rows:
            return True
        now_s = self._now_s()
        if publish.delta_seconds and now_s - self._since_s >= publish.delta_seconds:
            return True
        if not publish.delta_movement or now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        return movement(self._before, self._weights()) >= publish.delta_movement


def movement(before: Weights, now: Weights) -> float:
    """How far tensors have moved, as a share of their norm, all of them as one vector."""
    moved = sum(float(np.square(now[name] - array, dtype=np.float64).sum()) for name, array in before.items())
    norm = sum(float(np.square(array, dtype=np.float64).sum()) for array in before.values())
    return math.sqrt(moved / norm) if norm else 0.0
