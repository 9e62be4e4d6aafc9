"""The supervisor's worker processes: spawned, spoken to, buried, replaced.

A seat is a worker's place: its number, its words in every version's control block. One process at a time lives in it.

Threads: `freshet-seat-n` leads the life of a seat: spawn, introduce, watch, bury, spawn again; `freshet-ear-n` receives
what its process says. Whoever meets a process that is gone buries it, and waits until that is done.

Invariants
- A process is buried once: killed, waited for, and only then are its pins taken back, its count of requests kept and
  its seat free. So no pin is cleared that a live process could rely on, and no flip is published that a process which
  did not prepare it could still meet.
- A connection is handed to a process that has been introduced: it has every version and the routes.
- A process that had more than its share of the connections at two looks gives those up, each with a reply that says so,
  and no request is lost. So one that is new gets its share of what there is.
- A seat whose process keeps dying is tried again later and later; the others do not notice.
- A process has no more connections than its descriptors allow (serving.front.resource_limits). With all of them full
  nobody is handed anything: newcomers wait in the listener's queue.
- A process that shows no life for SUSPECT_S is a suspect: it gets no connections, and the server is not ready, until it
  is heard again. It may be stopped, or the machine be out of memory: nothing is taken from it, and it is killed only
  after SILENCE_TIMEOUT_S. Two looks are needed, so that a supervisor that was itself stopped suspects nobody.
- A process hangs that has shown no life for SILENCE_TIMEOUT_S: neither a message nor a beat (its word on the board,
  which counts up with every bucket that it runs and while its loop turns). One that computes for long without turning
  its loop beats and is left alone; one that was stopped by a signal does neither. Of those that hang one is killed at a
  time: the next when its successor answers, or has not come within START_TIMEOUT_S. What stops all of them at once
  (a machine that swaps, one bucket that takes a minute) does not take all of them down.
- A seat gets another process only after its owner has been told what the last one died of: what killed it may be there
  still (a mapped file that was cut short), and is served no more by then.

Connections are accepted here and handed to the worker that has the fewest, by SCM_RIGHTS. Measured on 2 cores with 2
workers against workers that share the listening socket, or that listen by SO_REUSEPORT: docs/concepts/workers.md.

Refused: fork (the supervisor has threads; see nursery), multiprocessing (pickle, and a resource tracker process), a
worker's own accept queue (what waits in it dies with it).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.memory import reserve, share
from freshet_serving.processor.tables.remote.settings import RemoteConfig
from freshet_serving.serving.access.credentials import DATA_PLACE, Credentials
from freshet_serving.serving.access.rate_limiter import clear_process, rate_limiter_memory
from freshet_serving.serving.front.resource_limits import ConnectionLimits
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.workers.array_packing import ArrayPacker
from freshet_serving.serving.workers.channel import Channel, ChannelClosed, Message, refusal
from freshet_serving.serving.workers.fork_server import ForkServer

log = logging.getLogger("freshet.fleet")

START_TIMEOUT_S = 60.0
SILENCE_TIMEOUT_S = 30.0
SILENCE_CHECK_S = 0.5
# A process beats four times a second.
LATE_S, SUSPECT_S = 1.0, 2.0
# What /proc says of a process.
STATES = {"R": "running", "S": "asleep", "D": "waiting for a disk", "T": "stopped by a signal", "t": "being debugged"}
HEALTHY_S = 10.0
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 10.0
END_MARGIN_S = 5.0


class WorkerListener(Protocol):
    """The owner of a fleet, who tells workers what they are for."""

    def initialize_worker(self, worker: WorkerProcess) -> None:
        """Gives a new process every version and the routes, then WorkerPool.mark_available()s it; raises Gone or
        FreshetError."""

    def on_exit(self, worker: WorkerProcess) -> None:
        """The process is dead and its seat about to be free."""

    def on_crash(self, slot: int, signal: str) -> None:
        """The process of a seat has died unasked; called with no lock, before the seat gets another. signal: its name,
        "" where it is not known."""

    def on_message(self, worker: WorkerProcess, message: Message) -> None:
        """Something that a process says unasked."""

    def on_suspects_changed(self) -> None:
        """WorkerPool.suspects() are others than before."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings a worker is started with. session_options: see ServeConfig. grpc_address: reserved for all of them."""

    front: FrontendOptions
    session_options: dict[str, Any]
    remote: RemoteConfig | None
    grpc_address: str

    def message(self) -> Message:
        """The settings as the message that Worker reads."""
        return asdict(self)


