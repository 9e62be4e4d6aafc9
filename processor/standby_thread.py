"""A thread that stands by: made when the server starts, lent one piece of work at a time.

Why not a thread for each piece: `threading.Thread.start()` waits until the new thread has said that it runs, and in
CPython 3.11 one whose bootstrap dies of MemoryError never says so. Whoever started it waits for ever, with every lock
that it holds.

Who owns what: whoever has try_run()ed work owns the thread until wait() has returned, and must call it; work that is
left to it (try_run_detached()) owns it until it ends. Nobody else gets it meanwhile: they are told no.

What may never be seen
- Work that goes on after wait() has returned, or wait() that waits for work that never began: it looks again each
  second whether the thread lives.
- A thread that died of what was lent to it, or of a shortage: whatever that raises is kept for wait().
- A shortage that keeps anybody waiting: locks that exist are taken and let go, and nothing is made.

Keeper: a thread that does a slice of work now and then, and more of it at once while there is more.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from freshet_serving.processor.errors import NotReady

LOOK_S = 1.0
COME_S = 10.0
"""A thread that has not begun by then will not."""


def spawn(run: Callable[[], object]) -> None:
    """Has a new thread run something, without waiting for it to begin: it may never, and the caller is to bear that.
    Raises NotReady where there can be no thread."""
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        raise NotReady("the server is short of threads") from None


def standing_pool(threads: int, name: str, initializer: Callable[[], object] | None = None) -> ThreadPoolExecutor:
    """A pool whose threads have all begun: submit() never has to make one. The caller shuts it down.

    Args:
        threads: how many there are.
        name: what theirs begin with.
        initializer: called by each of them first.
    """
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
        """Starts the thread; raises RuntimeError where there can be none."""
        self._thread.start()

    def try_run(self, act: Callable[[], object]) -> bool:
        """Has the thread begin with `act`; False where it is at work for somebody else, or does not run."""
        return self._begin_with(act, left=False)

    def try_run_detached(self, act: Callable[[], object]) -> bool:
        """The same with nobody to wait for it; what `act` raises is lost."""
        return self._begin_with(act, left=True)

    def _begin_with(self, act: Callable[[], object], left: bool) -> bool:
        if not self._thread.is_alive() or not self._free.acquire(blocking=False):
            return False
        self._act, self._left, self._raised = act, left, None
        self._begin.release()
        return True

    def wait(self) -> BaseException | None:
        """Returns once the work that was lent has ended: what that raised."""
        while True:
            try:
                if self._ended.acquire(timeout=LOOK_S):
                    break
                if not self._thread.is_alive():
                    # Nobody will let it go any more: this thread is lent to no one again.
                    return NotReady("the server is short of threads")
            except MemoryError:
                # What was lent uses what is the caller's: it is waited for, whatever else happens.
                continue
        raised, self._raised, self._act = self._raised, None, None
        self._free.release()
        return raised

    def close(self) -> None:
        """Ends the thread once it has nothing to do; waits for none of it."""
        if self._free.acquire(blocking=False):
            self._act = None
            self._begin.release()

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
    """Work beside the caller's own: done by a thread that stands by, or by the caller where there is none. Whoever
    begins one ends it, whatever happens in between."""

    def __init__(self, act: Callable[[], object] | None, thread: StandbyThread | None) -> None:
        """Begins it, where `thread` has time. act: None for nothing."""
        self._act = act
        self._raised: BaseException | None = None
        self._thread = thread if act is not None and thread is not None and thread.try_run(act) else None

    def run_if_pending(self) -> None:
        """Does it now, unless the thread does; raises nothing."""
        if self._act is not None and self._thread is None:
            act, self._act = self._act, None
            try:
                act()
            except BaseException as error:
                self._raised = error

    def end(self) -> None:
        """Returns once it is not being done any more; raises nothing."""
        if self._thread is not None:
            thread, self._thread, self._act = self._thread, None, None
            self._raised = thread.wait()

    def raise_error(self) -> None:
        """Raises what it has raised; after end()."""
        if self._raised is not None:
            raise self._raised


class PeriodicThread(threading.Thread):
    """Calls maintain() until it is closed: again after `busy_interval_s` when that returned True, else `interval_s`."""

    def __init__(
        self,
        maintain: Callable[[], bool],
        interval_s: float = 0.1,
        busy_interval_s: float = 0.02,
        name: str = "freshet-keeper",
    ) -> None:
        """tend: a slice of work; it takes the locks that it needs. What it raises ends no keeper: the next slice may
        have the memory that this one lacked."""
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
                # Without a pause it would be all that the process does; what waits may lack memory too.
                time.sleep(self._interval_s)

    def close(self, patience_s: float | None = None) -> None:
        """Returns when the slice that may be running has ended, or after patience_s."""
        self._closing.set()
        self.join(patience_s)
