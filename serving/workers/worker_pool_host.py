"""Host the supervisor's models: it writes them, and worker processes read them.

A WorkerPoolHost is a ModelHost that answers no requests itself: connect() gives a version to every worker. It rules
out:

- A frame that some worker cannot serve. prepare() asks all workers at once and returns when each has acknowledged; the
  version's one store to its control words, which all of them map, comes after that. If one refuses, the frame is
  refused for all; one that has gone is reaped, so certainly dead, before the store is made. A flip within the current
  frame asks no worker: all of it is in the control words.
- A worker that misses a frame. A new process first joins, then receives every existing version, each under that
  version's lock at its current frame; later versions count it among their replicas from the start. Routes come last,
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
import weakref
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock, SystemClock
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import BYTES, open_repository
from freshet_serving.processor.standby_thread import standing_pool
from freshet_serving.processor.tables.remote_rows import open_remote_tables
from freshet_serving.processor.versions.failed_versions import report
from freshet_serving.processor.versions.host import ModelHost
from freshet_serving.processor.versions.overview import describe
from freshet_serving.processor.versions.replica import Frame
from freshet_serving.processor.versions.row_scoring import parse_scores
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import (
    Figure,
    GroupStats,
    PreviewResult,
    RequestScores,
    SessionStats,
    Sketch,
)
from freshet_serving.serving.front.model_control import ControlHandler, no_model_control
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.workers.channel import ChannelClosed, Message
from freshet_serving.serving.workers.frame_transfer import FrameSender, OutgoingFrame
from freshet_serving.serving.workers.worker_counts import Totals, add, evidence_key, observed
from freshet_serving.serving.workers.worker_pool import WorkerPool, WorkerProcess

log = logging.getLogger("freshet.fleet")

ANSWER_TIMEOUT_S = 300.0
ANSWER_AT_ONCE_S = 1.0
PREVIEW_TIMEOUT_S = 0.5
SCORE_TIMEOUT_S = 2.0
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
        clock: Clock | None = None,
    ) -> None:
        """Start the worker pool; load_all() loads the models.

        Args:
            config: Options of the server.
            worker_pool: The pool, not yet started.
            scrape: Renders the metrics that clients request from workers.
            control: Performs the control operations that clients request from workers.
            clock: The system's by default.
        """
        clock, remote = clock or SystemClock(), config.remote()
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
        worker_pool.start(self)

    # What ModelHost leaves to subclasses.

    def connect(self, version: ServedVersion) -> WorkerReplicas:
        """Connect all workers, present and future, to a version."""
        self._worker_pool.wait_complete()
        return WorkerReplicas(self, next(self._keys), version)

    def group_stats(self) -> dict[str, GroupStats]:
        """Return the statistics of each session group, as last reported."""
        now: Any = {}
        for gauges in self.totals.gauges().values():
            now = add(now, gauges["groups"])
        work = self.totals.counters().get("groups", {})
        # Groups of dead workers still count while no living worker reports them.
        found = {}
        for name in {**work, **now}:
            sessions, queue_rows = now.get(name, (0, 0))
            found[name] = GroupStats(sessions, queue_rows, SessionStats(**work.get(name, {})))
        return found

    def resize(self, sessions: int, group: str | None = None) -> None:
        """Resize the sessions of each worker, present and future.

        Args:
            sessions: Sessions in each worker's group.
            group: Name of the group; None for all.
        """
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
            # A size for all groups replaces sizes set for single ones.
            self._resized = {group: sessions} if group is None else {**self._resized, group: sessions}

    def lookups(self, version: ServedVersion) -> NDArray[np.int64]:
        """Return the lookup counts of a version, as last reported."""
        counted = self._reported("lookups", version)
        return np.array(counted or np.zeros((max(1, len(version.manifest.tables)), 2)), np.int64)

    def sketch(self, version: ServedVersion) -> Sketch:
        """Return the score sketch of a version, as last reported."""
        return Sketch.from_json(len(version.manifest.outputs), self._reported("sketches", version))

    def evidence(self, observer: str, *versions: ServedVersion) -> Any:
        """Return what an observer has counted about versions, as last reported.

        Args:
            observer: Name of the observer.
            versions: The versions.
        """
        return self.totals.counted(observed(observer), evidence_key([_key(version) for version in versions]))

    def remote_rows(self, version: ServedVersion) -> Mapping[str, float] | None:
        """Return the statistics of rows in the remote store, as last reported."""
        counters: Mapping[str, float] | None = self._reported("remote", version)
        return counters or None

    def input_lookups(self, version: ServedVersion) -> dict[str, Any] | None:
        """Return the counters of lookups of inputs, as last reported."""
        return self._reported("features", version) or None

    def _reported(self, what: str, version: ServedVersion) -> Any:
        """Return the sum of a version's counts over all processes; None if there is none."""
        return self.totals.counted(what, str(_key(version)))

    def on_routes_changed(self) -> None:
        """Send the new routes to every worker; all have them when this returns."""
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
        """Readiness as sent with the routes; suspects and staleness are sent separately."""
        return self.answering and self._worker_pool.complete and bool(self._worker_pool.available())

    def load_all(self, strict: bool = False) -> None:
        """Load all models; every worker is up when this returns."""
        super().load_all(strict)
        self._worker_pool.wait_complete()

    def opened(self) -> None:
        """Have the workers answer predictions."""
        self._loaded = True
        self.on_routes_changed()

    def info(self) -> dict[str, Any]:
        """Return the state of models, workers and sessions, as the workers report now."""
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
        """Return the process, connections and restarts of each worker."""
        return self._worker_pool.info()

    def drain(self) -> None:
        """Have every worker report itself unready and continue to serve.

        Routes also carry that flag, but they wait for other changes of routes and for every worker, and one may be
        stopped: shutdown must wait for neither.
        """
        self._draining = True
        _wait(self._ask_all("drain", {}, self._worker_pool.responsive()))

    def close(self) -> None:
        """Close the host after the pool has ended; later calls raise NotReady."""
        super().close()
        # Their tasks may wait for a change that hangs.
        for pool in (self._scrapes, self._controls, self._readings):
            pool.shutdown(wait=False, cancel_futures=True)

    # The interface WorkerListener.

    def initialize_worker(self, worker: WorkerProcess) -> None:
        """Give a new process every version and the routes, then mark it available."""
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
            # The server may have become ready through this worker.
            self.on_routes_changed()

    def on_exit(self, worker: WorkerProcess) -> None:
        """Release what the dead process held."""
        with self._registry:
            self._joined = tuple(w for w in self._joined if w is not worker)
            there = list(self._replicas.values())
        for replicas in there:
            replicas.on_exit(worker)
        self.totals.on_exit(worker.slot)

    def on_crash(self, slot: int, signal: str) -> None:
        """Check files before the slot gets another process.

        A worker ended by SIGBUS has touched a page that does not exist. The file was truncated, which its size shows,
        or the disk cannot read it any more, which only reading all files shows.

        Args:
            slot: Number of the slot.
            signal: Name of the signal that ended the process, or "" if it is not known.
        """
        report(log, self.examine())
        # Compare with the count at initialization: another slot's process may have died of the same file.
        if signal == "SIGBUS" and self.corruption_unloads == self._introduced.get(slot, 0):
            log.error("no mapped file has changed its size: reading all of them to find the damaged one")
            self._readings.submit(lambda: report(log, self.examine([BYTES])))

    def on_message(self, worker: WorkerProcess, message: Message) -> None:
        """Handle a worker's report, scrape or control request.

        Args:
            worker: The process.
            message: The message.
        """
        if message["op"] == "report":
            self.totals.reported(worker.slot, message["report"])
        elif message["op"] == "scrape":
            self._scrapes.submit(self._answer_scrape, worker, message["id"])
        elif message["op"] == "control":
            self._controls.submit(self._answer_control, worker, message)

    def on_suspects_changed(self) -> None:
        """Tell the responsive workers which slots are suspect and whether the served versions are too old.

        They report the whole server as unready, because clients that keep a connection to a suspect hang.
        """
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

    # Used by WorkerReplicas.

    def register(self, replicas: WorkerReplicas) -> tuple[WorkerProcess, ...]:
        """Register a version that is about to be opened.

        Returns:
            The workers that are to open it now.

        Raises:
            NotReady: No process is up.
        """
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
        asked = []
        for worker in self._worker_pool.available() if workers is None else workers:
            try:
                asked.append((worker, worker.ask(op, message)))
            except ChannelClosed:
                continue
        return asked

    def _routes(self) -> Message:
        """Return everything that workers need for routing, as it is now."""
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


