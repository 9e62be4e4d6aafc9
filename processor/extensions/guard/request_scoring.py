"""Score kept requests under one version, whatever version they were kept by, for the gate.

Invariants
- A request is bound as if a client had sent it: what the version cannot read, or reads as another number of rows, is
  refused. It is bound and filled alone, so a bad request spoils no other.
- Buffers are the caller's own: nothing is counted, and no session waits.
- The time is bounded: a run begins only while it has not passed. Rows that it did not suffice for are not scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from freshet_serving.processor.backends import EndedRun
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.guard.kept_requests import KeptRequest
from freshet_serving.processor.features.bound_request import BatchView, BoundRequest
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.running.buffers import Buffers, Tensors
from freshet_serving.processor.running.given_rows import run_rows
from freshet_serving.processor.running.graph_run import SubgraphRun
from freshet_serving.processor.running.run_limit import RunEnds, TimeLimit
from freshet_serving.processor.versions.row_scoring import PreviewState
from freshet_serving.processor.watching import LEAST_ROWS, RequestScores

RUN_ROWS = 64
"""Rows of one run, if there is a bucket that small: other work may be waiting for it."""


def score_requests(
    requests: Sequence[KeptRequest],
    plan: SparsePlan,
    run: SubgraphRun,
    state: PreviewState,
    buffers: Buffers,
    costs: Mapping[int, float],
    clock: Clock,
    max_s: float,
) -> RequestScores:
    """Return the scores of requests under a state, pinned or not served yet, as far as they take `max_s`.

    Buffers are used by nobody else; costs are seconds of a run, by bucket.
    """
    until_s = clock.now_s() + max_s
    rows = sum(request.rows for request in requests)
    room = buffers.inputs(run.name, 0, max(state.executables))
    inputs = {name: np.zeros((rows, *array.shape[1:]), np.float32) for name, array in room.items()}
    outputs = {name: np.zeros(shape, np.float32) for name, shape in run.spec.output_shapes(rows).items()}
    scored, refused, ends = np.zeros(rows, bool), np.zeros(rows, bool), RunEnds(clock)
    buffers.counts[:], at = 0, 0
    filled = np.zeros(rows, bool)
    for request in requests:
        span = slice(at, at + request.rows)
        if clock.now_s() >= until_s:
            break
        try:
            # A stage may take long for one request.
            bound = _bound(plan, request, TimeLimit(ends, until_s))
            _fill(run, state, bound, buffers, {name: array[span] for name, array in inputs.items()})
            filled[span] = True
        except BadInput:
            refused[span] = True
        except EndedRun:
            break
        at = span.stop
    bucket, _ = extent(costs, rows, max_s)
    for first in range(0, rows, bucket):
        part = first + np.flatnonzero(filled[first : first + bucket])
        if len(part) and clock.now_s() < until_s:
            run_rows(buffers.get(state.executables[bucket], run.name), bucket, inputs, outputs, part)
            scored[part] = True
    lookups = buffers.counts.sum(axis=0)
    return RequestScores(scored, refused, outputs, (int(lookups[0]), int(lookups[1])))


def extent(costs: Mapping[int, float], rows: int, max_s: float) -> tuple[int, int]:
    """Return the bucket to score with, by seconds of a run of each, and the number of rows that fit the time.

    The rows are whole runs of the bucket, and at least LEAST_ROWS if there are that many.
    """
    small = [bucket for bucket in costs if bucket <= RUN_ROWS] or [min(costs)]
    bucket = min(small, key=lambda bucket_rows: (costs[bucket_rows] / bucket_rows, -bucket_rows))
    fit = int(max_s / max(costs[bucket], 1e-9)) * bucket
    return bucket, min(rows, max(fit, LEAST_ROWS))


def _bound(plan: SparsePlan, request: KeptRequest, limit: TimeLimit) -> BoundRequest:
    bound = plan.bind_inputs(request.inputs, limit=limit if plan.stage is not None else None)
    if bound.rows != request.rows:
        raise BadInput(f"inputs: expected {request.rows} rows, got {bound.rows}")
    return bound.without_flags()


def _fill(run: SubgraphRun, state: PreviewState, bound: BoundRequest, buffers: Buffers, inputs: Tensors) -> None:
    most = max(state.executables)
    for first in range(0, bound.rows, most):
        count = min(most, bound.rows - first)
        filled = buffers.inputs(run.name, 0, count)
        spans = np.array([[first, count]], np.int64)
        run.fill(BatchView(state.tables, state.epoch, [bound], spans, buffers.counts), filled)
        for name, array in filled.items():
            inputs[name][first : first + count] = array
