"""Auto-batching: decide which queued requests run together, when, and which are refused or expired.

Pure: the caller passes the clock's readings.

Order. Within a target, the earliest deadline goes first; a ticket without a deadline is ordered as if it had one
PATIENCE_S after its arrival; equal deadlines go by arrival. A batch holds tickets of one target. Models take turns by
the work that each has been given (start-time fair queueing: Goyal, Vin, Cheng 1996), so that a ticket of a lightly used
model waits for the running batch and not for the queue of a saturated neighbour. A ticket whose deadline would pass
while it waits for its turn goes first, but only while its model is less than PATIENCE_S of work ahead of the model
whose turn it is; so no model starves.

Division. A ticket that limits how many of its rows may run at once (chunk_rows) shares a batch with no other and leaves
in chunks, first rows first, preceded by the lookups shared by all rows; other tickets may run between two chunks. The
batches and the chunks of one model take turns as models do, so undivided tickets wait for a chunk and not for a
request, and divided ones get half of their model's work whatever else arrives. Among divided tickets the first is the
one that would finish first if they all ran at once (fair queueing: Demers, Keshav, Shenker 1989): equal ones in order
of arrival, each run to its end; a smaller one that arrives later overtakes, unless its queue has by then been given as
much work as the larger one needs in total.

Invariants
- Every row leaves exactly once: in a batch, as expired, or by drain(). The rest of a divided ticket leaves whole when
  it expires or is drained.
- A batch has at most `max_rows` rows, unless it is one larger ticket (its session runs several buckets); a chunk has at
  most the ticket's chunk_rows. A batch does not grow by ids that take longer than CostTable.heavy_ids.
- Divided and undivided tickets each have the full queue bounds: neither kind can shut the other out.
- Work given to a model counts for as long as others are behind it, whether or not one of its tickets waits all that
  time: a model that queues one ticket per turn is not first every time.
- An expired ticket is never computed. Neither is one that would be late even if it ran alone from now on, as long as
  something else waits: its reply would be worthless and would make others late (goodput). If nothing else waits it runs
  all the same, because only a measurement can correct a wrong prediction.
- A batch does not grow past its earliest deadline: a ticket stays behind if the batch would be in time without it and
  late with it.

Costs O(log n) per ticket, O(targets) per batch, and O(divided tickets) to admit another divided one. Rejected: one heap
for all targets (a batch would end at the first ticket of another one); summing the queue on admission (sums are kept
per octave of slack instead); divided tickets by deadline (an urgent one of 65,536 rows would block all other divided
tickets for as long as it takes); turns for each divided ticket (all would be under way at once, and deltas wait for
every one of them).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from freshet_serving.processor.errors import Overloaded, first_of
from freshet_serving.processor.running.cost import CostTable, smoothed

PATIENCE_S = 1.0
# Octaves of slack: from below a microsecond to an hour.
SLACK_BUCKETS = 32
# Factor by which a batch's predicted time may be wrong before a ticket added to it makes one late.
MARGIN = 1.15
# The same for the wait of a request at admission. It is larger because an overloaded event loop also reads late. It
# costs nothing: a queue of two thirds of a deadline keeps sessions as busy. At 3x saturation, 64 candidates and
# deadlines of 100 ms, four alternating rounds: 1.7 times the goodput of a margin of 1.15, and 1.2 times that of 2.
WAIT_MARGIN = 1.5


# Up to this many ids never take long.
LIGHT_IDS = 1 << 16


class BatchTarget(Protocol):
    """A batching target, compared by identity: tickets of one target may share a batch."""

    @property
    def costs(self) -> CostTable:
        """The costs of the target's batches."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A queued request.

    Attributes:
        rows: Candidate rows left in the ticket.
        ids: Ids left to look up.
        deadline_s: Deadline on the batcher's clock; None for none.
        chunk_rows: Maximum rows of this ticket in one run, shared with no other ticket; 0 if it is not divided.
        invariant_ids: How many of its ids are looked up once for all rows, with the first rows or before them.
        lookup_chunks: Number of chunks without rows that look up the invariant ids first; 0 to do so with the first
            rows.

    The other attributes belong to the batcher.
    """

    rows: int
    ids: int = 0
    deadline_s: float | None = None
    chunk_rows: int = 0
    invariant_ids: int = 0
    lookup_chunks: int = 0
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
    """Tickets that one call of take() removed from the queue.

    Attributes:
        batch: Tickets to run together.
        expired: Tickets removed because they are late.
        until_s: When a batch may become due without another put(); None if there is a batch or nothing waits.
    """

    batch: list[T]
    expired: list[T]
    until_s: float | None = None


class _FairShare:
    """Work given to the targets of one cost table, that is, of one model, on the batcher's virtual clock of work.

    Attributes:
        whole_s, divided_s: Work given to undivided and to divided tickets since there have been divided ones, on a
            virtual clock of this account.
        given_s: Current reading of that clock.
    """

    __slots__ = ("costs", "divided_s", "given_s", "target_queues", "whole_s", "work_s")

    def __init__(self, costs: CostTable, work_s: float) -> None:
        self.costs, self.work_s, self.target_queues = costs, work_s, 0
        self.whole_s = self.divided_s = self.given_s = 0.0


class _Backlog:
    """Totals of the waiting tickets of one kind, divided or undivided.

    Without rows there are no tickets; work_s is then reset to 0, whatever rounding has left over.
    """

    __slots__ = ("ids", "rows", "work_s")

    def __init__(self) -> None:
        self.rows = self.ids = 0
        self.work_s = 0.0


class _TargetQueue(Generic[T]):
    """The divided or the undivided tickets of one target.

    Attributes:
        heap: Ordered by due time; divided tickets by the virtual work at which they would finish.
        given_s: Virtual work given to this queue so far.
        since_s: Lower bound of its tickets' arrival times.
    """

    __slots__ = ("account", "divided", "given_s", "heap", "key", "rows", "since_s", "target")

    def __init__(self, key: int, target: BatchTarget, account: _FairShare, since_s: float, divided: bool) -> None:
        self.key, self.target, self.account, self.since_s, self.divided = key, target, account, since_s, divided
        self.heap: list[tuple[float, int, T]] = []
        self.rows, self.given_s = 0, 0.0

    @property
    def turn(self) -> tuple[float, float, bool]:
        """Sort key of the queue: the least is next."""
        account, divided = self.account, self.divided
        return account.work_s, account.divided_s if divided else account.whole_s, divided

    @property
    def due(self) -> tuple[float, int]:
        """When its first ticket is due, and that ticket's number."""
        due_s, number, ticket = self.heap[0]
        if self.divided:
            due_s = ticket.arrived_s + PATIENCE_S if ticket.deadline_s is None else ticket.deadline_s
        return due_s, number


