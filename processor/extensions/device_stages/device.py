"""Device stages: sessions fill staging buffers on the CPU, and M threads run their content in large batches.

    N sessions ── look up and pool straight into staging rows ──▶ queue of buffer numbers ──▶ M device stages
        ▲                                                                                          │ one run a batch
        └────────── staging buffers that are free again ◀── outputs copied to their requests ◀─────┘

For a device that needs larger batches than one session has: a GPU, or a CPU backend with threads of its own. A staging
buffer is one of a replica's Buffers, with as many rows as its largest bucket, bound to every executable beforehand. So
all that several sessions have filled of it is one run, and nothing is gathered. A stage runs the executable that the
manifest chooses for the bucket, as any session does.

Ownership
- A staging buffer's rows belong to the session that reserved them until mark_filled(), and to the stage that took the
  buffer from take() until release().
- The lock guards the hand-over and the free buffers. Nothing is computed and no done() is called under it; pins are
  taken and released under it.
- Each staging buffer has its own reader slot (processor.versions.control), pinned when the buffer is opened and
  unpinned when its outputs have been copied: a buffer is computed under one state. A session joins an open buffer only
  while that buffer's state is the served one: whatever is filled after a delta's flip sees the delta.
- Chunks of a split request share no buffers with other requests: their state is the one that their SplitRequest pins.

Must never happen: rows of two states or two models in one run; a reply before all of its rows have been computed; a
buffer filled again while outputs of it are read; a request that fails for the values of another one in its buffer:
after an error of a run the stage fills and runs each request by itself.

Bounded: there are STAGING_PER_STAGE buffers per stage and one more. A session that finds none free waits; its next
batch grows meanwhile, and the batcher sheds load by the pace that it measures. close() runs and answers what has been
filled and ends the stages; sessions have ended before.

A request that is worth dividing (processor.running.graph_run) has a buffer of its own: the session fills the user's
row and the candidates' rows, and the stage runs both parts, of the shortest length that the histories fit.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.cores import Occupancy, run_on
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.extensions.device_stages.staging_pool import Span, StagingPool
from freshet_serving.processor.features.bound_request import BatchView, NonFiniteInput
from freshet_serving.processor.running.buffers import Buffers
from freshet_serving.processor.running.graph_run import DividedRun, GraphRun, SubgraphRun
from freshet_serving.processor.running.runner import Runner, RunningBatch
from freshet_serving.processor.sessions.request import Outputs, PredictReply, Timing, Work, answer
from freshet_serving.processor.sessions.session import Session, client_error, record_batch, retry_groups
from freshet_serving.processor.sessions.split_request import SplitRequest, SubRequest
from freshet_serving.processor.versions.replica import Replica, State
from freshet_serving.processor.watching import SessionStats, StatsBlock


@dataclass(slots=True, eq=False)
class DeviceBatch:
    """The content of a staging buffer.

    Attributes:
        parts: The parts of a divided request, whose candidates' inputs are filled; None if the rows run whole.
        shared: The split request whose chunks are in the buffer; its reader slot then pins the state.
        rows: Number of rows reserved.
        requests: Number of requests, not counting chunks of split requests.
        wait_s: Total wait of its work items.
        sparse_s: Total time spent on filling.
        began_s: When the buffer was opened.
        spans: The spans to be answered, with their work items.
    """

    replica: Replica
    parts: DividedRun | None
    state: State
    buffers: Buffers
    shared: SplitRequest | None
    rows: int = 0
    requests: int = 0
    wait_s: float = 0.0
    sparse_s: float = 0.0
    began_s: float = 0.0
    spans: list[tuple[Span, Sequence[Work]]] = field(default_factory=list)

    @property
    def run(self) -> SubgraphRun:
        return _filled(self.replica, self.parts)

    def works(self) -> list[tuple[int, Work]]:
        """Return the first row of each work item to be answered, and the item."""
        every = list[tuple[int, Work]]()
        for span, works in self.spans:
            first = span.first
            for work in works:
                every.append((first, work))
                first += work.rows
        return every

    @property
    def owned(self) -> bool:
        """True if the buffer's own reader slot pins the state."""
        return self.shared is None


