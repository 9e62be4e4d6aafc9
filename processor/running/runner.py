"""Run a version's subgraphs on rows of requests: cover the rows with buckets, fill, run, cut, note the costs.

In processor, compiler and serving this is the only code that fills inputs and runs executables for requests. Sessions
queue and answer; device stages lend it another thread.

Ownership. A runner and its buffers are used by one thread at a time. A batch is run under one state: tables, epoch and
executables are given once for all of it. Nothing is allocated but what the results consist of.

Two ways. Rows of several requests run together through the undivided subgraph, in the cheapest buckets. A request whose
user inputs have one row, and for which it pays, is divided: the user's tensors of several requests are computed in one
run, then each request's candidates in theirs. Cached user parts are not computed again (user_states).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import EndableRun, Executable, Matrix, PartialRun
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.features.bound_request import BatchView, BoundRequest
from freshet_serving.processor.running.buffers import Buffers, Tensors
from freshet_serving.processor.running.graph_run import DividedRun, GraphRun, SubgraphRun
from freshet_serving.processor.running.run_limit import RunLimit
from freshet_serving.processor.watching import SessionStats

if TYPE_CHECKING:
    from freshet_serving.processor.running.split_choice import SplitChoice
    from freshet_serving.processor.running.user_states import UserState, UserStates

# One in this many batches of a runner tries the plan that the cost table considers more expensive.
EXPLORE_EVERY = 64
# Two in this many take the other way, divided or whole, where the two cost nearly the same (split_choice): the first
# brings weights into caches, the second is measured. Neither tries other buckets.
EXPLORE_SPLIT_EVERY, EXPLORE_SPLIT_AT = 256, (100, 101)


class Rows(Protocol):
    """Consecutive rows of one request, from row `first` on; `ids` is the number of ids to look up."""

    bound: BoundRequest
    first: int
    rows: int
    ids: int


class SharedParts(Protocol):
    """The part of a split request that its chunks compute once for all of them, with the user's tensors or None."""

    user_tensors: Tensors | None

    @property
    def divisible(self) -> bool:
        """True if its features may be computed in two parts."""

    @property
    def rows(self) -> int:
        """Rows of the whole request."""

    def fill(self, view: BatchView, out: NDArray[np.float32]) -> None:
        """Fill rows of features as processor.running.fillers.Fill does."""


class Crowding(Protocol):
    """Tells whether other threads compute at the same time."""

    @property
    def crowded(self) -> bool: ...

    def beat(self) -> None:
        """Report that this thread is running."""


@dataclass(slots=True, eq=False)
class RunningBatch:
    """A batch while it is computed.

    Attributes:
        executables: By subgraph and bucket, with the weights of the batch's state.
        tables, epoch: As in BatchView.
        results: Arrays that the scores are written to, by output.
        shared: What the chunks of a split request share, if the batch is a chunk.
        limit: Ends runs that last too long; None if no run of the graphs can be ended.
        sparse_s, dense_s: Seconds of filling and of executables in all its runs so far.
    """

    graphs: GraphRun
    executables: Mapping[str, Mapping[int, Executable]]
    tables: NDArray[np.int64]
    epoch: int
    buffers: Buffers
    results: Mapping[str, Matrix]
    shared: SharedParts | None = None
    limit: RunLimit | None = None
    users: UserStates | None = None
    sparse_s: float = 0.0
    dense_s: float = 0.0
    padded: int = 0

    def view(self, bound: Sequence[BoundRequest], spans: NDArray[np.int64]) -> BatchView:
        """Return the view of some of its rows; bound requests and spans as in BatchView."""
        return BatchView(self.tables, self.epoch, bound, spans, self.buffers.counts)


