"""Run batches: a session is one executor with its own buffers, over variables that all sessions share.

A Queue holds the work that waits for some sessions, and what their running batches are predicted to take. The lock of
its session group (processor.sessions.group) guards all of it; it computes nothing.

Ownership. A session is used by one thread at a time; no other thread touches its buffers, its bindings or its pin. A
batch runs wholly on one session, under one pinned state, so all its replies carry one generation. The work items of a
split request share one pin, held by their SplitRequest. done() of a request is called exactly once, with a reply or an
error. An error in one batch never reaches another, and a fault of one request never fails the rest of its batch: after
an error each request is computed by itself. A batch allocates only the arrays of its replies.

Limits. The time of a run of some graphs depends on a request's values (running.run_limit); for those:
- A run ends by the deadline of its request, by LONGEST_S, or by LONGEST_RUNS times its expected time, if that is
  longer. So one request occupies a session for that long at most.
- A batch of several requests has half of the time that the most urgent one has left, and no more than SHORT_RUNS times
  the expected time. If it does not end by then, each request runs by itself for an equal share of half of the rest;
  what still does not end runs last, each by itself up to its own limit. So a request that is done in its share is
  answered in time, whatever else was in its batch.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from freshet_serving.processor.backends import EndedRun
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.cores import Occupancy
from freshet_serving.processor.errors import FreshetError, Overloaded
from freshet_serving.processor.features.bound_request import NonFiniteInput, address
from freshet_serving.processor.running.buffers import Buffers
from freshet_serving.processor.running.run_limit import RunEnds, RunLimit
from freshet_serving.processor.running.runner import Runner, RunningBatch
from freshet_serving.processor.sessions.batcher import Batcher, NextBatch
from freshet_serving.processor.sessions.request import Outputs, PredictReply, Timing, Work, answer
from freshet_serving.processor.sessions.split_request import SplitRequest, SubRequest
from freshet_serving.processor.versions.replica import Replica, State
from freshet_serving.processor.watching import Histogram, SessionStats, StatsBlock, note_batch, note_scores

log = logging.getLogger("freshet.sessions")

SHORTEST_S, LONGEST_S = 0.02, 1.0
SHORT_RUNS, LONGEST_RUNS = 10, 100
# Smoothing rate of the typical request's cost, and what is assumed before there was one.
TYPICAL_COST_RATE, NONE_YET = 1 / 16, (0.0, False)


def record_batch(
    block: StatsBlock,
    requests: int,
    rows: int,
    padded: int,
    results: Outputs,
    wait_s: float,
    sparse_s: float,
    dense_s: float,
) -> None:
    """Record a batch and its scores, float32 [rows, columns] by output, in a statistics block; wait_s is the mean."""
    for n, scores in enumerate(results.values()):
        if n == 0:
            note_batch(
                block.counts_address, block.sums_address, requests, rows, padded, address(scores), scores.size,
                wait_s, sparse_s, dense_s,
            )  # fmt: skip
        else:
            note_scores(block.counts_address, block.sums_address, n, address(scores), scores.size)


class Session:
    """One executor with its own buffers; `number` is the reader slot that it pins with, in any replica."""

    def __init__(self, number: int, clock: Clock, occupancy: Occupancy | None = None) -> None:
        """Create a session; `occupancy` is of the cores shared with others, None for a session alone."""
        self.number = number
        self._clock, self._occupancy = clock, occupancy or Occupancy(1)
        # Weak references: a replica no longer in use is freed with its last batch, and its buffers with it.
        self.buffers: weakref.WeakKeyDictionary[Replica, Buffers] = weakref.WeakKeyDictionary()
        self.stats = SessionStats()
        # The batch in progress, written by its group; 0 if there is none. wait_s is the mean wait of its requests.
        self.predicted_s = self.started_s = self.wait_s = 0.0
        self._runner, self._limit = Runner(clock, self._occupancy, self.stats), RunLimit(RunEnds(clock))

    def run(self, batch: Sequence[Work]) -> None:
        """Compute a batch of one target and answer every request in it."""
        if isinstance(batch[0], SubRequest):
            self._run_sub_request(batch[0])
        elif batch[0].replica.graphs.endable:
            self._run_limited(batch)
        else:
            self._run(batch)

    def _run_limited(self, batch: Sequence[Work]) -> None:
        """Compute a batch whose runs may have to be ended."""
        unserved = batch
        if len(batch) > 1:
            ends = {id(work): self._end_s(work) for work in batch}
            unserved = sorted(self._run_shares(batch, min(ends.values())), key=lambda work: ends[id(work)])
        for work in unserved:
            # Runs before this one may have taken its time: LONGEST_S begins now, but its deadline stays.
            if not self._run([work], self._end_s(work)):
                self._fail([work], EndedRun("the model did not finish in time for these inputs"))

    def _run_shares(self, batch: Sequence[Work], end_s: float) -> Sequence[Work]:
        """Run a batch of several requests, then each by itself, for a share of the time; return those not done."""
        now_s, costs = self._clock.now_s(), batch[0].replica.costs
        expected_s = max(SHORTEST_S, SHORT_RUNS * costs.dense_s(sum([work.rows for work in batch])))
        if self._run(batch, min(now_s + expected_s, (now_s + end_s) / 2)):
            return ()
        share_s = min(expected_s, max(0.0, end_s - self._clock.now_s()) / (2 * len(batch)))
        return [work for work in batch if not self._run([work], self._clock.now_s() + share_s)]

    def _end_s(self, work: Work) -> float:
        """Return the time by which a request's run is ended."""
        now_s, longest_s = self._clock.now_s(), LONGEST_RUNS * work.replica.costs.dense_s(work.rows)
        return min(now_s + max(LONGEST_S, longest_s), math.inf if work.deadline_s is None else work.deadline_s)

    def _run(self, batch: Sequence[Work], until_s: float = math.inf) -> bool:
        """Compute a batch and answer its requests; return False, and answer none, if it was ended at until_s."""
        self._limit.until_s = until_s
        replica = batch[0].replica
        rows = sum([work.rows for work in batch])
        try:
            results = {n: np.empty((rows, c), np.float32) for n, c in replica.outputs.items()}
            state = replica.pin(self.number)
            try:
                timing = self._compute(replica, state, batch, rows, results, len(batch))
                generation = state.generation
            finally:
                replica.unpin(self.number)
        except EndedRun:
            return False
        except Exception as error:
            again = retry_groups(batch, error)
            if again is None:
                self._fail(batch, client_error(error))
            for part in again or ():
                self.run(part)
            return True
        stats = self.stats
        stats.batches += 1
        stats.requests += len(batch)
        stats.rows += rows
        model = replica.manifest.model
        if len(batch) == 1:
            answer(batch[0].done, PredictReply(results, generation, model, timing))
            return True
        at = 0
        for work in batch:
            stop = at + work.rows
            outputs = {n: result[at:stop] for n, result in results.items()}
            answer(work.done, PredictReply(outputs, generation, model, timing))
            at = stop
        return True

    def _fail(self, batch: Sequence[Work], reason: FreshetError) -> None:
        self.stats.failed += len(batch)
        self._buffers(batch[0].replica).block.fail(len(batch))
        for work in batch:
            answer(work.done, reason)

    def _run_sub_request(self, sub_request: SubRequest) -> None:
        split_request, stats = sub_request.split_request, self.stats
        try:
            if split_request.acquire():
                if sub_request.rows:
                    if sub_request.replica.graphs.endable:
                        self._limit.until_s = self._end_s(sub_request)
                    results = split_request.results_for(sub_request)
                    timing = self._compute(
                        sub_request.replica,
                        split_request.state,
                        [sub_request],
                        sub_request.rows,
                        results,
                        0,
                        split_request,
                    )
                else:
                    timing = self._look_up(sub_request)
                split_request.record_run(self.number, timing)
                stats.rows += sub_request.rows
                stats.batches += 1
        except NonFiniteInput as error:
            split_request.fail(sub_request.replica.plan.non_finite_error(sub_request.bound) or error)
        except Exception as error:
            split_request.fail(client_error(error))
            stats.failed += 1
            self._buffers(sub_request.replica).block.fail(1)
        if split_request.release():
            stats.requests += 1
            self._buffers(sub_request.replica).block.done(1)

    def _look_up(self, sub_request: SubRequest) -> Timing:
        """Run a chunk without rows: look up some of the features shared by all rows."""
        replica, state, began_s = sub_request.replica, sub_request.split_request.state, self._clock.now_s()
        sub_request.split_request.look_up(state.tables, state.epoch, self._buffers(replica).counts)
        ended_s = self._clock.now_s()
        replica.costs.record_fill(0, 0, sub_request.ids, ended_s - began_s)
        self._occupancy.beat()
        return Timing(began_s, ended_s, ended_s - began_s, 0.0, 0, 0)

    def _buffers(self, replica: Replica) -> Buffers:
        buffers = self.buffers.get(replica)
        if buffers is None:
            buffers = self.buffers[replica] = replica.borrow_buffers()
        return buffers

    def _compute(
        self,
        replica: Replica,
        state: State,
        works: Sequence[Work],
        rows: int,
        results: Outputs,
        requests: int,
        split_request: SplitRequest | None = None,
    ) -> Timing:
        """Score all rows of the work items, one after another, into `results`, and record the batch.

        It answers this number of requests, or is a chunk of a split one.
        """
        began_s = self._clock.now_s()
        buffers, runner = self._buffers(replica), self._runner
        # Remote rows are fetched in one round trip per batch; their substitutes must outlive the last fill().
        batch_tables = None
        if replica.remote is not None:
            batch_tables = replica.remote.batch_tables(state.tables, state.epoch, *runner.spans_of(works, 0, rows))
        tables = state.tables if batch_tables is None else batch_tables.tables
        graphs, limit = replica.graphs, self._limit if replica.graphs.endable else None
        batch = RunningBatch(
            graphs, state.executables, tables, state.epoch, buffers, results, split_request, limit, state.users
        )
        runner.score(batch, works, rows)
        sparse_s, dense_s = batch.sparse_s, batch.dense_s
        record_batch(buffers.block, requests, rows, batch.padded, results, self.wait_s, sparse_s, dense_s)
        return Timing(began_s, self._clock.now_s(), sparse_s, dense_s, len(works), rows)