class DeviceStages:
    """M stages and the staging buffers in front of them."""

    def __init__(self, stages: int, words: Sequence[int], clock: Clock, cpus: frozenset[int]) -> None:
        """Start the stages' threads, on these cores, any if empty; `words` are their staging buffers' reader slots."""
        self._words, self._clock, self._cpus = words, clock, cpus
        self._staging_pool = StagingPool(len(words))
        self._batches: dict[int, DeviceBatch] = {}
        self._buffers: weakref.WeakKeyDictionary[Replica, list[Buffers]] = weakref.WeakKeyDictionary()
        self._borrowed: weakref.WeakKeyDictionary[Replica, list[Buffers]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._room, self._due = threading.Condition(self._lock), threading.Condition(self._lock)
        self._closing = False
        self.stats = [SessionStats() for _ in range(stages)]
        self._threads = [
            threading.Thread(target=self._serve, args=(stats,), name=f"freshet-device-{n}", daemon=True)
            for n, stats in enumerate(self.stats)
        ]
        for thread in self._threads:
            thread.start()

    def reserve(
        self,
        replica: Replica,
        parts: DividedRun | None,
        rows: int,
        sub_request: SubRequest | None = None,
        alone: Work | None = None,
    ) -> tuple[Span, DeviceBatch]:
        """Reserve rows to fill, waiting for a staging buffer. A mark_filled() has to follow.

        Return the rows, and the batch with the state to fill them under: a chunk of a split request uses that of its
        request. Rows are at most the largest bucket of the subgraph that is filled, the candidates' for `parts`. The
        work item `alone` shares its buffer with no other.
        """
        capacity = _filled(replica, parts).costs.max_rows
        target = alone or (replica if sub_request is None else sub_request.split_request)
        with self._lock:
            while True:
                tag = replica.publish_seq if sub_request is None else 0
                span = self._staging_pool.reserve(target, tag, rows, capacity)
                if span is not None:
                    break
                self._room.wait()
            if span.opens:
                try:
                    self._batches[span.staging] = self._open(span.staging, replica, parts, sub_request)
                except BaseException:
                    self._staging_pool.abandon(span)
                    raise
            batch = self._batches[span.staging]
            batch.rows = span.first + rows
            return span, batch

    def _open(
        self, staging: int, replica: Replica, parts: DividedRun | None, sub_request: SubRequest | None
    ) -> DeviceBatch:
        free = self._buffers.get(replica)
        buffers = free.pop() if free else self._borrow_buffers(replica)
        shared = None if sub_request is None else sub_request.split_request
        state = replica.pin(self._words[staging]) if shared is None else shared.state
        return DeviceBatch(replica, parts, state, buffers, shared, began_s=self._clock.now_s())

    def _borrow_buffers(self, replica: Replica) -> Buffers:
        buffers = replica.borrow_buffers()
        self._borrowed.setdefault(replica, []).append(buffers)
        return buffers

    def session(self, number: int) -> StagedSession:
        return StagedSession(number, self._clock, self)

    def blocks(self, replica: Replica) -> list[StatsBlock]:
        """Return the statistics blocks of a replica's batches, one per staging buffer."""
        with self._lock:
            return [buffers.block for buffers in self._borrowed.get(replica, ())]

    def mark_filled(self, span: Span, works: Sequence[Work], wait_s: float = 0.0, sparse_s: float = 0.0) -> None:
        """Mark a span as filled; the stages answer its work items from now on: none if filling failed."""
        with self._lock:
            if works:
                batch = self._batches[span.staging]
                batch.spans.append((span, works))
                batch.requests += len(works) if batch.owned else 0
                batch.wait_s += wait_s * len(works)
                batch.sparse_s += sparse_s
            if self._staging_pool.mark_filled(span):
                self._due.notify()

    def close(self) -> None:
        """Run and answer what has been filled, then end the stages. The sessions that fill must have ended before."""
        with self._lock:
            self._closing = True
            self._due.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self, stats: SessionStats) -> None:
        run_on(self._cpus)
        runner = Runner(self._clock, Occupancy(1), stats)
        while (staging := self._take()) is not None:
            self._run(staging, stats, runner)

    def _take(self) -> int | None:
        with self._lock:
            while (staging := self._staging_pool.take()) is None:
                if self._closing and not self._staging_pool.busy:
                    return None
                self._due.wait()
            return staging

    def _run(self, staging: int, stats: SessionStats, runner: Runner) -> None:
        batch = self._batches[staging]
        works = batch.works()
        outcomes: Sequence[Outputs | FreshetError] = ()
        timing: Timing | None = None
        started_s = self._clock.now_s()
        try:
            if works:
                outcomes, timing = self._compute(batch, works, stats, runner)
        except Exception as error:
            outcomes = self._compute_each(batch, works, error, runner)
        generation, model = batch.state.generation, batch.replica.manifest.model
        self._free(staging, batch)
        stats.busy_s += self._clock.now_s() - started_s
        block = batch.buffers.block
        for (_, work), outcome in zip(works, outcomes):
            failed = isinstance(outcome, FreshetError)
            stats.failed += failed
            stats.rows += 0 if failed else work.rows
            if isinstance(work, SubRequest):
                last = _finish(work, outcome)
                stats.requests += last
                block.done(last)
                block.fail(failed)
            elif isinstance(outcome, FreshetError):
                answer(work.done, outcome)
            else:
                stats.requests += 1
                answer(work.done, PredictReply(outcome, generation, model, timing))

    def _compute(
        self, batch: DeviceBatch, works: Sequence[tuple[int, Work]], stats: SessionStats, runner: Runner
    ) -> tuple[Sequence[Outputs], Timing]:
        """Run and record what a buffer holds; return the outputs of each work item, and the timing."""
        graphs, state = batch.replica.graphs, batch.state
        results = _results(batch.replica, batch.rows)
        running = RunningBatch(graphs, state.executables, state.tables, state.epoch, batch.buffers, results)
        if batch.parts is not None:
            stats.user_once += runner.run_filled_user(running, batch.parts.user, batch.parts.score, batch.shared)
        runner.run_filled(running, batch.run, batch.rows)
        stats.batches += 1
        rows = sum([span.rows for span, _ in batch.spans])
        wait_s = batch.wait_s / len(works)
        record_batch(
            batch.buffers.block, batch.requests, rows, running.padded, _answered(batch, results), wait_s,
            batch.sparse_s, running.dense_s,
        )  # fmt: skip
        timing = Timing(batch.began_s, self._clock.now_s(), batch.sparse_s, running.dense_s, batch.requests, rows)
        return [
            {name: result[first : first + work.rows] for name, result in results.items()} for first, work in works
        ], timing

    def _compute_each(
        self, batch: DeviceBatch, works: Sequence[tuple[int, Work]], error: Exception, runner: Runner
    ) -> Sequence[Outputs | FreshetError]:
        """Fill, run and record each request of a buffer by itself after an error; return what each gets."""
        buffers, replica, state = batch.buffers, batch.replica, batch.state
        if batch.requests <= 1:
            # One request, or chunks of one.
            buffers.block.fail(batch.requests)
            reason = client_error(error)
            return [reason] * len(works)
        outcomes = list[Outputs | FreshetError]()
        for _, work in works:
            try:
                tables, results = state.tables, _results(replica, work.rows)
                if replica.remote is not None:
                    bound, spans = runner.spans_of([work], 0, work.rows)
                    batch_tables = replica.remote.batch_tables(tables, state.epoch, bound, spans)
                    tables = batch_tables.tables
                running = RunningBatch(replica.graphs, state.executables, tables, state.epoch, buffers, results)
                runner.score(running, [work], work.rows)
                sparse_s, dense_s = running.sparse_s, running.dense_s
                record_batch(buffers.block, 1, work.rows, running.padded, results, 0.0, sparse_s, dense_s)
                outcomes.append(results)
            except Exception as raised:
                buffers.block.fail(1)
                outcomes.append(client_error(raised))
        return outcomes

    def _free(self, staging: int, batch: DeviceBatch) -> None:
        with self._lock:
            del self._batches[staging]
            if batch.owned:
                batch.replica.unpin(self._words[staging])
            self._buffers.setdefault(batch.replica, []).append(batch.buffers)
            self._staging_pool.release(staging)
            # Wake all: what the first to wake needs may not fit into the buffer that it opens.
            self._room.notify_all()


