"""End a server process that does not shut down in time.

A graceful shutdown waits: for connections, for a running poll, for a requested change. Each wait of the server has a
bound. But if a thread hangs (a disk that does not answer, a lock that is never released), the event loop whose executor
it belongs to waits for it as it closes, and so does the interpreter. So one thread, created at the start and
independent of memory and others' locks, ends the process when its time is up.

Invariant: after a request to end, the process ends within the bound of arm() or, once the server has shut down
gracefully, within LAST_S.

The event loop reads the bytes that the interpreter writes for each signal, and loses them if there is no memory left.
So arm_on_signals() puts a thread in between that reads into a preallocated byte, arms the watchdog, and passes it on.
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
    """Timer on a thread of its own that ends the process; it starts with arm()."""

    def __init__(self, limit_s: float, end: Callable[[int], object] = os._exit) -> None:
        """Prepare the thread.

        Args:
            limit_s: Seconds that a graceful shutdown may take, counted from arm().
            end: Called with the exit code.
        """
        self._limit_s, self._end = limit_s, end
        self._armed, self._ended, self._never = threading.Lock(), threading.Lock(), threading.Lock()
        for lock in (self._armed, self._ended, self._never):
            lock.acquire()
        # The socket that the interpreter writes signal bytes to; kept open as long as signals may arrive.
        self._signal_socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="freshet-last-resort", daemon=True)

    def start(self) -> None:
        """Start the thread, while there is memory for it."""
        self._thread.start()

    def arm_on_signals(self, numbers: Collection[int]) -> None:
        """Arm the watchdog on these signals, even if the event loop loses them.

        Call it in the main thread, once the loop runs and has its signal handlers.
        """
        heard, self._signal_socket = socket.socketpair()
        self._signal_socket.setblocking(False)
        loop = signal.set_wakeup_fd(self._signal_socket.fileno(), warn_on_full_buffer=False)
        ending = frozenset(map(int, numbers))
        threading.Thread(target=self._listen, args=(heard, loop, ending), name="freshet-signals", daemon=True).start()

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
                # The loop has ended, or there is no memory even for this: wait before the next attempt.
                self._never.acquire(timeout=AGAIN_S)

    def arm(self) -> None:
        """Start the time limit of the shutdown. Safe from signal handlers; further calls have no effect."""
        if self._armed.locked():
            self._armed.release()

    def ended(self) -> None:
        """Note that the server has shut down gracefully: the process has LAST_S left."""
        self.arm()
        if self._ended.locked():
            self._ended.release()

    def _run(self) -> None:
        self._armed.acquire()
        if self._ended.acquire(timeout=self._limit_s):
            self._never.acquire(timeout=LAST_S)
        os.write(2, WORDS)
        self._end(STATUS)
