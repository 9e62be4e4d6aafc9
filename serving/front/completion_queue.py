"""Replies from session threads to the event loop: one wake-up of the loop for as many replies as are there.

Invariant: whoever appends to the queue and finds no wake-up pending schedules one; the loop clears the flag
before it empties the queue. So a reply is never left behind, and at worst a wake-up finds nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

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