class StagedSession(Session):
    """The sparse half of a session: it fills staging buffers, and the stages answer."""

    def __init__(self, number: int, clock: Clock, stages: DeviceStages) -> None:
        super().__init__(number, clock)
        self._stages = stages

    def run(self, batch: Sequence[Work]) -> None:
        """Hand over a batch of one target, in groups of at most the largest bucket."""
        if isinstance(batch[0], SubRequest):
            self._hand_over_sub_request(batch[0])
            return
        graphs = batch[0].replica.graphs
        together = []
        for work in batch:
            parts = _parts(graphs, work, work.rows)
            if parts is not None:
                self._hand_over([work], parts)
            else:
                together.append(work)
        for works in _chunks(together, graphs.undivided.costs.max_rows) if together else ():
            self._hand_over(works)

    def _hand_over(self, works: Sequence[Work], parts: DividedRun | None = None) -> None:
        try:
            self._fill(works, parts, None)
        except Exception as error:
            again = retry_groups(works, error)
            if again is not None:
                for part in again:
                    self._hand_over(part)
                return
            self.stats.failed += len(works)
            self._counted(works[0].replica).block.fail(len(works))
            reason = client_error(error)
            for work in works:
                answer(work.done, reason)

    def _hand_over_sub_request(self, sub_request: SubRequest) -> None:
        try:
            if (shared := sub_request.split_request).acquire():
                if sub_request.rows:
                    graphs = sub_request.replica.graphs
                    parts = _parts(graphs, sub_request, shared.rows) if shared.divisible else None
                    self._fill([sub_request], parts, sub_request)
                    return
                state = shared.state
                shared.look_up(state.tables, state.epoch, self._counted(sub_request.replica).counts)
        except NonFiniteInput as error:
            sub_request.split_request.fail(sub_request.replica.plan.non_finite_error(sub_request.bound) or error)
        except Exception as error:
            sub_request.split_request.fail(client_error(error))
            self.stats.failed += 1
            self._counted(sub_request.replica).block.fail(1)
        sub_request.split_request.release()

    def _counted(self, replica: Replica) -> Buffers:
        """Return a replica's counters in this session; the rows are in staging buffers."""
        counted = self.buffers.get(replica)
        if counted is None:
            counted = self.buffers[replica] = Buffers({}, len(replica.manifest.tables), len(replica.outputs))
        return counted

    def _fill(self, works: Sequence[Work], parts: DividedRun | None, sub_request: SubRequest | None) -> None:
        """Write the work items' rows into a staging buffer; if that raises, the stages do not answer them."""
        replica = works[0].replica
        rows = sum([work.rows for work in works])
        counted, shared = self._counted(replica), None if sub_request is None else sub_request.split_request
        alone = works[0] if parts is not None and shared is None else None
        span, batch = self._stages.reserve(replica, parts, rows, sub_request, alone)
        answered: Sequence[Work] = ()
        started_s, filled_s = self._clock.now_s(), 0.0
        try:
            state, tables = batch.state, batch.state.tables
            bound, spans = self._runner.spans_of(works, 0, rows)
            if replica.remote is not None:
                batch_tables = replica.remote.batch_tables(tables, state.epoch, bound, spans)
                tables = tables if batch_tables is None else batch_tables.tables
            features = shared.fill if shared is not None and parts is None else None
            run = batch.run
            inputs = batch.buffers.inputs(run.name, span.first, span.first + rows)
            view = BatchView(tables, state.epoch, bound, spans, counted.counts)
            run.fill(view, inputs, features)
            computed = shared is not None and shared.user_tensors is not None
            if parts is not None and span.opens and not computed:
                inputs = batch.buffers.inputs(parts.user.name, 0, 1)
                first = view._replace(bound=bound[:1], spans=np.array([[0, 1]], np.int64))
                parts.user.fill(first, inputs)
            filled_s = self._clock.now_s() - started_s
            replica.costs.record_fill(1, rows, sum([work.ids for work in works]), filled_s)
            answered = works
        finally:
            self._stages.mark_filled(span, answered, self.wait_s, filled_s)


