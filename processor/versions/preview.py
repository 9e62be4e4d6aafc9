"""A preview of a state: rows that were asked for lately, scored under it before anybody is served by it.

A replica keeps a sample of the rows that it is asked for, and what they scored under the generation that is served. A
new state scores them once; whether its scores may be served is for others to say (processor.watching.delta_guard).

Who owns what: requests on their way in add to the sample that is being gathered, and only while it is wanted: one look
at one attribute, nearly always. Everything else is under the lock, in the thread of changes, on buffers that no session
has. What a row holds is kept alive by it, as its request sent it.

Invariants
- Both states score the very same rows, by the same bucket, so that what differs is the delta's doing. Scores of the
  state that is served are those that it had when it was new, or are made under a pin.
- A row whose input is the same to the bit under the same executable has the score that it had: it is not run again.
- The new state is read without a pin: its rows and its frame are the writer's, who waits for the scores.
- Nothing of it is counted: no lookups, no scores, no costs.

What it costs: a lookup of as many rows as fit the time that it may take, and runs of the executable for those that the
delta changes, off the GIL; runs for all of them, twice, for the first delta after the sample was gathered anew, which
is every REFRESH_S. A request pays for a look, and once in a while for an append.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Buffers, Executable, Matrix
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column
from freshet_serving.processor.features.plan import BoundRequest, NonFiniteInput, SparsePlan
from freshet_serving.processor.watching import LEAST_ROWS, Figure, score_figures

REFRESH_S = 300.0
ROWS_OF_ONE, IDS_OF_ONE = 8, 16384
"""Of one request: rows that are taken, and how many ids it may hold at most to be kept."""
RUN_ROWS = 64
"""Rows of one run, where there is such a bucket: others may wait for it."""
MOST_ROWS = 256

Outputs = Mapping[str, NDArray[np.float32]]


class PreviewState(NamedTuple):
    """A state to look at. digest: of its generation. tables: int64 [T, TABLE_FIELDS] (kernels.rows). executables: of
    the whole dense graph, by bucket."""

    digest: str
    epoch: int
    tables: NDArray[np.int64]
    executables: Mapping[int, Executable]


class SampleRows(NamedTuple):
    """The first rows of a request. rows: how many."""

    bound: BoundRequest
    rows: int


class SampleScores(NamedTuple):
    """The sample's scores under one generation. sample: the very list that was scored. x: float32 [rows, width], what
    its first rows were to the executable."""

    digest: str
    sample: Sequence[SampleRows]
    executable: Executable
    x: Matrix
    outputs: Outputs


class PreviewResult(NamedTuple):
    """What a state would do to scores. rows: how many were scored. figures: see processor.watching.delta_figures."""

    rows: int
    seconds: float
    figures: list[Figure]


class Preview:
    """One replica's sample, and its scores."""

    def __init__(self, plan: SparsePlan, outputs: Mapping[str, int], buffers: Callable[[], Buffers], clock: Clock):
        """outputs: name -> columns. buffers: makes some, when they are needed first."""
        self.wanted = True
        """Whether take() is to be called for a request."""
        self.example: Mapping[str, Column] | None = None
        """The inputs of the newest request that is part of the sample, for people to begin with."""
        self._plan, self._outputs, self._make, self._clock = plan, outputs, buffers, clock
        self._buffers: Buffers | None = None
        self._lock = threading.Lock()
        self._most = MOST_ROWS
        # Appended to by whoever brings requests.
        self._gathered: list[SampleRows] = []
        self._gathered_rows = self._sample_rows = 0
        self._sample: Sequence[SampleRows] = ()
        self._since_s = clock.now_s()
        self._scored: SampleScores | None = None

    def take(self, bound: BoundRequest, inputs: Mapping[str, Column] | None = None) -> None:
        """A request that is about to be answered: some of its rows become part of the sample. inputs: as sent."""
        if bound.ids <= IDS_OF_ONE:
            self.example = inputs or self.example
            rows = min(bound.rows, ROWS_OF_ONE)
            self._gathered.append(SampleRows(bound, rows))
            # Two that add at once may count one: a few rows more are gathered then.
            self._gathered_rows += rows
            if self._gathered_rows >= self._most:
                self.wanted = False

    def look(
        self, before: PreviewState, after: PreviewState, costs: Mapping[int, float], max_rows: int, max_s: float
    ) -> PreviewResult | None:
        """What the state `after`, which nobody is served, would do to the scores of `before`, which is served and
        pinned; None while there are too few rows. costs: seconds of a run, by bucket. max_rows, max_s: of a look."""
        with self._lock:
            began_s = self._clock.now_s()
            self._renew(max_rows)
            bucket, rows = extent(costs, min(max_rows, self._sample_rows), max_s)
            if rows < LEAST_ROWS:
                return None
            known, digest = self._scored, before.digest
            if known is None or known.digest != digest or known.sample is not self._sample or len(known.x) < rows:
                known = self._score(before, bucket, rows, None)
            scored = self._score(after, bucket, rows, known)
            self._scored = scored
            figures = score_figures({name: scores[:rows] for name, scores in known.outputs.items()}, scored.outputs)
            return PreviewResult(rows, self._clock.now_s() - began_s, figures)

    def _renew(self, max_rows: int) -> None:
        """Makes what has been gathered the sample, once it is worth it, and has more gathered in time."""
        self._most = max_rows
        full = self._gathered_rows >= max_rows
        if full or self._gathered_rows >= max(LEAST_ROWS, 2 * self._sample_rows):
            self._sample, self._sample_rows = tuple(self._gathered), sum(e.rows for e in self._gathered)
            if full:
                self._gathered, self._gathered_rows = [], 0
                self._since_s = self._clock.now_s()
        if not self.wanted and self._clock.now_s() - self._since_s >= REFRESH_S:
            self.wanted = True

    def _score(self, state: PreviewState, bucket: int, rows: int, known: SampleScores | None) -> SampleScores:
        """Scores the first rows of the sample; known: of the same rows, under another state."""
        if self._buffers is None:
            self._buffers = self._make()
        executable, whole = state.executables[bucket], self._buffers.rows()
        every, at = np.empty((rows, whole.shape[1]), np.float32), 0
        for bound, spans in runs(self._sample, rows, len(whole)):
            stop = min(at + len(whole), rows)
            # A row whose floats are refused is one all the same: under both states alike.
            with suppress(NonFiniteInput):
                self._plan.fill(state.tables, state.epoch, bound, spans, whole, self._buffers.counts)
            every[at:stop] = whole[: stop - at]
            at = stop
        if known is None or known.executable is not executable:
            changed = np.arange(rows)
            results = {name: np.empty((rows, columns), np.float32) for name, columns in self._outputs.items()}
        else:
            # As bits: what is not a number is equal to itself here.
            changed = np.flatnonzero((every.view(np.uint32) != known.x[:rows].view(np.uint32)).any(axis=1))
            results = {name: scores[:rows].copy() for name, scores in known.outputs.items()}
        x, outputs, run = self._buffers.get(executable)
        for first in range(0, len(changed), bucket):
            part = changed[first : first + bucket]
            x[: len(part)] = every[part]
            run()
            for name, result in results.items():
                result[part] = outputs[name][: len(part)]
        return SampleScores(state.digest, self._sample, executable, every, results)


def extent(costs: Mapping[int, float], rows: int, max_s: float) -> tuple[int, int]:
    """The bucket to score so many rows by, and how many of them fit the time: whole runs of it, LEAST_ROWS at least
    where there are as many."""
    small = [bucket for bucket in costs if bucket <= RUN_ROWS] or [min(costs)]
    bucket = min(small, key=lambda one: (costs[one] / one, -one))
    fit = int(max_s / max(costs[bucket], 1e-9)) * bucket
    return bucket, min(rows, max(fit, LEAST_ROWS))


def runs(
    sample: Sequence[SampleRows], rows: int, bucket: int
) -> Iterator[tuple[list[BoundRequest], NDArray[np.int64]]]:
    """The first rows of a sample, a bucket at a time: as fill() takes them."""
    part, spans, left = [], [], bucket
    for bound, count in sample:
        first = 0
        while first < count and rows:
            taken = min(count - first, left, rows)
            part.append(bound)
            spans.append((first, taken))
            first, left, rows = first + taken, left - taken, rows - taken
            if not left or not rows:
                yield part, np.array(spans, np.int64)
                part, spans, left = [], [], bucket
