"""Work of one event loop that would hold it up, on threads of its own: reading what is long, and binding the requests
of versions with a stage, which runs it.

Whoever reads a long document holds the GIL while a parser makes objects of it, and no limit of ours makes that short;
so one is read at a time, and what waits costs its bytes alone. Stages run side by side, without the GIL.

Invariants: finish() is called on the event loop, through its wake-ups, with the error of work that fails; work that
ends well has seen to its answer itself. No more than MAX_WAITING wait, and no more than MAX_WAITING_NBYTES with them.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from freshet_serving.processor.engine import PredictReply
from freshet_serving.processor.errors import NO_MEMORY, FreshetError, NotReady, Overloaded, shortage

log = logging.getLogger("freshet.http")

THREADS = 2
MAX_WAITING = 512
MAX_WAITING_NBYTES = 256 << 20

Finish = Callable[[PredictReply | FreshetError], None]
Work = Callable[[float], None]
"""Work, told how many seconds it has waited; raises FreshetError."""


class OffloadExecutor:
    """Threads for the long work of one event loop."""

    def __init__(self, post: Callable[[Finish, Any], None]) -> None:
        """post: has a function called with a result on the loop (serving.front.dispatcher)."""
        self._post = post
        self._threads = ThreadPoolExecutor(THREADS, "freshet-reading")
        self._reading = threading.Lock()
        # Bytes by the id of their work, which the loop adds to and threads take from.
        self._waiting: dict[int, int] = {}
        # The ids of work that nobody has begun.
        self._queued: set[int] = set()

    def submit(self, work: Work, nbytes: int, finish: Finish) -> None:
        """Has work done on another thread; an error of it goes to finish(). nbytes: that are to be read, 0 for work
        that does not read. Raises Overloaded."""
        waiting = list(self._waiting.values())
        if len(waiting) >= MAX_WAITING:
            raise Overloaded(f"queue: at most {MAX_WAITING} requests wait to be read, {len(waiting)} do")
        if waiting and sum(waiting) + nbytes > MAX_WAITING_NBYTES:
            wanted = f"at most {MAX_WAITING_NBYTES} bytes of requests wait to be read"
            raise Overloaded(f"queue: {wanted}, {sum(waiting)} do and {nbytes} came")
        self._waiting[id(work)] = nbytes
        self._queued.add(id(work))
        try:
            self._threads.submit(self._run, work, nbytes, finish, time.monotonic())
        except RuntimeError:
            # There is no memory for one thread more. It is queued all the same, and a thread that is there may have it.
            if self._took(work):
                del self._waiting[id(work)]
                raise NotReady(NO_MEMORY) from None

    def close(self) -> None:
        """Returns when what is at work is done; what waits is not done any more."""
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
        """Whether the work was queued, and is the caller's now."""
        try:
            self._queued.remove(id(work))
        except KeyError:
            return False
        return True

    def _read(self, work: Work, submitted_s: float) -> FreshetError | None:
        """Work that reads, one at a time: without the collector, which would look at all that a parser makes again and
        again, while nothing of it is ever part of a circle."""
        with self._reading:
            collecting = gc.isenabled()
            gc.disable()
            try:
                return _done(work, time.monotonic() - submitted_s)
            finally:
                if collecting:
                    gc.enable()


def _done(work: Work, waited_s: float) -> FreshetError | None:
    """What went wrong with it, without the frames that it went wrong in: they would keep what was read."""
    try:
        work(waited_s)
    except FreshetError as error:
        error.__context__ = None
        return error.with_traceback(None)
    except Exception as error:
        if (short := shortage(error)) is not None:
            return short
        log.exception("a request could not be submitted")
        return FreshetError("the model could not be run on this request")
    return None