class Batcher(Generic[T]):
    """A bounded queue that is emptied in batches. Not thread-safe: its owner locks."""

    def __init__(self, max_rows: int, max_queue_rows: int, window_s: float = 0.0, max_queue_ids: int = 1 << 62) -> None:
        self._max_rows, self._window_s = max_rows, window_s
        self._max_queue_rows, self._max_queue_ids = max_queue_rows, max_queue_ids
        # Keyed by id of the target; divided tickets by its complement.
        self._target_queues: dict[int, _TargetQueue[T]] = {}
        # Keyed by id of the cost table; kept while one of its queues exists or another account is behind it.
        self._accounts: dict[int, _FairShare] = {}
        # Reading of the account served last: a new account begins there, whatever work was done without it.
        self._given_s = 0.0
        self._slack_cost_s = [0.0] * SLACK_BUCKETS
        # Undivided tickets, divided tickets, and the cost of one chunk of those.
        self._whole, self._divided, self._chunk_s = _Backlog(), _Backlog(), 0.0
        self._arrivals = self._count = 0
        self.slowdown = 1.0

    def __len__(self) -> int:
        return self._count

    @property
    def queue_rows(self) -> int:
        """Number of rows that wait."""
        return self._whole.rows + self._divided.rows

    def put(self, ticket: T, target: BatchTarget, now_s: float) -> None:
        """Queue a ticket for a target without checking for room; call check_capacity() first.

        Args:
            ticket: The ticket; its arrival and cost are set here.
            target: The target to run it on.
            now_s: The clock's reading.
        """
        slack_s = PATIENCE_S if ticket.deadline_s is None else ticket.deadline_s - now_s
        ticket.arrived_s = now_s
        ticket.slack_bucket = slack_bucket = PATIENT if ticket.deadline_s is None else _slack_bucket(slack_s)
        ticket.cost_s = cost_s = target.costs.amortised_s(ticket.rows, ticket.ids)
        divided = ticket.chunk_rows > 0
        key = ~id(target) if divided else id(target)
        target_queue = self._target_queues.get(key)
        if target_queue is None:
            target_queue = self._target_queues[key] = _TargetQueue(
                key, target, self._account(target.costs, divided), now_s, divided
            )
        self._arrivals += 1
        target_queue.rows += ticket.rows
        self._count += 1
        if divided:
            waiting = self._divided
            chunk_s = cost_s * min(1.0, ticket.chunk_rows / ticket.rows)
            self._chunk_s = max(self._chunk_s, chunk_s) if waiting.rows else chunk_s
            heappush(target_queue.heap, (target_queue.given_s + cost_s, self._arrivals, ticket))
        else:
            waiting = self._whole
            self._slack_cost_s[slack_bucket] += cost_s
            heappush(target_queue.heap, (now_s + slack_s, self._arrivals, ticket))
        waiting.rows += ticket.rows
        waiting.ids += ticket.ids
        waiting.work_s += cost_s

    def check_capacity(
        self,
        rows: int,
        own_s: float,
        slack_s: float | None,
        sessions: int,
        running_s: float,
        ids: int = 0,
        divided: bool = False,
    ) -> None:
        """Check that a request may be queued.

        A request that finds the queue empty is always admitted: so a wrong prediction cannot block requests forever.
        One that finds no ticket of its kind has room, however large it is.

        Args:
            rows: Rows of the request.
            own_s: Seconds that it takes alone, by predict_s().
            slack_s: Seconds until its deadline; None for no deadline.
            sessions: Number of sessions.
            running_s: Predicted seconds of the batches being run.
            ids: Ids of the request.
            divided: True if it would leave in chunks.

        Raises:
            Overloaded: The queue has no room for its rows or ids, or it cannot be answered in time.
        """
        if not self._count:
            return
        waiting = self._divided if divided else self._whole
        if waiting.rows:
            message = ""
            if waiting.rows + rows > self._max_queue_rows:
                message = f"queue: no room: {waiting.rows} rows wait (max_queue_rows = {self._max_queue_rows})"
            elif waiting.ids + ids > self._max_queue_ids:
                message = f"queue: no room: {waiting.ids} ids wait (max_queue_ids = {self._max_queue_ids})"
            if message:
                raise Overloaded(message, (self.wait_s + running_s) / sessions)
        if slack_s is not None and slack_s > 0:
            before_s = self._before_split_s(own_s) if divided else self.work_before_s(slack_s)
            wait_s = (before_s + running_s) / sessions
            answer_s = wait_s * WAIT_MARGIN + own_s
            if answer_s > slack_s:
                wanted, given = answer_s * 1e3, slack_s * 1e3
                message = f"queue: a reply may take {wanted:.1f} ms, the request's deadline allows {given:.1f} ms"
                raise Overloaded(message, wait_s, late=True)

    def batches(self, most: int) -> int:
        """Return how many of `most` sessions the queue could keep busy, each with a batch worth running."""
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
        """Predicted session-seconds of all queued work."""
        return self.slowdown * (self._whole.work_s + self._divided.work_s)

    @property
    def wait_s(self) -> float:
        """Predicted session-seconds before an undivided ticket arriving now would be taken."""
        return self._interleaved_s(self.slowdown * self._whole.work_s)

    def work_before_s(self, slack_s: float) -> float:
        """Return the predicted session-seconds queued ahead of a ticket with this slack.

        Sums octaves of slack: two tickets in the same octave each count as ahead of the other.
        """
        return self._interleaved_s(self.slowdown * sum(self._slack_cost_s[: _slack_bucket(slack_s) + 1]))

    def _interleaved_s(self, before_s: float) -> float:
        """Return `before_s` plus the work of divided tickets that takes turns with it."""
        if not self._divided.rows:
            return before_s
        return before_s + min(before_s + self.slowdown * self._chunk_s, self.slowdown * self._divided.work_s)

    def _before_split_s(self, own_s: float) -> float:
        """Return the work done before the last chunk of a divided ticket of `own_s` work.

        Other divided tickets count as far as they go before it, each with what is left of it; undivided work counts as
        much as its own.
        """
        ahead_s = sum(
            [min(own_s, self.slowdown * ticket.cost_s)
             for target_queue in self._target_queues.values() if target_queue.divided for _, _, ticket in
             target_queue.heap]
        )  # fmt: skip
        return ahead_s + (own_s if self._whole.rows else 0.0)

    def predict_s(self, target: BatchTarget, rows: int, ids: int) -> float:
        """Return the predicted seconds of a batch at the sessions' measured pace.

        Args:
            target: The target.
            rows: Rows of the batch.
            ids: Ids of the batch.
        """
        return self.slowdown * target.costs.batch_s(rows, ids)

    def record_duration(self, predicted_s: float, measured_s: float) -> None:
        """Update the measured pace from a finished batch.

        Args:
            predicted_s: Seconds that predict_s() returned.
            measured_s: Measured seconds, including the session's overhead.
        """
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

        Returns:
            The batch, the expired tickets, and when to call again if no batch is due yet.
        """
        expired: list[T] = []
        while self._target_queues:
            target_queue, until_s = self._next(now_s, hurry)
            if target_queue is None:
                return NextBatch([], expired, until_s)
            account, divided = target_queue.account, self._divided
            before_s = self._whole.work_s + divided.work_s
            if target_queue.divided:
                account.given_s = max(account.given_s, account.divided_s)
                batch = self._take_chunk(target_queue, now_s, sessions, expired)
                given_s = before_s - self._whole.work_s - divided.work_s
                account.divided_s += given_s
                target_queue.given_s += given_s
            else:
                batch = self._fill(target_queue, now_s, free, expired)
                given_s = before_s - self._whole.work_s - divided.work_s
                if divided.rows:
                    account.given_s = max(account.given_s, account.whole_s)
                    account.whole_s += given_s
            if account.work_s > self._given_s:
                self._given_s = account.work_s
            account.work_s += given_s
            if not target_queue.heap:
                self._close(target_queue)
            if batch:
                return NextBatch(batch, expired)
        return NextBatch([], expired)

    def drain(self) -> Iterator[tuple[T, BatchTarget]]:
        """Remove every ticket, the most urgent of each target first; yield each with its target."""
        for target_queue in list(self._target_queues.values()):
            while target_queue.heap:
                yield self._pop(target_queue), target_queue.target
            self._close(target_queue)

    def _account(self, costs: CostTable, divided: bool) -> _FairShare:
        """Return the account of a new queue's model, creating it if needed."""
        account = self._accounts.get(id(costs))
        if account is None:
            account = self._accounts[id(costs)] = _FairShare(costs, self._given_s)
        elif not account.target_queues:
            account.work_s = max(account.work_s, self._given_s)
        account.target_queues += 1
        if divided:
            account.whole_s = account.divided_s = account.given_s = 0.0
        elif account.whole_s < account.given_s:
            account.whole_s = account.given_s
        return account

    def _close(self, target_queue: _TargetQueue[T]) -> None:
        del self._target_queues[target_queue.key]
        target_queue.account.target_queues -= 1
        if not self._target_queues:
            self._accounts.clear()
        elif not target_queue.account.target_queues:
            # Keep accounts that were given more work than others: dropping one would give it that work again.
            given_s = self._given_s
            self._accounts = {key: a for key, a in self._accounts.items() if a.target_queues or a.work_s > given_s}

    def _next(self, now_s: float, hurry: bool) -> tuple[_TargetQueue[T] | None, float | None]:
        """Return the queue whose turn it is among those that may run, else None and when one may."""
        best: _TargetQueue[T] | None = None
        first: _TargetQueue[T] | None = None
        until_s: float | None = None
        if len(self._target_queues) == 1 and not self._window_s:
            return first_of(self._target_queues.values()), None
        for target_queue in self._target_queues.values():
            if self._window_s > 0 and not hurry and target_queue.rows < self._max_rows and not target_queue.divided:
                last_s = target_queue.heap[0][0] - self.predict_s(target_queue.target, target_queue.rows, 0)
                go_s = min(target_queue.since_s + self._window_s, last_s)
                if go_s > now_s:
                    until_s = go_s if until_s is None else min(until_s, go_s)
                    continue
            if best is None or first is None:
                best = first = target_queue
                continue
            if (target_queue.turn, target_queue.heap[0]) < (best.turn, best.heap[0]):
                best = target_queue
            if target_queue.due < first.due:
                first = target_queue
        if best is not None and first is not None and best.account is not first.account:
            ahead_s = first.account.work_s - best.account.work_s
            wait_s = self.predict_s(best.target, min(best.rows, self._max_rows), 0)
            ticket = first.heap[0][2]
            rows = min(ticket.rows, ticket.chunk_rows or ticket.rows)
            own_s = self.predict_s(first.target, rows, ticket.ids * rows // ticket.rows)
            if ahead_s < PATIENCE_S and first.due[0] < now_s + wait_s + own_s:
                best = first
        return best, until_s

    def _fill(self, target_queue: _TargetQueue[T], now_s: float, free: int, expired: list[T]) -> list[T]:
        batch: list[T] = []
        heap, target, rows, ids = target_queue.heap, target_queue.target, 0, 0
        closes_s = heavy_ids = math.inf
        if self._whole.ids > LIGHT_IDS:
            heavy_ids = target.costs.heavy_ids
        most = self._max_rows
        if free > 1:
            most = min(most, -(-target_queue.rows // target.costs.splits(target_queue.rows, free)))
        while heap:
            ticket = heap[0][2]
            deadline_s = ticket.deadline_s
            if deadline_s is not None and (
                deadline_s <= now_s or self._is_late(ticket, target, deadline_s, now_s, batch)
            ):
                expired.append(self._pop(target_queue))
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
            batch.append(self._pop(target_queue))
            rows += ticket.rows
            ids += ticket.ids
        return batch

    def _take_chunk(self, target_queue: _TargetQueue[T], now_s: float, sessions: int, expired: list[T]) -> list[T]:
        """Return the next chunk of a divided queue, alone; an empty list if all its tickets are late."""
        heap, target = target_queue.heap, target_queue.target
        while heap:
            ticket = heap[0][2]
            deadline_s = ticket.deadline_s
            if deadline_s is not None and (
                deadline_s <= now_s or self._is_late(ticket, target, deadline_s, now_s, [], sessions)
            ):
                expired.append(self._pop(target_queue))
                continue
            if ticket.rows <= ticket.chunk_rows and not ticket.lookup_chunks:
                return [self._pop(target_queue)]
            head = ticket.take_chunk(ticket.chunk_rows)
            head.cost_s = min(ticket.cost_s, target.costs.amortised_s(head.rows, head.ids))
            ticket.cost_s -= head.cost_s
            # From now on the rest counts as newly arrived.
            ticket.arrived_s = now_s
            target_queue.rows -= head.rows
            waiting = self._divided
            waiting.rows -= head.rows
            waiting.ids -= head.ids
            waiting.work_s -= head.cost_s
            return [head]
        return []

    def _is_late(
        self, ticket: T, target: BatchTarget, deadline_s: float, now_s: float, batch: list[T], sessions: int = 1
    ) -> bool:
        """Return True if a ticket would be late even alone while other work waits."""
        if not batch and self._count == 1:
            return False
        return now_s + self.predict_s(target, ticket.rows, ticket.ids) / sessions > deadline_s

    def _pop(self, target_queue: _TargetQueue[T]) -> T:
        ticket = heappop(target_queue.heap)[2]
        waiting = self._divided if target_queue.divided else self._whole
        rows, cost_s = ticket.rows, ticket.cost_s
        target_queue.rows -= rows
        self._count -= 1
        waiting.rows -= rows
        waiting.ids -= ticket.ids
        if not target_queue.divided:
            self._slack_cost_s[ticket.slack_bucket] = (
                self._slack_cost_s[ticket.slack_bucket] - cost_s if waiting.rows else 0.0
            )
        waiting.work_s = waiting.work_s - cost_s if waiting.rows else 0.0
        return ticket


def _slack_bucket(seconds: float) -> int:
    """Return the index of the power of two that bounds a slack, counted in microseconds."""
    if seconds >= 2048.0:
        return SLACK_BUCKETS - 1
    return max(0, math.frexp(seconds * 1e6)[1]) if seconds > 0 else 0


PATIENT = _slack_bucket(PATIENCE_S)
