"""Run a session group: N sessions over one copy of the variables, and the queue in front of them.

Idle sessions pull from one queue; one queue for each session was no faster, in turns up to a quarter slower.

A request that is worth sharing among idle sessions, or that is larger than one run may be (CostTable.chunk_rows; with
several models, Batcher.turn_rows), is split (processor.sessions.split_request): it is queued as one ticket and leaves
in chunks. Inline, the owner's event loop runs between two chunks, so that other requests are read, answered and take
their turns meanwhile.

Sessions compute on their own threads, or `inline`: one session without a thread, driven through run_once() by an owner
(an event loop registered by set_owner()) or, without one, by the thread that waits for a reply. Inline there is no
hand-over between threads: the requests that arrived in one turn of the owner's loop are the next batch. Further
sessions of an inline group are helpers, with threads: they take only work that is worth a hand-over, while a core is
spare that no process of the server computes on (processor.cores). So a large request, or a queue that only this process
has, is computed on all cores; and when all processes are busy, none gets in another's way.

A run of a version with a stage may last as long as its request can wait. So work whose stage computes much has a queue
and a session with a thread of its own, started with the first of it (`_apart`): the other sessions answer everyone
else. Inline, all work with a stage goes there, because the owner's event loop answers nobody while it computes; the
replies pass through the owner, as those of helpers do.

Ownership
- The group's lock guards queues, idle sessions and counts; nothing is computed and no done() is called under it.
- A thread's session is its own. The inline session belongs to the holder of the `_turn` lock.
- A session sleeps on its gate, a lock that it has acquired once and that the waking thread releases. It is in its
  queue's `idle` exactly as long as no thread has woken it; so a wake-up is never lost and never used twice.
- Inline, done() is called on the owner's thread: a helper posts its replies to it.
- Numbers are reader slots of processor.versions.control: sessions use those below SESSION_READERS, split requests those
  from there on, staging buffers of device stages the last of these; item ranking, previews, shadow and canary trials
  have the very last ones. A number is used again only after its session has ended. At most one group serves a version.

A wake-up costs a thread switch, the most expensive step on this path. While a woken session is on its way to a queue,
another is woken only if the queue holds more than one batch's worth (CostTable.splits); a session that takes a batch
wakes the next for a rest that is worth it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.cores import Occupancy
from freshet_serving.processor.errors import BadInput, Expired, FreshetError, NotReady, Overloaded, first_of
from freshet_serving.processor.running.cost import FREE, WORTH, CostTable
from freshet_serving.processor.sessions.batcher import LIGHT_IDS, WAIT_MARGIN, Batcher, NextBatch
from freshet_serving.processor.sessions.request import Done, PredictReply, Work, answer
from freshet_serving.processor.sessions.session import Queue, Session, count_refusal
from freshet_serving.processor.sessions.session_options import MAX_SESSIONS, QUEUE_ROWS, ROW_IDS, GroupOptions
from freshet_serving.processor.sessions.session_thread import SessionThread
from freshet_serving.processor.sessions.split_request import SplitRequest, SubRequest
from freshet_serving.processor.versions.control import RANKING_READER
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.watching import SHORT_S, Histogram, SessionStats, Sketch, total

if TYPE_CHECKING:
    from freshet_serving.processor.sessions.stages import Stages

log = logging.getLogger("freshet.sessions")

Wake = Callable[[float], None]
Post = Callable[[Done, PredictReply | FreshetError], None]
SESSION_READERS = MAX_SESSIONS
# Seconds to hand work to a helper and get its reply back; half of a request must take longer.
HANDOVER_S = 1e-4
# Turns beyond which a request is divided while several models are requested.
LONG_TURNS = 2


class SessionGroup:
    """Runs bound requests on its sessions; close() answers queued requests and ends the sessions."""

    def __init__(self, options: GroupOptions, clock: Clock, occupancy: Occupancy | None = None) -> None:
        """Start the sessions; `occupancy` is of the cores shared with other processes, None without any."""
        self.options = options
        self._clock, self._occupancy = clock, occupancy or Occupancy(options.sessions)
        self._lock = threading.Lock()
        self._closing = False
        self._queue = _queue(options)
        self._threads: list[SessionThread] = []
        self._count = 0
        self._free_readers = list(range(SESSION_READERS, RANKING_READER))
        stages = options.device_stages
        self._stages: Stages | None = None
        if stages:
            # Loaded where there are device stages.
            from freshet_serving.processor.sessions.stages import open_stages, staging_count

            words = [self._free_readers.pop() for _ in range(staging_count(stages))]
            self._stages = open_stages(stages, words, clock, options.all_cpus)
        # Counts of ended sessions, and of requests that never reached a session.
        self._past = SessionStats()
        self._past_counts: weakref.WeakKeyDictionary[Replica, NDArray[np.int64]] = weakref.WeakKeyDictionary()
        self._past_sketches: weakref.WeakKeyDictionary[Replica, Sketch] = weakref.WeakKeyDictionary()
        self._inline: Session | None = None
        self._apart: Queue | None = None
        self._turn = threading.RLock()
        self._wake: Wake | None = None
        self._post: Post | None = None
        self._owner = 0
        self._run_requested = False
        if options.compute == "inline":
            self._inline = Session(0, clock, self._occupancy)
            self._queue.sessions = self._count = 1
        self.resize(options.sessions)

    def __len__(self) -> int:
        return self._count

    @property
    def queue_rows(self) -> int:
        return self._queue.batcher.queue_rows

    @property
    def spare(self) -> bool:
        """True if nothing waits and a session is idle, as far as can be seen without the lock."""
        """True if nothing waits and a session is idle, as far as can be seen without the lock."""
        queue = self._queue
        return (self._inline is not None or bool(queue.idle)) and not queue.batcher

    def check_room(self, timeout_s: float | None, waited_s: float = 0.0, model: str = "", sender: str = "") -> None:
        """Shed load before a request is read: refuse what enqueue() would refuse if it costs as much as recent ones.

        An overloaded queue settles at a length where a typical request no longer fits: a check without a cost would
        admit all of them, only for enqueue() to refuse them after they have been read.

        Args:
            timeout_s: Seconds left of the request's deadline; None for no deadline.
            waited_s: Seconds that it waited to be read, which count like waiting in the queue.
            sender: Name of the API key that sent it; "" where there are none.

        Raises:
            Overloaded: The request would be refused.
        """
        if waited_s and timeout_s is not None:
            timeout_s -= (WAIT_MARGIN - 1.0) * waited_s
            if timeout_s <= 0:
                with self._lock:
                    self._past.refused_late += 1
                raise Overloaded(
                    "queue: most of the request's time limit had passed before the request was read", late=True
                )
        if not self._queue.batcher:
            return
        with self._lock:
            try:
                self._queue.check_typical(timeout_s, model, sender)
            except Overloaded as error:
                count_refusal(self._past, error)
                raise

    def enqueue(self, work: Work) -> None:
        """Queue a work item, with a deadline on the group's clock; raise NotReady once the group is closed.

        Raises Overloaded, with the time that the queue needs to drain, if there is no room or no time.
        """
        with self._lock:
            if self._closing:
                raise NotReady("the processor is closed")
            now_s = self._clock.now_s()
            splits = self._split_count(work)
            queue = self._route(work)
            scattered = splits > 1 or self._is_large(work, queue, now_s)
            if queue.batcher:
                try:
                    self._past.predicted_wait_s += queue.check(work, splits, now_s, scattered) / queue.sessions
                except Overloaded as error:
                    count_refusal(self._past, error)
                    raise
            self._past.predicted_wait_s += queue.running_s / queue.sessions
            if not scattered:
                queue.batcher.put(work, work.replica, now_s)
                if queue.idle and not self._is_helper(queue):
                    queue.wake()
            else:
                self._enqueue_split(work, queue, splits, self._turn_rows(work, queue, now_s), now_s)
            if self._wake is not None and not self._run_requested and queue is not self._apart:
                self._request_run(0.0)

    def set_owner(self, wake: Wake, post: Post) -> bool:
        """Make the calling thread the owner, which computes inline: done() is called on it, within run_once().

        wake(delay_s), from any thread, makes it call run_once() soon after the delay; post(done, reply) makes it call
        done(reply). Returns False with compute "threads": nothing changes.
        """
        with self._lock:
            if self._inline is None:
                return False
            self._wake, self._post, self._owner, self._run_requested = wake, post, threading.get_ident(), False
            if self._queue.batcher:
                self._request_run(0.0)
            return True

    @property
    def inline(self) -> bool:
        return self._inline is not None

    @property
    def driven(self) -> bool:
        """True if a thread that waits for a reply has to call run_once() for it."""
        return self._inline is not None and (self._wake is None or self._owner == threading.get_ident())

    def run_once(self, hurry: bool = False) -> bool:
        """Compute and answer the next batch inline, with `hurry` without the batching window; True if one was due."""
        session, queue = self._inline, self._queue
        if session is None:
            raise RuntimeError("the sessions of this group run in their own threads")
        with self._turn:
            with self._lock:
                self._run_requested = False
                next_batch = queue.take(session, self._clock.now_s(), hurry, 1 + self._helpers(queue), self._count)
                if next_batch.batch:
                    self._occupancy.change(1)
                    if queue.batcher:
                        self._wake_session(queue)
            self._expire(next_batch.expired)
            if next_batch.batch:
                session.run(next_batch.batch)
            with self._lock:
                now_s = self._clock.now_s()
                queue.finish(session, now_s)
                if next_batch.batch:
                    self._occupancy.change(-1)
                if queue.batcher:
                    self._request_run(0.0 if next_batch.until_s is None else max(0.0, next_batch.until_s - now_s))
            return bool(next_batch.batch)

    def serve(self, thread: SessionThread) -> None:
        """Run a session's thread until it retires or the group closes."""
        session, queue = thread.session, thread.queue
        next_batch: NextBatch[Work] = NextBatch([], [])
        while True:
            thread.bind()
            with self._lock:
                now_s = self._clock.now_s()
                queue.finish(session, now_s)
                if thread.computing:
                    thread.computing = False
                    self._occupancy.change(-1)
                if thread.retired:
                    # It may have been woken for work that another session must do now.
                    self._wake_session(queue)
                    break
                if not self._is_helper(queue):
                    free = 1 + queue.waking + len(queue.idle)
                    next_batch = queue.take(session, now_s, self._closing, free, queue.sessions)
                elif self._occupancy.spare > 0:
                    next_batch = queue.take(session, now_s, self._closing, 1 + self._helpers(queue), self._count)
                else:
                    next_batch = NextBatch([], [])
                if next_batch.batch:
                    thread.computing = True
                    self._occupancy.change(1)
                    self._wake_session(queue)
                elif not next_batch.expired:
                    if self._closing and (self._is_helper(queue) or not queue.batcher):
                        break
                    queue.idle.append(thread)
                    session.started_s = 0.0
            if next_batch.batch or next_batch.expired:
                self._expire(next_batch.expired)
                if next_batch.batch:
                    if self._inline is not None:
                        self._deliver_to_owner(next_batch.batch)
                    session.run(next_batch.batch)
                # A waiting session must keep nothing of its last batch alive: a version, or tens of megabytes.
                next_batch = NextBatch([], [])
                continue
            in_time = thread.gate.acquire(
                timeout=-1 if next_batch.until_s is None else max(0.0, next_batch.until_s - now_s)
            )
            with self._lock:
                if not in_time and thread in queue.idle:
                    queue.idle.remove(thread)
                    continue
                queue.waking -= 1
            if not in_time:
                thread.gate.acquire()
        self._end(thread)

    def resize(self, sessions: int) -> None:
        """Change the number of sessions; surplus ones finish their batch. Raises BadInput."""
        if not 1 <= sessions <= SESSION_READERS:
            raise BadInput(f"sessions: expected 1 to {SESSION_READERS}, got {sessions}")
        with self._lock:
            if self._closing:
                raise NotReady("the processor is closed")
            self.options = replace(self.options, sessions=sessions)
            while len(self) < sessions:
                self._start()
            while len(self) > sessions:
                self._retire()

    def place(self, sessions: int, cpus: frozenset[int]) -> None:
        """Move all sessions to the same cores, each at the end of its batch, and change their number."""
        with self._lock:
            self.options = replace(self.options, cpus=(cpus,))
            for thread in self._threads:
                thread.cpus = cpus
        self.resize(sessions)

    def measure_responses(self) -> Histogram:
        """Make the queue record what requests take, waiting and computing as predicted; return it, in seconds."""
        with self._lock:
            responses = self._queue.responses = self._queue.responses or Histogram(SHORT_S)
            return responses

    def cost_tables(self) -> list[CostTable]:
        """Return the costs of the versions that sessions have computed."""
        replicas = {replica for session in self._sessions() for replica in list(session.buffers)}
        return [replica.costs for replica in replicas]

    def statistics(self) -> list[SessionStats]:
        """Return the counts of every session and device stage, and the group's own for requests that reached none."""
        staged = self._stages.stats if self._stages else []
        return [self._past, *(s.stats for s in self._sessions()), *staged]

    def counts(self, replica: Replica) -> NDArray[np.int64]:
        """Return lookups and misses of a replica's tables over all sessions, int64 [T, 2]."""
        total = np.zeros((max(1, len(replica.manifest.tables)), 2), np.int64)
        past = self._past_counts.get(replica)
        if past is not None:
            total += past
        for session in self._sessions():
            buffers = session.buffers.get(replica)
            if buffers is not None:
                total += buffers.counts
        return total

    def sketch(self, replica: Replica) -> Sketch:
        with self._lock:
            # Both under the lock: a session that ends meanwhile is counted in one or the other, not in both.
            buffer_sets = [s.buffers.get(replica) for s in self._sessions()]
            past = self._past_sketches.get(replica)
        blocks = [buffers.block for buffers in buffer_sets if buffers is not None]
        if self._stages is not None:
            blocks += self._stages.blocks(replica)
        whole = Sketch.total(len(replica.outputs), blocks)
        return whole if past is None else whole + past

    def deliver(self, done: Done, reply: PredictReply | FreshetError) -> None:
        """Call done() on the owner's thread, if there is an owner."""
        if self._post is None or threading.get_ident() == self._owner:
            done(reply)
        else:
            self._post(done, reply)

    def close(self) -> None:
        """Answer queued requests, then end the sessions; enqueue() raises NotReady from now on."""
        with self._lock:
            self._closing = True
            self._wake = None
            for queue in (self._queue, *([self._apart] if self._apart else [])):
                queue.waking += len(queue.idle)
                for thread in queue.idle:
                    thread.gate.release()
                queue.idle.clear()
            threads = list(self._threads)
        while self._inline is not None and self._queue.batcher:
            self.run_once(hurry=True)
        for thread in threads:
            thread.join()
        if self._stages is not None:
            self._stages.close()

    def _sessions(self) -> list[Session]:
        return [*([self._inline] if self._inline else []), *(thread.session for thread in self._threads)]

    def _start(self) -> None:
        numbers = {session.number for session in self._sessions()}
        number = first_of(n for n in count() if n not in numbers)
        queue, cpus, stages = self._queue, self.options.cpus, self._stages
        session = Session(number, self._clock, self._occupancy) if stages is None else stages.session(number)
        thread = SessionThread(session, self.serve, queue, cpus[number % len(cpus)] if cpus else frozenset())
        # Helpers do not count: predicted waits assume none.
        queue.sessions += self._inline is None
        self._count += 1
        self._threads.append(thread)
        thread.start()

    def _retire(self) -> None:
        queue = self._queue
        thread = first_of(t for t in reversed(self._threads) if t.queue is queue and not t.retired)
        thread.retired = True
        queue.sessions -= self._inline is None
        self._count -= 1
        if thread in queue.idle:
            queue.idle.remove(thread)
            queue.waking += 1
            thread.gate.release()

    def _end(self, thread: SessionThread) -> None:
        with self._lock:
            self._threads.remove(thread)
            self._past = total([self._past, thread.session.stats])
            for replica, buffers in thread.session.buffers.items():
                past = self._past_counts.get(replica)
                self._past_counts[replica] = buffers.counts if past is None else past + buffers.counts
                ended = Sketch.total(len(replica.outputs), [buffers.block])
                before = self._past_sketches.get(replica)
                self._past_sketches[replica] = ended if before is None else before + ended

    def _split_count(self, work: Work) -> int:
        """Return on how many sessions to run a request at the same time.

        As many as there are, if the extra cost is worth the shorter latency, or if splitting is free.
        """
        sessions = self._count
        if sessions == 1 or work.rows == 1 or not self._free_readers or self._runs_apart(work):
            return 1
        if self._stages is not None:
            return min(sessions, -(-work.rows // work.replica.costs.max_rows))
        if self._inline is not None:
            queue = self._queue
            if queue.batcher or work.replica.costs.batch_s(work.rows, work.ids) < 2 * HANDOVER_S:
                return 1
            return work.replica.costs.splits(work.rows, max(1, min(len(queue.idle) + 1, self._occupancy.spare)))
        return work.replica.costs.splits(work.rows, sessions, WORTH if len(self._queue.idle) > 1 else FREE)

    def _most_rows(self, work: Work) -> int:
        """Return the maximum rows of a request in one run; with device stages they must fit into a staging buffer."""
        return self.options.max_batch_rows if self._stages is None else work.replica.graphs.undivided.costs.max_rows

    def _turn_rows(self, work: Work, queue: Queue, now_s: float) -> int:
        """Return the most rows of a request that are run at once: with several models, those of a turn."""
        if self._stages is not None or work.replica.remote is not None:
            return self._most_rows(work)
        return min(self._most_rows(work), queue.batcher.turn_rows(work.replica, now_s))

    def _is_large(self, work: Work, queue: Queue, now_s: float) -> bool:
        """Return True if a request would delay others for long in one run or does not fit into a staging buffer.

        Raises Overloaded if too many such requests are under way.
        """
        light = work.ids <= LIGHT_IDS or work.ids <= work.replica.costs.heavy_ids
        if light and work.rows <= self._most_rows(work):
            # Chunks cost more than batches of the same rows: what is less than LONG_TURNS is run at once.
            if work.rows <= LONG_TURNS:
                return False
            return work.rows > LONG_TURNS * self._turn_rows(work, queue, now_s) and bool(self._free_readers)
        if not self._free_readers:
            raise Overloaded("queue: too many requests larger than the largest batch are in progress")
        return True

    def _enqueue_split(self, work: Work, queue: Queue, splits: int, rows: int, now_s: float) -> None:
        """Queue a request that leaves in chunks of at most `rows` rows, for `splits` sessions at a time."""
        if self._inline is not None:
            work.done = partial(self.deliver, work.done)
        split_request = SplitRequest(work, splits, rows, self._free_readers)
        queue.batcher.put(split_request.ticket(), work.replica, now_s)
        # Inline, the owner is one of the sessions that compute it.
        for _ in range(splits - self._is_helper(queue)):
            self._wake_session(queue)

    def _route(self, work: Work) -> Queue:
        if self._runs_apart(work):
            if self._apart is None:
                self._start_apart()
            assert self._apart is not None, "it was started"
            return self._apart
        return self._queue

    def _runs_apart(self, work: Work) -> bool:
        """Report whether a request has a stage that others would wait for."""
        if work.replica.plan.stage is None:
            return False
        from freshet_serving.processor.features.stage import LARGE

        return self._inline is not None or work.bound.cells > LARGE

    def _is_helper(self, queue: Queue) -> bool:
        """Report whether a queue's threads only help the inline session."""
        return self._inline is not None and queue is not self._apart

    def _start_apart(self) -> None:
        if not self._free_readers:
            raise Overloaded("queue: too many requests larger than the largest batch are in progress")
        self._apart = _queue(self.options)
        self._apart.sessions = 1
        session = Session(self._free_readers.pop(), self._clock, self._occupancy)
        thread = SessionThread(session, self.serve, self._apart, self.options.all_cpus)
        self._threads.append(thread)
        thread.start()

    def _helpers(self, queue: Queue) -> int:
        """Return the helpers that could take a batch now: idle, with a spare core and work worth a hand-over."""
        if not queue.idle or queue.batcher.work_s < 2 * HANDOVER_S:
            return 0
        return max(0, min(len(queue.idle), self._occupancy.spare - 1))

    def _wake_session(self, queue: Queue) -> None:
        """Wake a session for queued work; inline, a helper if a core is spare for it."""
        if not self._is_helper(queue) or (queue.batcher.work_s >= HANDOVER_S and self._occupancy.spare > queue.waking):
            queue.wake()

    def _deliver_to_owner(self, batch: Sequence[Work]) -> None:
        for work in batch:
            work.done = partial(self.deliver, work.done)

    def _request_run(self, delay_s: float) -> None:
        """Make the owner call run_once(), once for all requests that arrive before it runs."""
        if self._wake is not None and not self._run_requested:
            self._run_requested = delay_s == 0
            try:
                self._wake(delay_s)
            except RuntimeError:
                # The owner's loop has closed: threads that wait for a reply compute from now on.
                self._wake = self._post = None

    def _expire(self, expired: Sequence[Work]) -> None:
        if not expired:
            return
        with self._lock:
            self._past.expired += len(expired)
        for work in expired:
            error = Expired("the request's deadline passed, or came too close, while it was queued")
            if isinstance(work, SubRequest):
                work.split_request.fail(error)
                work.split_request.release()
            else:
                answer(partial(self.deliver, work.done) if self._inline is not None else work.done, error)


def _queue(options: GroupOptions) -> Queue:
    rows, window_s = options.max_queue_rows, options.batch_window_us / 1e6
    batcher = Batcher[Work](options.max_batch_rows, rows, window_s, ROW_IDS * max(rows, QUEUE_ROWS))
    batcher.grows = options.device_stages > 0
    return Queue(batcher)
