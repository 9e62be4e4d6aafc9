"""Auto-batching: decide which queued requests run together, when, and which are refused or expired.

Pure: the caller passes the clock's readings.

Order. Models take turns by the work that each has been given, and within a target so do the API keys
(processor.sessions.fair_shares): a ticket of a lightly used model or key waits for the running batch, not for the queue
of a saturated neighbour. Of one key the earliest deadline goes first; a ticket without one is ordered as if it had one
PATIENCE_S after its arrival; equal deadlines go by arrival. A batch holds tickets of one target. A ticket whose
deadline would pass while it waits for its turn goes first, but only while its model is less than a batch of each ahead
of the model whose turn it is; so no model starves, and none in a hurry holds up another.

Turns. While tickets of several models come, a batch has no more rows than last for SHORT_TURN_S at the costs of an
undisturbed machine (CostTable.turn_rows), and larger tickets should be divided. A model alone has batches of any size.

Division. A ticket with a limit of rows in one run (chunk_rows) shares a batch with no other and leaves in chunks, first
rows first, preceded by the lookups shared by all rows; other tickets may run between two chunks. The batches and the
chunks of one model take turns as models do, so undivided tickets wait for a chunk and not for a request, and divided
ones get half of their model's work whatever else arrives. Among divided tickets the first is the one that would finish
first if they all ran at once (fair queueing: Demers, Keshav, Shenker 1989): equal ones in order of arrival, each run to
its end; a smaller one that arrives later overtakes, unless its queue has by then been given as much work as the larger
one needs in total.

Invariants
- Every row leaves exactly once: in a batch or as expired. The rest of a divided ticket leaves whole when it expires.
- A batch has at most `max_rows` rows, unless it is one larger ticket (its session runs several buckets); a chunk has at
  most the ticket's chunk_rows. A batch does not grow by ids that take longer than CostTable.heavy_ids. In front of a
  device (`grows`) a batch is full where more rows would cost in proportion, by its measured costs.
- Divided and undivided tickets each have the full queue bounds: neither kind can shut the other out. Nor can a model
  or a key.
- An expired ticket is never computed. Nor is one that would be late even if it ran alone from now on, as long as
  something else waits: its reply would be worthless and would make others late (goodput). If nothing else waits it
  runs, because only a measurement can correct a wrong prediction.
- A batch does not grow past its earliest deadline: a ticket stays behind if it would make the batch late.

Costs O(log n) per ticket, O(targets) per batch, and O(divided tickets) to admit another divided one. Rejected: one heap
for all targets (a batch would end at the first ticket of another one); summing the queue on admission (sums are kept
per octave of slack instead); divided tickets by deadline (an urgent one of 65,536 rows would block all others); turns
for each divided ticket (all would be under way at once, and deltas wait for every one of them; of each key one may be);
a hurry that counts for a second of work (a saturated model with short deadlines is always in a hurry); turns that are
shorter where sessions are slower (batches of a row each, whose overhead makes them slower still: a tenth of the
throughput on a busy machine).
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from freshet_serving.processor.errors import Overloaded, first_of
from freshet_serving.processor.running.cost import CostTable, smoothed
from freshet_serving.processor.sessions.fair_shares import FairShares, ModelShare, SenderShare, slack_bucket

PATIENCE_S = 1.0
# Seconds of a batch while several models are requested, and for how long they count so after a change of models.
SHORT_TURN_S, MIXED_S = 0.001, 1.0
# Factor by which a batch's predicted time may be wrong before a ticket added to it makes one late.
MARGIN = 1.15
# The same for the wait of a request at admission: larger, because an overloaded event loop also reads late. A queue of
# two thirds of a deadline keeps sessions as busy. At 3x saturation, 64 candidates and deadlines of 100 ms, four
# alternating rounds: 1.7 times the goodput of a margin of 1.15, and 1.2 times that of 2.
WAIT_MARGIN = 1.5
# Up to this many ids never take long.
LIGHT_IDS = 1 << 16


class BatchTarget(Protocol):
    """A batching target, compared by identity: tickets of one target may share a batch."""

    @property
    def costs(self) -> CostTable:
        """The costs of the target's batches."""

    @property
    def model(self) -> str:
        """Name of the model whose share its tickets are."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A queued request. The attributes without description belong to the batcher.

    Attributes:
        rows: Candidate rows left in the ticket.
        ids: Ids left to look up.
        deadline_s: Deadline on the batcher's clock; None for none.
        chunk_rows: Maximum rows of this ticket in one run, shared with no other ticket; 0 if it is not divided.
        invariant_ids: How many of its ids are looked up once for all rows, with the first rows or before them.
        lookup_chunks: Number of chunks without rows that look up the invariant ids; 0 to do so with the first rows.
        sender: Name of the API key that sent it; "" where there are none.
    """

    rows: int
    ids: int = 0
    deadline_s: float | None = None
    chunk_rows: int = 0
    invariant_ids: int = 0
    lookup_chunks: int = 0
    sender: str = ""
    arrived_s: float = field(default=0.0, init=False)
    cost_s: float = field(default=0.0, init=False)
    slack_bucket: int = field(default=0, init=False)

    def take_chunk(self, rows: int) -> Self:
        """Remove and return the first chunk as a ticket; `rows` is its size if it has rows."""
        head = copy(self)
        invariant_ids = self.invariant_ids
        if self.lookup_chunks:
            head.rows, head.ids = 0, invariant_ids // self.lookup_chunks
            self.invariant_ids, self.lookup_chunks = invariant_ids - head.ids, self.lookup_chunks - 1
        else:
            head.rows, head.ids = rows, invariant_ids + (self.ids - invariant_ids) * rows // self.rows
            self.invariant_ids = 0
        self.rows -= head.rows
        self.ids -= head.ids
        return head


