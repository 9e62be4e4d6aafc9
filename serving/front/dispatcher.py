"""Submit one event loop's predict requests to the processor, and return replies on that loop.

With inline compute a loop's thread computes the requests read in a turn, and there is one owner; so all protocols of
one loop share one Dispatcher.

With session threads, a turn of the loop that reads a thousand sockets takes as long as a deadline, and replies would
wait for its end. So replies are also delivered within the turn, once LONG_TURN_S have passed since the last delivery.

CompletionQueue passes replies from session threads to the event loop, with one wake-up of the loop for all that are
queued. Invariant: a thread that appends to the queue while no wake-up is pending schedules one; the loop clears the
flag before it empties the queue. So no reply is left behind, and at worst a wake-up finds an empty queue.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.sessions.request import Done
from freshet_serving.serving.front.offload_executor import Finish, OffloadExecutor, Work
from freshet_serving.serving.telemetry.triton_statistics import AnswerCounts

if TYPE_CHECKING:
    from freshet_serving.processor.sessions.predictor import Predictor

log = logging.getLogger("freshet.http")

# About the time it takes to read a hundred small requests.
LONG_TURN_S = 0.005
# Lookups of features that wait for an online store at the same time.
LOOKUPS = 8
T = TypeVar("T")


class CompletionQueue:
    """Calls functions with results on one event loop, from any thread, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._pending = False

    def post(self, finish: Callable[[Any], None], result: Any) -> None:
        """Have `finish(result)` called on the loop, soon. Never blocks, never raises."""
        self._queue.append((finish, result))
        if not self._pending:
            self._pending = True
            try:
                self._loop.call_soon_threadsafe(self.deliver)
            except RuntimeError:
                # The loop has closed, so no client waits for the reply.
                self._queue.clear()

    def deliver(self) -> None:
        """Deliver all queued results; runs on the loop's thread."""
        self._pending = False
        queue = self._queue
        while queue:
            finish, result = queue.popleft()
            try:
                finish(result)
            except Exception:
                log.exception("could not deliver a reply")


class Dispatcher:
    """Submits one event loop's requests to the processor; one loop at a time uses it."""

    def __init__(self) -> None:
        self.served = AnswerCounts()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._completions: CompletionQueue
        # Delivers replies to the loop; None if they are computed on it.
        self._post: Callable[[Finish, Any], None] | None = None
        self._offload_executor: OffloadExecutor | None = None
        # Apart from the other, so that a store that hangs delays no long request.
        self._lookup_executor: OffloadExecutor | None = None
        self._caught_up_s = 0.0

    def deliver(self, processor: Predictor, finish: Finish) -> Done:
        """Return a callback that any thread may call: `finish` is then called once, later, on the running loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._connect(loop, processor)
        return finish if self._post is None else partial(self._post, finish)

    def catch_up(self) -> None:
        """Deliver replies from other threads if the last delivery was LONG_TURN_S ago.

        Called before a request is read. With inline compute the requests read in a turn are one batch: computing it in
        parts makes replies later, not sooner (at twice saturation 0.7 of the peak goodput instead of 0.85).
        """
        if self._post is None:
            return
        now_s = time.monotonic()
        if now_s - self._caught_up_s >= LONG_TURN_S:
            self._caught_up_s = now_s
            self._completions.deliver()

    def offload(self, work: Work, nbytes: int, finish: Finish) -> None:
        """Run work with OffloadExecutor.submit; deliver() must have been called on the running loop."""
        assert self._offload_executor is not None, "deliver() created it"
        self._offload_executor.submit(work, nbytes, finish)

    def look_up(self, work: Work, finish: Finish) -> None:
        """Run work that waits for an online store; as offload()."""
        assert self._lookup_executor is not None, "deliver() created it"
        self._lookup_executor.submit(work, 0, finish)

    async def run_in_thread(self, processor: Predictor, function: Callable[[], T], nbytes: int) -> T:
        """Call a function that reads `nbytes` bytes on another thread; return its result, or raise its error.

        Raises Overloaded if too much work is queued.
        """
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
        """End the loop's threads after all requests have been answered or abandoned."""
        for executor in (self._offload_executor, self._lookup_executor):
            if executor is not None:
                executor.close()

    def _connect(self, loop: asyncio.AbstractEventLoop, processor: Predictor) -> None:
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
        self._lookup_executor = OffloadExecutor(post, LOOKUPS)
        self._loop = loop
