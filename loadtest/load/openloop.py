"""An open-loop generator: requests go out when they are due, however slow the replies are.

`python -m loadtest.load.openloop` reads a Job as JSON from stdin, prints {"start_s": ...} when the first request is due
and the Figures as JSON when all is done; Openloop runs that in a process of its own, so that neither side's GIL is the
other's. One thread, one epoll, raw sockets, the C parser of httptools; due instants come from a timerfd because
epoll's own timeout counts in milliseconds.

Invariants: the schedule is fixed before the run. A connection carries one request at a time; a request that is due
while all connections are busy waits for the next free one, its latency running. With a deadline, a request that could
not be sent before it passed is given up and counts as unanswered, as a client's would. No reply is lost or
counted twice: an answer belongs to the request that its connection carries.

Cost: about 25 microseconds of a core a request of a few kilobytes. Where server and generator share their cores the
generator waits for them too, on both sides of a request: Figures.late_ms says by how much it sent late, and
Figures.answered_ms what was left of the latency without its waiting, from the write of a request until the kernel had
its reply (SO_TIMESTAMPNS), however late it was read. Refused: asyncio (its timers are a millisecond coarse, and it
takes twice the time a request), pipelining (servers treat it as a special case).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httptools
import numpy as np
from numpy.typing import NDArray

from loadtest.load.launch import CommandFailed, LineProcess, environment
from loadtest.load.outcome import Figures, RequestOutcomes, figures
from loadtest.load.payload import Payload

ROOT = Path(__file__).parents[2]
RECV_NBYTES = 1 << 18
LEAD_S = 0.05
IDLE_POLL_S = 0.1
RECONNECT_S = 0.01
GRACE_S = 10.0
CONNECT_TIMEOUT_S = 5.0
STARTUP_S = 60.0
TIMEOUT_HEADER = "x-request-timeout-ms"
# TFD_TIMER_ABSTIME of linux/timerfd.h.
ABSOLUTE = 1
# SO_TIMESTAMPNS of asm-generic/socket.h: with what is read comes when the kernel had the last of it, as a timespec of
# the wall clock.
TIMESTAMPS = 35
TIMESPEC = struct.Struct("@ll")
ANCILLARY_NBYTES = socket.CMSG_SPACE(TIMESPEC.size)


@dataclass(frozen=True, slots=True)
class Job:
    """A generator's job. payload: folder of a saved Payload. warm_s: sent before the `seconds` that count. deadline_s:
    for goodput; sent as x-request-timeout-ms too when send_deadline. window_s: figures of each such stretch as well."""

    host: str
    port: int
    payload: str
    rate: float
    seconds: float
    warm_s: float = 1.0
    connections: int = 64
    deadline_s: float | None = None
    send_deadline: bool = False
    window_s: float | None = None


def poisson(rate: float, seconds: float, seed: int = 0) -> NDArray[np.float64]:
    """Moments in [0, seconds), ascending, of a Poisson process of `rate` arrivals a second: when requests are due, by
    rate and seed alone, whatever the server does."""
    if not (rate > 0 and seconds > 0):
        raise ValueError(f"rate and seconds: expected numbers above 0, got {rate} and {seconds}")
    random = np.random.default_rng(seed)
    # Given their number, the arrivals of a Poisson process are uniform.
    return np.sort(random.random(random.poisson(rate * seconds)) * seconds)


class Timer:
    """A timerfd on the monotonic clock; readable from the instant it was set to."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spec = (ctypes.c_long * 4)()
        self._at_s = 0.0
        self.fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_s: float) -> None:
        """Sets the timer to one instant; the one set before is forgotten."""
        if at_s == self._at_s:
            return
        self._at_s = at_s
        seconds = int(at_s)
        self._spec[2], self._spec[3] = seconds, int((at_s - seconds) * 1e9)
        self._libc.timerfd_settime(self.fd, ABSOLUTE, self._spec, None)

    def clear(self) -> None:
        """Takes note that it has gone off."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)


class Connection:
    """One keep-alive connection and the request that it carries, by number, or -1. came_s: when the kernel had what was
    read last, by the wall clock."""

    __slots__ = ("_owner", "_parser", "came_s", "number", "rest", "socket")

    came_s: float
    rest: bytes | memoryview

    def __init__(self, owner: Generator) -> None:
        self._owner = owner
        self.open()

    def open(self) -> None:
        """Connects, without waiting for it."""
        self.number, self.rest = -1, b""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, TIMESTAMPS, 1)
        self._parser = httptools.HttpResponseParser(self)
        code = self.socket.connect_ex(self._owner.address)
        if code not in (0, errno.EINPROGRESS):
            self.socket.close()
            raise OSError(code, os.strerror(code))

    def send(self, data: bytes | memoryview) -> None:
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        self.rest = memoryview(data)[sent:] if sent < len(data) else b""

    def receive(self) -> bool:
        """Takes what has come; False when the connection has ended."""
        buffer = self._owner.buffer
        try:
            nbytes, ancillary, _, _ = self.socket.recvmsg_into([buffer], ANCILLARY_NBYTES)
        except BlockingIOError:
            return True
        if not nbytes:
            return False
        self.came_s = _stamp_s(ancillary)
        self._parser.feed_data(buffer[:nbytes])
        return True

    def on_message_complete(self) -> None:
        # Called by the parser, inside receive().
        self._owner.answered(self, self._parser.get_status_code(), self._parser.should_keep_alive())


def _waited_s() -> float:
    """How long this thread has stood ready without a core, since it began; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _stamp_s(ancillary: list[tuple[int, int, bytes]]) -> float:
    """The kernel's stamp in what came with a read; the clock, where none came."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == TIMESTAMPS:
            seconds, ns = TIMESPEC.unpack(data)
            return float(seconds + ns * 1e-9)
    return time.time()


class Generator:
    """The open-loop generator: one run of a job, in the calling thread."""

    def __init__(self, job: Job, grace_s: float = GRACE_S) -> None:
        """grace_s: how long replies are waited for after the last request was due."""
        self.job, self._grace_s = job, grace_s
        self.address = (job.host, job.port)
        payload = Payload.load(Path(job.payload))
        timeout_ms = job.deadline_s * 1e3 if job.send_deadline and job.deadline_s is not None else 0
        headers = {TIMEOUT_HEADER: f"{timeout_ms:g}"} if timeout_ms else {}
        self._messages = payload.messages(f"{job.host}:{job.port}", headers)
        self.outcome = RequestOutcomes.of(poisson(job.rate, job.warm_s + job.seconds))
        self.faults: Counter[str] = Counter()
        self.buffer = memoryview(bytearray(RECV_NBYTES))
        self._sent_s = [0.0] * len(self.outcome.due_s)
        self._epoll = select.epoll()
        self._timer = Timer()
        self._epoll.register(self._timer.fd, select.EPOLLIN)
        self._by_fd: dict[int, Connection] = {}
        self._free: deque[Connection] = deque()
        self._broken: list[tuple[float, Connection]] = []
        self._in_flight = 0
        self._freed_s = 0.0
        # Connecting without waiting, as below, would not tell that nobody listens.
        socket.create_connection(self.address, CONNECT_TIMEOUT_S).close()
        for _ in range(job.connections):
            self._join(Connection(self))

    def run(self, started: Callable[[float], object] = lambda start_s: None) -> Figures:
        """Sends everything; started(start_s) is called with the monotonic clock at which the schedule begins."""
        start_s = self.start_s = time.monotonic() + LEAD_S
        started(start_s)
        job, outcome, messages = self.job, self.outcome, self._messages
        due = (outcome.due_s + start_s).tolist()
        self._due = due
        late_us, timer, monotonic = outcome.late_us, self._timer, time.monotonic
        patience_s = job.deadline_s if job.deadline_s is not None else float("inf")
        end_s = (due[-1] if due else start_s) + self._grace_s
        at = 0
        cpu_s, waited_s = time.process_time(), _waited_s()
        while at < len(due) or self._in_flight:
            now = monotonic()
            while at < len(due) and due[at] <= now:
                if due[at] + patience_s < now:
                    at += 1
                    continue
                if not self._free:
                    break
                connection = self._free.popleft()
                late_us[at] = (now - max(due[at], self._freed_s)) * 1e6
                connection.number = at
                self._sent_s[at] = time.time()
                self._in_flight += 1
                try:
                    connection.send(messages[at % len(messages)])
                    if connection.rest:
                        self._epoll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)
                except OSError as error:
                    self._lost(connection, error)
                at += 1
                now = monotonic()
            if now > end_s:
                break
            if at < len(due) and self._free:
                timer.set(due[at])
            self._poll()
        took_s = time.monotonic() - start_s
        cores, waited = (time.process_time() - cpu_s) / took_s, (_waited_s() - waited_s) / took_s
        self._close()
        first_s, last_s = job.warm_s, job.warm_s + job.seconds
        return figures(outcome, first_s, last_s, job.deadline_s, job.window_s, self.faults, start_s, cores, waited)

    def answered(self, connection: Connection, status: int, keep_alive: bool) -> None:
        now, number = time.monotonic(), connection.number
        if number < 0:
            # Nothing was asked: what a server says before it closes an idle connection.
            self._lost(connection, None)
            return
        self.outcome.latency_us[number] = (now - self._due[number]) * 1e6
        self.outcome.answered_us[number] = (connection.came_s - self._sent_s[number]) * 1e6
        self.outcome.status[number] = status
        self._in_flight -= 1
        connection.number = -1
        if not self._free:
            self._freed_s = now
        if keep_alive:
            self._free.append(connection)
        else:
            self._leave(connection)
            self._broken.append((now, connection))

    def _poll(self) -> None:
        for fd, event in self._epoll.poll(RECONNECT_S if self._broken else IDLE_POLL_S):
            if fd == self._timer.fd:
                self._timer.clear()
                continue
            connection = self._by_fd.get(fd)
            if connection is None:
                continue
            try:
                if event & select.EPOLLOUT and connection.rest:
                    connection.send(connection.rest)
                    if not connection.rest:
                        self._epoll.modify(fd, select.EPOLLIN)
                if event & ~select.EPOLLOUT and not connection.receive():
                    self._lost(connection, None)
            except (OSError, httptools.HttpParserError) as error:
                self._lost(connection, error)
        if self._broken:
            self._reconnect()

    def _lost(self, connection: Connection, error: Exception | None) -> None:
        """A connection is gone: a fault if it carried a request, nothing new if it was idle."""
        if connection.number >= 0:
            self._in_flight -= 1
            self.faults["connection closed" if error is None else type(error).__name__] += 1
        else:
            with contextlib.suppress(ValueError):
                self._free.remove(connection)
        self._leave(connection)
        self._broken.append((time.monotonic(), connection))

    def _reconnect(self) -> None:
        now, waiting = time.monotonic(), []
        for at_s, connection in self._broken:
            try:
                if at_s > now:
                    waiting.append((at_s, connection))
                else:
                    connection.open()
                    self._join(connection)
            except OSError:
                waiting.append((now + RECONNECT_S, connection))
        self._broken = waiting

    def _join(self, connection: Connection) -> None:
        self._by_fd[connection.socket.fileno()] = connection
        self._epoll.register(connection.socket, select.EPOLLIN)
        if not self._free:
            self._freed_s = time.monotonic()
        self._free.append(connection)

    def _leave(self, connection: Connection) -> None:
        self._by_fd.pop(connection.socket.fileno(), None)
        connection.socket.close()

    def _close(self) -> None:
        for connection in self._by_fd.values():
            connection.socket.close()
        self._epoll.close()
        self._timer.close()


class Openloop(LineProcess):
    """A job in a process of its own. Leaving the block ends the process if it still runs."""

    def __init__(self, job: Job) -> None:
        command = [sys.executable, "-m", "loadtest.load.openloop"]
        super().__init__(command, "the generator", env=environment(ROOT))
        # A generator that hangs must not hang its owner.
        self._limit = threading.Timer(STARTUP_S + job.warm_s + job.seconds + GRACE_S, self._process.kill)
        self._limit.daemon = True
        self._limit.start()
        self.write(json.dumps(asdict(job)))

    def close(self) -> None:
        self._limit.cancel()
        self._limit.join()
        super().close()

    def started(self) -> float:
        """Waits until the schedule begins; returns that instant of the monotonic clock."""
        return float(self._document()["start_s"])

    def result(self) -> Figures:
        """Waits for the end, after started(); raises CommandFailed."""
        return Figures(**self._document())

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.read())
        if "error" in document:
            raise CommandFailed(document["error"])
        return document


def drive(job: Job) -> Figures:
    """Runs a job in a process of its own, to its end."""
    with Openloop(job) as process:
        process.started()
        return process.result()


def main() -> int:
    job = Job(**json.loads(sys.stdin.readline()))
    try:
        generator = Generator(job)
    except OSError as error:
        print(json.dumps({"error": f"{job.host}:{job.port}: {error.strerror or error}"}))
        return 1
    # The collector would stop the generator for what lives until its end anyway.
    gc.collect()
    gc.freeze()
    found = generator.run(lambda start_s: print(json.dumps({"start_s": start_s}), flush=True))
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
