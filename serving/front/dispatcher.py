"""The submitter: puts one event loop's predict requests before the processor, and brings replies back on that loop.

With inline compute a loop's thread computes what its turns have read, and there is one owner; so the protocols of one
loop share one Submitter.

Where session threads compute, a turn of the loop that has a thousand sockets to read takes as long as a deadline, and
their replies would wait for its end. So they are answered within the turn, LONG_TURN_S after they last were.

Wakeups: replies from session threads to the event loop: one wake-up of the loop for as many replies as are there.

Invariant: whoever appends to the queue and finds no wake-up pending schedules one; the loop clears the flag
before it empties the queue. So a reply is never left behind, and at worst a wake-up finds nothing to do.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.sessions.request import Done
from freshet_serving.serving.front.offload_executor import Finish, OffloadExecutor, Work
from freshet_serving.serving.telemetry.triton_statistics import AnswerCounts

if TYPE_CHECKING:
    from freshet_serving.serving.front.queries import PredictionEngine
import logging
from collections import deque

log = logging.getLogger("freshet.http")


class CompletionQueue:
    """Calls functions with results on one event loop, from any thread, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._pending = False

    def post(self, finish: Callable[[Any], None], result: Any) -> None:
        """Posts a result: `finish(result)` is called on the loop, soon. Never blocks, never raises."""
        self._queue.append((finish, result))
        if not self._pending:
            self._pending = True
            try:
                self._loop.call_soon_threadsafe(self.deliver)
            except RuntimeError:
                # The loop has closed: nobody waits for the reply any more.
                self._queue.clear()

    def deliver(self) -> None:
        """Hands over what is there; on the loop's thread."""
        self._pending = False
        queue = self._queue
        while queue:
            finish, result = queue.popleft()
            try:
                finish(result)
            except Exception:
                log.exception("a reply could not be handed over")


T = TypeVar("T")

# About as long as a hundred small requests are read for.
LONG_TURN_S = 0.005


class Dispatcher:
    """The way to the processor and back of one event loop; one loop at a time has it. served: what its protocols have
    answered."""

    def __init__(self) -> None:
        self.served = AnswerCounts()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._completions: CompletionQueue
        # Brings replies to the loop; None where they are computed on it.
        self._post: Callable[[Finish, Any], None] | None = None
        self._offload_executor: OffloadExecutor | None = None
        self._caught_up_s = 0.0

    def deliver(self, processor: PredictionEngine, finish: Finish) -> Done:
        """What Predictor.submit() is to be given, by whatever thread, so that `finish` is called once, later, on the
        running loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._connect(loop, processor)
        return finish if self._post is None else partial(self._post, finish)

    def catch_up(self) -> None:
        """Answer what other threads have computed, where that was last done LONG_TURN_S ago.

        Called before a request is read. Inline, what a turn has read is a batch: to compute it in parts makes replies
        later, not sooner (at twice saturation 0.7 of the peak goodput instead of 0.85).
        """
        if self._post is None:
            return
        now_s = time.monotonic()
        if now_s - self._caught_up_s >= LONG_TURN_S:
            self._caught_up_s = now_s
            self._completions.deliver()

    def offload(self, work: Work, nbytes: int, finish: Finish) -> None:
        """See OffloadExecutor.submit; the running loop is one that deliver() was called on."""
        assert self._offload_executor is not None, "deliver() made it"
        self._offload_executor.submit(work, nbytes, finish)

    async def run_in_thread(self, processor: PredictionEngine, function: Callable[[], T], nbytes: int) -> T:
        """What a function returns that reads so many bytes, or raises, called on another thread. Raises Overloaded."""
        future: asyncio.Future[T | FreshetError] = asyncio.get_running_loop().create_future()

        def finish(result: Any) -> None:
            if not future.done():
                future.set_result(result)

        self.deliver(processor, finish)
        self.offload(lambda _: self._completions.post(finish, function()), nbytes, finish)
        result = await future
        if isinstance(result, FreshetError):
            raise result
        return result

    def close(self) -> None:
        """Ends the loop's threads: everything has been answered, or is not to be any more."""
        if self._offload_executor is not None:
            self._offload_executor.close()

    def _connect(self, loop: asyncio.AbstractEventLoop, processor: PredictionEngine) -> None:
        """Has replies come on this loop: computed there, or handed over by session threads."""
        thread = threading.get_ident()

        def wake(delay_s: float) -> None:
            if threading.get_ident() != thread:
                loop.call_soon_threadsafe(processor.run_once)
            elif delay_s:
                loop.call_later(delay_s, processor.run_once)
            else:
                loop.call_soon(processor.run_once)

        self.close()
        self._completions = CompletionQueue(loop)
        post = self._completions.post
        self._post = None if processor.set_owner(wake, post) else post
        self._offload_executor = OffloadExecutor(post)
        self._loop = loop