def retry_groups(works: Sequence[Work], error: Exception) -> Sequence[Sequence[Work]] | None:
    """Return the groups in which to compute a batch again after an error, each request by itself; None for one request.

    Requests with refused floats are answered with their error here; the others are one group.
    """
    if isinstance(error, NonFiniteInput):
        sound = []
        for work in works:
            non_finite_error = work.replica.plan.non_finite_error(work.bound)
            if non_finite_error is None:
                sound.append(work)
            else:
                answer(work.done, non_finite_error)
        if len(sound) < len(works):
            return [sound] if sound else []
    # Whatever it is, it may be the fault of one request: the others must not fail with it.
    return [[work] for work in works] if len(works) > 1 else None


def client_error(error: Exception) -> FreshetError:
    """Return the error to send to the client; an internal failure is logged and replaced by a general message."""
    if isinstance(error, FreshetError):
        return error
    log.error("batch failed", exc_info=error)
    return FreshetError("the model could not be run on this request")


class Sleeper(Protocol):
    """A session's thread while it sleeps: releasing its gate wakes it."""

    @property
    def gate(self) -> threading.Lock: ...


def count_refusal(stats: SessionStats, error: Overloaded) -> None:
    if error.late:
        stats.refused_late += 1
    else:
        stats.refused_full += 1