T = TypeVar("T", bound=Ticket)


class NextBatch(NamedTuple, Generic[T]):
    """Tickets to run together and late ones, removed from the queue.

    `until_s`: when a batch may become due without another put(); None if there is a batch or nothing waits.
    """

    batch: list[T]
    expired: list[T]
    until_s: float | None = None


class _Lane(Generic[T]):
    """The tickets of one API key: a heap by due time, or by the virtual work at which divided tickets would finish."""

    __slots__ = ("heap", "sender", "share")

    def __init__(self, sender: str, share: SenderShare) -> None:
        self.sender, self.share = sender, share
        self.heap: list[tuple[float, int, T]] = []


class _TargetQueue(Generic[T]):
    """The divided or undivided tickets of one target, by API key, which arrived after `since_s`."""

    __slots__ = ("_turns", "divided", "given_s", "key", "lanes", "rows", "share", "since_s", "target")

    def __init__(self, key: int, target: BatchTarget, share: ModelShare, since_s: float, divided: bool) -> None:
        self.key, self.target, self.share, self.since_s, self.divided = key, target, share, since_s, divided
        self.lanes: dict[str, _Lane[T]] = {}
        # The lanes by the work given to their keys when last looked at: it only grows.
        self._turns: list[tuple[float, int, _Lane[T]]] = []
        self.rows, self.given_s = 0, 0.0

    @property
    def lane(self) -> _Lane[T]:
        """The lane whose turn it is."""
        turns = self._turns
        if len(turns) == 1:
            return turns[0][2]
        while turns[0][0] < turns[0][2].share.given_s:
            _, number, lane = turns[0]
            heapreplace(turns, (lane.share.given_s, number, lane))
        return turns[0][2]

    @property
    def head(self) -> tuple[float, int, T]:
        return self.lane.heap[0]

    @property
    def turn(self) -> tuple[float, float, bool, float]:
        """Sort key of the queue: the least is next."""
        share, divided = self.share, self.divided
        return share.given_s, share.kinds_s[divided], divided, self.lane.share.given_s

    @property
    def due(self) -> tuple[float, int]:
        """When its next ticket is due, and that ticket's number."""
        due_s, number, ticket = self.head
        if self.divided:
            due_s = ticket.arrived_s + PATIENCE_S if ticket.deadline_s is None else ticket.deadline_s
        return due_s, number

    def push(self, due_s: float, number: int, ticket: T) -> _Lane[T]:
        """Add a ticket, due as _Lane.heap says; return its lane."""
        lane = self.lanes.get(ticket.sender)
        if lane is None:
            lane = self.lanes[ticket.sender] = _Lane(ticket.sender, self.share.senders.open(ticket.sender))
            heappush(self._turns, (lane.share.given_s, number, lane))
        heappush(lane.heap, (due_s, number, ticket))
        return lane

    def close(self, lane: _Lane[T]) -> None:
        """Forget a lane that was next and is empty."""
        del self.lanes[lane.sender]
        heappop(self._turns)
        self.share.senders.close(lane.share)


