"""Requests of versions with a stage: submitted on threads of their own, because binding them runs the stage.

Invariants: finish() of a request is called once, on the event loop: with a reply by whoever computes it, with an error
of submitting through the loop's wake-ups. What waits here counts towards a request's deadline, and no more than
MAX_WAITING wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from processor.engine import PredictReply, PredictRequest
from processor.errors import Expired, FreshetError, Overloaded
from processor.versions.replica import Replica

log = logging.getLogger("freshet.http")

THREADS = 2
MAX_WAITING = 512

Finish = Callable[[PredictReply | FreshetError], None]


class Offloading:
    """Threads that submit the requests of one event loop whose binding runs a stage."""

    def __init__(self, post: Callable[[Finish, Any], None]) -> None:
        """post: has a function called with a result on the loop (serving.front.wakeups)."""
        self._post = post
        self._threads = ThreadPoolExecutor(THREADS, "freshet-stage")
        # Counts by its length, which the loop adds to and threads take from.
        self._waiting: set[int] = set()

    def submit(self, processor: Any, request: PredictRequest, replica: Replica, done: Finish, finish: Finish) -> None:
        """Processor.submit(request, done, replica) on another thread; an error of it goes to finish(). Raises
        Overloaded."""
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded(f"model {request.model!r}: more than {MAX_WAITING} requests wait for its stage")
        self._waiting.add(id(request))
        self._threads.submit(self._run, processor, request, replica, done, finish, time.monotonic())

    def _run(
        self,
        processor: Any,
        request: PredictRequest,
        replica: Replica,
        done: Finish,
        finish: Finish,
        submitted_s: float,
    ) -> None:
        try:
            if request.timeout_s is not None:
                request.timeout_s -= time.monotonic() - submitted_s
                if request.timeout_s <= 0:
                    raise Expired("deadline: passed before the model's stage could run")
            processor.submit(request, done, replica)
        except FreshetError as error:
            self._post(finish, error)
        except Exception:
            log.exception("a request could not be submitted")
            self._post(finish, FreshetError("the model could not be run on this request"))
        finally:
            self._waiting.discard(id(request))
