"""Replies from session threads to the event loop: one wake-up of the loop for as many replies as are there.

Invariant: whoever appends to the queue and finds no wake-up pending schedules one; the loop clears the flag
before it empties the queue. So a reply is never left behind, and at worst a wake-up finds nothing to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Wakeups:
    """Resolves futures of one event loop from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._queue: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._pending = False

    def post(self, future: asyncio.Future[Any], result: Any) -> None:
        """Gives `future` its result on the loop, soon. Never blocks, never raises."""
        self._queue.append((future, result))
        if not self._pending:
            self._pending = True
            try:
                self.loop.call_soon_threadsafe(self._resolve)
            except RuntimeError:
                # The loop has closed: nobody waits for the reply any more.
                self._queue.clear()

    def _resolve(self) -> None:
        self._pending = False
        queue = self._queue
        while queue:
            future, result = queue.popleft()
            if not future.done():
                future.set_result(result)
