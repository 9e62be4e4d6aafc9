"""Retries: when a prediction is tried again.

Invariants
- Only what may pass is tried again: a server that sheds (429) or is not ready (503), and a connection that was lost.
  A prediction changes nothing, so asking twice is safe.
- A server that says when to come back is not asked sooner. Without that, waits double, from a random point on, so that
  clients that were refused together do not come back together (AWS's "full jitter").
- All attempts together end before the deadline: one that could not be answered in time is not made.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from freshet_serving.processor.errors import Expired, FreshetError, NotReady, Overloaded


class ConnectionLost(FreshetError):
    """The connection could not be made, or was lost before the reply."""

    http_status = 503
    grpc_code = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Retry:
    """When a prediction is tried again. attempts: in all; 1 never tries again. wait_s: at most before the second,
    doubled before each further one. max_wait_s: a server that asks for more is not waited for."""

    attempts: int = 3
    wait_s: float = 0.02
    max_wait_s: float = 2.0


class RetryState:
    """The attempts at one request."""

    def __init__(
        self,
        retry: Retry,
        timeout_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """share: 0 to 1, of the longest wait."""
        self._retry, self._clock, self._jitter = retry, clock, jitter
        self._deadline_s = None if timeout_s is None else clock() + timeout_s
        self._made = 0

    def begin(self) -> float | None:
        """Seconds that the next attempt may take, None for any; raises Expired."""
        self._made += 1
        if self._deadline_s is None:
            return None
        left_s = self._deadline_s - self._clock()
        if left_s <= 0:
            raise Expired("deadline: passed before the request could be sent")
        return left_s

    def wait_s(self, error: FreshetError) -> float:
        """Seconds until the next attempt; raises the error when there is none."""
        if not isinstance(error, (Overloaded, NotReady, ConnectionLost)) or self._made >= self._retry.attempts:
            raise error
        longest_s = self._retry.wait_s * (1 << (self._made - 1))
        if isinstance(error, Overloaded):
            # Later than asked for, never sooner.
            wait_s = error.retry_after_s + longest_s * self._jitter()
        else:
            wait_s = longest_s * self._jitter()
        late = self._deadline_s is not None and self._clock() + wait_s >= self._deadline_s
        if late or wait_s > self._retry.max_wait_s:
            raise error
        return wait_s
