"""The auto-batcher: which queued requests run together, when, and which not at all. Pure: the clock's readings come in.

Order. Of one target, the earliest deadline first; a ticket without a deadline is ordered as if it had one PATIENCE_S
after its arrival; equal deadlines go by arrival. A batch holds tickets of one target. Targets take turns, by the work
that each was given (start-time fair queueing: Goyal, Vin, Cheng 1996), so that a ticket of a model that asks for little
waits for the batch that runs, and not for the queue of a neighbour that is saturated. One whose deadline would pass in
its turn's wait goes before; so nobody starves.

When. Work-conserving: take() gives an idle session what is queued, at once; batches grow by themselves while all
sessions are busy. With a window, a target's tickets wait until the first of them has waited that long, a batch is full,
or the tightest deadline leaves no more time than the batch takes.

Invariants
- Every ticket leaves exactly once: in a batch, as expired, or by drain().
- A batch has at most `max_rows` rows, unless it is one ticket that is larger (its session runs several buckets).
- An expired ticket is never computed. Neither is one that would be late even if it ran alone from now on, as long as
  something else waits: its reply would be worth nothing and would make others late (goodput). When nothing else waits
  it runs all the same, for a wrong prediction has to be found out by a measurement.
- A batch does not grow past its earliest deadline: a ticket stays behind if the batch would be in time without it and
  late with it.

Costs O(log n) a ticket, and O(targets) a batch. Refused: one heap for all targets (a batch would end at the first
ticket of another one), summing up a queue on admission (kept per octave of patience instead).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

from processor.backends.cost import CostTable, follow
from processor.errors import Overloaded

PATIENCE_S = 1.0
# Octaves of time to go: from below a microsecond to an hour.
OCTAVES = 32
# What a batch's prediction may be off by before a ticket that was let into it makes one late.
MARGIN = 1.15
# The same for the wait of a request that is admitted: more, since an overloaded event loop reads late as well. It costs
# nothing, for a queue of two thirds of a deadline keeps sessions as busy. At 3x saturation, 64 candidates and deadlines
# of 100 ms, four alternating rounds: 1.7 times the goodput of a margin of 1.15, and 1.2 times that of 2.
WAIT_MARGIN = 1.5


class Priced(Protocol):
    """A target: tickets of one may share a batch. Told apart by identity."""

    @property
    def costs(self) -> CostTable:
        """The costs of the target's batches."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A queued request. deadline_s: on the batcher's clock, or None. The rest is the batcher's own."""

    rows: int
    ids: int = 0
    deadline_s: float | None = None
    arrived_s: float = field(default=0.0, init=False)
    share_s: float = field(default=0.0, init=False)
    octave: int = field(default=0, init=False)


T = TypeVar("T", bound=Ticket)


class Taken(NamedTuple, Generic[T]):
    """A take: what one call of take() removed from the queue. until_s: when there may be a batch although nothing is
    put; None when there is one, or nothing waits."""

    batch: list[T]
    expired: list[T]
    until_s: float | None = None


class _Account:
    """What the targets of one table of costs, a model's, have been given while tickets of theirs waited, on the
    batcher's own clock of work."""

    __slots__ = ("costs", "lanes", "work_s")

    def __init__(self, costs: CostTable, work_s: float) -> None:
        self.costs, self.work_s, self.lanes = costs, work_s, 0


class _Lane(Generic[T]):
    """The tickets of one target. since_s: no later than the arrival of any of them."""

    __slots__ = ("account", "heap", "rows", "since_s", "target")

    def __init__(self, target: Priced, account: _Account, since_s: float) -> None:
        self.target, self.account, self.since_s = target, account, since_s
        account.lanes += 1
        self.heap: list[tuple[float, int, T]] = []
        self.rows = 0


