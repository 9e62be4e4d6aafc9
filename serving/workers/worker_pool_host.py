"""The supervisor's models: one writer, and worker processes that read.

A WorkerPoolHost is a ModelHost that answers nothing itself: connect() gives a version to every worker. What is never
seen:

- A frame that some worker cannot serve. prepare() asks all of them at once and returns when each has acknowledged; the
  version's one store to its control words, which all map, comes after that. One that refuses refuses for all; one that
  is gone counts as gone: it is buried, so certainly dead, before the store is made. A flip over the frame that is there
  asks nobody: all of it is in the control words.
- A worker that misses a frame. A new process joins first, then gets every version that was there, each under that
  version's lock at the frame that it stands on; versions that come later count it among their replicas from the start.
  Routes come last, connections after them. Flips that are made meanwhile it reads like any other.
- A worker that is sent to a version it does not have. Routes name a version after it was prepared everywhere, and a
  version is closed in the workers after no routes name it: both on one channel, in that order.

Order of locks: a model's, a version's, `_publishing`, `_registry`. The dead are buried under any of them: burying takes
`_registry` alone.

A worker that dies of a mapped file that was cut short would take its successors with it: before a seat gets another
process the files are looked at, and a version whose file is damaged goes from the routes and from the replicas that a
new process is given (on_crash()).

With all workers dead at once nothing can be prepared: loads, and deltas that bring a frame, are NotReady until one is
back. Deltas of rows are taken: whoever comes serves them from its first request on.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock, SystemClock
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.overview import describe
from freshet_serving.processor.repository import BYTES, open_repository
from freshet_serving.processor.standby_thread import standing_pool
from freshet_serving.processor.tables.remote.reader import RemoteStats, RemoteTables
from freshet_serving.processor.versions.failed_versions import report
from freshet_serving.processor.versions.host import ModelHost
from freshet_serving.processor.versions.preview import PreviewResult
from freshet_serving.processor.versions.replica import Frame
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import (
    CanaryEvidence,
    Figure,
    GroupStats,
    SessionStats,
    ShadowComparison,
    Sketch,
)
from freshet_serving.serving.front.model_control import ControlHandler, no_model_control
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.workers.channel import ChannelClosed, Message
from freshet_serving.serving.workers.frame_transfer import FrameSender, OutgoingFrame
from freshet_serving.serving.workers.worker_counts import Totals, add, trial_key
from freshet_serving.serving.workers.worker_pool import WorkerPool, WorkerProcess

log = logging.getLogger("freshet.fleet")

ANSWER_TIMEOUT_S = 300.0
ANSWER_AT_ONCE_S = 1.0
PREVIEW_TIMEOUT_S = 0.5
ABSENCE_TIMEOUT_S = 2.0
ABSENCE_POLL_S = 0.02
# Clients' changes and questions at once; those of one model wait for each other anyway.
CONTROLS = 4


class WorkerPoolHost(ModelHost):
    """Every model of a repository, answered by a fleet."""

    def __init__(
        self,
        config: ServeConfig,
        worker_pool: WorkerPool,
        scrape: Callable[[], bytes],
        control: ControlHandler = no_model_control,
        clock: Clock | None = None,
    ) -> None:
        """Starts the fleet; load_all() loads the models. scrape: renders the metrics that workers are asked for.
        control: does what their clients ask of the whole server."""
        clock, remote = clock or SystemClock(), config.remote()
        tables = RemoteTables.of(remote, clock) if remote else None
        opened = open_repository(
            config.repository, config.mirror, config.mirror_bytes, serving=True, models=config.models
        )
        repository = opened.with_keys(config.keyring())
        super().__init__(
            repository, config.models or None, config.undo_depth, clock, len(worker_pool), tables, config.budgets(),
            config.policies(), config.delta_guard, config.max_staleness_s,
        )  # fmt: skip
        self._worker_pool = worker_pool
        self._registry = threading.Lock()
        self._joined: tuple[WorkerProcess, ...] = ()
        self._replicas: dict[int, WorkerReplicas] = {}
        self._keys = itertools.count(1)
        self._publishing = threading.RLock()
        # Of suspects, apart from routes: who waits for a silent worker to take routes is not to keep this back.
        self._telling = threading.Lock()
        self._loaded = self._draining = False
        # How many versions had been condemned when a seat's process came.
        self._introduced: dict[int, int] = {}
        # Sessions of each worker, where they are not as at the start: by group, None for all.
        self._resized: dict[str | None, int] = {}
        self.totals = Totals()
        self._scrapes = standing_pool(1, "freshet-scrapes")
        self._controls = standing_pool(CONTROLS, "freshet-controls")
        self._readings = standing_pool(1, "freshet-readings")
        self._scrape, self._control = scrape, control
        worker_pool.start(self)

    # What a ModelHost leaves open.

    def connect(self, version: ServedVersion) -> WorkerReplicas:
        """See ModelHost.connect: every worker there is, and every one to come."""
        self._worker_pool.wait_complete()
        return WorkerReplicas(self, next(self._keys), version)

    def group_stats(self) -> dict[str, GroupStats]:
        """See ModelHost.group_stats: as last reported."""
        now: Any = {}
        for gauges in self.totals.gauges().values():
            now = add(now, gauges["groups"])
        work = self.totals.counters().get("groups", {})
        # Groups of the dead are still counted while nobody lives to report them.
        found = {}
        for name in {**work, **now}:
            sessions, queue_rows = now.get(name, (0, 0))
            found[name] = GroupStats(sessions, queue_rows, SessionStats(**work.get(name, {})))
        return found

    def resize(self, sessions: int, group: str | None = None) -> None:
        """See ModelHost.resize: of each worker, those to come as well."""
        with self._publishing:
            asked = self._ask_all("resize", {"sessions": sessions, "group": group})
            answered = 0
            for worker, answer in asked:
                try:
                    answer.result(ANSWER_TIMEOUT_S)
                    answered += 1
                except (ChannelClosed, TimeoutError):
                    self._worker_pool.reap(worker)
            if not answered:
                raise NotReady("workers: no process is up; try again")
            # The size of all groups takes back what was said of one.
            self._resized = {group: sessions} if group is None else {**self._resized, group: sessions}

    def lookups(self, version: ServedVersion) -> NDArray[np.int64]:
        """See ModelHost.lookups: as last reported."""
        counted = self._reported("lookups", version)
        return np.array(counted or np.zeros((max(1, len(version.manifest.tables)), 2)), np.int64)

    def sketch(self, version: ServedVersion) -> Sketch:
        """See ModelHost.sketch: as last reported."""
        return Sketch.from_json(len(version.manifest.outputs), self._reported("sketches", version))

    def canary_evidence(self, canary: ServedVersion, baseline: ServedVersion) -> CanaryEvidence:
        """See ModelHost.canary_evidence: as last reported."""
        counted = self.totals.counted("trials", trial_key(_key(canary), _key(baseline)))
        outputs = len(canary.manifest.outputs)
        return (
            CanaryEvidence(*(Sketch.from_json(outputs, side) for side in counted))
            if counted
            else CanaryEvidence.none(outputs)
        )

    def shadow_comparison(self, version: ServedVersion) -> ShadowComparison | None:
        """See ModelHost.shadow_comparison: as last reported."""
        counted = self._reported("shadows", version)
        if counted is None:
            return None
        differences = Sketch.from_json(len(version.manifest.outputs), counted["differences"])
        return ShadowComparison(differences, counted["dropped"])

    def remote_rows(self, version: ServedVersion) -> RemoteStats | None:
        """See ModelHost.remote_rows: as last reported."""
        counted = self._reported("remote", version)
        return RemoteStats(**counted) if counted else None

    def _reported(self, what: str, version: ServedVersion) -> Any:
        """What all processes have counted of a version; None for nothing."""
        return self.totals.counted(what, str(_key(version)))

    def on_routes_changed(self) -> None:
        """See ModelHost.on_routes_changed: every worker has the new routes when this returns."""
        with self._publishing:
            for worker, answer in self._ask_all("routes", self._routes()):
                try:
                    answer.result(ANSWER_TIMEOUT_S)
                except (ChannelClosed, TimeoutError):
                    self._worker_pool.reap(worker)

    @property
    def ready(self) -> bool:
        """See ModelHost.ready; and every seat has been up, a worker is, and none is silent."""
        return self._routed and not self._worker_pool.suspects() and not self.stale

    @property
    def _routed(self) -> bool:
        """Readiness as far as routes tell of it; of suspects and of age workers are told apart."""
        return self.answering and self._worker_pool.complete and bool(self._worker_pool.available())

    def load_all(self, strict: bool = False) -> None:
        """See ModelHost.load_all; every worker is up when it returns."""
        super().load_all(strict)
        self._worker_pool.wait_complete()

    def opened(self) -> None:
        """Makes the workers answer predictions."""
        self._loaded = True
        self.on_routes_changed()

    def info(self) -> dict[str, Any]:
        """See ModelHost.info; with the workers and the sessions of them all, as they report now."""
        self.refresh()
        groups = {
            name: {"sessions": group.sessions, "queue_rows": group.queue_rows}
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
        """Each worker's process, connections and restarts."""
        return self._worker_pool.info()

    def drain(self) -> None:
        """Makes every worker say that it is unready, and serve on. Routes, which say it too, wait for whoever changes
        them, and for every worker, of which one may be stopped: an end waits for neither."""
        self._draining = True
        _wait(self._ask_all("drain", {}, self._worker_pool.responsive()))

    def close(self) -> None:
        """The fleet has ended; later calls raise NotReady."""
        super().close()
        # What they do may wait for a change that hangs.
        for pool in (self._scrapes, self._controls, self._readings):
            pool.shutdown(wait=False, cancel_futures=True)

    # What a Fleet asks of its owner.

    def initialize_worker(self, worker: WorkerProcess) -> None:
        """See fleet.Owner."""
        self._introduced[worker.slot] = self.corruption_unloads
        with self._registry:
            self._joined = (*self._joined, worker)
            there = list(self._replicas.values())
        for replicas in there:
            replicas.bring(worker)
        with self._publishing:
            for group, sessions in self._resized.items():
                worker.ask("resize", {"sessions": sessions, "group": group}).result(ANSWER_TIMEOUT_S)
            worker.ask("routes", self._routes()).result(ANSWER_TIMEOUT_S)
            self._worker_pool.mark_available(worker)
            self.on_suspects_changed()
            # The others may have become ready by this one.
            self.on_routes_changed()

    def on_exit(self, worker: WorkerProcess) -> None:
        """See fleet.Owner."""
        with self._registry:
            self._joined = tuple(w for w in self._joined if w is not worker)
            there = list(self._replicas.values())
        for replicas in there:
            replicas.on_exit(worker)
        self.totals.on_exit(worker.slot)

    def on_crash(self, slot: int, signal: str) -> None:
        """See fleet.Owner. A worker that dies of SIGBUS has touched a page that is gone: of a file that was cut short,
        which its size says, or one that the disk cannot read any more, which only reading all of them says."""
        report(log, self.examine())
        # Whoever has noticed it: another seat's process may have died of the same file.
        if signal == "SIGBUS" and self.corruption_unloads == self._introduced.get(slot, 0):
            log.error("no mapped file has changed: all of them are read")
            self._readings.submit(lambda: report(log, self.examine([BYTES])))

    def on_message(self, worker: WorkerProcess, message: Message) -> None:
        """See fleet.Owner."""
        if message["op"] == "report":
            self.totals.reported(worker.slot, message["report"])
        elif message["op"] == "scrape":
            self._scrapes.submit(self._answer_scrape, worker, message["id"])
        elif message["op"] == "control":
            self._controls.submit(self._answer_control, worker, message)

    def on_suspects_changed(self) -> None:
        """See fleet.Owner: the others say it of the whole server, for whoever keeps a connection to a suspect hangs.
        So do all of them when what is served is too old."""
        with self._telling:
            worker_slots = self._worker_pool.suspects()
            for worker in self._worker_pool.responsive():
                with contextlib.suppress(ChannelClosed):
                    worker.tell("unready", {"seats": worker_slots, "stale": self.stale, "concerns": self.concerns})

    def on_staleness_changed(self, stale: str) -> None:
        """See ModelHost.on_staleness_changed."""
        self.on_suspects_changed()

    # Reports.

    def refresh(self) -> None:
        """Makes every worker report anew; those that do not answer at once stand as they last reported."""
        _wait(self._ask_all("report", {}, self._worker_pool.responsive()))

    def _answer_scrape(self, worker: WorkerProcess, number: int) -> None:
        try:
            text = self._scrape().decode()
        except Exception:
            log.exception("the metrics could not be rendered")
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

    # What its replicas need.

    def register(self, replicas: WorkerReplicas) -> tuple[WorkerProcess, ...]:
        """Notes a version that is about to be opened; returns the workers that are to open it now. Raises NotReady."""
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
        """Asks these workers; None for every one that answers requests."""
        asked = []
        for worker in self._worker_pool.available() if workers is None else workers:
            try:
                asked.append((worker, worker.ask(op, message)))
            except ChannelClosed:
                continue
        return asked

    def _routes(self) -> Message:
        """Everything that workers route by, as it is now."""
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
        return {"models": models, **flags}


