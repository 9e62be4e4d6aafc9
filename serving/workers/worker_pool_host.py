"""Host the supervisor's models: it writes them, and worker processes read them.

A WorkerPoolHost is a ModelHost that answers no requests itself: connect() gives a version to every worker. It rules out

- A frame that some worker cannot serve. prepare() asks all workers at once and returns when each has acknowledged; the
  version's one store to its control words, which all of them map, comes after that. If one refuses, the frame is
  refused for all; one that has gone is reaped, so certainly dead, before the store is made. A flip within the current
  frame asks no worker: all of it is in the control words.
  connections after them. It reads flips made in the meantime like any other worker.
- A worker that is routed to a version it does not have. Routes name a version after all workers have prepared it, and
  workers close a version after no routes name it: both on one channel, in that order.

Lock order: a model's, a version's, `_publishing`, `_registry`. Dead processes are reaped under any of them: reaping
takes `_registry` alone.

A worker killed by a mapped file that was truncated would take its successors with it. So before a slot gets another
process the files are checked, and a version whose file is damaged is removed from the routes and from the replicas that
a new process receives (on_crash()).

If all workers are dead nothing can be prepared: loads, and deltas with a new frame, raise NotReady until one is back.
Deltas of rows are accepted: a new worker serves them from its first request on.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock, SystemClock
from freshet_serving.processor.cores import available
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.repository import BYTES, open_repository
from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig
from freshet_serving.processor.standby_thread import standing_pool
from freshet_serving.processor.tables.remote_rows import open_remote_tables
from freshet_serving.processor.versions.changes import report
from freshet_serving.processor.versions.host import ModelHost
from freshet_serving.processor.versions.overview import describe
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import GroupStats, SessionStats, Sketch
from freshet_serving.serving.front.model_control import ControlHandler, no_model_control
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.workers.channel import ChannelClosed, Message
from freshet_serving.serving.workers.counter_layout import COUNTED
from freshet_serving.serving.workers.worker_counts import PLANNED, Totals, add, evidence_key, observed
from freshet_serving.serving.workers.worker_pool import WorkerPool
from freshet_serving.serving.workers.worker_process import WorkerProcess
from freshet_serving.serving.workers.worker_replicas import ANSWER_TIMEOUT_S, WorkerReplicas, key_of

if TYPE_CHECKING:
    from freshet_serving.processor.versions.erasure import Erased, ErasedUser

log = logging.getLogger("freshet.fleet")

ANSWER_AT_ONCE_S = 1.0
ABSENCE_TIMEOUT_S = 2.0
ABSENCE_POLL_S = 0.02
# Clients' control operations at once; those of one model wait for each other anyway.
CONTROLS = 4


class WorkerPoolHost(ModelHost):
    """All models of a repository, answered by a worker pool."""

    def __init__(
        self,
        config: ServeConfig,
        worker_pool: WorkerPool,
        scrape: Callable[[], bytes],
        control: ControlHandler = no_model_control,
    ) -> None:
        """Start the worker pool; load_all() loads the models.

        Args:
            worker_pool: The pool, not yet started.
            scrape: Renders the metrics that clients request from workers.
            control: Performs the control operations that clients request from workers.
        """
        clock, remote = SystemClock(), config.remote()
        tables = open_remote_tables(remote, clock)
        opened = open_repository(
            config.repository, config.mirror, config.mirror_bytes, serving=True, models=config.models
        )
        repository = opened.with_keys(config.keyring())
        super().__init__(
            repository, config.models or None, config.undo_depth, clock, len(worker_pool), tables, config.budgets(),
            config.policies(), config.delta_guard, config.max_staleness_s, config.ready_when_empty,
            config.scratch,
        )  # fmt: skip
        self._worker_pool = worker_pool
        self._registry = threading.Lock()
        self._joined: tuple[WorkerProcess, ...] = ()
        self._replicas: dict[int, WorkerReplicas] = {}
        self._keys = itertools.count(1)
        self._publishing = threading.RLock()
        # Guards messages about suspects. Separate from `_publishing`, so that waiting for a silent worker's routes does
        # not delay them.
        self._telling = threading.Lock()
        self._loaded = self._draining = False
        # Count of versions unloaded as corrupt when the current process of each slot was initialized.
        self._introduced: dict[int, int] = {}
        # Sessions of each worker if changed since the start: by group, None for all.
        self._resized: dict[str | None, int] = {}
        self.totals = Totals()
        self._scrapes = standing_pool(1, "freshet-scrapes")
        self._controls = standing_pool(CONTROLS, "freshet-controls")
        self._readings = standing_pool(1, "freshet-readings")
        self._scrape, self._control = scrape, control
        # The newest plan of cores, which a new process gets first.
        self._placements: Message = {}
        groups = {name: GroupConfig(**group) for name, group in config.groups.items()}
        if any(group.planned for group in groups.values()):
            self.core_planning = self._plan_cores(SessionConfig(groups=groups), clock)
        worker_pool.start(self)

    # What ModelHost leaves to subclasses.

    def connect(self, version: ServedVersion) -> WorkerReplicas:
        """Connect all workers, present and future, to a version."""
        self._worker_pool.wait_complete()
        return WorkerReplicas(self, next(self._keys), version)

    def group_stats(self) -> dict[str, GroupStats]:
        """Return the statistics of each session group, as last reported."""
        current: Any = {}
        for gauges in self.totals.gauges().values():
            current = add(current, gauges["groups"])
        work = self.totals.counters().get("groups", {})
        # Groups of dead workers still count while no living worker reports them.
        statistics = {}
        for name in {**work, **current}:
            sessions, queue_rows = current.get(name, (0, 0))
            statistics[name] = GroupStats(sessions, queue_rows, SessionStats(**work.get(name, {})))
        return statistics

    def resize(self, sessions: int, group: str | None = None) -> None:
        """Resize the group's sessions (None: of all groups) of each worker, present and future."""
        with self._publishing:
            answers = self._ask_all("resize", {"sessions": sessions, "group": group})
            answered = 0
            for worker, answer in answers:
                try:
                    answer.result(ANSWER_TIMEOUT_S)
                    answered += 1
                except (ChannelClosed, TimeoutError):
                    self._worker_pool.reap(worker)
            if not answered:
                raise NotReady("workers: no process is up; try again")
            # A size for all groups replaces sizes set for single ones.
            self._resized = {group: sessions} if group is None else {**self._resized, group: sessions}

    def erase(self, user: ErasedUser) -> Erased:
        """Have all workers, then this process, forget a user (processor.versions.erasure)."""
        # Loaded when a person asks.
        from freshet_serving.processor.versions.erasure import MOST_COPIES, Erased, erase_once, merged

        parts = []
        for _ in range(MOST_COPIES):
            for worker, answer in self._ask_all("erase", {"user": user.to_json()}):
                try:
                    counts, failed = answer.result(ANSWER_TIMEOUT_S)["erased"]
                    parts.append(Erased(counts, tuple(failed)))
                except ChannelClosed:
                    # What it had went with it.
                    continue
                except TimeoutError:
                    parts.append(Erased({}, (f"worker {worker.slot}, which does not answer",)))
                except FreshetError as error:
                    parts.append(Erased({}, (f"worker {worker.slot}, which failed: {type(error).__name__}",)))
            parts.append(erase_once(user))
        return merged(parts)

    def lookups(self, version: ServedVersion) -> NDArray[np.int64]:
        """Return the lookup counts of a version, as last reported."""
        counted = self._reported("lookups", version)
        return np.array(counted or np.zeros((max(1, len(version.manifest.tables)), 2)), np.int64)

    def sketch(self, version: ServedVersion) -> Sketch:
        """Return the score sketch of a version, as last reported."""
        return Sketch.from_json(len(version.manifest.outputs), self._reported("sketches", version))

    def evidence(self, observer: str, *versions: ServedVersion) -> Any:
        """Return what an observer has counted about versions, as last reported."""
        return self.totals.counted(observed(observer), evidence_key([key_of(version) for version in versions]))

    def counted(self, version: ServedVersion) -> Snapshot:
        """Return the counters of a version beside the core, as last reported."""
        return self._reported(COUNTED, version) or {}

    def _reported(self, counter: str, version: ServedVersion) -> Any:
        """Return the sum of a version's counts over all processes; None if there is none."""
        return self.totals.counted(counter, str(key_of(version)))

    def on_routes_changed(self) -> None:
        """Send the new routes to every worker, and wait until all have them."""
        with self._publishing:
            for worker, answer in self._ask_all("routes", self._routes()):
                try:
                    answer.result(ANSWER_TIMEOUT_S)
                except (ChannelClosed, TimeoutError):
                    self._worker_pool.reap(worker)

    @property
    def ready(self) -> bool:
        """True if models are ready and not stale, every slot has been up, and workers are available, none suspect."""
        return self._routed and not self._worker_pool.suspects() and not self.stale

    @property
    def _routed(self) -> bool:
        """Readiness as sent with the routes, without suspects and staleness."""
        return self.answering and self._worker_pool.complete and bool(self._worker_pool.available())

    def load_all(self, strict: bool = False) -> None:
        """Load all models; every worker is up when this returns."""
        super().load_all(strict)
        self._worker_pool.wait_complete()

    def opened(self) -> None:
        self._loaded = True
        self.on_routes_changed()

    def info(self) -> dict[str, Any]:
        """Return the state of models, workers and sessions, as the workers report now."""
        self.refresh()
        planning = self.core_planning
        groups = {
            name: {
                "sessions": group.sessions,
                "queue_rows": group.queue_rows,
                **({} if planning is None else planning.describe(name)),
            }
            for name, group in self.group_stats().items()
        }
        sessions = sum(group["sessions"] for group in groups.values())
        return {
            "workers": self.workers(),
            "sessions": sessions,
            "groups": groups,
            **describe(self, self._clock.unix_s()),
        }

    def workers(self) -> list[dict[str, Any]]:
        return self._worker_pool.info()

    def drain(self) -> None:
        """Have every worker report itself unready and continue to serve.

        Not by routes, which wait for other changes and for every worker: one may be stopped.
        """
        self._draining = True
        _wait(self._ask_all("drain", {}, self._worker_pool.responsive()))

    def close(self) -> None:
        """Close the host after the pool has ended; later calls raise NotReady."""
        super().close()
        if self.core_planning is not None:
            self.core_planning.close()
        # Their tasks may wait for a change that hangs.
        for pool in (self._scrapes, self._controls, self._readings):
            pool.shutdown(wait=False, cancel_futures=True)

    # The interface WorkerListener.

    def initialize_worker(self, worker: WorkerProcess) -> None:
        """Give a new process every version and the routes, then mark it available."""
        self._introduced[worker.slot] = self.corruption_unloads
        with self._registry:
            self._joined = (*self._joined, worker)
            existing = list(self._replicas.values())
        for replicas in existing:
            replicas.bring(worker)
        with self._publishing:
            if self._placements:
                worker.ask("place", self._placements).result(ANSWER_TIMEOUT_S)
            for group, sessions in self._resized.items():
                worker.ask("resize", {"sessions": sessions, "group": group}).result(ANSWER_TIMEOUT_S)
            worker.ask("routes", self._routes()).result(ANSWER_TIMEOUT_S)
            self._worker_pool.mark_available(worker)
            self.on_suspects_changed()
            # The server may have become ready through this worker.
            self.on_routes_changed()

    def on_exit(self, worker: WorkerProcess) -> None:
        with self._registry:
            self._joined = tuple(w for w in self._joined if w is not worker)
            existing = list(self._replicas.values())
        for replicas in existing:
            replicas.on_exit(worker)
        self.totals.on_exit(worker.slot)

    def on_crash(self, slot: int, signal: str) -> None:
        """Check files before the slot gets another process; `signal` ended the last one ("" if unknown).

        A worker ended by SIGBUS has touched a page that does not exist. The file was truncated, which its size shows,
        or the disk cannot read it any more, which only reading all files shows.
        """
        report(log, self.examine())
        # Compare with the count at initialization: another slot's process may have died of the same file.
        if signal == "SIGBUS" and self.corruption_unloads == self._introduced.get(slot, 0):
            log.error("no mapped file has changed its size: reading all of them to find the damaged one")
            self._readings.submit(lambda: report(log, self.examine([BYTES])))

    def on_message(self, worker: WorkerProcess, message: Message) -> None:
        if message["op"] == "report":
            self.totals.reported(worker.slot, message["report"])
        elif message["op"] == "scrape":
            self._scrapes.submit(self._answer_scrape, worker, message["id"])
        elif message["op"] == "control":
            self._controls.submit(self._answer_control, worker, message)

    def on_suspects_changed(self) -> None:
        """Tell the responsive workers which slots are suspect, and why the served versions are too old."""
        with self._telling:
            worker_slots = self._worker_pool.suspects()
            for worker in self._worker_pool.responsive():
                with contextlib.suppress(ChannelClosed):
                    worker.tell("unready", {"seats": worker_slots, "stale": self.stale, "concerns": self.concerns})

    def on_staleness_changed(self, stale: str) -> None:
        self.on_suspects_changed()

    # Reports.

    def refresh(self) -> None:
        """Have every worker report now; those that do not answer at once count as last reported."""
        _wait(self._ask_all("report", {}, self._worker_pool.responsive()))

    def _answer_scrape(self, worker: WorkerProcess, number: int) -> None:
        try:
            text = self._scrape().decode()
        except Exception:
            log.exception("could not render the metrics")
            text = None
        with contextlib.suppress(ChannelClosed):
            worker.tell("reply", {"id": number, "text": text})

    def _answer_control(self, worker: WorkerProcess, message: Message) -> None:
        answer: Message = {"id": message["id"]}
        try:
            answer["result"] = self._control(message["operation"], message["arguments"])
        except FreshetError as error:
            answer["error"] = [type(error).__name__, str(error)]
        except Exception:
            log.exception("%s failed", message["operation"])
            answer["error"] = ["FreshetError", "internal error"]
        with contextlib.suppress(ChannelClosed):
            worker.tell("reply", answer)

    # The plan of cores.

    def _plan_cores(self, options: SessionConfig, clock: Clock) -> Any:
        """Return what plans the cores of all workers, and lends some to trainers."""
        # Loaded where cores are planned.
        from freshet_serving.processor.sessions.placement import core_planner

        planning = core_planner().workers(
            options, available(), len(self._worker_pool), clock, self._planned_from, self._place
        )
        if not self.repository.remote:
            planning.lend(self.repository.root)
        return planning

    def _planned_from(self) -> tuple[Any, list[Any]]:
        """Return what all workers have counted of their groups, as they report now, and the costs of each."""
        self.refresh()
        gauges = self.totals.gauges().values()
        return self.totals.counters().get(PLANNED, {}), [report[PLANNED] for report in gauges if PLANNED in report]

    def _place(self, placements: Any) -> None:
        """Tell all workers, present and future, where their sessions compute; suspects with the next turn."""
        with self._publishing:
            self._placements = {"placements": placements}
            for worker in self._worker_pool.responsive():
                with contextlib.suppress(ChannelClosed):
                    worker.tell("place", self._placements)

    # Used by WorkerReplicas.

    def register(self, replicas: WorkerReplicas) -> tuple[WorkerProcess, ...]:
        give_up_s = time.monotonic() + ABSENCE_TIMEOUT_S
        while True:
            with self._registry:
                if self._joined:
                    self._replicas[replicas.key] = replicas
                    return self._joined
            if time.monotonic() > give_up_s:
                raise NotReady("workers: no process is up; try again")
            time.sleep(ABSENCE_POLL_S)

    def unregister(self, replicas: WorkerReplicas) -> None:
        with self._registry:
            self._replicas.pop(replicas.key, None)

    def reap(self, worker: WorkerProcess) -> None:
        self._worker_pool.reap(worker)

    def _ask_all(
        self, op: str, message: Message, workers: Iterable[WorkerProcess] | None = None
    ) -> list[tuple[WorkerProcess, Future[Message]]]:
        """Send a request to these workers, or with None to all that answer requests."""
        answers = []
        for worker in self._worker_pool.available() if workers is None else workers:
            try:
                answers.append((worker, worker.ask(op, message)))
            except ChannelClosed:
                continue
        return answers

    def _routes(self) -> Message:
        models = {}
        for name, model in self._models.items():
            routes = model.routes
            served = {
                str(n): v.replicas.key for n, v in routes.served.items() if isinstance(v.replicas, WorkerReplicas)
            }
            states = [[s.version, s.state, s.error] for s in routes.states.values()]
            traffic = routes.traffic.to_json()
            models[name] = {"served": served, "labels": dict(routes.labels), "states": states, "traffic": traffic}
        flags = {"loaded": self._loaded, "ready": self._routed, "draining": self._draining}
        return {"models": models, "missing": self.missing, **flags}


def _wait(answers: list[tuple[WorkerProcess, Future[Message]]]) -> None:
    """Wait for the answers, at most ANSWER_AT_ONCE_S."""
    give_up_s = time.monotonic() + ANSWER_AT_ONCE_S
    for _, answer in answers:
        with contextlib.suppress(ChannelClosed, TimeoutError):
            answer.result(max(0.0, give_up_s - time.monotonic()))
