"""Work that a host does by itself: judge what is served, check files, keep requests, maintain tables, watch trainers.

Each kind of work has a thread of its own, so that none delays another. The threads start with the first poll, and end
when the host is closed; closing does not wait for one that hangs.

Trainers are watched by the poll. Most servers have none: what reads reports (processor.versions.trainer_watch) is
loaded with the first report; before, this costs a stat for each model each LOOK_S. Trainers.poll() is called by one
thread, once `due_s` has come; standings() by any.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.repository import TRAINER, Repository
from freshet_serving.processor.standby_thread import PeriodicThread
from freshet_serving.processor.versions.changes import report
from freshet_serving.processor.versions.host_readiness import HostReadiness
from freshet_serving.processor.versions.model import ServedModel

if TYPE_CHECKING:
    from freshet_serving.processor.versions.score_watch import ScoreWatch
    from freshet_serving.processor.versions.trainer_watch import TrainerStanding, TrainerWatch

log = logging.getLogger("freshet.host")

LOOK_INTERVAL_S = 1.0
BEATS = 4
KEEP_INTERVAL_S = 60.0
CLOSE_S = 5.0
LOOK_S = 1.0


class KeptUp(Protocol):
    """A host, as far as its upkeep needs it (processor.versions.host.ModelHost)."""

    readiness: HostReadiness
    score_watch: ScoreWatch | None

    @property
    def catalogue(self) -> Mapping[str, ServedModel]: ...

    def refresh(self) -> None: ...

    def examine(self) -> list[str]: ...

    def on_staleness_changed(self, stale: str) -> None: ...


class Upkeep:
    """The periodic work of one host."""

    def __init__(self, host: KeptUp) -> None:
        self._host = host
        self.threads: list[PeriodicThread] = []
        self._beats, self._keeping, self._closed = 0, False, False

    def start(self, maintained: bool) -> None:
        """Start the threads; called once. `maintained`: there may be tables to maintain."""
        self.threads = [
            PeriodicThread(self.look, LOOK_INTERVAL_S / BEATS, LOOK_INTERVAL_S / BEATS, "freshet-guard"),
            PeriodicThread(self.scrub, LOOK_INTERVAL_S, LOOK_INTERVAL_S, "freshet-files"),
            PeriodicThread(self.keep, KEEP_INTERVAL_S, KEEP_INTERVAL_S, "freshet-kept"),
        ]
        if maintained:
            self.threads.append(PeriodicThread(self.maintain))
        for thread in self.threads:
            thread.start()
        if self._closed:
            # close() may have been called before these threads existed.
            self.close()

    def close(self, wait_s: float = CLOSE_S) -> None:
        """End the threads, waiting wait_s seconds for each."""
        self._closed = True
        for thread in self.threads:
            thread.close(wait_s)

    def look(self) -> bool:
        """Check once a second, and on every beat while a served delta is being monitored."""
        self._beats += 1
        self._host.readiness.check()
        self._host.readiness.tell(self._host.on_staleness_changed)
        monitored = any(model.monitored for model in self._host.catalogue.values())
        if monitored:
            self._host.refresh()
        if (monitored or self._beats % BEATS == 0) and self._host.score_watch is not None:
            self._host.score_watch.look(self._host.catalogue)
        return False

    def scrub(self) -> bool:
        report(log, self._host.examine())
        return False

    def keep(self) -> bool:
        """Follow the requests of every model's default version; not at once after a start."""
        if not self._keeping:
            self._keeping = True
            return False
        for model in self._host.catalogue.values():
            if (version := model.routes.default) is not None:
                model.judges.keep(version)
        return False

    def maintain(self) -> bool:
        """Do one slice of work for every version's tables; return True if more remains."""
        busy = False
        for model in self._host.catalogue.values():
            for version in model.routes.served.values():
                try:
                    busy |= version.maintain()
                except FreshetError as error:
                    log.warning("cannot maintain the tables of %s: %s", model.name, error)
                except Exception:
                    log.exception("cannot maintain the tables of %s", model.name)
        return busy


class Trainers:
    """The trainers of one repository; `due_s` is the time of the next look at them."""

    def __init__(self, repository: Repository, now_s: Callable[[], float]) -> None:
        self._repository, self._now_s = repository, now_s
        self._watch: TrainerWatch | None = None
        self.due_s = -1e9

    def poll(self, models: Collection[str]) -> list[str]:
        """Return a line for each trainer that ended, failed or fell silent (TrainerWatch.poll)."""
        self.due_s = self._now_s() + LOOK_S
        root = self._repository.root
        if self._watch is None and any(os.path.lexists(root / model / TRAINER) for model in models):
            from freshet_serving.processor.versions.trainer_watch import TrainerWatch

            self._watch = TrainerWatch(self._repository, self._now_s)
        return [] if self._watch is None else self._watch.poll(models)

    def standings(self) -> Mapping[str, TrainerStanding]:
        """Return the standing of each model's trainer that has reported. Thread-safe."""
        watch = self._watch
        return {} if watch is None else watch.standings()
