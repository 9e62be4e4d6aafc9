"""Hold the work that waits for the sessions of one queue, and what its running batches are predicted to take.

A queue belongs to one session group (processor.sessions.group), whose lock guards all of it; it computes nothing.
"""

from __future__ import annotations

import threading
from typing import Protocol

from freshet_serving.processor.sessions.batcher import Batcher, NextBatch
from freshet_serving.processor.sessions.request import Work
from freshet_serving.processor.sessions.session import Session
from freshet_serving.processor.sessions.session_options import GroupOptions
from freshet_serving.processor.watching import Histogram


class Sleeper(Protocol):
    """A session's thread while it sleeps: releasing its gate wakes it."""

    @property
    def gate(self) -> threading.Lock: ...


class Queue:
    """A batcher and the sessions that take from it. Guarded by the group's lock."""

    def __init__(self, options: GroupOptions) -> None:
        window_s = options.batch_window_us / 1e6
        rows, ids = options.max_queue_rows, options.max_queue_ids
        self.batcher: Batcher[Work] = Batcher(options.max_batch_rows, rows, window_s, ids)
        self.sessions = 0
        self.idle: list[Sleeper] = []
        self.waking = 0
        self.running_s = self.typical_cost_s = 0.0
        self.responses: Histogram | None = None

    @property
    def load_s(self) -> float:
        """Predicted session-seconds of all waiting and running work."""
        return self.batcher.work_s + self.running_s

    def wake(self) -> None:
        """Wake a session unless those already waking suffice."""
        if self.idle and (not self.waking or self.batcher.batches(self.waking + 1) > self.waking):
            self.waking += 1
            self.idle.pop().gate.release()

    def take(self, session: Session, now_s: float, hurry: bool, free: int, sessions: int) -> NextBatch[Work]:
        """Take the next batch for a session and record it as running.

        Args:
            session: The session that will run it.
            now_s: The clock's reading.
            hurry: True to ignore the batching window.
            free: Number of sessions that could take a batch now.
            sessions: Number of sessions that may run chunks of one ticket at the same time.
        """
        taken = self.batcher.take(now_s, free, hurry, sessions)
        if taken.batch:
            rows, ids, arrived_s = 0, 0, 0.0
            for work in taken.batch:
                rows += work.rows
                ids += work.ids
                arrived_s += work.arrived_s
            waited_s = len(taken.batch) * now_s - arrived_s
            session.stats.wait_s += waited_s
            session.wait_s = waited_s / len(taken.batch)
            session.predicted_s = self.batcher.predict_s(taken.batch[0].replica, rows, ids)
            if self.responses is not None:
                for work in taken.batch:
                    self.responses.observe(now_s - work.arrived_s + session.predicted_s)
            session.started_s = session.started_s or now_s
            self.running_s += session.predicted_s
        return taken

    def finish(self, session: Session, now_s: float) -> None:
        """Account for a finished batch. Gaps between batches count as busy time while work is queued.

        Args:
            session: The session.
            now_s: The clock's reading.
        """
        if session.predicted_s:
            self.running_s = max(0.0, self.running_s - session.predicted_s)
            measured_s = now_s - session.started_s
            self.batcher.record_duration(session.predicted_s, measured_s)
            session.stats.busy_s += measured_s
            session.predicted_s = 0.0
        session.started_s = now_s if self.batcher else 0.0
