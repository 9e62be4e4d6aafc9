"""The end of a server that has been told to end and does not.

An orderly end waits: for connections, for a poll that is at work, for a change that somebody asked for. Each wait has a
bound where the server itself waits, but a thread that hangs (a disk that does not answer, a lock that nobody lets go)
is waited for again by the event loop that lent it, and by the interpreter as it ends. So one thread that was made at
the start, and needs neither memory nor locks of others, ends the process when its time is up.

Invariant: what is asked to end ends, within the bound of arm() or, once the server has ended in order, within LAST_S.

That a signal has come is first known here: an event loop reads the bytes that the interpreter writes for each signal,
and loses them where there is no memory left to read them with. So arm_on_signals() puts a thread between the two that
reads into a byte that is there already, arms, and hands the byte on.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Collection

LAST_S = 3.0
AGAIN_S = 0.01
STATUS = 1
WORDS = b"freshet: something at work did not end in time; the process ends without it\n"


class ShutdownWatchdog:
    """Counts from arm() on, in a thread of its own."""

    def __init__(self, limit_s: float, end: Callable[[int], object] = os._exit) -> None:
        """limit_s: how long an orderly end may take, from arm() on. end: called with the exit code when it is over."""
        self._limit_s, self._end = limit_s, end
        self._armed, self._ended, self._never = threading.Lock(), threading.Lock(), threading.Lock()
        for lock in (self._armed, self._ended, self._never):
            lock.acquire()
        # What the interpreter writes signals to, for as long as some may come.
        self._told: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="freshet-last-resort", daemon=True)

    def start(self) -> None:
        """Starts the thread, while there is memory for it."""
        self._thread.start()

    def arm_on_signals(self, numbers: Collection[int]) -> None:
        """Arm by a signal, whatever becomes of it in the event loop. Call it in the main thread, once the loop runs and
        has its signal handlers.

        Args:
            numbers: the signals that ask the server to end.
        """
        heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        loop = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        known = frozenset(map(int, numbers))
        threading.Thread(target=self._listen, args=(heard, loop, known), name="freshet-signals", daemon=True).start()

    def _listen(self, heard: socket.socket, loop: int, numbers: frozenset[int]) -> None:
        byte = bytearray(1)
        while True:
            try:
                if not heard.recv_into(byte):
                    heard.close()
                    return
                if byte[0] in numbers:
                    self.arm()
                if loop >= 0:
                    os.write(loop, byte)
            except (MemoryError, OSError):
                # The loop has ended, or there is no memory even for this: not at once again.
                self._never.acquire(timeout=AGAIN_S)

    def arm(self) -> None:
        """The server was told to end. Safe from signal handlers; more than once is once."""
        if self._armed.locked():
            self._armed.release()

    def ended(self) -> None:
        """The server has ended in order: the process has LAST_S left."""
        self.arm()
        if self._ended.locked():
            self._ended.release()

    def _run(self) -> None:
        self._armed.acquire()
        if self._ended.acquire(timeout=self._limit_s):
            self._never.acquire(timeout=LAST_S)
        os.write(2, WORDS)
        self._end(STATUS)
