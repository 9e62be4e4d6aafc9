"""Watch the scores of a host's versions: have bad ones ejected, and bad deltas and versions rolled back.

The statistics are those of all processes that answer requests. Judges and ejectors decide; this module acts.

Invariants
- look() has one caller at a time.
- look() waits for no change of a model: a rollback runs on a thread of its own, and is requested again by every look()
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
from freshet_serving.processor.errors import NotFound
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.repository import MAX_REASON
from freshet_serving.processor.standby_thread import StandbyThread
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.versions.version_rollback import RollbackTarget, roll_back
from freshet_serving.processor.watching import AutoRollback, Sketch, VersionRollback

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
        """Eject what must go; called regularly for every model, by one thread at a time (now_s: monotonic)."""


class ScoreWatch:
    """Verdicts on every version of a host, from one look() to the next."""

    def __init__(self, evidence: VersionEvidence, clock: Clock) -> None:
        self._evidence, self._clock = evidence, clock
        self._ejectors: list[Ejector] = [create(evidence) for create in ENGINE.offers("ejectors").values()]
        self._undoing = StandbyThread("freshet-undo")
        self._undoing.start()

    def close(self) -> None:
        self._undoing.close()

    def look(self, models: Mapping[str, ServedModel]) -> None:
        """Have bad versions ejected and bad deltas or versions rolled back, despite an error with another model."""
        now_s = self._clock.now_s()
        for name, model in models.items():
            try:
                for ejector in self._ejectors:
                    ejector.look(model, now_s)
                if model.judges.by_name:
                    self._judged(model, now_s)
            except Exception:
                log.exception("cannot check the statistics of model %s", name)

    def _judged(self, model: ServedModel, now_s: float) -> None:
        """Ask the judges about what the model serves; a rollback does not wait for a change in progress."""
        served = {number: (v, self._evidence.sketch(v)) for number, v in model.routes.served.items()}
        for number, (_, sketch) in served.items():
            if (verdict := _watched(model, now_s, number, sketch)) is not None:
                self._undoing.try_run_detached(partial(_auto_rollback, model, verdict))
        default = model.routes.default
        number = default.manifest.version if default is not None and default.manifest.version in served else 0
        rollback = model.judges.look(now_s, served, number, bool(number) and model.vouched(number))
        if rollback is not None:
            self._undoing.try_run_detached(partial(_take_back, model, rollback))


def _watched(model: ServedModel, now_s: float, number: int, sketch: Sketch) -> AutoRollback | None:
    try:
        return model.loaded(number).watch(now_s, sketch)
    except NotFound:
        # It has been unloaded meanwhile.
        return None


def _take_back(model: ServedModel, rollback: VersionRollback) -> None:
    if model.pick().manifest.version != rollback.bad:
        return
    reason = f"rolled back automatically: {rollback.verdict.kind}: {rollback.verdict.reason}"
    try:
        done = roll_back(model, RollbackTarget(rollback.good), reason[:MAX_REASON])
        log.error("%s rolled back to %s: %s", model.name, done.generation, reason)
        model.judgement_counts.taken_back[rollback.verdict.kind] += 1
    except Exception as error:
        log.error("cannot roll back %s version %d: %s", model.name, rollback.bad, error)
        # The rollback is requested again with every check.
        time.sleep(REST_S)


def _auto_rollback(model: ServedModel, verdict: AutoRollback) -> None:
    try:
        for line in model.auto_rollback(verdict):
            log.error("%s", line)
    except Exception as error:
        log.error("cannot roll back %s %s: %s", model.name, verdict.bad, error)
        # The rollback is requested again with every check.
        time.sleep(REST_S)
