"""Standby threads: created when the server starts, and given one piece of work at a time.

Why not a thread per piece of work: `threading.Thread.start()` waits until the new thread reports that it runs, and in
CPython 3.11 a thread whose bootstrap dies of MemoryError never reports. Its starter then waits for ever, with every
lock that it holds.

Ownership: a caller of try_run() owns the thread until wait() has returned, and must call it; detached work
(try_run_detached()) owns it until the work ends. Other callers get False meanwhile.

Must never happen
- Work that continues after wait() has returned, or a wait() for work that never began.
- A thread that dies of its work, or of a shortage: whatever the work raises is kept for wait().
- A shortage of memory that blocks a caller: existing locks are acquired and released, and nothing is created.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from freshet_serving.processor.errors import NotReady

LOOK_S = 1.0
COME_S = 10.0
"""Seconds after which a thread that has not begun never will."""


def spawn(run: Callable[[], object]) -> None:
    """Run a function in a new thread, which may never begin: the caller must bear that. NotReady if there is none."""
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        raise NotReady("the server is short of threads") from None


def standing_pool(threads: int, name: str, initializer: Callable[[], object] | None = None) -> ThreadPoolExecutor:
    """Return a pool of threads that have begun, with `initializer`: submit() creates none. The caller shuts it down."""
    pool = ThreadPoolExecutor(threads, name, initializer)
    together = threading.Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(together.wait)
    together.wait(COME_S)
    return pool


class StandbyThread:
    """One daemon thread, from start() to close(). Thread-safe."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._free, self._begin, self._ended = threading.Lock(), threading.Lock(), threading.Lock()
        self._begin.acquire()
        self._ended.acquire()
        self._act: Callable[[], object] | None = None
        self._left = False
        self._raised: BaseException | None = None

    def start(self) -> None:
        """Start the thread; raises RuntimeError if none can be created."""
        self._thread.start()

    def try_run(self, act: Callable[[], object]) -> bool:
        """Begin `act` on the thread; return False if the thread is busy or does not run."""
        return self._begin_with(act, left=False)

    def try_run_detached(self, act: Callable[[], object]) -> bool:
        """Begin `act` without a later wait(), losing its errors; return False if the thread is busy or does not run."""
        return self._begin_with(act, left=True)

    def _begin_with(self, act: Callable[[], object], left: bool) -> bool:
        if not self._thread.is_alive() or not self._free.acquire(blocking=False):
            return False
        self._act, self._left, self._raised = act, left, None
        self._begin.release()
        return True

    def wait(self) -> BaseException | None:
        """Wait until the work has ended; returns what it raised."""
        while True:
            try:
                if self._ended.acquire(timeout=LOOK_S):
                    break
                if not self._thread.is_alive():
                    # The lock is never released again: this thread gets no more work.
                    return NotReady("the server is short of threads")
            except MemoryError:
                # The work uses the caller's objects, so keep waiting whatever else happens.
                continue
        raised, self._raised, self._act = self._raised, None, None
        self._free.release()
        return raised

    def close(self) -> None:
        """End the thread and wait for its end if it has nothing to do; a busy one is left to end by itself."""
        if self._free.acquire(blocking=False):
            self._act = None
            self._begin.release()
            if self._thread.is_alive():
                self._thread.join()

    def _run(self) -> None:
        while True:
            self._begin.acquire()
            if self._act is None:
                return
            try:
                self._act()
            except BaseException as error:
                self._raised = error
            if self._left:
                self._act = self._raised = None
                self._free.release()
            else:
                self._ended.release()


class BackgroundTask:
    """Work beside the caller's own, done by a standby thread, or by the caller if there is none.

    A context manager: the block ends once the work has ended, and raises its error unless the block raised one itself.
    """

    def __init__(self, act: Callable[[], object], thread: StandbyThread | None) -> None:
        """Begin the work if `thread` is free."""
        self._act: Callable[[], object] | None = act
        self._raised: BaseException | None = None
        self._thread = thread if thread is not None and thread.try_run(act) else None

    def __enter__(self) -> BackgroundTask:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread is not None:
            thread, self._thread, self._act = self._thread, None, None
            self._raised = thread.wait()
        if kind is None and self._raised is not None:
            raise self._raised

    def run_if_pending(self) -> None:
        """Do the work now, unless the thread does it; raises nothing."""
        if self._act is not None and self._thread is None:
            act, self._act = self._act, None
            try:
                act()
            except BaseException as error:
                self._raised = error


class PeriodicThread(threading.Thread):
    """Calls maintain() until it is closed: again after `busy_interval_s` if that returned True, else `interval_s`."""

    def __init__(
        self,
        maintain: Callable[[], bool],
        interval_s: float = 0.1,
        busy_interval_s: float = 0.02,
        name: str = "freshet-keeper",
    ) -> None:
        """Set up the thread. `maintain` acquires the locks it needs.

        An exception does not end the thread: the next slice may have the memory that this one lacked.
        """
        super().__init__(name=name, daemon=True)
        self._maintain = maintain
        self._interval_s, self._busy_interval_s = interval_s, busy_interval_s
        self._closing = threading.Event()

    def run(self) -> None:
        while True:
            try:
                if self._closing.wait(self._busy_interval_s if self._maintain() else self._interval_s):
                    return
            except Exception:
                if self._closing.is_set():
                    return
                # Pause, or a repeated failure would keep the process busy; the wait on the event may lack memory too.
                time.sleep(self._interval_s)

    def close(self, patience_s: float | None = None) -> None:
        """Stop, and wait until a running slice has ended, at most patience_s."""
        self._closing.set()
        self.join(patience_s)
