"""A SessionGroup: N sessions over one copy of the variables, and the queues in front of them.

Policies say which queue a request joins: `shared` is one queue that idle sessions pull from; `round-robin`, `mod` (by
caller) and `least-loaded` (by predicted work) are one queue a session.

A request that idle sessions share, or that is larger than what may run in one go (CostTable.piece_rows), is scattered
(processor.sessions.split_request): it is queued as one ticket, or one a queue, and leaves in pieces. Inline, the
owner's loop turns between two of them, so that others are read, answered and take their turns while a large request is
computed.

Computing happens on the sessions' own threads, or `inline`: one session without a thread, driven through run_once() by
an owner (an event loop that set_owner() has named) or, without one, by whoever waits for a reply. Inline there is no
hand-over between threads at all: what arrived in one turn of the owner's loop is the next batch. Further sessions of an
inline group are helpers, with threads: they take what is worth a hand-over, and only while a core is spare that no
process of the server computes on (processor.sessions.occupancy). So a large request, or a queue that only this process
has, is computed on all cores; and where all processes are busy, nobody is in anybody's way.

Who owns what
- The group's lock guards queues, idle sessions and counts; nothing is computed and no done() is called under it.
- A thread's session is its own. The inline session belongs to the holder of the `_turn` lock.
- A session sleeps on its gate, a lock that it has taken once and that whoever wakes it releases. It stands in its
  queue's `idle` exactly as long as nobody has woken it; so a wake-up is never lost and never spent twice.
- Inline, done() is called on the owner's thread: a helper hands its replies home.
- Numbers are reader's words of processor.versions.control: sessions use those below SESSION_READERS, scattered
  requests those from there on, trays of device stages the last of these, processor.sessions.shadow and .trial the very
  last. A number is used again only after its session has ended. One group at most serves a version.

A wake-up costs a change of threads, the dearest thing on this path. So a queue that a woken session is already on its
way to wakes another only when it holds more than one batch's worth (CostTable.splits), and a session that takes a batch
leaves the rest, if it is worth it, to the next, which it wakes.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import FREE, WORTH
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.cores import run_on
from freshet_serving.processor.errors import BadInput, Expired, FreshetError, NotReady, Overloaded
from freshet_serving.processor.sessions.batcher import LIGHT_IDS, WAIT_MARGIN, Batcher, NextBatch
from freshet_serving.processor.sessions.device import DeviceStages, StagedSession, staging_count
from freshet_serving.processor.sessions.occupancy import Occupancy
from freshet_serving.processor.sessions.request import Done, PredictReply, Work, answer
from freshet_serving.processor.sessions.session import Session
from freshet_serving.processor.sessions.session_options import MAX_SESSIONS, Compute, SessionOptions
from freshet_serving.processor.sessions.split_request import SplitRequest, SubRequest
from freshet_serving.processor.versions.control import PREVIEW_READER
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.watching import SessionStats, Sketch, total

log = logging.getLogger("freshet.sessions")

Wake = Callable[[float], None]
Post = Callable[[Done, PredictReply | FreshetError], None]
SESSION_READERS = MAX_SESSIONS
# What it takes to give a helper work and to have its reply back; half of a request has to take longer.
HANDOVER_S = 1e-4
# How fast the cost of the usual request is followed.
TYPICAL_COST_RATE = 1 / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(SessionOptions):
    """The options that a session group is made with. sessions: with compute "inline" all but one are helpers. cpus:
    cores for each session in turn; empty for any."""

    sessions: int = 1
    max_batch_rows: int = 256
    compute: Compute = "threads"
    cpus: tuple[frozenset[int], ...] = ()

    @property
    def runs(self) -> int:
        """Buffers that a version is to have ready."""
        return staging_count(self.device_stages) if self.device_stages else self.sessions

    @property
    def all_cpus(self) -> frozenset[int]:
        """The cores of all sessions; empty for any."""
        return frozenset().union(*self.cpus)


class Queue:
    """A batcher and the sessions that take from it. Guarded by the group's lock."""

    def __init__(self, options: GroupOptions) -> None:
        window_s = options.batch_window_us / 1e6
        rows, ids = options.max_queue_rows, options.max_queue_ids
        self.batcher: Batcher[Work] = Batcher(options.max_batch_rows, rows, window_s, ids)
        self.sessions = 0
        self.idle: list[SessionThread] = []
        self.waking = 0
        self.running_s = self.typical_cost_s = 0.0

    @property
    def load_s(self) -> float:
        """Predicted seconds of a session for all that waits or runs."""
        return self.batcher.work_s + self.running_s

    def wake(self) -> None:
        """Wakes a session, unless those on their way will do."""
        if self.idle and (not self.waking or self.batcher.batches(self.waking + 1) > self.waking):
            self.waking += 1
            self.idle.pop().gate.release()

    def take(self, session: Session, now_s: float, hurry: bool, free: int, sessions: int) -> NextBatch[Work]:
        """The next batch, as the session's own from now on. free, sessions: see Batcher.take."""
        taken = self.batcher.take(now_s, free, hurry, sessions)
        if taken.batch:
            rows, ids, arrived_s = 0, 0, 0.0
            for work in taken.batch:
                rows += work.rows
                ids += work.ids
                arrived_s += work.arrived_s
            waited_s = len(taken.batch) * now_s - arrived_s
            session.stats.wait_s += waited_s
            session.wait_s = waited_s / len(taken.batch)
            session.predicted_s = self.batcher.predict_s(taken.batch[0].replica, rows, ids)
            session.started_s = session.started_s or now_s
            self.running_s += session.predicted_s
        return taken

    def finish(self, session: Session, now_s: float) -> None:
        """The session has answered its batch. While work waits, what it does between two batches counts as theirs."""
        if session.predicted_s:
            self.running_s = max(0.0, self.running_s - session.predicted_s)
            measured_s = now_s - session.started_s
            self.batcher.record_duration(session.predicted_s, measured_s)
            session.stats.busy_s += measured_s
            session.predicted_s = 0.0
        session.started_s = now_s if self.batcher else 0.0