class Queue:
    """A batcher and the sessions that take from it. Guarded by the group's lock."""

    def __init__(self, batcher: Batcher[Work]) -> None:
        self.batcher, self.sessions = batcher, 0
        self.idle: list[Sleeper] = []
        self.waking = 0
        self.running_s = 0.0
        # By model: the smoothed seconds of a request that found others queued, and whether the last one was divided.
        self._typical: dict[str, tuple[float, bool]] = {}
        self.responses: Histogram | None = None

    def check(self, work: Work, splits: int, now_s: float, divided: bool) -> float:
        """Return a request's wait on `splits` sessions, or in chunks, by Batcher.check_capacity(); raise Overloaded."""
        batcher, model, sender = self.batcher, work.replica.model, work.sender
        slack_s = None if work.deadline_s is None else work.deadline_s - now_s
        own_s = batcher.predict_s(work.replica, work.rows // splits, work.ids // splits)
        typical_s = self._typical.get(model, NONE_YET)[0]
        self._typical[model] = typical_s + TYPICAL_COST_RATE * (own_s - typical_s), divided
        sessions, running_s = self.sessions, self.running_s
        return batcher.check_capacity(work.rows, own_s, slack_s, sessions, running_s, work.ids, divided, model, sender)

    def check_typical(self, timeout_s: float | None, model: str, sender: str) -> None:
        """Raise Overloaded if check() would refuse a request like the last ones (timeout_s: None for no deadline)."""
        own_s, divided = self._typical.get(model, NONE_YET)
        self.batcher.check_capacity(1, own_s, timeout_s, self.sessions, self.running_s, 0, divided, model, sender)

    def wake(self) -> None:
        """Wake a session unless those already waking suffice."""
        if self.idle and (not self.waking or self.batcher.batches(self.waking + 1) > self.waking):
            self.waking += 1
            self.idle.pop().gate.release()

    def take(self, session: Session, now_s: float, hurry: bool, free: int, sessions: int) -> NextBatch[Work]:
        """Take the next batch for a session and record it as running; arguments as of Batcher.take()."""
        next_batch = self.batcher.take(now_s, free, hurry, sessions)
        if next_batch.batch:
            rows, ids, arrived_s = 0, 0, 0.0
            for work in next_batch.batch:
                rows += work.rows
                ids += work.ids
                arrived_s += work.arrived_s
            waited_s = len(next_batch.batch) * now_s - arrived_s
            session.stats.wait_s += waited_s
            session.wait_s = waited_s / len(next_batch.batch)
            session.predicted_s = self.batcher.predict_s(next_batch.batch[0].replica, rows, ids)
            if self.responses is not None:
                for work in next_batch.batch:
                    self.responses.observe(now_s - work.arrived_s + session.predicted_s)
            session.started_s = session.started_s or now_s
            self.running_s += session.predicted_s
        return next_batch

    def finish(self, session: Session, now_s: float) -> None:
        """Account for a finished batch. Gaps between batches count as busy time while work is queued."""
        if session.predicted_s:
            self.running_s = max(0.0, self.running_s - session.predicted_s)
            measured_s = now_s - session.started_s
            self.batcher.record_duration(session.predicted_s, measured_s)
            session.stats.busy_s += measured_s
            session.predicted_s = 0.0
        session.started_s = now_s if self.batcher else 0.0
