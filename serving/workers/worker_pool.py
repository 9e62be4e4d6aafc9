"""Spawn, message, reap and replace the supervisor's worker processes.

A slot is a worker's place: its number, and its words in every version's control block. At most one process lives in it.
Thread `freshet-seat-n` runs the life cycle of a slot: spawn, initialize, watch, reap, spawn again. Any thread that
finds a process gone reaps it, and waits until that is done.

Invariants
- A process is reaped once: it is killed and waited for, and only then are its pins released, its request counts kept
  and its slot freed. So no pin is cleared that a live process relies on, and no flip is published while a process that
  did not prepare it could still see it.
- Connections are handed only to initialized processes, which have every version and the routes.
- A process with more than its share of the connections at two consecutive checks closes the excess, each with a reply
  that says so; no request is lost. So a new process gets its share of existing connections.
- A slot whose process keeps dying is restarted with growing delays; the other slots are not affected.
- A process has no more connections than its descriptors allow (serving.front.resource_limits). When all are full, new
  connections wait in the listener's queue.
- A heartbeat is a message or a beat: its word on the shared board, which counts up with every bucket that it runs and
  while its loop turns. So a process in a long computation beats; one stopped by a signal does not.
- A process without a heartbeat for SUSPECT_S, at two checks (the supervisor itself may have been stopped), is a
  suspect: it gets no connections, and the server is not ready, until its heartbeat returns.
- After SILENCE_TIMEOUT_S it hangs and is killed. Hanging processes are killed one at a time: the next when the
  successor of the last one answers, or has not come up within START_TIMEOUT_S. So a cause that stops all at once (a
  machine that swaps, one bucket that takes a minute) does not take all of them down.
- A slot gets another process only after its owner has been notified of the signal that ended the last one: the cause
  may still exist (a mapped file that was truncated), and must no longer be served by then.

Connections are accepted here and handed to the worker with the fewest, by SCM_RIGHTS. Measured against workers that
share the listening socket, or that listen by SO_REUSEPORT: docs/decisions/worker-processes.md.

Rejected: fork (the supervisor has threads; see fork_server), multiprocessing (pickle, and a resource tracker process),
an accept queue for each worker (connections in it die with the worker).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.memory import ArrayHandle, reserve, share
from freshet_serving.processor.tables.remote_rows import RemoteConfig
from freshet_serving.serving.access.credentials import DATA_PLACE, Credentials
from freshet_serving.serving.access.rate_limiter import clear_process, rate_limiter_memory
from freshet_serving.serving.front.resource_limits import ConnectionLimits
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.workers.array_packing import ArrayPacker
from freshet_serving.serving.workers.channel import ChannelClosed, Message
from freshet_serving.serving.workers.fork_server import ForkServer
from freshet_serving.serving.workers.worker_process import WorkerProcess

log = logging.getLogger("freshet.fleet")

START_TIMEOUT_S = 60.0
SILENCE_TIMEOUT_S = 30.0
SILENCE_CHECK_S = 0.5
# A process beats four times a second.
LATE_S, SUSPECT_S = 1.0, 2.0
# Process states in /proc.
STATES = {"R": "running", "S": "sleeping", "D": "waiting for a disk", "T": "stopped by a signal", "t": "being debugged"}
HEALTHY_S = 10.0
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 10.0
END_MARGIN_S = 5.0


class WorkerListener(Protocol):
    """Owner of a worker pool, which gives workers their versions and routes."""

    def initialize_worker(self, worker: WorkerProcess) -> None:
        """Give a new process every version and the routes, then call WorkerPool.mark_available().

        Raises ChannelClosed if the process has gone, FreshetError if it cannot serve.
        """

    def on_exit(self, worker: WorkerProcess) -> None:
        """Handle the death of a process whose slot is about to be freed."""

    def on_crash(self, slot: int, signal: str) -> None:
        """Handle an unexpected death, without a lock, before the slot gets another process.

        Args:
            signal: Name of the signal that ended the last one; "" if it is not known.
        """

    def on_message(self, worker: WorkerProcess, message: Message) -> None:
        """Handle a message that a process sends unprompted."""

    def on_suspects_changed(self) -> None:
        """Handle a change of WorkerPool.suspects()."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings that a worker is started with; it reads them as JSON.

    Attributes:
        session_options: Options of the sessions, as in ServeConfig.
        grpc_address: Address reserved for all workers.
    """

    front: FrontendOptions
    session_options: dict[str, Any]
    remote: RemoteConfig | None
    online_stores: list[Any]
    grpc_address: str


class WorkerSlot:
    """A worker's place.

    Attributes:
        available: Its process answers requests.
        suspect: The heartbeat of its process is overdue.
        been_up: Some process of this slot has answered requests.
        restarts: Processes replaced so far.
        died_of: Signal that ended the last process, or "".
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: WorkerProcess | None = None
        self.available = False
        self.suspect = False
        self.been_up = False
        self.restarts = 0
        self.died_of = ""