class Runner:
    """Runs batches, one at a time."""

    def __init__(self, clock: Clock, crowding: Crowding, stats: SessionStats) -> None:
        self._clock, self._crowding, self._stats = clock, crowding, stats
        self._spans = np.zeros((16, 2), np.int64)

    def score(self, batch: RunningBatch, works: Sequence[Rows], rows: int) -> None:
        """Score all rows, one request after another, into the batch's results."""
        graphs, shared = batch.graphs, batch.shared
        if graphs.user is None:
            self._run_undivided(batch, works, rows, 0)
        elif shared is None:
            self._run_cheapest(batch, works, rows)
        elif shared.divisible and (parts := graphs.divided(works[0].bound, shared.rows)) is not None:
            if shared.user_tensors is None:
                state = self._look(batch, parts.user, works[0])
                if state is None or (computed := state.tensors) is None:
                    computed = self._run_users(batch, parts.user, works, parts.user.costs.bucket_plan(1)[0], [state])
                    self._stats.user_once += 1
                shared.user_tensors = _copied(computed)
            self._run_candidates(batch, parts.score, shared.user_tensors, 0, works[0], 0)
        else:
            self._run_undivided(batch, works, rows, 0)

    def run_filled_user(
        self, batch: RunningBatch, user: SubgraphRun, score: SubgraphRun, shared: SharedParts | None
    ) -> bool:
        """Give the user's tensors to the candidates' subgraph, computing them from the first row of the buffers.

        `shared` is of the split request that the batch has chunks of. Returns False if another chunk has computed them.
        """
        shared_tensors = None if shared is None else shared.user_tensors
        computed = shared_tensors or self._run_filled_user(batch, user)
        score.lend(computed, 0, batch.buffers.inputs(score.name, 0, max(batch.executables[score.name])))
        if shared is not None and shared_tensors is None:
            shared.user_tensors = _copied(computed)
        return shared_tensors is None

    def _run_filled_user(self, batch: RunningBatch, user: SubgraphRun) -> Tensors:
        bucket = user.costs.bucket_plan(1)[0]
        _, computed, call = batch.buffers.get(batch.executables[user.name][bucket], user.name)
        if isinstance(call, PartialRun):
            call.rows = 1
        started_s = self._clock.now_s()
        call()
        batch.dense_s += self._clock.now_s() - started_s
        return computed

    def run_filled(self, batch: RunningBatch, run: SubgraphRun, rows: int) -> None:
        """Run rows that lie in the buffers of the subgraph's largest bucket, from the first on, into the results."""
        buffers, at = batch.buffers, 0
        for bucket in self._bucket_plan(run, rows):
            stop = min(at + bucket, rows)
            inputs, outputs, call = buffers.get(batch.executables[run.name][bucket], run.name)
            if at:
                # Every bucket reads from the first row on. The rows there have been run: the largest bucket goes first.
                for name, filled in buffers.inputs(run.name, at, stop).items():
                    if name not in run.user_tensors:
                        inputs[name][: stop - at] = filled
            if isinstance(call, PartialRun):
                call.rows = stop - at
            started_s = self._clock.now_s()
            call()
            taken_s = self._clock.now_s() - started_s
            run.costs.record_run(bucket, taken_s)
            batch.dense_s += taken_s
            self._copy_results(batch, bucket, outputs, at, stop, 0)
            at = stop

    def spans_of(self, works: Sequence[Rows], start: int, stop: int) -> tuple[list[BoundRequest], NDArray[np.int64]]:
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

    def _run_cheapest(self, batch: RunningBatch, works: Sequence[Rows], rows: int) -> None:
        """Run each request whole or divided, whichever is predicted to be cheaper."""
        graphs, timer_s = batch.graphs, self._timer(batch)
        reviewed = graphs.split if batch.users is None and graphs.split is not None and graphs.split.reviewed else None
        turn = self._stats.batches % EXPLORE_SPLIT_EVERY
        explore, recorded = turn in EXPLORE_SPLIT_AT, reviewed if turn != EXPLORE_SPLIT_AT[0] else None
        alone: dict[DividedRun, list[tuple[Rows, int]]] = {}
        together: list[Rows] = []
        at = 0
        for work in works:
            if reviewed is None:
                parts = graphs.divided(work.bound, work.rows)
            else:
                parts = graphs.divided_now(work.bound, work.rows, explore)
            if parts is not None:
                if together:
                    count = sum([w.rows for w in together])
                    self._run_whole(batch, together, count, at, recorded)
                    at += count
                    together = []
                alone.setdefault(parts, []).append((work, at))
                at += work.rows
            else:
                together.append(work)
        if together:
            self._run_whole(batch, together, rows - at, at, recorded)
        for parts, requests in alone.items():
            looks: list[UserState | None] = []
            if batch.users is not None:
                requests, looks = self._run_kept(batch, parts, requests)
            done = 0
            for users in parts.user.costs.bucket_plan(len(requests)) if requests else ():
                group, states = requests[done : done + users], looks[done : done + users]
                done += users
                began_s = timer_s()
                computed = self._run_users(batch, parts.user, [work for work, _ in group], users, states)
                users_s = timer_s() - began_s
                for n, (work, first) in enumerate(group):
                    self._run_candidates(batch, parts.score, computed, n, work, first)
                    self._stats.user_once += 1
                    if recorded is not None and n == 0:
                        # One request of a batch is evidence enough.
                        request_s = timer_s() - began_s - users_s + users_s / len(group)
                        recorded.record_divided(parts.length, work.rows, request_s)

    def _run_whole(
        self, batch: RunningBatch, works: Sequence[Rows], rows: int, first: int, recorded: SplitChoice | None
    ) -> None:
        timer_s, work = self._timer(batch), works[0]
        began_s = timer_s()
        self._run_undivided(batch, works, rows, first)
        if recorded is not None and (parts := batch.graphs.fitting(work.bound)) is not None:
            recorded.record_whole(parts.length, work.rows, rows, timer_s() - began_s)

    def _run_kept(
        self, batch: RunningBatch, parts: DividedRun, requests: Sequence[tuple[Rows, int]]
    ) -> tuple[list[tuple[Rows, int]], list[UserState | None]]:
        """Run the candidates of requests whose user is cached; return the others, and where to cache their users."""
        unserved, looks = list[tuple[Rows, int]](), list["UserState | None"]()
        for work, first in requests:
            state = self._look(batch, parts.user, work)
            if state is not None and state.tensors is not None:
                self._run_candidates(batch, parts.score, state.tensors, 0, work, first)
            else:
                unserved.append((work, first))
                looks.append(state)
        return unserved, looks

    def _look(self, batch: RunningBatch, user: SubgraphRun, work: Rows) -> UserState | None:
        """Return the cached state of a request's user; None if no such state is cached."""
        if batch.users is None:
            return None
        began_s = self._clock.now_s()
        # Chunks of a request may look at the same time, and all its rows have to read the same.
        bound = work.bound if batch.shared is None else work.bound.with_exact_user()
        state = batch.users.look(batch.tables, batch.epoch, user, bound)
        batch.sparse_s += self._clock.now_s() - began_s
        return state

    def _run_undivided(self, batch: RunningBatch, works: Sequence[Rows], rows: int, first: int) -> None:
        """Run all rows bucket by bucket, into the results from row `first` on."""
        run, buffers = batch.graphs.undivided, batch.buffers
        executables, now_s, shared = batch.executables[run.name], self._clock.now_s, batch.shared
        features = None if shared is None else shared.fill
        timer_s = self._timer(batch)
        bucket_plan = self._bucket_plan(run, rows)
        at, sparse_s, dense_s = 0, 0.0, 0.0
        for bucket in bucket_plan:
            stop = min(at + bucket, rows)
            started_s = now_s()
            inputs, outputs, call = buffers.get(executables[bucket], run.name)
            bound, spans = self.spans_of(works, at, stop)
            run.fill(batch.view(bound, spans), inputs, features)
            filled_s = now_s()
            self._timed_run(batch, call, run, bucket, stop - at, timer_s)
            ended_s = now_s()
            sparse_s += filled_s - started_s
            dense_s += ended_s - filled_s
            self._copy_results(batch, bucket, outputs, at, stop, first)
            at = stop
        run.costs.record_fill(len(bucket_plan), rows, sum([work.ids for work in works]), sparse_s)
        batch.sparse_s += sparse_s
        batch.dense_s += dense_s

    def _run_users(
        self,
        batch: RunningBatch,
        user: SubgraphRun,
        works: Sequence[Rows],
        bucket: int,
        states: Sequence[UserState | None] = (),
    ) -> Tensors:
        """Return the user's tensors, a row for each request, in reused buffers; cache them in `states`."""
        buffers, now_s = batch.buffers, self._clock.now_s
        began_s = now_s()
        inputs, computed, call = buffers.get(batch.executables[user.name][bucket], user.name)
        spans = np.zeros((len(works), 2), np.int64)
        spans[:, 1] = 1
        bound = [work.bound for work in works]
        user.fill(batch.view(bound, spans), inputs)
        started_s = now_s()
        self._timed_run(batch, call, user, bucket, len(works), self._timer(batch))
        ended_s = now_s()
        self._crowding.beat()
        batch.sparse_s += started_s - began_s
        batch.dense_s += ended_s - started_s
        for request, state in enumerate(states):
            if state is not None:
                state.keep(computed, request)
        return computed

    def _run_candidates(
        self, batch: RunningBatch, score: SubgraphRun, computed: Tensors, request: int, work: Rows, first: int
    ) -> None:
        """Run one request's candidates with its user's tensors, into the results from row `first` on."""
        buffers, now_s = batch.buffers, self._clock.now_s
        timer_s, at = self._timer(batch), 0
        for bucket in score.costs.bucket_plan(work.rows):
            stop = min(at + bucket, work.rows)
            began_s = now_s()
            inputs, outputs, call = buffers.get(batch.executables[score.name][bucket], score.name)
            if not at:
                # All buckets read the same arrays of these.
                score.lend(computed, request, inputs)
            bound, spans = self.spans_of([work], at, stop)
            score.fill(batch.view(bound, spans), inputs)
            started_s = now_s()
            self._timed_run(batch, call, score, bucket, stop - at, timer_s)
            ended_s = now_s()
            batch.sparse_s += started_s - began_s
            batch.dense_s += ended_s - started_s
            self._copy_results(batch, bucket, outputs, at, stop, first)
            at = stop

    def _bucket_plan(self, run: SubgraphRun, rows: int) -> Sequence[int]:
        """Return the cheapest buckets for the rows; now and then another plan, so that its cost stays known."""
        bucket_plan = run.costs.bucket_plan(rows)
        if len(bucket_plan) > 1 and self._stats.batches % EXPLORE_EVERY == EXPLORE_EVERY - 1:
            return run.costs.explore(rows)
        return bucket_plan

    def _timed_run(
        self,
        batch: RunningBatch,
        call: Callable[[], None],
        run: SubgraphRun,
        bucket: int,
        rows: int,
        timer_s: Callable[[], float],
    ) -> None:
        """Run a bucket whose first rows are filled, and record its time in the cost table."""
        if batch.limit is not None:
            # How long such a run takes may depend on values: not on those that an earlier batch left behind its rows.
            for name, behind in batch.buffers.inputs(run.name, rows, bucket).items():
                if None in run.spec.inputs[name]:
                    behind[...] = 0
        if isinstance(call, PartialRun):
            call.rows = rows
        crowded, began_s = self._crowding.crowded, timer_s()
        if batch.limit is None or not isinstance(call, EndableRun):
            call()
        else:
            batch.limit.run(call)
        run.costs.record_run(bucket, timer_s() - began_s, crowded or self._crowding.crowded)

    def _timer(self, batch: RunningBatch) -> Callable[[], float]:
        return self._clock.core_s if batch.graphs.in_thread else self._clock.now_s

    def _copy_results(self, batch: RunningBatch, bucket: int, outputs: Tensors, at: int, stop: int, first: int) -> None:
        for name, result in batch.results.items():
            result[first + at : first + stop] = outputs[name][: stop - at]
        batch.padded += bucket - (stop - at)
        self._stats.record_run(bucket, stop - at)
        self._crowding.beat()


def _copied(computed: Tensors) -> Tensors:
    """Return a copy of the first request's tensors: other batches use the buffers before all chunks have run."""
    return {name: array[:1].copy() for name, array in computed.items()}