def _wait(asked: list[tuple[WorkerProcess, Future[Message]]]) -> None:
    """Waits for the answers, but not for long."""
    give_up_s = time.monotonic() + ANSWER_AT_ONCE_S
    for _, answer in asked:
        with contextlib.suppress(ChannelClosed, TimeoutError):
            answer.result(max(0.0, give_up_s - time.monotonic()))


def _key(version: ServedVersion) -> int:
    """What workers know a version by."""
    replicas = version.replicas
    assert isinstance(replicas, WorkerReplicas), "connect() made them"
    return replicas.key


class WorkerReplicas:
    """processor.versions.replica.Replicas: a version's replicas in all workers. Methods run under the version's lock,
    but for on_exit(), cost, computes and user_split_thresholds."""

    def __init__(self, host: WorkerPoolHost, key: int, version: ServedVersion) -> None:
        """key: what workers know the version by."""
        self.key, self._host = key, host
        # The version holds these, not they the version: the collector never looks again at what was loaded at a start,
        # so what holds itself would stay for ever, and its files mapped.
        self._version, self._control = weakref.ref(version), version.control
        self._sender = FrameSender(version.files, version.control)
        self._held: dict[WorkerProcess, frozenset[int]] = {}
        self._settled: OutgoingFrame | None = None

    @property
    def cost(self) -> Mapping[int, float]:
        """See Replicas.cost: as last reported, the mean over the workers."""
        found: dict[int, list[float]] = {}
        for gauges in self._host.totals.gauges().values():
            for bucket, cost in gauges["costs"].get(str(self.key), []):
                found.setdefault(bucket, []).append(cost)
        return {bucket: sum(costs) / len(costs) for bucket, costs in sorted(found.items())}

    @property
    def computes(self) -> Mapping[int, str]:
        """See Replicas.computes: as a worker last reported; all come to the same."""
        every = (gauges["computes"].get(str(self.key)) for gauges in self._host.totals.gauges().values())
        return dict(next((told for told in every if told), []))

    @property
    def user_split_thresholds(self) -> Sequence[int]:
        """See Replicas.user_split_thresholds: as a worker last reported; each settles it by runs of its own."""
        every = (gauges["parts_turns"].get(str(self.key)) for gauges in self._host.totals.gauges().values())
        return next((turns for turns in every if turns), ())

    def prepare(self, frame: Frame) -> None:
        """See Replicas.prepare; raises NotReady when there is no worker at all."""
        if self._settled is None:
            self._open(frame)
            return
        self._offer(self._sender.number(frame), list(self._held))

    def preview(
        self, frame: int, epoch: int, generation: Generation, max_rows: int, max_s: float
    ) -> PreviewResult | None:
        """See Replicas.preview: by the first worker that can tell."""
        asked = {"frame": frame, "epoch": epoch, "step": generation.step, "digest": generation.digest}
        for worker in list(self._held):
            try:
                answer = worker.ask("preview", {"version": self.key, **asked, "rows": max_rows, "seconds": max_s})
                told = answer.result(PREVIEW_TIMEOUT_S + max_s)["preview"]
            except (ChannelClosed, TimeoutError):
                continue
            if told is not None:
                rows, seconds, figures = told
                return PreviewResult(rows, seconds, [Figure(*figure) for figure in figures])
        return None

    def example(self) -> Mapping[str, Column | str] | None:
        """See Replicas.example: of the first worker that has one."""
        for worker in list(self._held):
            try:
                answer = worker.ask("example", {"version": self.key})
                if found := answer.result(PREVIEW_TIMEOUT_S)["example"]:
                    return dict(found)
            except (ChannelClosed, TimeoutError):
                continue
        return None

    def forget(self, frame: int, last: int | None = None) -> None:
        """See Replicas.forget."""
        self._tell("forget", {"frame": frame, "last": last})

    def close(self) -> None:
        """See Replicas.close."""
        self._host.unregister(self)
        self._tell("close", {})
        self._held, self._settled = {}, None

    def bring(self, worker: WorkerProcess) -> None:
        """Gives a new worker the version as it stands; raises Gone or FreshetError when that cannot be."""
        version = self._version()
        if version is None:
            return
        with version.lock:
            if self._settled is not None:
                # What was prepared last may never have been served: what is served is what it needs.
                served = self._sender.number(version.change.frame)
                for answer in self._ask(worker, served):
                    answer.result(ANSWER_TIMEOUT_S)
                self._held[worker] = served.numbers

    def on_exit(self, worker: WorkerProcess) -> None:
        """The process is dead; called without the lock."""
        self._control.clear(worker.slot)
        self._held.pop(worker, None)

    def _open(self, frame: Frame) -> None:
        """The first frame, for every worker that has joined."""
        workers = self._host.register(self)
        try:
            self._offer(self._sender.number(frame), workers)
        except BaseException:
            self.close()
            raise

    def _offer(self, outgoing: OutgoingFrame, workers: Iterable[WorkerProcess]) -> None:
        """Asks all workers at once whether they can serve the frame."""
        asked = []
        for worker in workers:
            try:
                held = self._held.get(worker)
                asked.append((worker, held, self._ask(worker, outgoing)))
            except ChannelClosed:
                self._lose(worker)
        refused: FreshetError | None = None
        for worker, held, answers in asked:
            try:
                for answer in answers:
                    answer.result(ANSWER_TIMEOUT_S)
            except (ChannelClosed, TimeoutError):
                self._lose(worker)
            except FreshetError as error:
                refused = error
                if held is not None:
                    self._held[worker] = held
            else:
                self._held[worker] = outgoing.numbers
        if refused is not None:
            raise refused
        if not self._held:
            raise NotReady("workers: no process is up; try again")
        self._settled = outgoing
        self._sender.settle(outgoing)

    def _ask(self, worker: WorkerProcess, outgoing: OutgoingFrame) -> list[Future[Message]]:
        """Has a worker prepare the frame, opening the version first where it has never heard of it."""
        asked, held = [], self._held.get(worker)
        if held is not None:
            # Until it has answered nobody knows what it holds, nor ever does where that answer is not taken.
            self._held[worker] = frozenset()
        if held is None:
            message, fds = self._sender.opening(worker.slot)
            asked.append(worker.ask("open", {**message, "version": self.key}, fds))
        message, fds = self._sender.message(outgoing, held or frozenset())
        asked.append(worker.ask("frame", {**message, "version": self.key, "first": held is None}, fds))
        return asked

    def _tell(self, op: str, message: Message) -> None:
        for worker in list(self._held):
            try:
                worker.tell(op, {**message, "version": self.key})
            except ChannelClosed:
                self._lose(worker)

    def _lose(self, worker: WorkerProcess) -> None:
        """A worker that is gone, or may as well be, reads nothing any more."""
        self._host.reap(worker)
        self._held.pop(worker, None)
