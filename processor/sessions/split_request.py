"""A large request in shares: on several sessions at once, or in turns with other requests; answered as one.

A request of more rows than a batch has, or of more ids than one go may take, is not run in one go: others would wait
for all of it. It is queued as a ticket that the batcher divides (processor.sessions.batcher): whenever its turn comes,
the rows that make one go leave the queue as a share. So there are never more shares than sessions that run one, and the
one that is left of it waits in the queue. Where all rows have so many ids in common that one go would not do, shares of
no rows look them up first.

Invariants
- Every share is computed under one state. The first share to be run pins it for all of them, with a reader's word that
  no session uses (a hold); the last to be done with, run or not, releases it. A session's own pin is not involved.
- Shares divide the request's rows: each is computed once, and written straight into its place in the request's results.
  So rejoining costs nothing and order cannot change.
- done() is called once, by whoever is done with the last share. Once a share has failed or expired the others are not
  run; the pin is held until then all the same, for one of them may be running.
- What is the same for every row is looked up once, part after part (features.plan.RowInvariants), and copied to the
  rows; who comes meanwhile waits. The user's part of a version that has one (processor.versions.user_split) is
  computed once and kept; sessions that begin at the same moment may each compute it. Rows of a row store are not kept:
  each share asks for its own.

What the pin costs. It is taken when the first share runs, not when the request is queued: a delta waits for pins, not
for queues. It is held until the last share is done, and between shares others have their turns, so it is held for up to
twice the time that the request takes alone, and once more for smaller ones that come before its end. Meanwhile a delta
is published and served to everybody else at once. But the call that brought it returns, and the next delta of the
version is taken, once the pin is gone; until then the rows that it replaced are kept, of one delta at most; a rollback
waits likewise before it takes rows back. So a model's limit of rows a request is a limit for its deltas' delay, too.
There are as many holds as control words are left over by sessions: who finds none is refused.

Refused: a state a share (replies would mix generations), a hold that is given up in favour of a delta (the request
would have to begin again), all shares in the queue at once (256 tickets for one request, in everybody's sums).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.plan import BoundRequest
from freshet_serving.processor.sessions.request import Outputs, PredictReply, Timing, Work, answer
from freshet_serving.processor.versions.replica import State


@dataclass(slots=True, eq=False, kw_only=True)
class SubRequest(Work):
    """Some rows of a scattered request."""

    split_request: SplitRequest

    def take_chunk(self, rows: int) -> Self:
        """See Ticket.take_chunk."""
        # Not super(): a class with slots is made anew by dataclass().
        head = Work.take_chunk(self, rows)
        self.first += head.rows
        self.split_request.add_part()
        return head


class SplitRequest:
    """The shares of one request and what they have in common. lent: what was computed of its user, float32
    [user_width], once there is something. lookup_chunks: see Ticket."""

    def __init__(self, whole: Work, sessions: int, most: int, free_readers: list[int]) -> None:
        """sessions: how many are to compute it at the same time. most: rows that may run in one go at most. holds:
        reader's words that are free; one is taken out until the request has been answered."""
        self.state: State
        self.user_vector: NDArray[np.float32] | None = None
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

    def splits(self, count: int) -> list[SubRequest]:
        """The tickets to queue, one a queue, in order of their rows."""
        whole, tickets, first, invariant_ids = self._whole, [], 0, self._invariant_ids
        lookup_chunks = self.lookup_chunks
        for n in range(count, 0, -1):
            rows = -(-(whole.rows - first) // n)
            ids = (whole.ids - self._invariant_ids) * rows // whole.rows
            tickets.append(
                SubRequest(
                    rows,
                    ids + invariant_ids,
                    whole.deadline_s,
                    self._chunk_rows,
                    invariant_ids,
                    lookup_chunks,
                    replica=whole.replica,
                    bound=whole.bound,
                    done=whole.done,
                    caller=whole.caller,
                    first=first,
                    split_request=self,
                )
            )
            first, invariant_ids, lookup_chunks = first + rows, 0, 0
        self._unfinished = count
        return tickets

    def add_part(self) -> None:
        """There is one share more."""
        with self._lock:
            self._unfinished += 1

    def acquire(self) -> bool:
        """Whether a share is to be run: `state` is pinned then. Every acquire() is followed by a release()."""
        with self._lock:
            if self._error is not None:
                return False
            if not self._pinned:
                whole, replica = self._whole, self._whole.replica
                self._results = {n: np.empty((whole.rows, c), np.float32) for n, c in replica.outputs.items()}
                self.state = replica.pin(self._reader)
                self._pinned = True
            return True

    def fill(
        self,
        tables: NDArray[np.int64],
        epoch: int,
        bound: list[BoundRequest],
        spans: NDArray[np.int64],
        out: NDArray[np.float32],
        counts: NDArray[np.int64],
    ) -> None:
        """SparsePlan.fill() for rows of this request: looks up once what is the same for all."""
        if self._invariants is None:
            self._whole.replica.plan.fill(tables, epoch, bound, spans, out, counts)
            return
        while self._lookup_steps or self._invariant_row is None:
            self.look_up(tables, epoch, counts)
        out[: spans[0, 1]] = self._invariant_row
        self._invariants.varying.fill(tables, epoch, bound, spans, out, counts)

    def look_up(self, tables: NDArray[np.int64], epoch: int, counts: NDArray[np.int64]) -> None:
        """The next part of what is the same for all rows, if there is one left. Raises Unfit."""
        with self._lookup_lock:
            if self._invariant_row is None:
                self._invariant_row = np.zeros((1, self._whole.replica.plan.width), np.float32)
            if self._lookup_steps:
                self._lookup_steps[0].fill(tables, epoch, self._invariant_row, counts)
                self._lookup_steps.popleft()

    def results_for(self, sub_request: SubRequest) -> Outputs:
        """The rows of the request's outputs that a share fills."""
        return {
            n: result[sub_request.first : sub_request.first + sub_request.rows] for n, result in self._results.items()
        }

    def record_run(self, session: int, timing: Timing) -> None:
        """A session has computed a share."""
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
        """The request is answered with the first error of any share."""
        with self._lock:
            self._error = self._error or error

    def release(self) -> bool:
        """Ends a share, run or not; the last one releases the pin and answers. Returns whether it was that."""
        with self._lock:
            self._unfinished -= 1
            if self._unfinished:
                return False
        whole = self._whole
        reply: PredictReply | FreshetError = FreshetError("the request was not run")
        if self._pinned:
            # Sessions that work at the same time have no timing in common.
            timing = self._timing if len(self._sessions) == 1 else None
            reply = PredictReply(self._results, self.state.generation, whole.replica.manifest.model, timing)
            del self.state
            whole.replica.unpin(self._reader)
        self._free_readers.append(self._reader)
        answer(whole.done, self._error or reply)
        return True
