"""Run batches: a session is one executor with its own buffers, over variables that all sessions share.

Ownership. A session is used by one thread at a time; no other thread touches its buffers, its bindings or its pin. A
batch runs wholly on one session, under one pinned state, so all its replies carry one generation. A split request is
several work items, on one session or several: their SplitRequest holds one pin for all of them, so its reply carries
one generation, too. done() of a request is called exactly once, with a reply or an error. An error in one batch never
reaches another, and a fault of one request (refused floats, unavailable rows) never fails the rest of its batch. A
batch allocates only the arrays that its replies consist of; everything else is reused from batch to batch.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends.buffers import Buffers
from freshet_serving.processor.backends.cost import CostTable
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.features.plan import BoundRequest, NonFiniteInput, address
from freshet_serving.processor.package import CANDIDATE, USER, USER_VECTOR
from freshet_serving.processor.sessions.occupancy import Occupancy
from freshet_serving.processor.sessions.request import Outputs, PredictReply, Timing, Work, answer
from freshet_serving.processor.sessions.split_request import SplitRequest, SubRequest
from freshet_serving.processor.versions.replica import Replica, State
from freshet_serving.processor.versions.user_split import UserSplitRuntime
from freshet_serving.processor.watching import SessionStats, StatsBlock, note_batch, note_scores

log = logging.getLogger("freshet.sessions")

# One in this many batches of a session tries the plan that the cost table considers more expensive.
EXPLORE_EVERY = 64


@dataclass(slots=True, eq=False)
class RunningBatch:
    """A batch while it is computed.

    Attributes:
        tables: Table descriptors, int64 [T, TABLE_FIELDS], with substitutes for remote rows.
        fill: SparsePlan.fill, or that of a split request.
        sparse_s: Seconds of lookups and pooling in all its runs so far.
        dense_s: Seconds of executables in all its runs so far.
        padded: Rows of padding in all its runs so far.
    """

    replica: Replica
    state: State
    tables: NDArray[np.int64]
    buffers: Buffers
    results: Outputs
    fill: Callable[..., None]
    sparse_s: float = 0.0
    dense_s: float = 0.0
    padded: int = 0


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
    """Record a batch and its scores in a statistics block.

    Args:
        block: The statistics block.
        requests: Number of requests answered.
        rows: Number of rows.
        padded: Rows of padding.
        results: Scores by output, float32 [rows, columns].
        wait_s: Mean wait of its requests in seconds.
        sparse_s: Seconds of lookups and pooling.
        dense_s: Seconds of executables.
    """
    for n, scores in enumerate(results.values()):
        if n == 0:
            note_batch(
                block.counts_address, block.sums_address, requests, rows, padded, address(scores), scores.size,
                wait_s, sparse_s, dense_s,
            )  # fmt: skip
        else:
            note_scores(block.counts_address, block.sums_address, n, address(scores), scores.size)


class Session:
    """One executor with its own buffers.

    Attributes:
        number: Number of the reader slot that it pins with, in any replica.
    """

    def __init__(self, number: int, clock: Clock, occupancy: Occupancy | None = None) -> None:
        """Create a session.

        Args:
            number: Number of its reader slot.
            clock: The clock.
            occupancy: Occupancy of the cores shared with others; None for a session alone.
        """
        self.number = number
        self._clock, self._occupancy = clock, occupancy or Occupancy(1)
        # Weak references: a replica no longer in use is freed with its last batch, and its buffers with it.
        self.buffers: weakref.WeakKeyDictionary[Replica, Buffers] = weakref.WeakKeyDictionary()
        self.stats = SessionStats()
        # The batch in progress, written by its group; 0 if there is none. wait_s is the mean wait of its requests.
        self.predicted_s = self.started_s = self.wait_s = 0.0
        self._spans = np.zeros((16, 2), np.int64)

    def run(self, batch: Sequence[Work]) -> None:
        """Compute a batch of one target and answer every request in it."""
        if isinstance(batch[0], SubRequest):
            self._run_sub_request(batch[0])
            return
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
        except Exception as error:
            again = retry_groups(batch, error)
            if again is not None:
                for part in again:
                    self.run(part)
                return
            self.stats.failed += len(batch)
            self._buffers(replica).block.fail(len(batch))
            reason = client_error(error)
            for work in batch:
                answer(work.done, reason)
            return
        stats = self.stats
        stats.batches += 1
        stats.requests += len(batch)
        stats.rows += rows
        model = replica.manifest.model
        if len(batch) == 1:
            answer(batch[0].done, PredictReply(results, generation, model, timing))
            return
        at = 0
        for work in batch:
            stop = at + work.rows
            outputs = {n: result[at:stop] for n, result in results.items()}
            answer(work.done, PredictReply(outputs, generation, model, timing))
            at = stop

    def _run_sub_request(self, sub_request: SubRequest) -> None:
        split_request, stats = sub_request.split_request, self.stats
        try:
            if split_request.acquire():
                if sub_request.rows:
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
        """Score all rows of the work items, one after another, and record the batch.

        Args:
            replica: The replica.
            state: Its pinned state.
            works: The work items.
            rows: Their number of rows.
            results: Arrays that the scores are written to, by output.
            requests: Number of requests that this batch answers.
            split_request: The split request if the one work item is a chunk of it.
        """
        began_s = self._clock.now_s()
        buffers = self._buffers(replica)
        # Remote rows are fetched in one round trip per batch; their substitutes must outlive the last fill().
        batch_tables = None
        if replica.remote is not None:
            batch_tables = replica.remote.batch_tables(state.tables, state.epoch, *self._slice_works(works, 0, rows))
        tables = state.tables if batch_tables is None else batch_tables.tables
        fill = replica.plan.fill if split_request is None else split_request.fill
        batch = RunningBatch(replica, state, tables, buffers, results, fill)
        if replica.user_split is None:
            self._run_whole(batch, works, rows, 0)
        elif split_request is None:
            self._run_cheapest(batch, replica.user_split, works, rows)
        elif (
            works[0].bound.user_split
            and not split_request.lookup_chunks
            and replica.user_split.worth_splitting(split_request.rows)
        ):
            if split_request.user_vector is None:
                split_request.user_vector = self._run_users(batch, replica.user_split, works)[0].copy()
                self.stats.user_once += 1
            self._run_candidates(batch, replica.user_split, split_request.user_vector, works[0], 0)
        else:
            self._run_whole(batch, works, rows, 0)
        sparse_s, dense_s = batch.sparse_s, batch.dense_s
        record_batch(buffers.block, requests, rows, batch.padded, results, self.wait_s, sparse_s, dense_s)
        return Timing(began_s, self._clock.now_s(), sparse_s, dense_s, len(works), rows)

    def _run_cheapest(
        self, batch: RunningBatch, user_split: UserSplitRuntime, works: Sequence[Work], rows: int
    ) -> None:
        """Run each work item whole or split into user and candidates, whichever is predicted to be cheaper."""
        alone: list[tuple[Work, int]] = []
        together: list[Work] = []
        at = 0
        for work in works:
            if work.bound.user_split and user_split.worth_splitting(work.rows):
                if together:
                    self._run_whole(batch, together, sum([w.rows for w in together]), at)
                    at += sum([w.rows for w in together])
                    together = []
                alone.append((work, at))
                at += work.rows
            else:
                together.append(work)
        if together:
            self._run_whole(batch, together, rows - at, at)
        if alone:
            self._run_user_split(batch, user_split, alone)

    def _run_whole(self, batch: RunningBatch, works: Sequence[Work], rows: int, first: int) -> None:
        """Run all rows of the work items bucket by bucket, into the results from row `first` on; measure the cost."""
        replica, state, tables, buffers = batch.replica, batch.state, batch.tables, batch.buffers
        costs, fill, now_s, stats = replica.costs, batch.fill, self._clock.now_s, self.stats
        timer_s = self._timer(replica)
        bucket_plan = costs.bucket_plan(rows)
        if len(bucket_plan) > 1 and stats.batches % EXPLORE_EVERY == EXPLORE_EVERY - 1:
            bucket_plan = costs.explore(rows)
        at, sparse_s, dense_s = 0, 0.0, 0.0
        for bucket in bucket_plan:
            stop = min(at + bucket, rows)
            started_s = now_s()
            x, outputs, run = buffers.get(state.executables[bucket])
            bound, spans = self._slice_works(works, at, stop)
            fill(tables, state.epoch, bound, spans, x, buffers.counts)
            filled_s = now_s()
            self._timed_run(run, costs, bucket, timer_s)
            ended_s = now_s()
            sparse_s += filled_s - started_s
            dense_s += ended_s - filled_s
            for name, result in batch.results.items():
                result[first + at : first + stop] = outputs[name][: stop - at]
            self._record_run(batch, bucket, stop - at)
            at = stop
        costs.record_fill(len(bucket_plan), rows, sum([work.ids for work in works]), sparse_s)
        batch.sparse_s += sparse_s
        batch.dense_s += dense_s

    def _run_user_split(
        self, batch: RunningBatch, user_split: UserSplitRuntime, works: Sequence[tuple[Work, int]]
    ) -> None:
        """Compute the user's part once for each work item, several users per run, then each one's candidates.

        Args:
            batch: The batch.
            user_split: The version's user/candidate split.
            works: Work items, each with its first row in the results.
        """
        done = 0
        for users in user_split.costs[USER].bucket_plan(len(works)):
            group = works[done : done + users]
            done += users
            user_vector = self._run_users(batch, user_split, [work for work, _ in group], users)
            for u, (work, first) in zip(user_vector, group):
                self._run_candidates(batch, user_split, u, work, first)
                self.stats.user_once += 1

    def _run_users(
        self, batch: RunningBatch, user_split: UserSplitRuntime, works: Sequence[Work], bucket: int = 0
    ) -> NDArray[np.float32]:
        """Return the user vectors of the work items, float32 [bucket, user_width], in reused buffers."""
        state, buffers, now_s = batch.state, batch.buffers, self._clock.now_s
        costs, timer_s = user_split.costs[USER], self._timer(batch.replica)
        bucket = bucket or costs.bucket_plan(len(works))[0]
        began_s = now_s()
        x, user_vector, run = buffers.get(state.parts[USER][bucket], USER)
        spans = np.zeros((len(works), 2), np.int64)
        spans[:, 1] = 1
        user_split.fill[USER](batch.tables, state.epoch, [work.bound for work in works], spans, x, buffers.counts)
        started_s = now_s()
        self._timed_run(run, costs, bucket, timer_s)
        ended_s = now_s()
        self._occupancy.beat()
        batch.sparse_s += started_s - began_s
        batch.dense_s += ended_s - started_s
        return user_vector[USER_VECTOR]

    def _run_candidates(
        self, batch: RunningBatch, user_split: UserSplitRuntime, u: NDArray[np.float32], work: Work, first: int
    ) -> None:
        """Run one work item's candidates with its user vector, into the results from row `first` on."""
        state, buffers, now_s = batch.state, batch.buffers, self._clock.now_s
        costs, timer_s, at = user_split.costs[CANDIDATE], self._timer(batch.replica), 0
        for bucket in costs.bucket_plan(work.rows):
            stop = min(at + bucket, work.rows)
            began_s = now_s()
            x, outputs, run = buffers.get(state.parts[CANDIDATE][bucket], CANDIDATE)
            user_split.write_user_vector(u, x)
            bound, spans = self._slice_works([work], at, stop)
            user_split.fill[CANDIDATE](batch.tables, state.epoch, bound, spans, x, buffers.counts)
            started_s = now_s()
            self._timed_run(run, costs, bucket, timer_s)
            ended_s = now_s()
            batch.sparse_s += started_s - began_s
            batch.dense_s += ended_s - started_s
            for name, result in batch.results.items():
                result[first + at : first + stop] = outputs[name][: stop - at]
            self._record_run(batch, bucket, stop - at)
            at = stop

    def _timed_run(self, run: Callable[[], None], costs: CostTable, bucket: int, timer_s: Callable[[], float]) -> None:
        """Run a bucket and record its time in the cost table."""
        crowded, began_s = self._occupancy.crowded, timer_s()
        run()
        costs.record_run(bucket, timer_s() - began_s, crowded or self._occupancy.crowded)

    def _timer(self, replica: Replica) -> Callable[[], float]:
        """Return the function that times the replica's runs."""
        return self._clock.core_s if replica.in_thread else self._clock.now_s

    def _record_run(self, batch: RunningBatch, bucket: int, rows: int) -> None:
        """Record a run of `rows` rows in a bucket."""
        batch.padded += bucket - rows
        self.stats.record_run(bucket, rows)
        self._occupancy.beat()

    def _slice_works(
        self, works: Sequence[Work], start: int, stop: int
    ) -> tuple[list[BoundRequest], NDArray[np.int64]]:
        """Return the requests of the batch rows [start, stop) and, int64 [R, 2], first row and row count of each."""
        if len(works) == 1:
            work, spans = works[0], self._spans[:1]
            spans[0, 0], spans[0, 1] = work.first + start, stop - start
            return [work.bound], spans
        if len(works) > len(self._spans):
            self._spans = np.zeros((2 * len(works), 2), np.int64)
        part, firsts, counts, at = [], [], [], 0
        for work in works:
            first, last = max(start, at), min(stop, at + work.rows)
            if first < last:
                part.append(work.bound)
                firsts.append(work.first + first - at)
                counts.append(last - first)
            at += work.rows
        spans = self._spans[: len(part)]
        spans[:, 0], spans[:, 1] = firsts, counts
        return part, spans


def retry_groups(works: Sequence[Work], error: Exception) -> Sequence[Sequence[Work]] | None:
    """Return the groups in which to compute a batch again after an error that some of its requests caused.

    Requests with refused floats are answered with their error here. None for an error of the whole batch.

    Args:
        works: The work items of the batch.
        error: The error.
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
    if isinstance(error, NotReady) and len(works) > 1:
        # Rows of one request were unavailable: the others must not fail with it.
        return [[work] for work in works]
    return None


def client_error(error: Exception) -> FreshetError:
    """Return the error to send to the client; an internal failure is logged and replaced by a general message."""
    if isinstance(error, FreshetError):
        return error
    log.error("batch failed", exc_info=error)
    return FreshetError("the model could not be run on this request")