class Batcher(Generic[T]):
    """A bounded queue that is emptied in batches. Not thread-safe: its owner locks."""

    def __init__(self, max_rows: int, max_queue_rows: int, window_s: float = 0.0) -> None:
        self._max_rows, self._max_queue_rows, self._window_s = max_rows, max_queue_rows, window_s
        self._lanes: dict[int, _Lane[T]] = {}
        # By id of the table of costs, as long as one of its lanes is there.
        self._accounts: dict[int, _Account] = {}
        # Where the account stood that was served last: who comes now begins there, whatever was done without it.
        self._given_s = 0.0
        self._shares_s = [0.0] * OCTAVES
        self._total_s = 0.0
        self._arrivals = self._count = 0
        self.queue_rows = 0
        self.pace = 1.0

    def __len__(self) -> int:
        return self._count

    def put(self, ticket: T, target: Priced, now_s: float) -> None:
        """Queues a ticket for a target, whether there is room or not: admit() is asked before."""
        patience_s = PATIENCE_S if ticket.deadline_s is None else ticket.deadline_s - now_s
        ticket.arrived_s = now_s
        ticket.octave = octave = PATIENT if ticket.deadline_s is None else _octave(patience_s)
        ticket.share_s = share_s = target.costs.share(ticket.rows, ticket.ids)
        lane = self._lanes.get(id(target))
        if lane is None:
            lane = self._lanes[id(target)] = _Lane(target, self._account(target.costs), now_s)
        self._arrivals += 1
        heappush(lane.heap, (now_s + patience_s, self._arrivals, ticket))
        lane.rows += ticket.rows
        self.queue_rows += ticket.rows
        self._shares_s[octave] += share_s
        self._total_s += share_s
        self._count += 1

    def admit(self, rows: int, own_s: float, patience_s: float | None, sessions: int, running_s: float) -> None:
        """Raises Overloaded when so many rows more may not wait, or when they cannot be answered in time.

        own_s: what they cost alone, by predict_s(); running_s: predicted of the batches being run. What finds nothing
        before it is always admitted: so a wrong prediction cannot shut the door for good.
        """
        if not self._count:
            return
        if self.queue_rows + rows > self._max_queue_rows:
            message = f"queue: at most {self._max_queue_rows} rows wait, {self.queue_rows} do"
            raise Overloaded(message, (self.work_s + running_s) / sessions)
        if patience_s is not None and patience_s > 0:
            wait_s = (self.work_before_s(patience_s) + running_s) / sessions
            answer_s = wait_s * WAIT_MARGIN + own_s
            if answer_s > patience_s:
                wanted, given = answer_s * 1e3, patience_s * 1e3
                message = f"queue: an answer may take {wanted:.1f} ms, the request gives it {given:.1f} ms"
                raise Overloaded(message, wait_s, late=True)

    def batches(self, most: int) -> int:
        """Number of sessions, of `most`, that what is queued could keep busy, each with a batch worth its while."""
        return min(most, sum([lane.target.costs.shares(lane.rows, most) for lane in self._lanes.values()]))

    @property
    def work_s(self) -> float:
        """Predicted seconds of a session for all that is queued."""
        return self.pace * self._total_s

    def work_before_s(self, patience_s: float) -> float:
        """The same for what goes before a ticket with so long to go.

        Sums octaves of patience: of two tickets in one octave each counts for the other.
        """
        return self.pace * sum(self._shares_s[: _octave(patience_s) + 1])

    def predict_s(self, target: Priced, rows: int, ids: int) -> float:
        """Seconds of a batch, at the pace that sessions have."""
        return self.pace * target.costs.predict(rows, ids)

    def paced(self, predicted_s: float, measured_s: float) -> None:
        """A batch that predict_s() gave so long took that long, with everything around it that its session does."""
        if predicted_s > 0 and measured_s > 0:
            self.pace = follow(self.pace, self.pace * measured_s / predicted_s)

    def take(self, now_s: float, free: int = 1, hurry: bool = False) -> Taken[T]:
        """Removes the next batch and every expired ticket met on the way; both are empty when nothing is due.

        free: sessions that could take a batch now; one leaves the others their share, if that is worth a batch.
        hurry: the window does not count.
        """
        expired: list[T] = []
        while self._lanes:
            lane, until_s = self._next(now_s, hurry)
            if lane is None:
                return Taken([], expired, until_s)
            before_s = self._total_s
            batch = self._fill(lane, now_s, free, expired)
            self._given_s = max(self._given_s, lane.account.work_s)
            lane.account.work_s += before_s - self._total_s
            if not lane.heap:
                self._close(lane)
            if batch:
                return Taken(batch, expired)
        return Taken([], expired)

    def drain(self) -> Iterator[tuple[T, Priced]]:
        """Removes every ticket, the most urgent of each target first; each with its target."""
        for lane in list(self._lanes.values()):
            while lane.heap:
                yield self._pop(lane), lane.target
            self._close(lane)

    def _account(self, costs: CostTable) -> _Account:
        account = self._accounts.get(id(costs))
        if account is None:
            account = self._accounts[id(costs)] = _Account(costs, self._given_s)
        return account

    def _close(self, lane: _Lane[T]) -> None:
        del self._lanes[id(lane.target)]
        lane.account.lanes -= 1
        if not lane.account.lanes:
            del self._accounts[id(lane.account.costs)]

    def _next(self, now_s: float, hurry: bool) -> tuple[_Lane[T] | None, float | None]:
        """The lane whose turn it is among those that may go, else None and when one may."""
        best: _Lane[T] | None = None
        first: _Lane[T] | None = None
        until_s: float | None = None
        for lane in self._lanes.values():
            if self._window_s > 0 and not hurry and lane.rows < self._max_rows:
                last_s = lane.heap[0][0] - self.predict_s(lane.target, lane.rows, 0)
                go_s = min(lane.since_s + self._window_s, last_s)
                if go_s > now_s:
                    until_s = go_s if until_s is None else min(until_s, go_s)
                    continue
            if best is None or (lane.account.work_s, lane.heap[0]) < (best.account.work_s, best.heap[0]):
                best = lane
            if first is None or lane.heap[0] < first.heap[0]:
                first = lane
        if best is not first and best is not None and first is not None:
            due_s, _, ticket = first.heap[0]
            wait_s = self.predict_s(best.target, min(best.rows, self._max_rows), 0)
            if due_s < now_s + wait_s + self.predict_s(first.target, ticket.rows, ticket.ids):
                best = first
        return best, until_s

    def _fill(self, lane: _Lane[T], now_s: float, free: int, expired: list[T]) -> list[T]:
        batch: list[T] = []
        heap, target, rows, ids = lane.heap, lane.target, 0, 0
        closes_s = math.inf
        most = self._max_rows
        if free > 1:
            most = min(most, -(-lane.rows // target.costs.shares(lane.rows, free)))
        while heap:
            ticket = heap[0][2]
            deadline_s = ticket.deadline_s
            if deadline_s is not None and (
                deadline_s <= now_s or self._is_late(ticket, target, deadline_s, now_s, batch)
            ):
                expired.append(self._pop(lane))
                continue
            if batch:
                if rows + ticket.rows > most:
                    break
                if closes_s < math.inf:
                    end_s = now_s + MARGIN * self.predict_s(target, rows + ticket.rows, ids + ticket.ids)
                    if end_s > closes_s >= now_s + self.predict_s(target, rows, ids):
                        break
            if deadline_s is not None and deadline_s < closes_s:
                closes_s = deadline_s
            batch.append(self._pop(lane))
            rows += ticket.rows
            ids += ticket.ids
        return batch

    def _is_late(self, ticket: T, target: Priced, deadline_s: float, now_s: float, batch: list[T]) -> bool:
        """Whether it would be late alone, while there is something better to do."""
        if not batch and self._count == 1:
            return False
        return now_s + self.predict_s(target, ticket.rows, ticket.ids) > deadline_s

    def _pop(self, lane: _Lane[T]) -> T:
        ticket = heappop(lane.heap)[2]
        lane.rows -= ticket.rows
        self.queue_rows -= ticket.rows
        self._count -= 1
        if self._count:
            self._shares_s[ticket.octave] -= ticket.share_s
            self._total_s -= ticket.share_s
        else:
            # An empty queue weighs nothing, whatever rounding has left over elsewhere.
            self._shares_s[ticket.octave] = self._total_s = 0.0
        return ticket


def _octave(seconds: float) -> int:
    """Which power of two a time to go lies below, from microseconds on."""
    if seconds >= 2048.0:
        return OCTAVES - 1
    return max(0, math.frexp(seconds * 1e6)[1]) if seconds > 0 else 0


PATIENT = _octave(PATIENCE_S)
