"""A SessionGroup: N threads with their own buffers over one copy of the variables.

Who owns what: the group's condition guards the batcher and the closing flag; a session thread owns its buffers, its
bindings and its pin, and nobody else touches them. A batch runs wholly on one session, under one pinned state, so
every reply it gives carries one generation. done() of a request is called exactly once, on a session thread, with a
reply or an error; an error in one batch never reaches another, and never ends a session.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from processor.backends.base import Executable
from processor.batcher import Batcher, Ticket
from processor.clock import Clock
from processor.errors import Expired, FreshetError, NotReady, Overloaded
from processor.generation import Generation
from processor.replica import Replica, State
from processor.sparse import Bound
from processor.stores.remote import StandIn

log = logging.getLogger("freshet.sessions")

Outputs = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Outputs by name, float32 [rows, columns], and the one generation that they come from."""

    outputs: Outputs
    generation: Generation


Done = Callable[[Answer | FreshetError], None]


@dataclass(slots=True, eq=False)
class Work:
    """One bound request of one version."""

    version: Replica
    bound: Bound
    done: Done


@dataclass(slots=True)
class SessionStats:
    """What one session has done: written by its thread only."""

    batches: int = 0
    requests: int = 0
    rows: int = 0
    padded_rows: int = 0
    failed: int = 0


def total(parts: Sequence[SessionStats]) -> SessionStats:
    """The sum of what several sessions have done."""
    return SessionStats(*(sum(getattr(p, f.name) for p in parts) for f in fields(SessionStats)))


class SessionGroup:
    """Runs bound requests on its sessions; close() answers what is queued and joins the threads."""

    def __init__(self, sessions: int, max_batch_rows: int, max_queue_rows: int, clock: Clock) -> None:
        self._batcher: Batcher[Work] = Batcher(max_batch_rows, max_queue_rows)
        self._ready = threading.Condition(threading.Lock())
        self._clock = clock
        self._closing = False
        self._sessions = [Session(n, self) for n in range(sessions)]
        for session in self._sessions:
            session.start()

    def submit(self, work: Work, deadline_s: float | None) -> None:
        """Queues work; raises NotReady, or Overloaded with the time that the queue takes to drain. deadline_s is on the
        group's clock."""
        ticket = Ticket(work.version, work.bound.rows, work, deadline_s)
        with self._ready:
            if self._closing:
                raise NotReady("the processor is closed")
            try:
                self._batcher.put(ticket)
            except Overloaded as error:
                wait_s = work.version.costs.total(self._batcher.queue_rows) / len(self._sessions)
                raise Overloaded(str(error), retry_after_s=wait_s) from None
            self._ready.notify()

    def next_batch(self) -> list[Work] | None:
        """Blocks a session until there is work; None when the group has closed and the queue is empty.

        The batch is empty when everything that was taken had expired.
        """
        with self._ready:
            while not self._batcher and not self._closing:
                self._ready.wait()
            if not self._batcher:
                return None
            taken = self._batcher.take(self._clock.now_s())
        for ticket in taken.expired:
            answer(ticket.payload, Expired("the request's deadline passed while it was queued"))
        return [ticket.payload for ticket in taken.batch]

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def queue_rows(self) -> int:
        return self._batcher.queue_rows

    def statistics(self) -> list[SessionStats]:
        return [s.stats for s in self._sessions]

    def counts(self, version: Replica) -> NDArray[np.int64]:
        """int64 [T, 2]: lookups and misses of a version's tables over all sessions."""
        total = np.zeros((max(1, len(version.manifest.tables)), 2), np.int64)
        for session in self._sessions:
            buffers = session.buffers.get(version)
            if buffers is not None:
                total += buffers.counts
        return total

    def close(self) -> None:
        with self._ready:
            self._closing = True
            self._ready.notify_all()
        for session in self._sessions:
            session.join()