def _filled(replica: Replica, parts: DividedRun | None) -> SubgraphRun:
    return replica.graphs.undivided if parts is None else parts.score


def _parts(graphs: GraphRun, work: Work, rows: int) -> DividedRun | None:
    """Return the parts to divide a work item of a request of so many rows by; None if it runs whole."""
    parts = graphs.divided(work.bound, rows)
    # All rows of a work item have to fit into one buffer.
    return parts if parts is not None and work.rows <= parts.score.costs.max_rows else None


def _chunks(works: Sequence[Work], most: int) -> Iterator[list[Work]]:
    piece: list[Work] = []
    rows = 0
    for work in works:
        if piece and rows + work.rows > most:
            yield piece
            piece, rows = [], 0
        piece.append(work)
        rows += work.rows
    yield piece


def _results(replica: Replica, rows: int) -> Outputs:
    return {name: np.empty((rows, columns), np.float32) for name, columns in replica.outputs.items()}


def _answered(batch: DeviceBatch, results: Outputs) -> Outputs:
    """Return the rows to be answered: all, unless filling failed for some."""
    spans = [span for span, _ in batch.spans]
    if sum([span.rows for span in spans]) == batch.rows:
        return results
    return {
        name: np.concatenate([array[span.first : span.first + span.rows] for span in spans])
        for name, array in results.items()
    }


def _finish(sub_request: SubRequest, outcome: Outputs | FreshetError) -> bool:
    if isinstance(outcome, FreshetError):
        sub_request.split_request.fail(outcome)
    else:
        for name, result in sub_request.split_request.results_for(sub_request).items():
            result[...] = outcome[name]
    return sub_request.split_request.release()