MessageHandler = Callable[["WorkerProcess", Message], None]


class WorkerProcess:
    """One worker's process and the talk with it. Thread-safe."""

    def __init__(
        self,
        fork_server: ForkServer,
        slot: int,
        message: Message,
        fds: Sequence[int],
        on_message: MessageHandler,
        beats: Callable[[], int],
    ) -> None:
        """Spawns it; raises Gone. message, fds: its settings. heard: called with what it says unasked. beats: how often
        it has shown that it gets on."""
        self.slot = slot
        self.handed = 0
        self.hello: Future[None] = Future()
        self.gone = threading.Event()
        self.heard_s = self._moved_s = time.monotonic()
        self._beats, self._seen = beats, 0
        self._on_message = on_message
        self._lock = threading.Lock()
        self._asked: dict[int, Future[Message]] = {}
        self._numbers = itertools.count(1)
        self._reap_lock = threading.Lock()
        self._reaped = False
        self._channel, there = Channel.pair()
        try:
            with there:
                self._process = fork_server.fork(there)
        except ChannelClosed:
            self._channel.close()
            raise
        self._ear = threading.Thread(target=self._listen, name=f"freshet-ear-{slot}", daemon=True)
        self._ear.start()
        self.tell("settings", message, fds)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def signal(self) -> str:
        """The name of the signal that ended it, once it is buried; "" where that is not known."""
        return self._process.signal

    @property
    def up(self) -> bool:
        """Whether it has got so far that it hears what it is told."""
        return self.hello.done() and self.hello.exception() is None

    def heartbeat_age_s(self) -> float:
        """Seconds since it has shown life: said something, or got on. As exact as this is asked often."""
        beats, now_s = self._beats(), time.monotonic()
        if beats != self._seen:
            self._seen, self._moved_s = beats, now_s
        return now_s - max(self.heard_s, self._moved_s)

    def tell(self, op: str, message: Message | None = None, fds: Sequence[int] = ()) -> None:
        """Says something that needs no answer; raises Gone."""
        self._channel.send({**(message or {}), "op": op}, fds)

    def ask(self, op: str, message: Message | None = None, fds: Sequence[int] = ()) -> Future[Message]:
        """Asks; the future brings the answer, the FreshetError that it refused with, or Gone."""
        answer: Future[Message] = Future()
        number = next(self._numbers)
        with self._lock:
            if self.gone.is_set():
                raise ChannelClosed("the worker has gone")
            self._asked[number] = answer
        self._channel.send({**(message or {}), "op": op, "id": number}, fds)
        return answer

    def hand_off(self, connection: socket.socket) -> bool:
        """Hands over an accepted connection, which stays the caller's to close; False when that would wait."""
        try:
            handed = self._channel.send_nowait({"op": "adopt"}, [connection.fileno()])
        except ChannelClosed:
            return False
        self.handed += handed
        return handed

    def reap(self, on_death: Callable[[WorkerProcess], None]) -> None:
        """Makes sure that the process is dead; then calls on_death, once, whoever buries it first."""
        with self._reap_lock:
            if self._reaped:
                return
            self._process.kill()
            self._process.wait()
            self._leave()
            self._ear.join()
            self._channel.close()
            on_death(self)
            self._reaped = True

    def wait(self, timeout_s: float) -> bool:
        """Whether the process has ended by itself within that time."""
        return self._process.wait(timeout_s)

    def _listen(self) -> None:
        try:
            while True:
                received = self._channel.receive()
                assert received is not None, "a blocking receive brings a message"
                message, fds = received
                for fd in fds:
                    os.close(fd)
                self.heard_s = time.monotonic()
                if message["op"] == "reply":
                    self._answered(message)
                elif message["op"] == "hello":
                    self.hello.set_result(None)
                else:
                    self._on_message(self, message)
        except ChannelClosed:
            self._leave()
        except BaseException:
            # Nobody hears it any more (there may be no memory to hear with): who cannot be asked is replaced.
            self._process.kill()
            self._leave()
            raise

    def _answered(self, message: Message) -> None:
        with self._lock:
            answer = self._asked.pop(message["id"], None)
        if answer is None:
            return
        if "error" in message:
            answer.set_exception(refusal(*message["error"]))
        else:
            answer.set_result(message)

    def _leave(self) -> None:
        """Nobody waits for an answer any more."""
        with self._lock:
            self.gone.set()
            asked, self._asked = self._asked, {}
        for answer in asked.values():
            answer.set_exception(ChannelClosed("the worker has gone"))
        if not self.hello.done():
            self.hello.set_exception(ChannelClosed("the worker has gone before it was up"))


