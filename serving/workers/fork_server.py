"""Fork workers from a process that has already imported everything they need.

Imports are most of a worker's start-up time and of its memory outside the tables. `freshet serve` imports everything
once, forks the fork server, and only then starts threads and becomes the supervisor. A worker is a fork of the fork
server: it is up within milliseconds and shares unwritten pages with its siblings and the supervisor. The replacement of
a dead worker starts as fast. A fork server that is needed later (the first has died, or a program other than `freshet
serve` runs a server) is a new process, which imports everything again.

Invariants
- The fork server, and the process that it is forked from, have opened and started nothing beyond what imports do: no
  event loop, no server, no sessions. branch() is called before any thread is started.
- A worker is the supervisor's own child although the fork server forks it: it forks twice, and the kernel gives the
  orphan to its nearest ancestor that adopts orphans. So the supervisor can wait for it and learns of its death for
  certain, and its pid is not reused before.
- A fork server that has died is started again with the next worker. Workers outlive it; without a supervisor it ends.

Rejected: fork workers in the supervisor (it has threads); one interpreter a worker (2.4 s of a core and 60 MB each); a
new process for the first fork server, which imports while the supervisor does (2 s of a second core at each start); the
fork server as the parent of its workers (if it died, no process could wait for them).
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
import traceback
from importlib import import_module

from freshet_serving.serving.workers.channel import Channel, ChannelClosed

# prctl(2): this process adopts orphans among its descendants.
SET_CHILD_SUBREAPER = 36
SET_NAME = 15
POLL_S, MAX_POLL_S = 0.0005, 0.05


class Child:
    """A child process, by its pid. Thread-safe."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        """Exit status as waitpid() returns it; None while the process lives, or if the status is unknown."""
        self._lock = threading.Lock()
        self._ended = False

    @property
    def signal(self) -> str:
        """Name of the signal that ended the process, or "" if there was none or it is unknown."""
        status = self.status
        return signal.Signals(os.WTERMSIG(status)).name if status is not None and os.WIFSIGNALED(status) else ""

    def kill(self) -> None:
        with self._lock:
            if not self._has_ended():
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True if the process ends within that time."""
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
                # The system does not give orphans to this process: another one reaps them, so test for existence.
                try:
                    os.kill(self.pid, 0)
                except ProcessLookupError:
                    self._ended = True
        return self._ended


class ForkServer:
    """Supervisor-side handle of the fork server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Child | subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._closed = False

    def start(self) -> None:
        """Start the process, so that it is ready when the first worker is needed."""
        with self._lock:
            self._running()

    def branch(self) -> None:
        """Fork the fork server from this process, which has started no thread."""
        # Imported once, for both.
        import_module("freshet_serving.serving.workers.worker")
        # The collector of neither process may write to shared pages.
        gc.freeze()
        with self._lock:
            _take_orphans_in()
            self._channel, other_end = Channel.pair()
            with other_end:
                pid = os.fork()
                if not pid:
                    self._channel.disown()
                    os._exit(_run_branch(other_end.fileno()))
            self._process = Child(pid)

    def fork(self, end: socket.socket) -> Child:
        """Fork a worker that uses this end of a channel; the caller closes its own copy. Raises ChannelClosed."""
        with self._lock:
            channel = self._running()
            try:
                channel.send({"op": "fork"}, [end.fileno()])
                received = channel.receive()
            except ChannelClosed:
                self._leave()
                raise
            assert received is not None, "a blocking receive returns a message"
            return Child(received[0]["pid"])

    def close(self) -> None:
        """End the process even while another thread waits for it; its workers stay. Later forks fail."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._leave()

    def _running(self) -> Channel:
        if self._closed:
            raise ChannelClosed("the fork server is closed")
        if self._channel is None:
            _take_orphans_in()
            self._channel, other_end = Channel.pair()
            command = [sys.executable, "-P", "-m", "freshet_serving.serving.workers", str(other_end.fileno())]
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            with other_end:
                # Standard output is the supervisor's: its caller reads the ready line there.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    pass_fds=(other_end.fileno(),),
                    env={**os.environ, "PYTHONPATH": path},
                )
        return self._channel

    def _leave(self) -> None:
        if self._channel is not None and self._process is not None:
            self._channel.close()
            self._process.kill()
            self._process.wait()
        self._channel = self._process = None


def _run_branch(fd: int) -> int:
    """Run the fork server in a fork of `freshet serve`, and return its exit code; so does each worker."""
    code = 1
    try:
        # Standard output is the supervisor's: its caller reads the ready line there.
        os.dup2(2, 1)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        ignore_signals()
        code = main(os.dup(fd))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    return code


def ignore_signals() -> None:
    """Ignore the signals that end a server: the supervisor, which they reach too, decides when a worker ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def main(fd: int) -> int:
    """Run the fork server on this descriptor of the channel; in a forked child, run the worker."""
    _name_process("freshet-forks")
    channel = Channel(socket.socket(fileno=fd))
    from freshet_serving.serving.workers import worker

    gc.freeze()
    with contextlib.suppress(ChannelClosed):
        while True:
            received = channel.receive()
            assert received is not None, "a blocking receive returns a message"
            _, (end,) = received
            pid = _fork_twice()
            if pid == 0:
                channel.disown()
                _name_process("freshet-worker")
                return worker.main(end)
            os.close(end)
            channel.send({"pid": pid})
    return 0


def _fork_twice() -> int:
    """Return the pid of a process that is already an orphan; 0 in that process."""
    reading, tell = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if not pid:
            os.close(reading)
            os.close(tell)
            return 0
        os.write(tell, b"%d" % pid)
        os._exit(0)
    os.close(tell)
    os.waitpid(between, 0)
    with open(reading, "rb") as said:
        return int(said.read())


def _take_orphans_in() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _name_process(name: str) -> None:
    """Set the name that ps and top show, at most 15 bytes: command lines are the supervisor's."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_NAME, name.encode(), 0, 0, 0)