class Buffers:
    """One session's arrays for one version: input and outputs per bucket, and the runs bound to them."""

    def __init__(self, version: Replica) -> None:
        self._width, self._outputs = version.plan.width, version.outputs
        self.counts = np.zeros((max(1, len(version.manifest.tables)), 2), np.int64)
        self._arrays: dict[int, tuple[NDArray[np.float32], Outputs]] = {}
        self._bound: dict[int, tuple[Executable, Callable[[], None]]] = {}

    def get(self, state: State, bucket: int) -> tuple[NDArray[np.float32], Outputs, Callable[[], None]]:
        """(x, outputs, run) for a bucket with the state's weights; allocates only the first time."""
        if bucket not in self._arrays:
            outputs = {n: np.empty((bucket, c), np.float32) for n, c in self._outputs.items()}
            self._arrays[bucket] = (np.zeros((bucket, self._width), np.float32), outputs)
        x, outputs = self._arrays[bucket]
        executable = state.executables[bucket]
        bound = self._bound.get(bucket)
        if bound is None or bound[0] is not executable:
            bound = self._bound[bucket] = (executable, executable.bind(x, outputs))
        return x, outputs, bound[1]


class Session(threading.Thread):
    """One executor thread."""

    def __init__(self, number: int, group: SessionGroup) -> None:
        super().__init__(name=f"freshet-session-{number}", daemon=True)
        self._number, self._group = number, group
        # Weak: a version that is served no more is freed with its last batch, and its buffers with it.
        self.buffers: weakref.WeakKeyDictionary[Replica, Buffers] = weakref.WeakKeyDictionary()
        self.stats = SessionStats()

    def run(self) -> None:
        while (batch := self._group.next_batch()) is not None:
            if batch:
                self._run_batch(batch)
            # A session that waits must not hold the version of its last batch: it may be served no more.
            del batch

    def _run_batch(self, batch: Sequence[Work]) -> None:
        version = batch[0].version
        try:
            with version.pinned(self._number) as state:
                outputs = self._compute(version, state, [work.bound for work in batch])
                generation = state.generation
        except Exception as error:
            if isinstance(error, NotReady) and len(batch) > 1:
                # Rows that one request reads could not be had: the others are not to fail with it.
                for work in batch:
                    self._run_batch([work])
                return
            if not isinstance(error, FreshetError):
                log.exception("a batch failed")
                error = FreshetError("the model could not be run on this request")
            self.stats.failed += len(batch)
            for work in batch:
                answer(work, error)
            return
        at = 0
        for work in batch:
            rows = work.bound.rows
            answer(work, Answer({n: o[at : at + rows] for n, o in outputs.items()}, generation))
            at += rows
        self.stats.batches += 1
        self.stats.requests += len(batch)
        self.stats.rows += at

    def _compute(self, version: Replica, state: State, bound: list[Bound]) -> Outputs:
        """Scores of all rows of the batch, one request after another, bucket by bucket."""
        buffers = self.buffers.get(version)
        if buffers is None:
            buffers = self.buffers[version] = Buffers(version)
        total = sum(b.rows for b in bound)
        results = {n: np.empty((total, c), np.float32) for n, c in version.outputs.items()}
        # Rows that live elsewhere come in one round trip a batch; what they stand in must outlive the last fill().
        stand_in: State | StandIn = state
        if version.remote is not None:
            stand_in = version.remote.stand_in(state.tables, state.epoch, *_cut(bound, 0, total))
        at = 0
        for bucket in version.costs.cover(total):
            stop = min(at + bucket, total)
            x, outputs, run = buffers.get(state, bucket)
            part, spans = _cut(bound, at, stop)
            version.plan.fill(stand_in.tables, state.epoch, part, spans, x, buffers.counts)
            run()
            for name, result in results.items():
                result[at:stop] = outputs[name][: stop - at]
            self.stats.padded_rows += bucket - (stop - at)
            at = stop
        return results


def answer(work: Work, result: Answer | FreshetError) -> None:
    """Calls done(); what a callback raises is the caller's fault and must not end the session."""
    try:
        work.done(result)
    except Exception:
        log.exception("a reply could not be handed over")


def _cut(bound: list[Bound], start: int, stop: int) -> tuple[list[Bound], NDArray[np.int64]]:
    """The requests that rows [start, stop) of the batch belong to, and int64 [R, 2]: first row and rows of each."""
    part, spans, at = [], [], 0
    for b in bound:
        first, last = max(start, at), min(stop, at + b.rows)
        if first < last:
            part.append(b)
            spans.append((first - at, last - first))
        at += b.rows
    return part, np.array(spans, np.int64)
