"""A sample of the rows that a replica is requested to score: an example for people, and evidence for judges.

Ownership: arriving requests add to the sample being gathered, and only while more rows are needed; nearly always they
read one attribute. Everything else is done under the lock, in the thread that makes changes. A sampled row keeps its
request's data alive.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.ports import KEEPERS
from freshet_serving.processor.watching import LEAST_ROWS

if TYPE_CHECKING:
    from freshet_serving.processor.versions.erasure import ErasedUser

REFRESH_S = 300.0
ROWS_OF_ONE, IDS_OF_ONE = 8, 16384
"""Limits for one request: rows that are sampled, and the most ids it may hold to be sampled at all."""
MOST_ROWS = 256


class SampleRows(NamedTuple):
    """The first rows of a request; `inputs` as sent, with what was looked up, or None if they are not known."""

    bound: BoundRequest
    rows: int
    inputs: Mapping[str, Column] | None = None


class RequestSample:
    """The sample of one replica."""

    def __init__(self, clock: Clock, model: str = "") -> None:
        self.wanted = True
        """True while take() is to be called for requests."""
        self.example: Mapping[str, Column] | None = None
        """Inputs of the newest sampled request, as an example for people."""
        self._clock, self._model = clock, model
        self._lock = threading.Lock()
        self._most = MOST_ROWS
        # Appended to by the threads that bring requests.
        self._gathered: list[SampleRows] = []
        self._gathered_rows = self._sample_rows = 0
        self._sample: Sequence[SampleRows] = ()
        self._since_s = clock.now_s()
        KEEPERS.add(self)

    def take(self, bound: BoundRequest, inputs: Mapping[str, Column] | None = None) -> None:
        """Add some rows of a request that is about to be answered, with its inputs as sent."""
        if bound.ids <= IDS_OF_ONE:
            self.example = inputs or self.example
            rows = min(bound.rows, ROWS_OF_ONE)
            self._gathered.append(SampleRows(bound, rows, inputs))
            # Two threads that add at once may count only one of them: a few more rows are gathered then.
            self._gathered_rows += rows
            if self._gathered_rows >= self._most:
                self.wanted = False

    def kept(self) -> Sequence[SampleRows]:
        """Return the sample, or what is being gathered if that is more; start gathering again when it is due."""
        with self._lock:
            self._renew(self._most)
            return tuple(self._gathered) if self._gathered_rows > self._sample_rows else self._sample

    def renewed(self, max_rows: int) -> tuple[Sequence[SampleRows], int]:
        """Return the sample and its rows, the same object until enough others are gathered; then gather max_rows."""
        with self._lock:
            self._renew(max_rows)
            return self._sample, self._sample_rows

    def erase_user(self, user: ErasedUser) -> Mapping[str, int]:
        """Forget the requests of a user, and those that do not say whose they are (Keeper.erase_user)."""
        if user.model != self._model:
            return {}
        with self._lock:
            # What another thread appends to the old list meanwhile is lost, as it may be the user's.
            sample, gathered = _without(self._sample, user), _without(self._gathered, user)
            erased = len(self._sample) + len(self._gathered) - len(sample) - len(gathered)
            self._gathered, self._gathered_rows = gathered, sum(e.rows for e in gathered)
            if len(sample) < len(self._sample):
                self._sample, self._sample_rows = tuple(sample), sum(e.rows for e in sample)
            if self.example is not None and user.sent_in(self.example) is not False:
                self.example = None
            self.wanted = self.wanted or bool(erased)
        return {"kept_requests": erased}

    def _renew(self, max_rows: int) -> None:
        """Replace the sample once enough rows are gathered; start gathering again when it is due."""
        self._most = max_rows
        full = self._gathered_rows >= max_rows
        if full or self._gathered_rows >= max(LEAST_ROWS, 2 * self._sample_rows):
            self._sample, self._sample_rows = tuple(self._gathered), sum(e.rows for e in self._gathered)
            if full:
                self._gathered, self._gathered_rows = [], 0
                self._since_s = self._clock.now_s()
        if not self.wanted and self._clock.now_s() - self._since_s >= REFRESH_S:
            self.wanted = True


def _without(sample: Sequence[SampleRows], user: ErasedUser) -> list[SampleRows]:
    return [e for e in sample if e.inputs is not None and user.sent_in(e.inputs) is False]
