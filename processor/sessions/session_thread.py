"""The thread of one session: where it sleeps, and on which cores it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from freshet_serving.processor.cores import run_on
from freshet_serving.processor.sessions.session import Queue, Session


class SessionThread(threading.Thread):
    """A session with a thread of its own."""

    def __init__(
        self, session: Session, serve: Callable[[SessionThread], None], queue: Queue, cpus: frozenset[int]
    ) -> None:
        super().__init__(name=f"freshet-session-{session.number}", daemon=True)
        self.session = session
        self.queue = queue
        self.retired = self.computing = False
        self.gate = threading.Lock()
        self.gate.acquire()
        self._serve, self.cpus, self._bound = serve, cpus, frozenset[int]()

    def run(self) -> None:
        self.bind()
        self._serve(self)

    def bind(self) -> None:
        """Go to the cores of this thread, between two batches."""
        if self._bound is not self.cpus:
            self._bound = self.cpus
            run_on(self._bound)
