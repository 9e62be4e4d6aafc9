"""A large request on several sessions at once, answered as one.

Invariants
- Every share is computed under one state. The first share to be run pins it for all of them, with a reader's word that
  no session uses (a hold); the last to be done with, run or not, releases it. A session's own pin is not involved.
- Shares write their rows straight into the request's results: rejoining costs nothing and order cannot change.
- done() is called once, by whoever is done with the last share. Once a share has failed or expired the others are not
  run; the pin is held until then all the same, for one of them may be running.

The pin is taken when the first share runs, not when the request is queued: a delta waits for pins, not for queues.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from processor.backends.cost import CostTable
from processor.errors import FreshetError
from processor.sessions.request import Outputs, PredictReply, Work, answer
from processor.versions.replica import State


@dataclass(slots=True, eq=False, kw_only=True)
class Share(Work):
    """Some rows of a scattered request; its own target in the batcher, so that nothing shares its batch."""

    scatter: Scatter

    @property
    def costs(self) -> CostTable:
        """See Priced.costs."""
        return self.replica.costs


class Scatter:
    """The shares of one request and what they have in common."""

    def __init__(self, whole: Work, count: int, holds: list[int]) -> None:
        """holds: reader's words that are free; one is taken out until the request has been answered."""
        self.state: State
        self._whole, self._left = whole, count
        self._holds, self._hold = holds, holds.pop()
        self._results: Outputs = {}
        self._pinned = False
        self._error: FreshetError | None = None
        self._lock = threading.Lock()

    def shares(self) -> list[Share]:
        """The tickets to queue, in order of their rows."""
        whole, tickets, first = self._whole, [], 0
        for n in range(self._left, 0, -1):
            rows = -(-(whole.rows - first) // n)
            ids = whole.ids * rows // whole.rows
            tickets.append(
                Share(
                    rows,
                    ids,
                    whole.deadline_s,
                    replica=whole.replica,
                    bound=whole.bound,
                    done=whole.done,
                    caller=whole.caller,
                    first=first,
                    scatter=self,
                )
            )
            first += rows
        return tickets

    def enter(self) -> bool:
        """Whether a share is to be run: `state` is pinned then. Every enter() is followed by a leave()."""
        with self._lock:
            if self._error is not None:
                return False
            if not self._pinned:
                replica = self._whole.replica
                self._results = {n: np.empty((self._whole.rows, c), np.float32) for n, c in replica.outputs.items()}
                self.state = replica.pin(self._hold)
                self._pinned = True
            return True

    def results_of(self, share: Share) -> Outputs:
        """The rows of the request's outputs that a share fills."""
        return {n: result[share.first : share.first + share.rows] for n, result in self._results.items()}

    def fail(self, error: FreshetError) -> None:
        """The request is answered with the first error of any share."""
        with self._lock:
            self._error = self._error or error

    def leave(self) -> bool:
        """Ends a share, run or not; the last one releases the pin and answers. Returns whether it was that."""
        with self._lock:
            self._left -= 1
            if self._left:
                return False
        whole = self._whole
        reply: PredictReply | FreshetError = FreshetError("the request was not run")
        if self._pinned:
            reply = PredictReply(self._results, self.state.generation, whole.replica.manifest.model)
            del self.state
            whole.replica.unpin(self._hold)
        self._holds.append(self._hold)
        answer(whole.done, self._error or reply)
        return True