def _wait(asked: list[tuple[WorkerProcess, Future[Message]]]) -> None:
    """Wait for the answers, at most ANSWER_AT_ONCE_S."""
    give_up_s = time.monotonic() + ANSWER_AT_ONCE_S
    for _, answer in asked:
        with contextlib.suppress(ChannelClosed, TimeoutError):
            answer.result(max(0.0, give_up_s - time.monotonic()))


def _key(version: ServedVersion) -> int:
    """Return the key by which workers know a version."""
    replicas = version.replicas
    assert isinstance(replicas, WorkerReplicas), "connect() created them"
    return replicas.key


class WorkerReplicas:
    """A version's replicas in all workers: implements processor.versions.replica.Replicas.

    Methods run under the version's lock, except on_exit(), cost, computes and user_split_thresholds.
    """

    def __init__(self, host: WorkerPoolHost, key: int, version: ServedVersion) -> None:
        """Prepare to send a version to workers.

        Args:
            host: The host of the models.
            key: Key by which workers know the version.
            version: The version.
        """
        self.key, self._host = key, host
        # A weak reference: the version holds this object, and the collector ignores what was loaded at start, so a
        # cycle would never be freed and its files would stay mapped.
        self._version, self._control = weakref.ref(version), version.control
        self._sender = FrameSender(version.files, version.control)
        self._held: dict[WorkerProcess, frozenset[int]] = {}
        self._settled: OutgoingFrame | None = None

    @property
    def cost(self) -> Mapping[int, float]:
        """Measured cost by bucket, as last reported: the mean over the workers."""
        found: dict[int, list[float]] = {}
        for gauges in self._host.totals.gauges().values():
            for bucket, cost in gauges["costs"].get(str(self.key), []):
                found.setdefault(bucket, []).append(cost)
        return {bucket: sum(costs) / len(costs) for bucket, costs in sorted(found.items())}

    @property
    def computes(self) -> Mapping[int, str]:
        """Backend and precision by bucket, as a worker last reported them; they are the same in all."""
        every = (gauges["computes"].get(str(self.key)) for gauges in self._host.totals.gauges().values())
        return dict(next((computes for computes in every if computes), []))

    @property
    def user_split_thresholds(self) -> Sequence[int]:
        """Thresholds of the user/candidate split, as one worker last reported them; each worker measures its own."""
        every = (gauges["parts_turns"].get(str(self.key)) for gauges in self._host.totals.gauges().values())
        return next((turns for turns in every if turns), ())

    def prepare(self, frame: Frame) -> None:
        """Have all workers prepare a frame; raise NotReady when there is no worker at all."""
        if self._settled is None:
            self._open(frame)
            return
        self._offer(self._sender.number(frame), list(self._held))

    def preview(
        self, frame: int, epoch: int, generation: Generation, max_rows: int, max_s: float
    ) -> PreviewResult | None:
        """Return the preview of the first worker that has one.

        Args:
            frame: Number of the prepared frame.
            epoch: Epoch whose rows are staged.
            generation: The generation that is previewed.
            max_rows: Rows that a worker scores at most.
            max_s: Seconds that a worker spends at most.
        """
        asked = {"frame": frame, "epoch": epoch, "step": generation.step, "digest": generation.digest}
        for worker in list(self._held):
            try:
                answer = worker.ask("preview", {"version": self.key, **asked, "rows": max_rows, "seconds": max_s})
                reply = answer.result(PREVIEW_TIMEOUT_S + max_s)["preview"]
            except (ChannelClosed, TimeoutError):
                continue
            if reply is not None:
                rows, seconds, figures = reply
                return PreviewResult(rows, seconds, [Figure(*figure) for figure in figures])
        return None

    def kept(self) -> bytes:
        """Return the kept requests of the worker that has most."""
        kept = b""
        for worker in list(self._held):
            with contextlib.suppress(ChannelClosed, TimeoutError):
                answer = worker.ask("kept", {"version": self.key})
                kept = max(kept, b64decode(answer.result(PREVIEW_TIMEOUT_S)["kept"]), key=len)
        return kept

    def remember(self, requests: bytes) -> None:
        """Have every worker keep the requests."""
        self._tell("remember", {"requests": b64encode(requests).decode()})

    def score(self, requests: bytes, max_s: float) -> RequestScores | None:
        """Return the scores of the first worker that answers.

        Args:
            requests: The kept requests.
            max_s: Seconds that a worker spends at most.
        """
        asked = {"version": self.key, "requests": b64encode(requests).decode(), "seconds": max_s}
        for worker in list(self._held):
            with contextlib.suppress(ChannelClosed, TimeoutError):
                scores = worker.ask("score", asked).result(SCORE_TIMEOUT_S + max_s)["scores"]
                return None if scores is None else parse_scores(b64decode(scores))
        return None

    def example(self) -> Mapping[str, Column | str] | None:
        """Return the example of the first worker that has one."""
        for worker in list(self._held):
            try:
                answer = worker.ask("example", {"version": self.key})
                if found := answer.result(PREVIEW_TIMEOUT_S)["example"]:
                    return dict(found)
            except (ChannelClosed, TimeoutError):
                continue
        return None

    def forget(self, frame: int, last: int | None = None) -> None:
        self._tell("forget", {"frame": frame, "last": last})

    def close(self) -> None:
        """Close the version in all workers."""
        self._host.unregister(self)
        self._tell("close", {})
        self._held, self._settled = {}, None

    def bring(self, worker: WorkerProcess) -> None:
        """Give a new worker the version as it stands.

        Raises:
            ChannelClosed: The worker has gone.
            FreshetError: It cannot serve the version.
        """
        version = self._version()
        if version is None:
            return
        with version.lock:
            if self._settled is not None:
                # The frame prepared last may never have been served; the worker needs the served one.
                served = self._sender.number(version.change.frame)
                for answer in self._ask(worker, served):
                    answer.result(ANSWER_TIMEOUT_S)
                self._held[worker] = served.numbers

    def on_exit(self, worker: WorkerProcess) -> None:
        """Release what a dead process held; called without the lock."""
        self._control.clear(worker.slot)
        self._held.pop(worker, None)

    def _open(self, frame: Frame) -> None:
        """Offer the first frame to every worker that has joined."""
        workers = self._host.register(self)
        try:
            self._offer(self._sender.number(frame), workers)
        except BaseException:
            self.close()
            raise

    def _offer(self, outgoing: OutgoingFrame, workers: Iterable[WorkerProcess]) -> None:
        """Ask all workers at once to prepare the frame; raise a refusal."""
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
        """Ask a worker to prepare the frame, after opening the version if it does not have it yet."""
        asked, held = [], self._held.get(worker)
        if held is not None:
            # Until it answers, its arrays are unknown, and they stay unknown if the answer is not read.
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
        """Reap a worker that has gone or does not answer."""
        self._host.reap(worker)
        self._held.pop(worker, None)
