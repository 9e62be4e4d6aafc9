"""`freshet` with stamps on its requests: the command as it is, with methods of the HTTP port wrapped.

`python -m loadtest.bench.stamped_server FOLDER REPLY_NBYTES serve ...`: each process that answers writes rows of STAMP
to FOLDER/PID.stamps, a file that the reader maps while it is written. REPLY_NBYTES above 0 makes it a null server: the
same processes, port and protocol, but instead of a request's computing so many nanoseconds of a core as FOLDER/busy
says, and a constant reply of so many bytes.

Three kinds of rows. A request, by its client's port and its number on that connection; what a client measured is joined
to it without a header, which would change the request's way. A tick: a timerfd goes off every TICK_S and the loop says
when it came to read it; each tick by itself, so that a loop that is held for long is late for each of them. A nap: a
thread sleeps NAP_S and says how much longer it was until it had Python's lock.

With each stamp of the loop's thread stand the time of a core that the thread has had, and the time that it has stood
ready without one, as the kernel counts both: how an interval between two stamps was spent is a difference.

Invariants: a row is written by the thread that claimed its place; the count is raised afterwards, so that a reader may
see a last row that is not whole, and takes those whose `written_ns` is set. A full file takes no more rows.
Costs: about 8 microseconds of a core a request, for both servers alike. Rejected: spans (tens of microseconds a
request), perf's scheduler events (root, and a file of its own format).
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.serving.commands.cli import main as freshet
from freshet_serving.serving.front.exchange import Exchange
from freshet_serving.serving.http.app import DataApp
from freshet_serving.serving.http.protocol import PredictProtocol
from loadtest.load.openloop import Timer

STAMP = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("kind", "loop", "port", "number", "read_ns", "read_ran_ns", "read_waited_ns", "submitted_ns", "began_ns"),
            *("ended_ns", "answered_ns", "written_ns", "written_ran_ns", "written_waited_ns"),
        )
    ]
)
"""One row. loop: the thread's number in the system. Instants are of the monotonic clock. A tick: read_ns is when it was
due, written_ns when it was read. A nap: read_ns is when it began, submitted_ns when it should have ended, written_ns
when it had; read_waited_ns and written_waited_ns are of its own thread."""
REQUEST, TICK, NAP = 1, 2, 3
ROWS = 2_000_000
TICK_S, NAP_S = 0.005, 0.005
BUSY = "busy"
NULL_HEADERS = ((b"content-type", b"application/octet-stream"),)


class Waits:
    """How long the thread that opened it has stood ready without a core; 0 where the kernel does not count it."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._fd = -1

    def ns(self) -> int:
        """Return nanoseconds since the thread began."""
        return int(os.pread(self._fd, 96, 0).split()[1]) if self._fd >= 0 else 0


