"""Retry policy: decide whether and when a prediction is sent again.

Invariants
- Only transient errors are retried: a server that sheds load (429) or is not ready (503), and a lost connection. A
  prediction changes nothing, so it is idempotent.
- If the server says when to retry, the client does not retry sooner. Otherwise the maximum wait doubles and the wait is
  a random part of it, so that clients that were refused together do not return together (AWS's "full jitter").
- All attempts together end before the deadline: an attempt that could not be answered in time is not made.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from freshet_serving.processor.errors import Expired, FreshetError, NotReady, Overloaded


class ConnectionLost(FreshetError):
    """The connection failed, or was lost before the reply."""

    http_status = 503
    grpc_code = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy.

    Attributes:
        attempts: Maximum number of attempts; 1 never retries.
        wait_s: Maximum wait before the second attempt; doubles before each further one.
        max_wait_s: Longest acceptable wait; if a server asks for more, its error is raised.
    """

    attempts: int = 3
    wait_s: float = 0.02
    max_wait_s: float = 2.0


class RetryState:
    """The attempts at one request.

    Args:
        timeout_s: Time limit of all attempts; None for none.
        jitter: Returns the fraction of the maximum wait to use, 0 to 1.
    """

    def __init__(
        self,
        retry: Retry,
        timeout_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._retry, self._clock, self._jitter = retry, clock, jitter
        self._deadline_s = None if timeout_s is None else clock() + timeout_s
        self._made = 0

    def begin(self) -> float | None:
        """Return the seconds that the next attempt may take, None for no limit. Raises Expired."""
        self._made += 1
        if self._deadline_s is None:
            return None
        left_s = self._deadline_s - self._clock()
        if left_s <= 0:
            raise Expired("deadline: passed before the request could be sent")
        return left_s

    def wait_s(self, error: FreshetError) -> float:
        """Return the seconds until the next attempt; raise the error if it must not be retried."""
        if not isinstance(error, (Overloaded, NotReady, ConnectionLost)) or self._made >= self._retry.attempts:
            raise error
        longest_s = self._retry.wait_s * (1 << (self._made - 1))
        if isinstance(error, Overloaded):
            # Later than the server asked for, never sooner.
            wait_s = error.retry_after_s + longest_s * self._jitter()
        else:
            wait_s = longest_s * self._jitter()
        late = self._deadline_s is not None and self._clock() + wait_s >= self._deadline_s
        if late or wait_s > self._retry.max_wait_s:
            raise error
        return wait_s
