"""Run work that would block an event loop on threads of its own.

That is reading long requests, and binding requests of versions with a stage, which runs the stage. Parsing a long
document needs the GIL nearly all the time, though it gives it up often (serving.codecs.json_slices); so one is read at
a time, and waiting ones cost only their bytes. Stages run in parallel, without the GIL.

Invariants: finish() is called on the event loop, through its wake-ups, with the error of work that fails; successful
work has arranged its answer itself. At most MAX_WAITING requests, and MAX_WAITING_NBYTES with them, are queued.

What needs no queue is run by in_thread(), with its failure as the caller's result. A future cannot hold StopIteration:
asyncio drops it with a line in the log, and its waiter waits for ever.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from freshet_serving.processor.engine import PredictReply
from freshet_serving.processor.errors import NO_MEMORY, FreshetError, NotReady, Overloaded, shortage

log = logging.getLogger("freshet.http")

THREADS = 2
MAX_WAITING = 512
MAX_WAITING_NBYTES = 256 << 20

Finish = Callable[[PredictReply | FreshetError], None]
Work = Callable[[float], None]
"""Work; its argument is the seconds that it has waited. Raises FreshetError."""
T = TypeVar("T")


class OffloadExecutor:
    """Threads for the long work of one event loop; `post` calls a function with a result on the loop."""

    def __init__(self, post: Callable[[Finish, Any], None], threads: int = THREADS) -> None:
        self._post = post
        self._threads = ThreadPoolExecutor(threads, "freshet-reading")
        self._reading = threading.Lock()
        # Bytes by the id of their work; the loop adds entries and threads remove them.
        self._waiting: dict[int, int] = {}
        # Ids of work that has not started.
        self._queued: set[int] = set()

    def submit(self, work: Work, nbytes: int, finish: Finish) -> None:
        """Run work on another thread; its error goes to finish(). Work that does not read has `nbytes` 0.

        Raises:
            Overloaded: The queue is full (load shedding).
            NotReady: There is no memory for a thread.
        """
        waiting = list(self._waiting.values())
        if len(waiting) >= MAX_WAITING:
            raise Overloaded(f"queue: expected at most {MAX_WAITING} requests waiting to be read, got {len(waiting)}")
        if waiting and sum(waiting) + nbytes > MAX_WAITING_NBYTES:
            expected = f"expected at most {MAX_WAITING_NBYTES} bytes of requests waiting to be read"
            raise Overloaded(f"queue: {expected}, got {sum(waiting)} and {nbytes} more")
        self._waiting[id(work)] = nbytes
        self._queued.add(id(work))
        try:
            self._threads.submit(self._run, work, nbytes, finish, time.monotonic())
        except RuntimeError:
            # There is no memory for another thread. The work is queued all the same, and an existing thread may take
            # it.
            if self._took(work):
                del self._waiting[id(work)]
                raise NotReady(NO_MEMORY) from None

    def close(self) -> None:
        """Return when running work is done; queued work is dropped."""
        self._threads.shutdown(cancel_futures=True)

    def _run(self, work: Work, nbytes: int, finish: Finish, submitted_s: float) -> None:
        if not self._took(work):
            return
        try:
            error = self._read(work, submitted_s) if nbytes else _done(work, time.monotonic() - submitted_s)
        finally:
            del self._waiting[id(work)]
        if error is not None:
            self._post(finish, error)

    def _took(self, work: Work) -> bool:
        """Take the work from the queue; return False if it was already taken."""
        try:
            self._queued.remove(id(work))
        except KeyError:
            return False
        return True

    def _read(self, work: Work, submitted_s: float) -> FreshetError | None:
        """Run work that reads, one at a time, with the garbage collector off.

        The collector would repeatedly traverse what a parser makes, although it is never part of a cycle.
        """
        with self._reading:
            collecting = gc.isenabled()
            gc.disable()
            try:
                return _done(work, time.monotonic() - submitted_s)
            finally:
                if collecting:
                    gc.enable()


def _done(work: Work, waited_s: float) -> FreshetError | None:
    """Run work and return its error without traceback, whose frames would keep the request's data alive."""
    try:
        work(waited_s)
    except FreshetError as error:
        error.__context__ = None
        return error.with_traceback(None)
    except Exception as error:
        if (short := shortage(error)) is not None:
            return short
        log.exception("could not submit a request")
        return FreshetError("could not run the model on this request")
    return None


async def in_thread(executor: Executor | None, function: Callable[[], T]) -> T:
    """Run a function in a thread of the executor, by default the loop's; a StopIteration becomes a RuntimeError."""

    def run() -> T:
        try:
            return function()
        except StopIteration as error:
            raise RuntimeError("an iterator ended where an item was expected") from error

    return await asyncio.get_running_loop().run_in_executor(executor, run)
