"""Divide a large request into sub-requests that run on several sessions or between other requests; answer it as one.

A request with more rows than a batch holds, or with more ids than one run may look up, is queued as a ticket that the
batcher divides (processor.sessions.batcher): at each of its turns, the rows of one run leave the queue as a chunk. So
there is at most one chunk for each session that runs one. If the ids that all rows have in common are too many for one
run, chunks without rows look them up first.

Invariants
- All chunks are computed under one state. The first chunk to run pins it for all of them, with a reader slot that no
  session uses; the last chunk to finish, run or not, releases it.
- Each row is computed once and written straight into its place in the request's results: joining costs nothing and the
  order cannot change.
- done() is called once, by the thread that finishes the last chunk. Once a chunk has failed or expired, the others are
  not run; the pin is held until the last one is finished, because one of them may be running.
- Features that are the same for all rows are looked up once, part after part (pooling.RowInvariants), and copied
  to the rows; sessions that need them meanwhile wait. The user's tensors of a divided version
  (processor.running.graph_run) are computed once and kept; sessions that begin at the same moment may each do so.
  Rows of a row store are not kept: each chunk fetches its own.

Cost of the pin. It is taken when the first chunk runs (a delta waits for pins, not for queues) and held until the last
one is done. Other requests have their turns between chunks, so it is held for up to twice the time that the request
takes alone, plus that time once more for smaller requests that arrive before its end. Meanwhile a delta is published
and served to all other requests. But the call that brought it returns, and the next delta of the version is accepted,
only when the pin is released; until then the rows that it replaced are kept, of one delta at most; a rollback waits
likewise before it removes rows. So a model's limit of rows per request also limits its deltas' delay. A request that
finds no free reader slot (control words left over by sessions) is refused.

Rejected: one state per chunk (replies would mix generations), releasing the pin early in favour of a delta (the request
would have to start again), queueing all chunks at once (256 tickets for one request, each of them in every sum over the
queue).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.running.buffers import Tensors
from freshet_serving.processor.sessions.request import Outputs, PredictReply, Timing, Work, answer
from freshet_serving.processor.versions.replica import State


@dataclass(slots=True, eq=False, kw_only=True)
class SubRequest(Work):
    """Some rows of a split request."""

    split_request: SplitRequest

    def take_chunk(self, rows: int) -> Self:
        """Remove and return the first chunk, and register it with the split request."""
        # dataclass(slots=True) creates a new class, so super() without arguments would fail here.
        head = Work.take_chunk(self, rows)
        self.first += head.rows
        self.split_request.add_part()
        return head


class SplitRequest:
    """The chunks of one request and what they share; lookup chunks (see Ticket), which have no rows, come first."""

    def __init__(self, whole: Work, sessions: int, most: int, free_readers: list[int]) -> None:
        """Prepare to divide a request for so many sessions at once, into runs of at most `most` rows.

        Takes a free reader slot, which is put back with the answer.
        """
        self.state: State
        self.user_tensors: Tensors | None = None
        self._whole, self._unfinished = whole, 0
        replica, costs, rows = whole.replica, whole.replica.costs, whole.rows
        max_ids = max(1, int(costs.heavy_ids))
        self._invariants = None if replica.remote is not None else replica.plan.row_invariants(whole.bound, max_ids)
        self._lookup_steps = deque(() if self._invariants is None else self._invariants.parts)
        self._invariant_row: NDArray[np.float32] | None = None
        self._lookup_lock = threading.Lock()
        self._invariant_ids = 0 if self._invariants is None else self._invariants.ids
        most = costs.chunk_rows(rows, whole.ids - self._invariant_ids, most)
        self._chunk_rows = costs.balanced_chunk_rows(rows, sessions, most)
        self.lookup_chunks = len(self._lookup_steps) if len(self._lookup_steps) > 1 else 0
        self._free_readers, self._reader = free_readers, free_readers.pop()
        self._results: Outputs = {}
        self._pinned = False
        self._error: FreshetError | None = None
        self._timing: Timing | None = None
        self._sessions: set[int] = set()
        self._lock = threading.Lock()

    @property
    def rows(self) -> int:
        return self._whole.rows

    @property
    def divisible(self) -> bool:
        """True if it may be run as a user's part and candidates: its shared ids are few enough for one run."""
        return not self.lookup_chunks

    def ticket(self) -> SubRequest:
        whole = self._whole
        self._unfinished = 1
        return SubRequest(
            whole.rows,
            whole.ids,
            whole.deadline_s,
            self._chunk_rows,
            self._invariant_ids,
            self.lookup_chunks,
            whole.sender,
            replica=whole.replica,
            bound=whole.bound,
            done=whole.done,
            split_request=self,
        )

    def add_part(self) -> None:
        with self._lock:
            self._unfinished += 1

    def acquire(self) -> bool:
        """Return True if a chunk should run, with `state` pinned. A release() has to follow."""
        with self._lock:
            if self._error is not None:
                return False
            if not self._pinned:
                whole, replica = self._whole, self._whole.replica
                self._results = {n: np.empty((whole.rows, c), np.float32) for n, c in replica.outputs.items()}
                self.state = replica.pin(self._reader)
                self._pinned = True
            return True

    def fill(self, view: BatchView, out: NDArray[np.float32]) -> None:
        """Fill rows, float32 [rows, width], like SparsePlan.fill(); look up features shared by all rows only once."""
        if self._invariants is None:
            self._whole.replica.plan.fill(view, out)
            return
        while self._lookup_steps or self._invariant_row is None:
            self.look_up(view.tables, view.epoch, view.counts)
        out[: view.spans[0, 1]] = self._invariant_row
        self._invariants.varying.fill(view, out)

    def look_up(self, tables: NDArray[np.int64], epoch: int, counts: NDArray[np.int64]) -> None:
        """Look up the next part of the features shared by all rows, if one is left; raise NonFiniteInput."""
        with self._lookup_lock:
            if self._invariant_row is None:
                self._invariant_row = np.zeros((1, self._whole.replica.plan.width), np.float32)
            if self._lookup_steps:
                self._lookup_steps[0].fill(tables, epoch, self._invariant_row, counts)
                self._lookup_steps.popleft()

    def results_for(self, sub_request: SubRequest) -> Outputs:
        """Return the slices of the request's outputs that a sub-request fills."""
        return {
            n: result[sub_request.first : sub_request.first + sub_request.rows] for n, result in self._results.items()
        }

    def record_run(self, session: int, timing: Timing) -> None:
        with self._lock:
            self._sessions.add(session)
            first = self._timing or timing
            self._timing = Timing(
                min(first.began_s, timing.began_s),
                timing.ended_s,
                timing.sparse_s + (first.sparse_s if first is not timing else 0.0),
                timing.dense_s + (first.dense_s if first is not timing else 0.0),
                1,
                self._whole.rows,
            )

    def fail(self, error: FreshetError) -> None:
        """Record an error; the request is answered with the first one recorded."""
        with self._lock:
            self._error = self._error or error

    def release(self) -> bool:
        """Finish a chunk, run or not; return True if it was the last one, which unpins the state and answers."""
        with self._lock:
            self._unfinished -= 1
            if self._unfinished:
                return False
        whole = self._whole
        reply: PredictReply | FreshetError = FreshetError("the request did not run")
        if self._pinned:
            # Runs of different sessions overlap, so their timings do not add up to one.
            timing = self._timing if len(self._sessions) == 1 else None
            reply = PredictReply(self._results, self.state.generation, whole.replica.manifest.model, timing)
            del self.state
            whole.replica.unpin(self._reader)
        self._free_readers.append(self._reader)
        answer(whole.done, self._error or reply)
        return True
