"""The submitter: puts one event loop's predict requests before the processor, and brings replies back on that loop.

With inline compute a loop's thread computes what its turns have read, and there is one owner; so the protocols of one
loop share one Submitter.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from processor.engine import PredictReply, PredictRequest
from processor.errors import FreshetError
from processor.versions.replica import Replica
from serving.front.offloading import Offloading
from serving.front.wakeups import Wakeups
from serving.telemetry.triton_statistics import AnswerCounts

if TYPE_CHECKING:
    from serving.front.queries import Answering

Finish = Callable[[PredictReply | FreshetError], None]


class Submitter:
    """Submits the requests of one event loop; one loop at a time has it. served: what its protocols have answered."""

    def __init__(self) -> None:
        self.served = AnswerCounts()
        self._loop: asyncio.AbstractEventLoop | None = None
        # Brings replies to the loop; None where they are computed on it.
        self._post: Callable[[Finish, Any], None] | None = None
        self._offloading: Offloading

    def submit(self, processor: Answering, request: PredictRequest, replica: Replica, finish: Finish) -> None:
        """Submits a request that admit() has let in; `finish` is called once, later, on the running loop. Raises
        FreshetError when it cannot be submitted."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._connect(loop, processor)
        done = finish if self._post is None else partial(self._post, finish)
        if replica.manifest.stage is None:
            processor.submit(request, done, replica)
        else:
            # Binding such a request runs the stage, which is long for an event loop.
            self._offloading.submit(processor, request, replica, done, finish)

    def _connect(self, loop: asyncio.AbstractEventLoop, processor: Answering) -> None:
        """Has replies come on this loop: computed there, or handed over by session threads."""
        thread = threading.get_ident()

        def wake(delay_s: float) -> None:
            if threading.get_ident() != thread:
                loop.call_soon_threadsafe(processor.run_once)
            elif delay_s:
                loop.call_later(delay_s, processor.run_once)
            else:
                loop.call_soon(processor.run_once)

        post = Wakeups(loop).post
        self._post = None if processor.attach(wake, post) else post
        self._offloading = Offloading(post)
        self._loop = loop