class Batcher(Generic[T]):
    """A bounded queue that is emptied in batches. Not thread-safe: its owner locks."""

    def __init__(self, max_rows: int, max_queue_rows: int, window_s: float = 0.0, max_queue_ids: int = 1 << 62) -> None:
        self._max_rows, self._window_s = max_rows, window_s
        self.grows = False  # Set in front of a device: batches have more rows where those cost little more.
        # Keyed by id of the target; divided tickets by its complement.
        self._target_queues: dict[int, _TargetQueue[T]] = {}
        self._shares = FairShares(max_queue_rows, max_queue_ids)
        # The cost of one chunk of the divided tickets.
        self._chunk_s = 0.0
        # A ticket that waits alone, its target and when it is due: most come and go like this, and need no share.
        self._alone: tuple[T, BatchTarget, float] | None = None
        # The newest model, and until when other models count as requested too.
        self._last_model, self._mixed_until_s = "", -math.inf
        self._arrivals = self._count = 0
        self.slowdown = 1.0

    def __len__(self) -> int:
        return self._count

    @property
    def queue_rows(self) -> int:
        """Number of rows that wait. Any thread may ask."""
        alone = self._alone
        return self._shares.rows if alone is None else alone[0].rows

    def put(self, ticket: T, target: BatchTarget, now_s: float) -> None:
        """Queue a ticket for a target, setting its arrival and cost; call check_capacity() first."""
        slack_s = PATIENCE_S if ticket.deadline_s is None else ticket.deadline_s - now_s
        ticket.arrived_s = now_s
        ticket.slack_bucket = PATIENT if ticket.deadline_s is None else slack_bucket(slack_s)
        ticket.cost_s = target.costs.amortised_s(ticket.rows, ticket.ids)
        divided, model = ticket.chunk_rows > 0, target.model
        if model != self._last_model:
            self._mixed_until_s = now_s + MIXED_S if self._last_model else -math.inf
            self._last_model = model
        self._arrivals += 1
        self._count += 1
        if self._count == 1 and not divided and not self._window_s:
            self._alone = ticket, target, now_s + slack_s
            return
        self._share_alone()
        self._queue(ticket, target, now_s + slack_s, self._arrivals)

    def _share_alone(self) -> None:
        if self._alone is not None:
            ticket, target, due_s = self._alone
            self._alone = None
            self._queue(ticket, target, due_s, self._arrivals - (self._count > 1))

    def _queue(self, ticket: T, target: BatchTarget, due_s: float, number: int) -> None:
        divided, cost_s = ticket.chunk_rows > 0, ticket.cost_s
        key = ~id(target) if divided else id(target)
        target_queue = self._target_queues.get(key)
        if target_queue is None:
            share = self._shares.models.open(target.model)
            share.begin_kind(divided)
            target_queue = self._target_queues[key] = _TargetQueue(key, target, share, ticket.arrived_s, divided)
        target_queue.rows += ticket.rows
        if divided:
            chunk_s = cost_s * min(1.0, ticket.chunk_rows / ticket.rows)
            self._chunk_s = max(self._chunk_s, chunk_s) if self._shares.backlogs[1].rows else chunk_s
            lane = target_queue.push(target_queue.given_s + cost_s, number, ticket)
        else:
            lane = target_queue.push(due_s, number, ticket)
            lane.share.slack_work_s[ticket.slack_bucket] += cost_s
        for backlog in (self._shares.backlogs[divided], lane.share.backlogs[divided]):
            backlog.rows += ticket.rows
            backlog.ids += ticket.ids
            backlog.work_s += cost_s

    def check_capacity(
        self,
        rows: int,
        own_s: float,
        slack_s: float | None,
        sessions: int,
        running_s: float,
        ids: int = 0,
        divided: bool = False,
        model: str = "",
        sender: str = "",
    ) -> float:
        """Check that a request may be queued; return the predicted session-seconds before it would be taken.

        A request that finds the queue empty is always admitted: a wrong prediction cannot block requests forever. One
        that finds no ticket of its kind, or none of its share, has room, however large it is.

        Args:
            own_s: Seconds that it takes alone, by predict_s().
            slack_s: Seconds until its deadline; None for no deadline.
            running_s: Predicted seconds of the batches being run.
            divided: True if it would leave in chunks.
            sender: Name of the API key that sent it; "" where there are none.

        Raises:
            Overloaded: The queue has no room for its rows or ids, or it cannot be answered in time.
        """
        if not self._count:
            return 0.0
        if self._alone is not None:
            self._share_alone()
        if message := self._shares.shortage(model, sender, rows, ids, divided):
            raise Overloaded(message, (self.wait_s(model, sender) + running_s) / sessions)
        if slack_s is None or slack_s <= 0:
            # wait_s() without two calls.
            return self.slowdown * self._shares.work_before_s(model, sender, math.inf, 0.0, self._chunk_s)
        if divided:
            before_s = self._before_split_s(model, sender, own_s)
        else:
            before_s = self.work_before_s(model, sender, slack_s, own_s)
        wait_s = (before_s + running_s) / sessions
        answer_s = wait_s * WAIT_MARGIN + own_s
        if answer_s > slack_s:
            answer_ms, slack_ms = answer_s * 1e3, slack_s * 1e3
            message = f"queue: a reply may take {answer_ms:.1f} ms, the request's deadline allows {slack_ms:.1f} ms"
            raise Overloaded(message, wait_s, late=True)
        return before_s

    def batches(self, most: int) -> int:
        """Return how many of `most` sessions the queue could keep busy, each with a batch worth running."""
        self._share_alone()
        return min(
            most,
            sum(
                [
                    target_queue.target.costs.splits(target_queue.rows, most)
                    for target_queue in self._target_queues.values()
                ]
            ),
        )

    @property
    def work_s(self) -> float:
        return self.slowdown * (self._shares.work_s if self._alone is None else self._alone[0].cost_s)

    def wait_s(self, model: str, sender: str = "") -> float:
        """Return the predicted session-seconds before an undivided ticket of a share arriving now would be taken."""
        return self.work_before_s(model, sender, math.inf, 0.0)

    def work_before_s(self, model: str, sender: str, slack_s: float, own_s: float) -> float:
        """Return the predicted session-seconds that go before a ticket with this slack; see check_capacity()."""
        if self._alone is not None:
            self._share_alone()
        pace = self.slowdown
        return pace * self._shares.work_before_s(model, sender, slack_s, own_s / pace, self._chunk_s)

    def _before_split_s(self, model: str, sender: str, own_s: float) -> float:
        """Return the predicted session-seconds before the last chunk of a divided ticket of `own_s` work.

        Others of its share count by what is left and goes before it, undivided work of its model as much as its own.
        """
        pace, alone_s, ahead_s = self.slowdown, own_s / self.slowdown, 0.0
        for target_queue in self._target_queues.values():
            lane = target_queue.lanes.get(sender)
            if lane is not None and target_queue.divided and target_queue.target.model == model:
                ahead_s += sum([min(alone_s, ticket.cost_s) for _, _, ticket in lane.heap])
        return pace * self._shares.work_before_divided_s(model, sender, alone_s, ahead_s)

    def turn_rows(self, target: BatchTarget, now_s: float) -> int:
        """Return the most rows of a batch that lets tickets of other models, if any are requested, take turns soon."""
        if now_s >= self._mixed_until_s:
            return max(self._max_rows, target.costs.turn_rows(0.0)) if self.grows else self._max_rows
        return min(self._max_rows, target.costs.turn_rows(SHORT_TURN_S))

    def predict_s(self, target: BatchTarget, rows: int, ids: int) -> float:
        """Return the predicted seconds of a batch at the sessions' measured pace."""
        return self.slowdown * target.costs.batch_s(rows, ids)

    def record_duration(self, predicted_s: float, measured_s: float) -> None:
        """Update the measured pace from a finished batch; measured_s includes the session's overhead."""
        if predicted_s > 0 and measured_s > 0:
            self.slowdown = smoothed(self.slowdown, self.slowdown * measured_s / predicted_s)

    def take(self, now_s: float, free: int = 1, hurry: bool = False, sessions: int = 1) -> NextBatch[T]:
        """Remove the next batch and every expired ticket met on the way; both are empty when nothing is due.

        Args:
            now_s: The clock's reading.
            free: Number of sessions that could take a batch now; the rows are shared among them if that is worth a
                batch each.
            hurry: True to ignore the batching window.
            sessions: Number of sessions that may run chunks of one ticket at the same time.
        """
        expired: list[T] = []
        if self._alone is not None:
            ticket, self._alone, self._count = self._alone[0], None, 0
            late = ticket.deadline_s is not None and ticket.deadline_s <= now_s
            return NextBatch([], [ticket]) if late else NextBatch([ticket], [])
        while self._target_queues:
            target_queue, until_s = self._next(now_s, hurry)
            if target_queue is None:
                return NextBatch([], expired, until_s)
            share, divided = target_queue.share, target_queue.divided
            if divided:
                batch = self._take_chunk(target_queue, now_s, sessions, expired)
            else:
                batch = self._fill(target_queue, now_s, free, expired)
            work_s = sum([ticket.cost_s for ticket in batch])
            if divided:
                target_queue.given_s += work_s
            if divided or self._shares.backlogs[1].rows:
                share.give_kind(divided, work_s)
            self._shares.models.give(share, work_s)
            if not target_queue.lanes:
                self._close(target_queue)
            if batch:
                return NextBatch(batch, expired)
        return NextBatch([], expired)

    def _close(self, target_queue: _TargetQueue[T]) -> None:
        del self._target_queues[target_queue.key]
        self._shares.models.close(target_queue.share)

    def _next(self, now_s: float, hurry: bool) -> tuple[_TargetQueue[T] | None, float | None]:
        """Return the queue whose turn it is among those that may run, else None and when one may."""
        best: _TargetQueue[T] | None = None
        first: _TargetQueue[T] | None = None
        until_s: float | None = None
        if len(self._target_queues) == 1 and not self._window_s:
            return first_of(self._target_queues.values()), None
        for target_queue in self._target_queues.values():
            full = self.turn_rows(target_queue.target, now_s) if self.grows else self._max_rows
            if self._window_s > 0 and not hurry and target_queue.rows < full and not target_queue.divided:
                earliest_s = min([lane.heap[0][0] for lane in target_queue.lanes.values()])
                last_s = earliest_s - self.predict_s(target_queue.target, target_queue.rows, 0)
                go_s = min(target_queue.since_s + self._window_s, last_s)
                if go_s > now_s:
                    until_s = go_s if until_s is None else min(until_s, go_s)
                    continue
            if best is None or first is None:
                best = first = target_queue
                continue
            if (target_queue.turn, target_queue.head) < (best.turn, best.head):
                best = target_queue
            if target_queue.due < first.due:
                first = target_queue
        if best is not None and first is not None and best.share is not first.share:
            ahead_s = self.slowdown * (first.share.given_s - best.share.given_s)
            wait_s = self.predict_s(best.target, min(best.rows, self._max_rows), 0)
            ticket = first.head[2]
            rows = min(ticket.rows, ticket.chunk_rows or ticket.rows)
            own_s = self.predict_s(first.target, rows, ticket.ids * rows // ticket.rows)
            if ahead_s < wait_s + own_s and first.due[0] < now_s + wait_s + own_s:
                best = first
        return best, until_s

    def _fill(self, target_queue: _TargetQueue[T], now_s: float, free: int, expired: list[T]) -> list[T]:
        batch: list[T] = []
        target, rows, ids = target_queue.target, 0, 0
        closes_s = heavy_ids = math.inf
        if self._shares.backlogs[0].ids > LIGHT_IDS:
            heavy_ids = target.costs.heavy_ids
        most = self.turn_rows(target, now_s)
        if free > 1:
            most = min(most, -(-target_queue.rows // target.costs.splits(target_queue.rows, free)))
        while target_queue.lanes:
            lane = target_queue.lane
            ticket = lane.heap[0][2]
            deadline_s = ticket.deadline_s
            if deadline_s is not None and (
                deadline_s <= now_s or self._is_late(ticket, target, deadline_s, now_s, batch)
            ):
                expired.append(self._pop(target_queue, lane))
                continue
            if batch:
                if rows + ticket.rows > most or ids + ticket.ids > heavy_ids:
                    break
                if closes_s < math.inf:
                    end_s = now_s + MARGIN * self.predict_s(target, rows + ticket.rows, ids + ticket.ids)
                    if end_s > closes_s >= now_s + self.predict_s(target, rows, ids):
                        break
            if deadline_s is not None and deadline_s < closes_s:
                closes_s = deadline_s
            batch.append(self._pop(target_queue, lane, charged=True))
            rows += ticket.rows
            ids += ticket.ids
        return batch

    def _take_chunk(self, target_queue: _TargetQueue[T], now_s: float, sessions: int, expired: list[T]) -> list[T]:
        """Return the next chunk of a divided queue, alone; an empty list if all its tickets are late."""
        target = target_queue.target
        while target_queue.lanes:
            lane = target_queue.lane
            ticket = lane.heap[0][2]
            deadline_s = ticket.deadline_s
            if deadline_s is not None and (
                deadline_s <= now_s or self._is_late(ticket, target, deadline_s, now_s, [], sessions)
            ):
                expired.append(self._pop(target_queue, lane))
                continue
            if ticket.rows <= ticket.chunk_rows and not ticket.lookup_chunks:
                return [self._pop(target_queue, lane, charged=True)]
            head = ticket.take_chunk(ticket.chunk_rows)
            head.cost_s = min(ticket.cost_s, target.costs.amortised_s(head.rows, head.ids))
            ticket.cost_s -= head.cost_s
            # From now on the rest counts as newly arrived.
            ticket.arrived_s = now_s
            target_queue.rows -= head.rows
            for backlog in (self._shares.backlogs[1], lane.share.backlogs[1]):
                backlog.rows -= head.rows
                backlog.ids -= head.ids
                backlog.work_s -= head.cost_s
            target_queue.share.senders.give(lane.share, head.cost_s)
            return [head]
        return []

    def _is_late(
        self, ticket: T, target: BatchTarget, deadline_s: float, now_s: float, batch: list[T], sessions: int = 1
    ) -> bool:
        if not batch and self._count == 1:
            return False
        return now_s + self.predict_s(target, ticket.rows, ticket.ids) / sessions > deadline_s

    def _pop(self, target_queue: _TargetQueue[T], lane: _Lane[T], charged: bool = False) -> T:
        """Remove and return the lane's next ticket; `charged`: it is computed, and its key pays for it."""
        divided, shares = target_queue.divided, target_queue.share.senders
        ticket = heappop(lane.heap)[2]
        rows, ids, cost_s = ticket.rows, ticket.ids, ticket.cost_s
        target_queue.rows -= rows
        self._count -= 1
        for backlog in (self._shares.backlogs[divided], lane.share.backlogs[divided]):
            backlog.rows -= rows
            backlog.ids -= ids
            # Without rows there are none, whatever rounding has left over.
            backlog.work_s = backlog.work_s - cost_s if backlog.rows else 0.0
        if not divided:
            work_s = lane.share.slack_work_s
            bucket = ticket.slack_bucket
            work_s[bucket] = work_s[bucket] - cost_s if lane.share.backlogs[0].rows else 0.0
        if charged:
            shares.give(lane.share, cost_s)
        if not lane.heap:
            target_queue.close(lane)
        return ticket


PATIENT = slack_bucket(PATIENCE_S)