class SessionThread(threading.Thread):
    """A session with a thread of its own."""

    def __init__(self, session: Session, group: SessionGroup, queue: Queue, cpus: frozenset[int]) -> None:
        super().__init__(name=f"freshet-session-{session.number}", daemon=True)
        self.session = session
        self.queue = queue
        self.retired = self.computing = False
        self.gate = threading.Lock()
        self.gate.acquire()
        self._group, self._cpus = group, cpus

    def run(self) -> None:
        run_on(self._cpus)
        self._group.serve(self)


class SessionGroup:
    """Runs bound requests on its sessions; close() answers what is queued and ends them."""

    def __init__(self, options: GroupOptions, clock: Clock, occupancy: Occupancy | None = None) -> None:
        """occupancy: of the cores that inline sessions share with those of other processes, if there are others."""
        self.options = options
        self._clock, self._occupancy = clock, occupancy or Occupancy(options.sessions)
        self._lock = threading.Lock()
        self._closing = False
        self._queues: list[Queue] = []
        self._threads: list[SessionThread] = []
        self._count = 0
        self._turns = count()
        self._free_readers = list(range(SESSION_READERS, PREVIEW_READER))
        self._device: DeviceStages | None = None
        if options.device_stages:
            words = [self._free_readers.pop() for _ in range(staging_count(options.device_stages))]
            self._device = DeviceStages(options.device_stages, words, clock, options.all_cpus)
        # Of sessions that have ended, and of requests that no session has met.
        self._past = SessionStats()
        self._past_counts: weakref.WeakKeyDictionary[Replica, NDArray[np.int64]] = weakref.WeakKeyDictionary()
        self._past_sketches: weakref.WeakKeyDictionary[Replica, Sketch] = weakref.WeakKeyDictionary()
        self._inline: Session | None = None
        self._turn = threading.RLock()
        self._wake: Wake | None = None
        self._post: Post | None = None
        self._owner = 0
        self._run_requested = False
        if options.compute == "inline":
            self._inline = Session(0, clock, self._occupancy)
            self._queues.append(Queue(options))
            self._queues[0].sessions = self._count = 1
        self.resize(options.sessions)

    def __len__(self) -> int:
        return self._count

    @property
    def queue_rows(self) -> int:
        return sum([queue.batcher.queue_rows for queue in self._queues])

    @property
    def spare(self) -> bool:
        """Whether nothing waits and a session has nothing to do, as far as can be told without the lock."""
        queues = self._queues
        idle = self._inline is not None or any(queue.idle for queue in queues)
        return idle and not any(queue.batcher for queue in queues)

    def check_room(self, timeout_s: float | None, waited_s: float = 0.0) -> None:
        """Raises Overloaded for a request that would be refused if it is like those that came before it: before it is
        read, at little cost. A queue that is overloaded stands where one like them has no place any more; so if this
        took one of no rows for granted, it would let all of them pass, to be refused when they have been read.
        timeout_s: what is left of it. waited_s: to be read, which counts as waiting in the queue does."""
        if waited_s and timeout_s is not None:
            timeout_s -= (WAIT_MARGIN - 1.0) * waited_s
            if timeout_s <= 0:
                with self._lock:
                    self._past.refused_late += 1
                raise Overloaded("queue: the request waited for most of its time before it was read", late=True)
        queues = self._queues
        if len(queues) == 1 and not queues[0].batcher:
            return
        with self._lock:
            queue = min(queues, key=_load_s)
            self._check(queue, 1, 0, queue.typical_cost_s, timeout_s)

    def enqueue(self, work: Work) -> None:
        """Queues work; raises NotReady, or Overloaded with the time that the queue takes to drain. Its deadline is on
        the group's clock."""
        with self._lock:
            if self._closing:
                raise NotReady("the processor is closed")
            now_s = self._clock.now_s()
            splits = self._split_count(work)
            scattered = splits > 1 or self._is_large(work)
            queue = self._route(work)
            if queue.batcher:
                slack_s = None if work.deadline_s is None else work.deadline_s - now_s
                own_s = queue.batcher.predict_s(work.replica, work.rows // splits, work.ids // splits)
                if not scattered:
                    queue.typical_cost_s += TYPICAL_COST_RATE * (own_s - queue.typical_cost_s)
                self._check(queue, work.rows, work.ids, own_s, slack_s, scattered)
            self._past.predicted_wait_s += (queue.batcher.wait_s + queue.running_s) / queue.sessions
            if not scattered:
                queue.batcher.put(work, work.replica, now_s)
                if queue.idle and self._inline is None:
                    queue.wake()
            else:
                self._enqueue_split(work, splits, now_s)
            if self._wake is not None and not self._run_requested:
                self._request_run(0.0)

    def set_owner(self, wake: Wake, post: Post) -> bool:
        """Makes the calling thread the owner: done() is called on it, within run_once(), which it calls soon after
        wake(delay_s) was called, from any thread, or soon after post(done, reply) was. False with compute "threads":
        nothing changes."""
        with self._lock:
            if self._inline is None:
                return False
            self._wake, self._post, self._owner, self._run_requested = wake, post, threading.get_ident(), False
            if self._queues[0].batcher:
                self._request_run(0.0)
            return True

    @property
    def inline(self) -> bool:
        return self._inline is not None

    @property
    def driven(self) -> bool:
        """Whether a thread that waits for a reply has to call run_once() for it."""
        return self._inline is not None and (self._wake is None or self._owner == threading.get_ident())

    def run_once(self, hurry: bool = False) -> bool:
        """Inline: computes the next batch in this thread and answers it; whether there was one. hurry: without waiting
        for the window."""
        session, queue = self._inline, self._queues[0]
        if session is None:
            raise RuntimeError("the sessions of this group have threads of their own")
        with self._turn:
            with self._lock:
                self._run_requested = False
                taken = queue.take(session, self._clock.now_s(), hurry, 1 + self._helpers(queue), self._count)
                if taken.batch:
                    self._occupancy.change(1)
                    if queue.batcher:
                        self._wake_session(queue)
            self._expire(taken.expired)
            if taken.batch:
                session.run(taken.batch)
            with self._lock:
                now_s = self._clock.now_s()
                queue.finish(session, now_s)
                if taken.batch:
                    self._occupancy.change(-1)
                if queue.batcher:
                    self._request_run(0.0 if taken.until_s is None else max(0.0, taken.until_s - now_s))
            return bool(taken.batch)

    def serve(self, thread: SessionThread) -> None:
        """The life of a session's thread."""
        session, queue = thread.session, thread.queue
        taken: NextBatch[Work] = NextBatch([], [])
        while True:
            with self._lock:
                now_s = self._clock.now_s()
                queue.finish(session, now_s)
                if thread.computing:
                    thread.computing = False
                    self._occupancy.change(-1)
                if thread.retired:
                    # It may have been woken for work that another one has to do now.
                    self._wake_session(queue)
                    break
                if self._inline is None:
                    free = 1 + queue.waking + len(queue.idle)
                    taken = queue.take(session, now_s, self._closing, free, queue.sessions)
                elif self._occupancy.spare > 0:
                    taken = queue.take(session, now_s, self._closing, 1 + self._helpers(queue), self._count)
                else:
                    taken = NextBatch([], [])
                if taken.batch:
                    thread.computing = True
                    self._occupancy.change(1)
                    self._wake_session(queue)
                elif not taken.expired:
                    if self._closing and (self._inline is not None or not queue.batcher):
                        break
                    queue.idle.append(thread)
                    session.started_s = 0.0
            if taken.batch or taken.expired:
                self._expire(taken.expired)
                if taken.batch:
                    if self._inline is not None:
                        for work in taken.batch:
                            work.done = partial(self._deliver, work.done)
                    session.run(taken.batch)
                # A session that waits must not hold the replica of its last batch: its version may be served no more.
                taken = NextBatch([], [])
                continue
            in_time = thread.gate.acquire(timeout=-1 if taken.until_s is None else max(0.0, taken.until_s - now_s))
            with self._lock:
                if not in_time and thread in queue.idle:
                    queue.idle.remove(thread)
                    continue
                queue.waking -= 1
            if not in_time:
                thread.gate.acquire()
        self._end(thread)

    def resize(self, sessions: int) -> None:
        """So many sessions from now on. Those that are too many finish their batch; what waits for them goes to the
        others. Raises BadInput."""
        if not 1 <= sessions <= SESSION_READERS:
            raise BadInput(f"sessions: 1 to {SESSION_READERS} wanted, got {sessions}")
        with self._lock:
            if self._closing:
                raise NotReady("the processor is closed")
            self.options = replace(self.options, sessions=sessions)
            shared = self.options.policy == "shared" or self._inline is not None
            while len(self) < sessions:
                if not shared or not self._queues:
                    self._queues.append(Queue(self.options))
                self._start(self._queues[-1])
            while len(self) > sessions:
                self._retire(self._queues[-1])

    def statistics(self) -> list[SessionStats]:
        """The counts of every session and device stage, and the group's own for what no session has met."""
        staged = self._device.stats if self._device else []
        return [self._past, *(s.stats for s in self._sessions()), *staged]

    def counts(self, replica: Replica) -> NDArray[np.int64]:
        """int64 [T, 2]: lookups and misses of a replica's tables over all sessions."""
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
        """The sketch of a replica's batches, over all sessions."""
        with self._lock:
            # Together: what a session has counted that ends meanwhile is in the one or in the other.
            found = [s.buffers.get(replica) for s in self._sessions()]
            past = self._past_sketches.get(replica)
        blocks = [buffers.block for buffers in found if buffers is not None]
        if self._device is not None:
            blocks += self._device.blocks(replica)
        whole = Sketch.total(len(replica.outputs), blocks)
        return whole if past is None else whole + past

    def close(self) -> None:
        """Answers what is queued, then ends the sessions; enqueue() raises NotReady from now on."""
        with self._lock:
            self._closing = True
            self._wake = None
            for queue in self._queues:
                queue.waking += len(queue.idle)
                for thread in queue.idle:
                    thread.gate.release()
                queue.idle.clear()
            threads = list(self._threads)
        while self._inline is not None and self._queues[0].batcher:
            self.run_once(hurry=True)
        for thread in threads:
            thread.join()
        if self._device is not None:
            self._device.close()

    def _sessions(self) -> list[Session]:
        return [*([self._inline] if self._inline else []), *(thread.session for thread in self._threads)]

    def _start(self, queue: Queue) -> None:
        taken = {session.number for session in self._sessions()}
        number = next(n for n in count() if n not in taken)
        cpus = self.options.cpus
        staged, clock = self._device, self._clock
        if staged is None:
            session = Session(number, clock, self._occupancy)
        else:
            session = StagedSession(number, clock, staged)
        thread = SessionThread(session, self, queue, cpus[number % len(cpus)] if cpus else frozenset())
        # Helpers are not counted on: a queue is promised to be answered in time without them.
        queue.sessions += self._inline is None
        self._count += 1
        self._threads.append(thread)
        thread.start()

    def _retire(self, queue: Queue) -> None:
        thread = next(t for t in reversed(self._threads) if t.queue is queue and not t.retired)
        thread.retired = True
        queue.sessions -= self._inline is None
        self._count -= 1
        if thread in queue.idle:
            queue.idle.remove(thread)
            queue.waking += 1
            thread.gate.release()
        if not queue.sessions:
            self._queues.remove(queue)
            for work, target in queue.batcher.drain():
                other = self._route(work)
                other.batcher.put(work, target, work.arrived_s)
                other.wake()

    def _end(self, thread: SessionThread) -> None:
        """Keeps what an ended session has counted."""
        with self._lock:
            self._threads.remove(thread)
            self._past = total([self._past, thread.session.stats])
            for replica, buffers in thread.session.buffers.items():
                past = self._past_counts.get(replica)
                self._past_counts[replica] = buffers.counts if past is None else past + buffers.counts
                ended = Sketch.total(len(replica.outputs), [buffers.block])
                before = self._past_sketches.get(replica)
                self._past_sketches[replica] = ended if before is None else before + ended

    def _check(
        self, queue: Queue, rows: int, ids: int, own_s: float, slack_s: float | None, divided: bool = False
    ) -> None:
        try:
            queue.batcher.check_capacity(rows, own_s, slack_s, queue.sessions, queue.running_s, ids, divided)
        except Overloaded as error:
            if error.late:
                self._past.refused_late += 1
            else:
                self._past.refused_full += 1
            raise

    def _split_count(self, work: Work) -> int:
        """On how many sessions to run a request at the same time: as many as there are, if that costs no more than
        being done sooner is worth, or nothing when no session idles."""
        sessions = self._count
        if sessions == 1 or work.rows == 1 or not self._free_readers:
            return 1
        if self._device is not None:
            return min(sessions, -(-work.rows // work.replica.costs.max_rows))
        if self._inline is not None:
            queue = self._queues[0]
            if queue.batcher or work.replica.costs.batch_s(work.rows, work.ids) < 2 * HANDOVER_S:
                return 1
            return work.replica.costs.splits(work.rows, max(1, min(len(queue.idle) + 1, self._occupancy.spare)))
        idle = sum([len(queue.idle) for queue in self._queues])
        return work.replica.costs.splits(work.rows, sessions, WORTH if idle > 1 else FREE)

    def _most_rows(self, work: Work) -> int:
        """Rows of a request that run in one go at most. With device stages they have to fit into a tray."""
        return self.options.max_batch_rows if self._device is None else work.replica.costs.max_rows

    def _is_large(self, work: Work) -> bool:
        """Whether others would have to wait long for a request in one go, or it would not fit into a tray; raises
        Overloaded when too many such are under way."""
        few = work.ids <= LIGHT_IDS or work.ids <= work.replica.costs.heavy_ids
        if few and work.rows <= self._most_rows(work):
            return False
        if not self._free_readers:
            raise Overloaded("queue: too many requests are larger than the largest batch")
        return True

    def _enqueue_split(self, work: Work, splits: int, now_s: float) -> None:
        """Queues a request that leaves in pieces, for so many sessions at a time."""
        if self._inline is not None:
            work.done = partial(self._deliver, work.done)
        split_request = SplitRequest(work, splits, self._most_rows(work), self._free_readers)
        tickets = split_request.splits(min(splits, len(self._queues)))
        for sub_request in tickets:
            queue = self._route(sub_request)
            queue.batcher.put(sub_request, work.replica, now_s)
            # Inline, one of those that are to compute is the owner.
            for _ in range(splits // len(tickets) - (self._inline is not None)):
                self._wake_session(queue)

    def _route(self, work: Work) -> Queue:
        """The queue that a request joins."""
        queues, policy = self._queues, self.options.policy
        if len(queues) == 1:
            return queues[0]
        if policy == "least-loaded":
            return min(queues, key=_load_s)
        if policy == "mod" and work.caller is not None and not isinstance(work, SubRequest):
            return queues[work.caller % len(queues)]
        return queues[next(self._turns) % len(queues)]

    def _helpers(self, queue: Queue) -> int:
        """Helpers that could take a batch now, beside the session that asks: idle, each with a core to itself and work
        for more than the hand-over. None where sessions have threads of their own."""
        if not queue.idle or queue.batcher.work_s < 2 * HANDOVER_S:
            return 0
        return max(0, min(len(queue.idle), self._occupancy.spare - 1))

    def _wake_session(self, queue: Queue) -> None:
        """Wakes a session for what is queued; inline a helper, where a core is spare for it."""
        if self._inline is None or (queue.batcher.work_s >= HANDOVER_S and self._occupancy.spare > queue.waking):
            queue.wake()

    def _deliver(self, done: Done, reply: PredictReply | FreshetError) -> None:
        """Calls done() on the owner's thread, where there is one."""
        if self._post is None or threading.get_ident() == self._owner:
            done(reply)
        else:
            self._post(done, reply)

    def _request_run(self, delay_s: float) -> None:
        """Has the owner call run_once(), once for as many requests as come before it does."""
        if self._wake is not None and not self._run_requested:
            self._run_requested = delay_s == 0
            try:
                self._wake(delay_s)
            except RuntimeError:
                # The owner's loop has closed: whoever waits for a reply drives from now on.
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
                answer(partial(self._deliver, work.done) if self._inline is not None else work.done, error)


def _load_s(queue: Queue) -> float:
    return queue.load_s
