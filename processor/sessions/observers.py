"""Observe the requests that a process answers: the seam of shadows, canary trials, and what records requests.

Extensions offer observers (processor.ports.Extension.observers); a server adds its own (Observers.add).

Invariants
- An observer sees a request when it has been bound and before it is queued, in the caller's thread. It must neither
  block nor raise: whatever takes time happens on a thread of its own, after the reply.
- An observer is given whole replies, row by row those of the inputs, before rows of unknown keys are dropped. Requests
  for no candidates, and for the best items, are not seen.
- `watching` is replaced as a whole, whenever routes change; a request reads it once. An observer that has nothing to
  watch is not in it, and costs a request nothing. The lock orders replacements.
- Any thread may read counts at any time: slots of processor.counter_block, and for versions nested objects and lists of
  numbers. Both add up over the processes of a server.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.counter_block import Snapshot, merged
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.sessions.placement import Groups
from freshet_serving.processor.sessions.request import Done, PredictRequest
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.routes import Routes


class Observer(ABC):
    """Sees every incoming request of a process."""

    @abstractmethod
    def __call__(self, request: PredictRequest, replica: Replica, bound: BoundRequest, done: Done) -> Done:
        """Return the callback to use instead of `done`, or `done` itself."""

    def follow(self, routes: Mapping[str, Routes[Replica]]) -> bool:
        """Take the routes of all models; return False if there is nothing to watch until they change again."""
        return True

    def counted(self) -> Snapshot:
        """Return the counters for /metrics: those of the observer's block, if it has one."""
        return {}

    def evidence(self) -> Mapping[tuple[Replica, ...], Any]:
        """Return what was counted about replicas, JSON-able: nested objects and lists of numbers that add up."""
        return {}

    def close(self) -> None:  # noqa: B027 (an observer without a thread has nothing to end)
        """Stop what the observer has started; requests may still be queued."""


class Observers:
    """The observers of one predictor: those `offered` by extensions, and those that have something to watch."""

    def __init__(self, groups: Groups, clock: Clock) -> None:
        self.offered: Mapping[str, Observer] = {
            name: create(groups, clock) for name, create in ENGINE.offers("observers").items()
        }
        self._lock = threading.Lock()
        self._added: tuple[Observer, ...] = ()
        self._following: tuple[Observer, ...] = ()
        self.watching: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        """Add an observer of all requests from now on; whoever adds it closes it."""
        with self._lock:
            self._added = (*self._added, observer)
            self.watching = (*self._added, *self._following)

    def follow(self, routes: Mapping[str, Routes[Replica]]) -> None:
        """Hand new routes to what the extensions offer; called whenever they change, by one thread at a time."""
        following = tuple([observer for observer in self.offered.values() if observer.follow(routes)])
        with self._lock:
            self._following = following
            self.watching = (*self._added, *self._following)

    def counted(self) -> Snapshot:
        return merged(observer.counted() for observer in (*self._added, *self.offered.values()))

    def close(self) -> None:
        for observer in self.offered.values():
            observer.close()