class WorkerSlot:
    """A worker's place. offered: whether its process answers requests. suspect: whether it seems not to, now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: WorkerProcess | None = None
        self.available = False
        self.suspect = False
        self.been_up = False
        self.restarts = 0
        self.died_of = ""


class WorkerPool:
    """The fleet: as many workers as there are seats."""

    def __init__(
        self,
        count: int,
        settings: WorkerSettings,
        fork_server: ForkServer | None = None,
        rate_limits: NDArray[np.uint8] | None = None,
    ) -> None:
        """nursery: one that has been started already. meters: of whoever comes (serving.access.rate_limiter)."""
        self.settings = settings
        self._rate_limits = rate_limiter_memory(DATA_PLACE + count) if rate_limits is None else rate_limits
        (self._meters_handle,) = share([self._rate_limits], "meters")
        self._credentials = Credentials(-1, {})
        self._slots = [WorkerSlot(n) for n in range(count)]
        self._board = reserve(3 * count * 8, "seats").view(np.int64)[: 3 * count].reshape(3, count)
        self._ended, self._computing, self._beats = self._board
        (self._board_handle,) = share([self._board], "seats")
        self._owner: WorkerListener | None = None
        self._fork_server = fork_server or ForkServer()
        # Workers have the limits of the process that started them.
        self._most = ConnectionLimits.here().http
        self._ending = threading.Event()
        self._changed = threading.Condition()
        self._turn = 0
        # The last one that was killed because it hung, and when.
        self._hung: tuple[WorkerProcess, float] | None = None
        self._threads = [
            threading.Thread(target=self._supervise, args=(slot,), name=f"freshet-seat-{slot.number}", daemon=True)
            for slot in self._slots
        ]

    def __len__(self) -> int:
        return len(self._slots)

    def start(self, owner: WorkerListener) -> None:
        """Spawns the workers."""
        self._owner = owner
        for thread in self._threads:
            thread.start()

    def mark_available(self, worker: WorkerProcess) -> None:
        """Offers the worker, which gets connections from now on."""
        slot = self._slots[worker.slot]
        with self._changed:
            slot.available = slot.been_up = True
            self._changed.notify_all()
        log.info("worker %d is up, process %d", worker.slot, worker.pid)

    def available(self) -> list[WorkerProcess]:
        """Workers that answer requests."""
        with self._changed:
            return [s.worker for s in self._slots if s.available and s.worker is not None]

    def responsive(self) -> list[WorkerProcess]:
        """Workers that answer requests, without the suspects."""
        with self._changed:
            return [s.worker for s in self._slots if s.available and not s.suspect and s.worker is not None]

    def suspects(self) -> list[int]:
        """The seats of the others: their processes have shown no life for a while."""
        with self._changed:
            return [slot.number for slot in self._slots if slot.suspect]

    @property
    def complete(self) -> bool:
        """Whether every seat has had a worker that answered."""
        return all(slot.been_up for slot in self._slots)

    def wait_complete(self) -> None:
        """Returns once every seat has had a worker up; raises NotReady when that takes too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.complete or self._ending.is_set(), START_TIMEOUT_S):
                raise NotReady("workers: not all processes came up; the server's log says why")

    @property
    def unbalanced(self) -> bool:
        """Whether a worker has two connections more than another."""
        counts = [self._connections(worker) for worker in self.responsive()]
        return bool(counts) and max(counts) - min(counts) > 1

    def hand_off(self, connection: socket.socket) -> bool:
        """Hands a connection to the worker that has the fewest, or to one that has not been heard for LATE_S if nobody
        else takes it; False when none can now."""
        self._turn += 1
        order = sorted(
            self.responsive(),
            key=lambda w: (
                w.heartbeat_age_s() > LATE_S,
                self._connections(w),
                (w.slot - self._turn) % len(self._slots),
            ),
        )
        return any(worker.hand_off(connection) for worker in order if self._connections(worker) < self._most)

    def _excess(self, worker: WorkerProcess) -> int:
        """How many connections a worker has beyond its share. Those of one that died have all gone to the others, and
        clients that keep theirs would leave the one in its place idle."""
        workers = self.responsive()
        if worker not in workers:
            return 0
        return max(0, self._connections(worker) + -sum(map(self._connections, workers)) // len(workers))

    def drain_share(self, share: float) -> None:
        """Makes every worker have this share of its connections leave."""
        for worker in self.responsive():
            with contextlib.suppress(ChannelClosed):
                worker.tell("release", {"share": share})

    def update_credentials(self, credentials: Credentials) -> None:
        """Has every worker, those to come as well, go by these."""
        with self._changed:
            self._credentials = credentials
            # Whoever does not listen is told last: telling it may wait until it is killed.
            worker_slots = sorted(self._slots, key=lambda slot: slot.suspect)
            workers = [slot.worker for slot in worker_slots if slot.worker is not None]
        for worker in workers:
            with contextlib.suppress(ChannelClosed):
                worker.tell("credentials", credentials.message())

    def reap(self, worker: WorkerProcess) -> None:
        """Returns once the process is dead and everything that it held is given back."""
        worker.reap(self._on_death)

    def info(self) -> list[dict[str, Any]]:
        """The seats as a person would ask for them."""
        with self._changed:
            return [
                {
                    "worker": slot.number,
                    "pid": slot.worker.pid if slot.worker is not None else None,
                    "up": slot.available and not slot.suspect,
                    "silent_s": round(slot.worker.heartbeat_age_s(), 1) if slot.worker is not None else None,
                    "connections": self._connections(slot.worker) if slot.worker is not None else 0,
                    "restarts": slot.restarts,
                    "died_of": slot.died_of,
                }
                for slot in self._slots
            ]

    def end(self) -> None:
        """Makes every worker finish what is in flight and end; none is replaced."""
        self._broadcast_stop("end")

    def abort(self) -> None:
        """Makes every worker end without finishing."""
        self._broadcast_stop("abort")

    def join(self) -> None:
        """Returns once every process has ended, by itself or, when it takes too long, killed."""
        give_up_s = time.monotonic() + self.settings.front.shutdown_timeout_s + END_MARGIN_S
        self._fork_server.close()
        for slot in self._slots:
            worker = slot.worker
            if worker is not None:
                # One that is not up yet answers nothing, and would hear of the end late.
                if worker.up:
                    worker.wait(max(0.0, give_up_s - time.monotonic()))
                self.reap(worker)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _broadcast_stop(self, op: str) -> None:
        self._ending.set()
        with self._changed:
            self._changed.notify_all()
            workers = [s.worker for s in self._slots if s.worker is not None]
        for worker in workers:
            try:
                worker.tell(op)
            except ChannelClosed:
                continue

    def _supervise(self, slot: WorkerSlot) -> None:
        """The life of a seat."""
        failures = 0
        while not self._ending.is_set():
            started_s = time.monotonic()
            died_of = self._run_worker(slot)
            if self._ending.is_set():
                return
            self._report_crash(slot.number, died_of)
            slot.restarts += 1
            failures = failures + 1 if time.monotonic() - started_s < HEALTHY_S else 0
            if failures:
                self._ending.wait(min(FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16), MAX_BACKOFF_S))

    def _report_crash(self, slot: int, signal: str) -> None:
        assert self._owner is not None, "start() comes first"
        try:
            self._owner.on_crash(slot, signal)
        except Exception:
            log.exception("what a worker died of could not be looked into")

    def _run_worker(self, slot: WorkerSlot) -> str:
        """One process from its first breath to its grave; returns the name of the signal that it died of, or ""."""
        assert self._owner is not None, "start() comes first"
        parcel = ArrayPacker()
        board = parcel.pack(self._board_handle, writable=True)
        rate_limits = parcel.pack(self._meters_handle, writable=True)
        message = {**self.settings.message(), "seat": slot.number, "board": board, "meters": rate_limits}
        try:
            self._board[:, slot.number] = 0
            beats = functools.partial(self._beats.item, slot.number)
            worker = WorkerProcess(self._fork_server, slot.number, message, parcel.fds, self._owner.on_message, beats)
        except (OSError, ChannelClosed) as error:
            log.error("worker %d could not be started: %s", slot.number, error)
            return ""
        with self._changed:
            slot.worker = worker
            late, credentials = self._ending.is_set(), self._credentials
        try:
            if late:
                return ""
            if credentials.files:
                worker.tell("credentials", credentials.message())
            worker.hello.result(START_TIMEOUT_S)
            self._owner.initialize_worker(worker)
            silent = excess = 0
            while not worker.gone.wait(SILENCE_CHECK_S):
                heartbeat_age_s = worker.heartbeat_age_s()
                silent = silent + 1 if heartbeat_age_s > SUSPECT_S else 0
                self._suspect(slot, silent > 1 and not self._ending.is_set())
                before, excess = excess, self._excess(worker)
                if give_up := min(before, excess):
                    worker.tell("shed", {"count": give_up})
                if heartbeat_age_s > SILENCE_TIMEOUT_S and self._may_kill(worker):
                    where = "within" if self._computing[slot.number] else "outside of"
                    log.error(
                        "worker %d, process %d, hangs: no message and no progress for %g s, %s a batch, %s",
                        slot.number, worker.pid, SILENCE_TIMEOUT_S, where, _state_of(worker.pid),
                    )  # fmt: skip
                    break
        except ChannelClosed:
            pass
        except (TimeoutError, FreshetError) as error:
            log.error("worker %d cannot serve: %s", slot.number, error or "it does not answer")
        except Exception:
            log.exception("worker %d cannot serve", slot.number)
        finally:
            if self._ending.is_set() and worker.up:
                worker.wait(self.settings.front.shutdown_timeout_s + END_MARGIN_S)
            self.reap(worker)
        return worker.signal

    def _suspect(self, slot: WorkerSlot, suspect: bool) -> None:
        with self._changed:
            if slot.suspect == suspect:
                return
            slot.suspect = suspect
        if suspect:
            log.warning("worker %d shows no life: it gets no connections, and the server is not ready", slot.number)
        else:
            log.info("worker %d is heard again, or gone", slot.number)
        assert self._owner is not None, "start() comes first"
        self._owner.on_suspects_changed()

    def _may_kill(self, worker: WorkerProcess) -> bool:
        """Whether no other one has been killed for hanging whose successor does not answer yet."""
        with self._changed:
            now_s = time.monotonic()
            if self._hung is not None:
                last, killed_s = self._hung
                slot = self._slots[last.slot]
                back = slot.available and slot.worker is not last
                if not back and now_s - killed_s < START_TIMEOUT_S:
                    return False
            self._hung = worker, now_s
            return True

    def _on_death(self, worker: WorkerProcess) -> None:
        assert self._owner is not None, "start() comes first"
        slot = self._slots[worker.slot]
        with self._changed:
            slot.available, slot.worker, slot.died_of = False, None, worker.signal
        self._computing[worker.slot] = 0
        clear_process(self._rate_limits, DATA_PLACE + worker.slot)
        self._owner.on_exit(worker)
        self._suspect(slot, False)
        if not self._ending.is_set():
            of = f" of {worker.signal}" if worker.signal else ""
            log.error("worker %d, process %d, has died%s and is replaced", worker.slot, worker.pid, of)

    def _connections(self, worker: WorkerProcess) -> int:
        return worker.handed - int(self._ended[worker.slot])


def _state_of(pid: int) -> str:
    """What a process does, as the kernel sees it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        state = ""
    return STATES.get(state, "in no state that is known")
