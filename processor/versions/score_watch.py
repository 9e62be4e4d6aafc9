"""Watch the scores of a host's versions: eject bad ones, follow trends, have bad deltas and versions rolled back.

The statistics are those of all processes that answer requests. processor.watching draws the conclusions; this module
acts on them.

Invariants
- look() has one caller at a time. What it keeps by model and version is replaced as a whole, so readers need no lock.
- look() waits for no change of a model: a rollback runs on a thread of its own, and is asked for again by every look()
  until the delta, or the version, is gone.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.generation import OFF
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.repository import MAX_REASON
from freshet_serving.processor.standby_thread import StandbyThread
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.versions.version_rollback import RollbackTarget, roll_back
from freshet_serving.processor.watching import (
    AutoRollback,
    Sketch,
    Trend,
    VersionMonitor,
    VersionRollback,
)

log = logging.getLogger("freshet.host")

REST_S = 5.0


class VersionEvidence(Protocol):
    """Source of the statistics, over all processes."""

    def sketch(self, version: ServedVersion) -> Sketch: ...

    def evidence(self, observer: str, *versions: ServedVersion) -> Any: ...


class Ejector(ABC):
    """Takes versions out of the split (processor.ports.Extension.ejectors)."""

    @abstractmethod
    def look(self, model: ServedModel, now_s: float) -> None:
        """Eject what must go; called regularly for every model, by one thread at a time.

        Args:
            model: The model.
            now_s: Monotonic seconds.
        """


class ScoreWatch:
    """Verdicts on every version of a host, from one look() to the next."""

    def __init__(self, evidence: VersionEvidence, clock: Clock) -> None:
        """Start the thread that rolls back.

        Args:
            evidence: Statistics of the versions.
            clock: The clock.
        """
        self._evidence, self._clock = evidence, clock
        self._ejectors: list[Ejector] = [create(evidence) for create in ENGINE.offers("ejectors").values()]
        # By model and version.
        self._trends: dict[tuple[str, int], Trend] = {}
        # By model: the version that answers by default, with the names of its outputs.
        self._defaults: dict[str, tuple[int, list[str]]] = {}
        self._monitors: dict[str, VersionMonitor] = {}
        self._undoing = StandbyThread("freshet-undo")
        self._undoing.start()

    def close(self) -> None:
        """Stop the thread."""
        self._undoing.close()

    def look(self, models: Mapping[str, ServedModel]) -> None:
        """Have bad versions ejected, follow the scores of every version, roll back what turns out to be bad.

        An error with one model does not stop the others from being checked.

        Args:
            models: Models by name.
        """
        now_s = self._clock.now_s()
        trends: dict[tuple[str, int], Trend] = {}
        for name, model in models.items():
            try:
                for ejector in self._ejectors:
                    ejector.look(model, now_s)
                trends |= self._followed(model, now_s)
                self._watched(model, now_s)
                self._taken_over(model, now_s)
            except Exception:
                log.exception("cannot check the statistics of model %s", name)
        self._trends = trends

    def trend(self, model: str, version: int) -> Trend:
        """Return the trend of a version's scores as of the last look().

        Args:
            model: Name of the model.
            version: The version.
        """
        return self._trends.get((model, version)) or Trend()

    def _followed(self, model: ServedModel, now_s: float) -> dict[tuple[str, int], Trend]:
        """Follow the scores of the model's versions; return their trends."""
        trends = {}
        for number, version in model.routes.served.items():
            trend = trends[model.name, number] = self._trends.get((model.name, number)) or self._begun(model, version)
            trend.look(now_s, version.generation, self._evidence.sketch(version))
        if (default := model.routes.default) is not None:
            self._defaults[model.name] = _outputs(default)
        return trends

    def _begun(self, model: ServedModel, version: ServedVersion) -> Trend:
        """Return the trend of a version that has just come, which goes on from the version that it replaces."""
        number, outputs = self._defaults.get(model.name, (0, []))
        if version is model.routes.default and outputs == _outputs(version)[1]:
            return Trend.following(self.trend(model.name, number))
        return Trend()

    def _watched(self, model: ServedModel, now_s: float) -> None:
        """Monitor the newest deltas of the model's versions after deployment."""
        for number, version in model.routes.served.items():
            verdict = model.watch(now_s, number, self._evidence.sketch(version))
            if verdict is not None:
                # A change of the model may be in progress and take long: canaries do not wait for it.
                self._undoing.try_run_detached(partial(_auto_rollback, model, verdict))

    def _taken_over(self, model: ServedModel, now_s: float) -> None:
        """Monitor the version that answers by default after it has taken over from another."""
        default, bounds = model.routes.default, model.policy.delta_guard
        if default is None or bounds.mode == OFF:
            return
        number, monitor = default.manifest.version, self._monitors.setdefault(model.name, VersionMonitor())
        vouched = model.vouched(number)
        rollback = monitor.look(bounds, now_s, number, self._evidence.sketch(default), vouched)
        if rollback is not None:
            self._undoing.try_run_detached(partial(_take_back, model, rollback))


def _take_back(model: ServedModel, rollback: VersionRollback) -> None:
    if model.pick().manifest.version != rollback.bad:
        return
    reason = f"rolled back automatically: {rollback.verdict.kind}: {rollback.verdict.reason}"
    try:
        done = roll_back(model, RollbackTarget(rollback.good), reason[:MAX_REASON])
        log.error("%s rolled back to %s: %s", model.name, done.generation, reason)
        model.gate.taken_back[rollback.verdict.kind] += 1
    except Exception as error:
        log.error("cannot roll back %s version %d: %s", model.name, rollback.bad, error)
        # The rollback is requested again with every check.
        time.sleep(REST_S)


def _outputs(version: ServedVersion) -> tuple[int, list[str]]:
    return version.manifest.version, [output.name for output in version.manifest.outputs]


def _auto_rollback(model: ServedModel, verdict: AutoRollback) -> None:
    try:
        for line in model.auto_rollback(verdict):
            log.error("%s", line)
    except Exception as error:
        log.error("cannot roll back %s %s: %s", model.name, verdict.bad, error)
        # The rollback is requested again with every check.
        time.sleep(REST_S)
