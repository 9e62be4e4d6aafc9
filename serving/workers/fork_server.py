"""The nursery: a process that has imported what a worker needs, and forks one whenever it is told to.

Importing is nearly all of a worker's start, and of the memory that is not tables. So it is done once, in a process
without threads of ours, while the supervisor imports and loads; a worker is a fork of it, is up within milliseconds,
and shares those pages with its siblings for as long as nobody writes them. A successor of a dead worker comes as fast.

Invariants
- The nursery has opened nothing and started nothing but what importing does: no event loop, no server, no sessions.
- A worker is the supervisor's own child, although the nursery forks it: the nursery forks twice, and an orphan goes to
  its nearest ancestor that takes orphans in. So its death is certain to whoever waits for it, and its number is not
  given to another process before.
- A nursery that has gone is started again when a worker is wanted. Workers outlive it; without a supervisor it ends.

Refused: fork in the supervisor (it has threads); an interpreter a worker (2.4 s of a core and 60 MB each); the nursery
as the parent of its workers (with it would go who may wait for them).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time

from freshet_serving.serving.workers.channel import Channel, ChannelClosed

# prctl(2): orphans among this process's descendants become its children.
SET_CHILD_SUBREAPER = 36
POLL_S, MAX_POLL_S = 0.0005, 0.05


class Child:
    """A child process by its number. Thread-safe."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        """How it ended, as waitpid() says; None while it lives, and where nobody told."""
        self._lock = threading.Lock()
        self._ended = False

    @property
    def signal(self) -> str:
        """The name of the signal that ended it, "" where none did or nobody told."""
        status = self.status
        return signal.Signals(os.WTERMSIG(status)).name if status is not None and os.WIFSIGNALED(status) else ""

    def kill(self) -> None:
        with self._lock:
            if not self._has_ended():
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the process has ended within that time."""
        end_s, delay_s = None if timeout_s is None else time.monotonic() + timeout_s, POLL_S
        while True:
            with self._lock:
                if self._has_ended():
                    return True
            if end_s is not None and time.monotonic() >= end_s:
                return False
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_POLL_S)

    def _has_ended(self) -> bool:
        if not self._ended:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended == self.pid:
                    self._ended, self.status = True, status
            except ChildProcessError:
                # The system does not give orphans to this process: whoever got it takes note of its end.
                try:
                    os.kill(self.pid, 0)
                except ProcessLookupError:
                    self._ended = True
        return self._ended


class ForkServer:
    """The supervisor's side of it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._closed = False

    def start(self) -> None:
        """Starts the process, so that it is ready when the first worker is wanted."""
        with self._lock:
            self._running()

    def fork(self, end: socket.socket) -> Child:
        """A new worker at this end of a channel, which stays the caller's; raises Gone."""
        with self._lock:
            channel = self._running()
            try:
                channel.send({"op": "fork"}, [end.fileno()])
                received = channel.receive()
            except ChannelClosed:
                self._leave()
                raise
            assert received is not None, "a blocking receive brings a message"
            return Child(received[0]["pid"])

    def close(self) -> None:
        """Ends the process, whoever waits for it; its workers stay. Nothing is forked any more."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._leave()

    def _running(self) -> Channel:
        if self._closed:
            raise ChannelClosed("the nursery is closed")
        if self._channel is None:
            _take_orphans_in()
            self._channel, there = Channel.pair()
            command = [sys.executable, "-P", "-m", "freshet_serving.serving.workers", str(there.fileno())]
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            with there:
                # Standard output is the supervisor's: whoever started it reads the ready line there.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    pass_fds=(there.fileno(),),
                    env={**os.environ, "PYTHONPATH": path},
                )
        return self._channel

    def _leave(self) -> None:
        if self._channel is not None and self._process is not None:
            self._channel.close()
            self._process.kill()
            self._process.wait()
        self._channel = self._process = None


def main(fd: int) -> int:
    """The process whose end of the channel is this descriptor; in a worker that it forks, the worker."""
    channel = Channel(socket.socket(fileno=fd))
    from freshet_serving.serving.workers import worker

    # What has been imported stays: the collector is not to write on pages that are shared.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(ChannelClosed):
        while True:
            received = channel.receive()
            assert received is not None, "a blocking receive brings a message"
            _, (end,) = received
            pid = _fork_twice()
            if pid == 0:
                channel.disown()
                return worker.main(end)
            os.close(end)
            channel.send({"pid": pid})
    return 0


def _fork_twice() -> int:
    """The number of a process that is an orphan already; 0 in that process."""
    told, tell = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if not pid:
            os.close(told)
            os.close(tell)
            return 0
        os.write(tell, b"%d" % pid)
        os._exit(0)
    os.close(tell)
    os.waitpid(between, 0)
    with open(told, "rb") as said:
        return int(said.read())


def _take_orphans_in() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