class Stamps:
    """The rows of this process, and of its event loop's thread."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        path = folder / f"{os.getpid()}.stamps"
        with open(path, "w+b") as file:
            file.truncate(ROWS * STAMP.itemsize)
            self._rows = np.frombuffer(mmap.mmap(file.fileno(), 0), STAMP)
        self._places = itertools.count()
        self.waits, self.loop = Waits(), threading.get_native_id()
        # What the last result of this loop's turn said of its batch; (0, 0) for nothing.
        self.batch = 0.0, 0.0
        self._timer, self._due_s = Timer(), time.monotonic() + TICK_S
        self._timer.set(self._due_s)
        loop.add_reader(self._timer.fd, self._tick)
        threading.Thread(target=self._nap, daemon=True, name="naps").start()

    def now(self) -> tuple[int, int, int]:
        """Return the clock, the time of a core that this thread has had, and that it has waited for one."""
        return time.monotonic_ns(), time.thread_time_ns(), self.waits.ns()

    def add(self, *row: int) -> None:
        """Write a row, if there is room."""
        place = next(self._places)
        if place < ROWS:
            self._rows[place] = row

    def _tick(self) -> None:
        self._timer.clear()
        due_ns = int(self._due_s * 1e9)
        self.add(TICK, self.loop, 0, 0, due_ns, 0, 0, 0, 0, 0, 0, *self.now())
        self._due_s += TICK_S
        self._timer.set(self._due_s)

    def _nap(self) -> None:
        waits = Waits()
        while True:
            waited_ns, began_ns = waits.ns(), time.monotonic_ns()
            time.sleep(NAP_S)
            ended_ns = time.monotonic_ns()
            due_ns = began_ns + int(NAP_S * 1e9)
            self.add(NAP, self.loop, 0, 0, began_ns, 0, waited_ns, due_ns, 0, 0, 0, ended_ns, 0, waits.ns())


class Instruments:
    """Stamps of whichever process runs it: workers are forked with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamps: Stamps | None = None
        self._pid = 0

    def stamps(self) -> Stamps:
        """Return this process's, which begin with its first connection; called on the event loop."""
        if self._stamps is None or self._pid != os.getpid():
            self._pid, self._stamps = os.getpid(), Stamps(self._folder, asyncio.get_running_loop())
        return self._stamps

    def attach(self) -> None:
        """Wrap the methods of the port through which each predict request goes."""
        instruments = self
        made, received = PredictProtocol.connection_made, PredictProtocol.data_received
        start, answer, finish = PredictProtocol._start, PredictProtocol._answer, Exchange.finish

        def connection_made(self: Any, transport: Any) -> None:
            made(self, transport)
            self.stamps, self.requests, self.read, self.submitted_ns = instruments.stamps(), 0, None, 0

        def data_received(self: Any, data: bytes) -> None:
            if self.read is None:
                self.read = self.stamps.now()
            received(self, data)

        def start_stamped(self: Any, pending: Any, body: Any) -> None:
            self.stamps.batch, self.submitted_ns = (0.0, 0.0), 0
            start(self, pending, body)
            self.submitted_ns = time.monotonic_ns()

        def finish_stamped(self: Any, result: Any) -> None:
            timing = getattr(result, "timing", None)
            instruments.stamps().batch = (0.0, 0.0) if timing is None else (timing.began_s, timing.ended_s)
            finish(self, result)

        def answer_stamped(self: Any, pending: Any, reply: Any) -> None:
            stamps, answered_ns, read = self.stamps, time.monotonic_ns(), self.read
            began_ns, ended_ns = (int(second * 1e9) for second in stamps.batch)
            stamps.batch = 0.0, 0.0
            answer(self, pending, reply)
            # Without a batch, and before start() has returned: refused, or answered by the null server.
            began_ns, ended_ns = began_ns or self.submitted_ns or answered_ns, ended_ns or answered_ns
            submitted_ns = self.submitted_ns or began_ns
            if read is not None:
                row = (submitted_ns, began_ns, ended_ns, answered_ns, *stamps.now())
                stamps.add(REQUEST, stamps.loop, self._client[1], self.requests, *read, *row)
            self.requests += 1
            self.read, self.submitted_ns = None, 0

        methods: dict[str, Callable[..., None]] = {
            "connection_made": connection_made,
            "data_received": data_received,
            "_start": start_stamped,
            "_answer": answer_stamped,
        }
        for name, method in methods.items():
            setattr(PredictProtocol, name, method)
        Exchange.finish = finish_stamped  # type: ignore[method-assign]  # that is the module's purpose

    def make_null(self, nbytes: int) -> None:
        """Answer every predict request with a constant."""
        busy = np.memmap(self._folder / BUSY, np.int64, "r")
        answer = 200, bytes(nbytes), NULL_HEADERS
        instruments = self

        def start(self: Any, route: Any, headers: Any, body: Any, answered: Any, unread_s: Any = float) -> None:
            began_s = time.monotonic()
            until_ns = time.thread_time_ns() + int(busy[0])
            while time.thread_time_ns() < until_ns:
                pass
            instruments.stamps().batch = began_s, time.monotonic()
            answered(answer)

        DataApp.start = start  # type: ignore[method-assign]  # as above


def rows(folder: Path) -> np.ndarray[Any, np.dtype[np.void]]:
    """Return the rows that all processes have written so far, in no order."""
    parts = [np.zeros(0, STAMP)]
    for path in folder.glob("*.stamps"):
        table = np.memmap(path, STAMP, "r")
        kinds = table["kind"]
        # Rows are written from the first on, and most of the file is a hole: the first empty row is found by halves.
        count = bisect.bisect_left(range(len(kinds)), True, key=lambda place: bool(kinds[place] == 0))
        part = np.array(table[:count])
        parts.append(part[part["written_ns"] > 0])
    return np.concatenate(parts)


def main() -> None:
    """Run the command under its own name."""
    folder, nbytes = Path(sys.argv[1]), int(sys.argv[2])
    sys.argv[:] = ["freshet", *sys.argv[3:]]
    instruments = Instruments(folder)
    instruments.attach()
    if nbytes:
        instruments.make_null(nbytes)
    freshet()


if __name__ == "__main__":
    main()
