"""Preview of a new state: score recently requested rows under it before any request is served by it.

A replica keeps a sample of the rows that it is requested to score, and their scores under the served generation. A new
state scores them once. Whether its scores may be served is decided elsewhere (processor.watching.delta_guard).

Ownership: arriving requests add to the sample that is being gathered, and only while more rows are needed, so nearly
always they read one attribute and do nothing. Everything else is done under the lock, in the thread that makes changes,
on buffers that no session has. A sampled row keeps the data it refers to alive, as its request sent it.

Invariants
- Both states score the very same rows, with the same bucket, so that any difference is caused by the delta. Scores of
  the served state are those that it had when it was new, or are computed under a pin.
- A row whose input is bit-identical under the same executable has the score that it had: it is not run again.
- The new state is read without a pin: its rows and its frame belong to the writer, who waits for the scores.
- A preview is not counted: no lookups, no scores, no costs.

Costs: a lookup of as many rows as fit the allowed time, and runs of the executable for those that the delta changes,
off the GIL. For the first delta after the sample was refreshed, which is every REFRESH_S, all rows are run, twice.
A request pays for reading one attribute, and occasionally for an append.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import EndedRun, Executable
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import BatchView, BoundRequest
from freshet_serving.processor.running.buffers import Buffers
from freshet_serving.processor.running.given_rows import run_rows
from freshet_serving.processor.running.graph_run import SubgraphRun
from freshet_serving.processor.watching import LEAST_ROWS, Figure, score_figures

REFRESH_S = 300.0
ROWS_OF_ONE, IDS_OF_ONE = 8, 16384
"""Limits for one request: rows that are sampled, and the most ids it may hold to be sampled at all."""
RUN_ROWS = 64
"""Rows of one run, if there is a bucket that small: other work may be waiting for it."""
MOST_ROWS = 256

Outputs = Mapping[str, NDArray[np.float32]]


class PreviewState(NamedTuple):
    """A state to preview.

    Attributes:
        digest: Digest of its generation.
        epoch: Epoch of its table rows.
        tables: int64 [T, TABLE_FIELDS] (kernels.rows).
        executables: Executables of the undivided subgraph, by bucket.
    """

    digest: str
    epoch: int
    tables: NDArray[np.int64]
    executables: Mapping[int, Executable]


class SampleRows(NamedTuple):
    """The first rows of a request.

    Attributes:
        bound: The bound request.
        rows: Number of rows.
        inputs: Its inputs as sent, with what was looked up for it; None if they are not known.
    """

    bound: BoundRequest
    rows: int
    inputs: Mapping[str, Column] | None = None


class SampleScores(NamedTuple):
    """The sample's scores under one generation.

    Attributes:
        digest: Digest of the generation.
        sample: The very list that was scored.
        executable: The executable that scored it.
        rows: Number of rows that were scored, the sample's first.
        inputs: Their inputs, by name.
        outputs: Scores by output name.
    """

    digest: str
    sample: Sequence[SampleRows]
    executable: Executable
    rows: int
    inputs: Outputs
    outputs: Outputs


class PreviewResult(NamedTuple):
    """The effect of a state on scores.

    Attributes:
        rows: Number of rows that were scored.
        seconds: Seconds that the preview took.
        figures: Figures that compare the scores (processor.watching.delta_figures).
    """

    rows: int
    seconds: float
    figures: list[Figure]


class Preview:
    """The sample of one replica, and its scores."""

    def __init__(self, run: SubgraphRun, buffers: Callable[[], Buffers], clock: Clock):
        """Start with an empty sample.

        Args:
            run: The subgraph that scores rows of several requests.
            buffers: Creates buffers when they are first needed.
            clock: Source of time.
        """
        self.wanted = True
        """True while take() is to be called for requests."""
        self.example: Mapping[str, Column] | None = None
        """Inputs of the newest sampled request, as an example for people to start from."""
        self._run, self._make, self._clock = run, buffers, clock
        self._buffers: Buffers | None = None
        self._lock = threading.Lock()
        self._most = MOST_ROWS
        # Appended to by the threads that bring requests.
        self._gathered: list[SampleRows] = []
        self._gathered_rows = self._sample_rows = 0
        self._sample: Sequence[SampleRows] = ()
        self._since_s = clock.now_s()
        self._scored: SampleScores | None = None

    def take(self, bound: BoundRequest, inputs: Mapping[str, Column] | None = None) -> None:
        """Add some rows of a request that is about to be answered to the sample.

        Args:
            bound: The bound request.
            inputs: Its inputs as sent.
        """
        if bound.ids <= IDS_OF_ONE:
            self.example = inputs or self.example
            rows = min(bound.rows, ROWS_OF_ONE)
            self._gathered.append(SampleRows(bound, rows, inputs))
            # Two threads that add at once may count only one of them: a few more rows are gathered then.
            self._gathered_rows += rows
            if self._gathered_rows >= self._most:
                self.wanted = False

    def kept(self) -> Sequence[SampleRows]:
        """Return the sample, or what is being gathered if that is more. Starts gathering again when it is due."""
        with self._lock:
            self._renew(self._most)
            return tuple(self._gathered) if self._gathered_rows > self._sample_rows else self._sample

    def look(
        self, before: PreviewState, after: PreviewState, costs: Mapping[int, float], max_rows: int, max_s: float
    ) -> PreviewResult | None:
        """Compare the scores of a new state with those of the served one; None while there are too few rows.

        Args:
            before: The served state, pinned.
            after: The new state, which no request is served by yet.
            costs: Seconds of a run, by bucket.
            max_rows: Maximum number of rows to score.
            max_s: Seconds that the preview may take.
        """
        with self._lock:
            began_s = self._clock.now_s()
            self._renew(max_rows)
            bucket, rows = extent(costs, min(max_rows, self._sample_rows), max_s)
            if rows < LEAST_ROWS:
                return None
            known, digest = self._scored, before.digest
            if known is None or known.digest != digest or known.sample is not self._sample or known.rows < rows:
                known = self._score(before, bucket, rows, None)
            scored = self._score(after, bucket, rows, known)
            self._scored = scored
            figures = score_figures({name: scores[:rows] for name, scores in known.outputs.items()}, scored.outputs)
            return PreviewResult(rows, self._clock.now_s() - began_s, figures)

    def _renew(self, max_rows: int) -> None:
        """Replace the sample by the gathered rows once there are enough, and start gathering again when it is due."""
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
        """Score the first rows of the sample.

        Args:
            state: The state to score them under.
            bucket: Bucket to run.
            rows: Number of rows.
            known: Scores of the same rows under another state; unchanged rows are not run again.
        """
        if self._buffers is None:
            self._buffers = self._make()
        run, executable, most = self._run, state.executables[bucket], max(state.executables)
        filled, at = self._buffers.inputs(run.name, 0, most), 0
        every = {name: np.empty((rows, *array.shape[1:]), np.float32) for name, array in filled.items()}
        for bound, spans in runs(self._sample, rows, most):
            stop = min(at + most, rows)
            # A row whose floats are rejected still counts as a row, under both states alike.
            with suppress(BadInput, EndedRun):
                run.fill(BatchView(state.tables, state.epoch, bound, spans, self._buffers.counts), filled)
            for name, array in filled.items():
                every[name][at:stop] = array[: stop - at]
            at = stop
        if known is None or known.executable is not executable:
            changed = np.arange(rows)
            results = {name: np.empty(shape, np.float32) for name, shape in run.spec.output_shapes(rows).items()}
        else:
            # Compare bits, so that NaN equals itself.
            differs = np.zeros(rows, bool)
            for name, array in every.items():
                before = known.inputs[name][:rows].reshape(rows, -1).view(np.uint32)
                differs |= (array.reshape(rows, -1).view(np.uint32) != before).any(axis=1)
            changed = np.flatnonzero(differs)
            results = {name: scores[:rows].copy() for name, scores in known.outputs.items()}
        run_rows(self._buffers.get(executable, run.name), bucket, every, results, changed)
        return SampleScores(state.digest, self._sample, executable, rows, every, results)


def extent(costs: Mapping[int, float], rows: int, max_s: float) -> tuple[int, int]:
    """Return the bucket to score with, and the number of rows that fit the time.

    The rows are whole runs of the bucket, and at least LEAST_ROWS if there are that many.

    Args:
        costs: Seconds of a run, by bucket.
        rows: Number of rows available.
        max_s: Seconds allowed.
    """
    small = [bucket for bucket in costs if bucket <= RUN_ROWS] or [min(costs)]
    bucket = min(small, key=lambda one: (costs[one] / one, -one))
    fit = int(max_s / max(costs[bucket], 1e-9)) * bucket
    return bucket, min(rows, max(fit, LEAST_ROWS))


def runs(
    sample: Sequence[SampleRows], rows: int, bucket: int
) -> Iterator[tuple[list[BoundRequest], NDArray[np.int64]]]:
    """Yield the first rows of a sample one bucket at a time, in the form that fill() accepts.

    Args:
        sample: The sampled requests.
        rows: Number of rows in all.
        bucket: Rows per step.
    """
    part, spans, left = [], [], bucket
    for bound, count, _ in sample:
        first = 0
        while first < count and rows:
            taken = min(count - first, left, rows)
            part.append(bound)
            spans.append((first, taken))
            first, left, rows = first + taken, left - taken, rows - taken
            if not left or not rows:
                yield part, np.array(spans, np.int64)
                part, spans, left = [], [], bucket
