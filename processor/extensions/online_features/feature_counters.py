"""Count the lookups of one version's online features: requests, keys, values by outcome, time.

Requests count from several threads, under one lock that is held for a few additions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.counter_block import CounterBlock, Slot, Snapshot
from freshet_serving.processor.extensions.online_features.online_columns import Status
from freshet_serving.processor.extensions.online_features.online_store import Loss

BLOCK = "online_features"
COUNTERS = (
    Slot(BLOCK, "reads", "model_feature_reads", "Requests whose online features were looked up."),
    Slot(BLOCK, "store_reads", "model_feature_store_reads", "Lookups that asked an online store."),
    Slot(
        BLOCK, "read_s", "model_feature_read_seconds", "Seconds spent in lookups that asked a store.", zero=0.0
    ),
    Slot(BLOCK, "entities", "model_feature_keys", "Distinct keys of all lookups."),
    Slot(BLOCK, "cached", "model_feature_cached_keys", "Keys answered from memory."),
    Slot(
        BLOCK, "joined", "model_feature_joined_keys", "Keys that another request was reading at the same time."
    ),
    Slot(BLOCK, "cache_nbytes", "model_feature_cache_bytes", "Memory of cached features.", gauge=True),
    *Slot(
        BLOCK, "values", "model_feature_values",
        "Looked-up values by outcome; all but present are answered with the training default.", "status",
    ).each(status.name.lower() for status in Status),
    *Slot(
        BLOCK, "losses", "model_feature_losses", "Keys that a store did not answer, by reason.", "reason"
    ).each(loss.name.lower() for loss in Loss),
)  # fmt: skip
READS, STORE_READS, READ_S, ENTITIES, CACHED, JOINED, CACHE_NBYTES, VALUES = range(8)
LOSSES = {loss: VALUES + len(Status) + n for n, loss in enumerate(Loss)}
DAMAGED = Slot(
    BLOCK, "damaged", "model_feature_damaged",
    "Looked-up values that cannot be read, by feature; they are answered with the training default.", "feature",
)  # fmt: skip


class FeatureCounters:
    """The counters of one version's lookups. Thread-safe."""

    def __init__(self, inputs: Iterable[str]) -> None:
        damaged = DAMAGED.each(inputs)
        self._damaged = {slot.value: len(COUNTERS) + n for n, slot in enumerate(damaged)}
        self._block = CounterBlock((*COUNTERS, *damaged))
        self._lock = threading.Lock()

    def read(self, store_asked: bool = False, seconds: float = 0.0) -> None:
        with self._lock:
            cells = self._block.cells
            cells[READS] += 1
            cells[STORE_READS] += store_asked
            cells[READ_S] += seconds

    def keys(self, entities: int, cached: int, joined: int = 0, losses: Sequence[Loss] = ()) -> None:
        """Count the distinct keys of a request: from memory, read by another request meanwhile, and lost."""
        with self._lock:
            cells = self._block.cells
            cells[ENTITIES] += entities
            cells[CACHED] += cached
            cells[JOINED] += joined
            for loss in losses:
                cells[LOSSES[loss]] += 1

    def values(self, outcomes: NDArray[np.int64]) -> None:
        """Count values by outcome, int64 [Status]."""
        with self._lock:
            for status, count in enumerate(outcomes.tolist(), VALUES):
                self._block.cells[status] += count

    def damaged(self, feature: str, rows: int) -> None:
        """Count values of an input that are damaged; values() counts them too."""
        with self._lock:
            self._block.cells[self._damaged[feature]] += rows

    def snapshot(self, cache_nbytes: int) -> Snapshot:
        with self._lock:
            self._block.cells[CACHE_NBYTES] = cache_nbytes
            return self._block.snapshot()
