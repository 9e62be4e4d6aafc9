"""Score recently requested rows under a new state, before any request is served by it, and kept ones of a version.

A replica keeps a sample of the rows that it is requested to score (processor.versions.sample). A new state scores them
once, for a comparison with the served generation (delta_guard, version_judge), in the thread that makes changes, on
buffers that no session has.

Invariants
- Both states score the very same rows, with the same bucket, so that any difference is caused by the delta. Scores of
  the served state are those that it had when it was new, or are computed under a pin.
- A row whose input is bit-identical under the same executable has the score that it had: it is not run again.
- The new state is read without a pin: its rows and its frame belong to the writer, who waits for the scores.
- A preview is not counted: no lookups, no scores, no costs.

Costs: a lookup of as many rows as fit the allowed time, and runs of the executable for those that the delta changes,
off the GIL; for the first delta after the sample was refreshed of all rows, twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import EndedRun, Executable
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.guard.delta_figures import score_figures
from freshet_serving.processor.extensions.guard.kept_requests import dump_requests, kept_requests, parse_requests
from freshet_serving.processor.extensions.guard.request_scoring import extent, score_requests
from freshet_serving.processor.features.bound_request import BatchView, BoundRequest
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.ports import KEEPERS
from freshet_serving.processor.running.buffers import Buffers
from freshet_serving.processor.running.given_rows import run_rows
from freshet_serving.processor.running.graph_run import SubgraphRun
from freshet_serving.processor.versions.erasure import ErasedUser
from freshet_serving.processor.versions.row_scoring import PreviewState
from freshet_serving.processor.versions.sample import RequestSample, SampleRows
from freshet_serving.processor.watching import LEAST_ROWS, PreviewResult, RequestScores

Outputs = Mapping[str, NDArray[np.float32]]


class SampleScores(NamedTuple):
    """Scores by output, and inputs by name, of the first rows of the very list `sample`, under one generation."""

    digest: str
    sample: Sequence[SampleRows]
    executable: Executable
    rows: int
    inputs: Outputs
    outputs: Outputs


class SampleScorer:
    """Scores the sample of one replica under its states, and kept requests (processor.versions.row_scoring)."""

    def __init__(
        self, run: SubgraphRun, plan: SparsePlan, sample: RequestSample, buffers: Callable[[], Buffers], clock: Clock
    ) -> None:
        """Start without any scores; `run` scores rows of several requests, `buffers` creates what it needs at first."""
        self._run, self._plan, self._sample, self._make, self._clock = run, plan, sample, buffers, clock
        self._buffers: Buffers | None = None
        self._scored: SampleScores | None = None
        self._erasures = 0
        KEEPERS.add(self)

    def erase_user(self, user: ErasedUser) -> Mapping[str, int]:
        """Forget the scores of a sample that may have had a user's rows (Keeper.erase_user)."""
        self._erasures += 1
        self._scored = None
        return {}

    def kept(self, names: Collection[str]) -> bytes:
        return dump_requests(kept_requests(self._sample.kept(), names))

    def remember(self, requests: bytes) -> None:
        for request in parse_requests(requests):
            # What only another version can read is no request of this one.
            with suppress(BadInput, EndedRun):
                self._sample.take(self._plan.bind_inputs(request.inputs).without_flags(), request.inputs)

    def score(self, requests: bytes, state: PreviewState, costs: Mapping[int, float], max_s: float) -> RequestScores:
        parsed = parse_requests(requests)
        return score_requests(parsed, self._plan, self._run, state, self._make(), costs, self._clock, max_s)

    def compare(
        self, before: PreviewState, after: PreviewState, costs: Mapping[int, float], max_rows: int, max_s: float
    ) -> PreviewResult | None:
        began_s, erasures = self._clock.now_s(), self._erasures
        sample, sampled = self._sample.renewed(max_rows)
        if min(max_rows, sampled) < LEAST_ROWS:
            return None
        bucket, rows = extent(costs, min(max_rows, sampled), max_s)
        before_scores, digest = self._scored, before.digest
        if (
            before_scores is None
            or before_scores.digest != digest
            or before_scores.sample is not sample
            or before_scores.rows < rows
        ):
            before_scores = self._score(before, sample, bucket, rows, None)
        scored = self._score(after, sample, bucket, rows, before_scores)
        self._scored = scored
        if self._erasures != erasures:
            self._scored = None
        figures = score_figures({name: scores[:rows] for name, scores in before_scores.outputs.items()}, scored.outputs)
        return PreviewResult(rows, self._clock.now_s() - began_s, figures)

    def _score(
        self,
        state: PreviewState,
        sample: Sequence[SampleRows],
        bucket: int,
        rows: int,
        before_scores: SampleScores | None,
    ) -> SampleScores:
        """Score the first rows of the sample; those that `before_scores` has under another state are not run again."""
        if self._buffers is None:
            self._buffers = self._make()
        run, executable, most = self._run, state.executables[bucket], max(state.executables)
        filled, at = self._buffers.inputs(run.name, 0, most), 0
        every = {name: np.empty((rows, *array.shape[1:]), np.float32) for name, array in filled.items()}
        for bound, spans in runs(sample, rows, most):
            stop = min(at + most, rows)
            # A row whose floats are rejected still counts as a row, under both states alike.
            with suppress(BadInput, EndedRun):
                run.fill(BatchView(state.tables, state.epoch, bound, spans, self._buffers.counts), filled)
            for name, array in filled.items():
                every[name][at:stop] = array[: stop - at]
            at = stop
        if before_scores is None or before_scores.executable is not executable:
            changed = np.arange(rows)
            results = {name: np.empty(shape, np.float32) for name, shape in run.spec.output_shapes(rows).items()}
        else:
            # Compare bits, so that NaN equals itself.
            differs = np.zeros(rows, bool)
            for name, array in every.items():
                before = before_scores.inputs[name][:rows].reshape(rows, -1).view(np.uint32)
                differs |= (array.reshape(rows, -1).view(np.uint32) != before).any(axis=1)
            changed = np.flatnonzero(differs)
            results = {name: scores[:rows].copy() for name, scores in before_scores.outputs.items()}
        run_rows(self._buffers.get(executable, run.name), bucket, every, results, changed)
        return SampleScores(state.digest, sample, executable, rows, every, results)


def runs(
    sample: Sequence[SampleRows], rows: int, bucket: int
) -> Iterator[tuple[list[BoundRequest], NDArray[np.int64]]]:
    """Yield the first rows of a sample one bucket at a time, in the form that fill() accepts."""
    part, spans, free = [], [], bucket
    for bound, count, _ in sample:
        first = 0
        while first < count and rows:
            run_rows = min(count - first, free, rows)
            part.append(bound)
            spans.append((first, run_rows))
            first, free, rows = first + run_rows, free - run_rows, rows - run_rows
            if not free or not rows:
                yield part, np.array(spans, np.int64)
                part, spans, free = [], [], bucket