class WorkerPool:
    """One worker for each slot."""

    def __init__(
        self,
        count: int,
        settings: WorkerSettings,
        fork_server: ForkServer | None = None,
        rate_limits: NDArray[np.uint8] | None = None,
    ) -> None:
        """Set up the slots; start() spawns the workers.

        Args:
            fork_server: One that has been started already, if there is one.
            rate_limits: Shared memory of the rate limiter (serving.access.rate_limiter).
        """
        self.settings = settings
        self._rate_limits = rate_limiter_memory(DATA_PLACE + count) if rate_limits is None else rate_limits
        (self._meters_handle,) = share([self._rate_limits], "meters")
        self._credentials = Credentials(-1, {})
        self._slots = [WorkerSlot(n) for n in range(count)]
        self._board = reserve(3 * count * 8, "seats").view(np.int64)[: 3 * count].reshape(3, count)
        self._ended, self._computing, self._beats = self._board
        (self._board_handle,) = share([self._board], "seats")
        self._states_handle: ArrayHandle | None = None
        if megabytes := settings.session_options.get("user_state_mb", 0):
            # Loaded where users' parts are kept.
            from freshet_serving.processor.running.user_states import states_memory

            # Kept: users are erased from it here.
            self._states = states_memory(megabytes, count)
            (self._states_handle,) = share([self._states], "user-states")
        self._owner: WorkerListener | None = None
        self._fork_server = fork_server or ForkServer()
        # Workers have the limits of the process that started them.
        self._most = ConnectionLimits.here().http
        self._ending = threading.Event()
        self._changed = threading.Condition()
        self._turn = 0
        # The last process killed because it hung, and the time.
        self._hung: tuple[WorkerProcess, float] | None = None
        self._threads = [
            threading.Thread(target=self._supervise, args=(slot,), name=f"freshet-seat-{slot.number}", daemon=True)
            for slot in self._slots
        ]

    def __len__(self) -> int:
        return len(self._slots)

    def start(self, owner: WorkerListener) -> None:
        self._owner = owner
        for thread in self._threads:
            thread.start()

    def mark_available(self, worker: WorkerProcess) -> None:
        """Mark a worker as available; it gets connections from now on."""
        slot = self._slots[worker.slot]
        with self._changed:
            slot.available = slot.been_up = True
            self._changed.notify_all()
        log.info("worker %d is up, process %d", worker.slot, worker.pid)

    def available(self) -> list[WorkerProcess]:
        """Return the workers that answer requests, suspects included."""
        with self._changed:
            return [s.worker for s in self._slots if s.available and s.worker is not None]

    def responsive(self) -> list[WorkerProcess]:
        """Return the workers that answer requests, without the suspects."""
        with self._changed:
            return [s.worker for s in self._slots if s.available and not s.suspect and s.worker is not None]

    def suspects(self) -> list[int]:
        """Return the slots of processes whose heartbeat is overdue."""
        with self._changed:
            return [slot.number for slot in self._slots if slot.suspect]

    @property
    def complete(self) -> bool:
        """True if every slot has had a worker that answered."""
        return all(slot.been_up for slot in self._slots)

    def wait_complete(self) -> None:
        """Return once every slot has had a worker up. Raises NotReady after START_TIMEOUT_S."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.complete or self._ending.is_set(), START_TIMEOUT_S):
                raise NotReady("workers: not all processes started; see the server's log")

    @property
    def unbalanced(self) -> bool:
        """True if two workers differ by at least two connections."""
        counts = [self._connections(worker) for worker in self.responsive()]
        return bool(counts) and max(counts) - min(counts) > 1

    def hand_off(self, connection: socket.socket) -> bool:
        """Hand a connection to the worker with the fewest, preferring those with a heartbeat within LATE_S.

        Returns False if no worker can take it now.
        """
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
        """Return the number of connections a worker has beyond its share.

        After a death its connections go to other workers; clients that keep theirs would leave its successor idle.
        """
        workers = self.responsive()
        if worker not in workers:
            return 0
        return max(0, self._connections(worker) + -sum(map(self._connections, workers)) // len(workers))

    def drain_share(self, share: float) -> None:
        """Have every responsive worker close this share of its connections."""
        for worker in self.responsive():
            with contextlib.suppress(ChannelClosed):
                worker.tell("release", {"share": share})

    def update_credentials(self, credentials: Credentials) -> None:
        """Give all workers, present and future, these credentials."""
        with self._changed:
            self._credentials = credentials
            # Suspects come last: sending to them may block until they are killed.
            worker_slots = sorted(self._slots, key=lambda slot: slot.suspect)
            workers = [slot.worker for slot in worker_slots if slot.worker is not None]
        for worker in workers:
            with contextlib.suppress(ChannelClosed):
                worker.tell("credentials", credentials.message())

    def reap(self, worker: WorkerProcess) -> None:
        """Return once the process is dead and everything that it held is released."""
        worker.reap(self._on_death)

    def info(self) -> list[dict[str, Any]]:
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
        """Have every worker finish requests in flight and end; none is replaced."""
        self._broadcast_stop("end")

    def abort(self) -> None:
        self._broadcast_stop("abort")

    def join(self) -> None:
        """Return once every process has ended, by itself or killed after the timeout."""
        give_up_s = time.monotonic() + self.settings.front.shutdown_timeout_s + END_MARGIN_S
        self._fork_server.close()
        for slot in self._slots:
            worker = slot.worker
            if worker is not None:
                # A worker that is not up answers nothing and would read the order to end late.
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
        assert self._owner is not None, "start() was called"
        try:
            self._owner.on_crash(slot, signal)
        except Exception:
            log.exception("could not examine why a worker ended")

    def _run_worker(self, slot: WorkerSlot) -> str:
        """Run one process; return the name of the signal that ended it, or ""."""
        assert self._owner is not None, "start() was called"
        packer = ArrayPacker()
        board = packer.pack(self._board_handle, writable=True)
        rate_limits = packer.pack(self._meters_handle, writable=True)
        states = packer.pack(self._states_handle, writable=True) if self._states_handle else None
        message = {
            **asdict(self.settings),
            "seat": slot.number,
            "board": board,
            "meters": rate_limits,
            "states": states,
        }
        try:
            self._board[:, slot.number] = 0
            beats = functools.partial(self._beats.item, slot.number)
            worker = WorkerProcess(self._fork_server, slot.number, message, packer.fds, self._owner.on_message, beats)
        except (OSError, ChannelClosed) as error:
            log.error("could not start worker %d: %s", slot.number, error)
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
            log.warning("worker %d sends no heartbeat: it gets no connections; the server is not ready", slot.number)
        else:
            log.info("worker %d sends heartbeats again, or has ended", slot.number)
        assert self._owner is not None, "start() was called"
        self._owner.on_suspects_changed()

    def _may_kill(self, worker: WorkerProcess) -> bool:
        """Return False while the successor of another process killed for hanging does not answer yet."""
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
        assert self._owner is not None, "start() was called"
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
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        state = ""
    return STATES.get(state, "in an unknown state")
