"""Share a queue fairly: what each model, and each API key of a model, has been given, waits for and may queue.

Models take turns by the work that each has been given, and within a model so do the API keys that send its requests
(start-time fair queueing: Goyal, Vin, Cheng 1996, at two levels). Requests without a key have the key "".

Pure, and guarded by its user's lock (processor.sessions.batcher).

Invariants
- While two shares wait, neither is given more than one turn of each ahead of the other. What waits alone is given
  everything (work-conserving).
- A new share begins where the one being served stands: it has saved up nothing, and owes nothing. Work given to it
  counts for as long as others are behind it, whether or not it waits all that time: one request queued each turn is not
  first every time.
- A share is charged for what is computed, not for what expires.
- The queue's bounds hold for all shares together, but a share may always queue its equal part of them, and one request
  of any size if nothing of it waits. So no model, and no key, shuts another out, and n shares hold at most
  1 + 1/2 + ... + 1/n times the bound, besides one request of each.
- A request's predicted wait counts what goes before it: of its own share all that is as urgent, of every other share no
  more than that share is given meanwhile. So a saturated model makes its own requests late, and refused.

Costs: two sums for a request that comes or leaves. A prediction is O(keys of its model that wait), and O(1) in the
number of models: others count as much as all of them have, or as much as their number would be given, whichever is
less. Idle shares are kept, because making them anew costs as much as all the rest; beyond MAX_IDLE those that are ahead
of nobody are dropped.

Rejected: full bounds for each share (memory would grow with the number of models and keys); a fixed part for each (a
model alone would be refused with most of the room free); deficit round robin (its turns are a fixed amount of work,
where batches differ by a thousand times, and a newcomer waits for a whole round).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

# Octaves of slack: from below a microsecond to an hour.
SLACK_BUCKETS = 32
# Shares of one level that are kept before idle ones are dropped.
MAX_IDLE = 1024


def slack_bucket(seconds: float) -> int:
    """Return the index of the power of two that bounds a slack, counted in microseconds."""
    if seconds >= 2048.0:
        return SLACK_BUCKETS - 1
    return max(0, math.frexp(seconds * 1e6)[1]) if seconds > 0 else 0


class Backlog:
    """Totals of waiting requests, summed by processor.sessions.batcher."""

    __slots__ = ("ids", "rows", "work_s")

    def __init__(self) -> None:
        self.rows = self.ids = 0
        self.work_s = 0.0


class Share:
    """The work given to one model, or to one API key, on its clock, and the number of its queues that wait."""

    __slots__ = ("given_s", "queues")

    def __init__(self) -> None:
        self.given_s, self.queues = 0.0, 0


S = TypeVar("S", bound=Share)


class FairClock(Generic[S]):
    """The shares of one level, those that wait, and their virtual time: the work given to the share served last."""

    __slots__ = ("_create", "_most_s", "_now_s", "shares", "waiting")

    def __init__(self, create: Callable[[], S]) -> None:
        self._create, self._now_s, self._most_s = create, 0.0, 0.0
        self.shares: dict[str, S] = {}
        self.waiting = 0

    def open(self, name: str) -> S:
        """Return the share with this name, of which one more queue waits."""
        share = self.shares.get(name)
        if share is None:
            if len(self.shares) >= MAX_IDLE:
                self.shares = {n: s for n, s in self.shares.items() if s.queues or s.given_s > self._now_s}
            share = self.shares[name] = self._create()
        if not share.queues:
            self.waiting += 1
            if share.given_s < self._now_s:
                share.given_s = self._now_s
        share.queues += 1
        return share

    def give(self, share: S, work_s: float) -> None:
        given_s = share.given_s
        if given_s > self._now_s:
            self._now_s = given_s
        share.given_s = given_s = given_s + work_s
        if given_s > self._most_s:
            self._most_s = given_s

    def close(self, share: S) -> None:
        """Note that one queue less waits of a share."""
        share.queues -= 1
        if not share.queues:
            self.waiting -= 1
            if not self.waiting:
                # Nobody is behind: all begin anew from where the furthest is.
                self._now_s = self._most_s


class SenderShare(Share):
    """An API key's waiting undivided and divided requests, and the work of the former by octave of their slack."""

    __slots__ = ("backlogs", "slack_work_s")

    def __init__(self) -> None:
        super().__init__()
        self.backlogs = Backlog(), Backlog()
        self.slack_work_s = [0.0] * SLACK_BUCKETS

    def work_before_s(self, slack_s: float) -> float:
        """Return the undivided work with no more slack; two requests in one octave each count as ahead of the other."""
        return sum(self.slack_work_s[: slack_bucket(slack_s) + 1])


class ModelShare(Share):
    """The waiting requests of one model.

    Work given to undivided and to divided requests (`kinds_s`), while there are divided ones, is on a clock of its own.
    """

    __slots__ = ("kinds_now_s", "kinds_s", "senders")

    def __init__(self) -> None:
        super().__init__()
        self.senders: FairClock[SenderShare] = FairClock(SenderShare)
        self.kinds_s, self.kinds_now_s = [0.0, 0.0], 0.0

    def work_s(self, divided: bool) -> float:
        return sum([sender.backlogs[divided].work_s for sender in self.senders.shares.values() if sender.queues])

    def begin_kind(self, divided: bool) -> None:
        if divided:
            self.kinds_s, self.kinds_now_s = [0.0, 0.0], 0.0
        elif self.kinds_s[0] < self.kinds_now_s:
            self.kinds_s[0] = self.kinds_now_s

    def give_kind(self, divided: bool, work_s: float) -> None:
        """Charge a kind for work that it is given while there are divided requests."""
        self.kinds_now_s = max(self.kinds_now_s, self.kinds_s[divided])
        self.kinds_s[divided] += work_s


class FairShares:
    """The shares of one bounded queue; `backlogs` are the undivided and divided requests of all models."""

    def __init__(self, max_rows: int, max_ids: int) -> None:
        self.models: FairClock[ModelShare] = FairClock(ModelShare)
        self.backlogs = Backlog(), Backlog()
        self._max_rows, self._max_ids = max_rows, max_ids

    @property
    def rows(self) -> int:
        whole, divided = self.backlogs
        return whole.rows + divided.rows

    @property
    def work_s(self) -> float:
        whole, divided = self.backlogs
        return whole.work_s + divided.work_s

    def find(self, model: str, sender: str) -> tuple[ModelShare | None, SenderShare | None]:
        """Return the shares of a model and of a key, each None if nothing is known of it."""
        share = self.models.shares.get(model)
        return share, None if share is None else share.senders.shares.get(sender)

    def shortage(self, model: str, sender: str, rows: int, ids: int, divided: bool) -> str:
        """Return why there is no room for a request, divided or not; "" if there is."""
        total = self.backlogs[divided]
        if not total.rows or (total.rows + rows <= self._max_rows and total.ids + ids <= self._max_ids):
            return ""
        of_model, of_sender = self.find(model, sender)
        if of_model is None or of_sender is None or not (used := of_sender.backlogs[divided]).rows:
            return ""
        parts = max(1, self.models.waiting) * max(1, of_model.senders.waiting)
        if parts > 1 and (used.rows + rows) * parts <= self._max_rows and (used.ids + ids) * parts <= self._max_ids:
            return ""
        if total.rows + rows > self._max_rows:
            return f"queue: no room: {total.rows} rows wait (max_queue_rows = {self._max_rows})"
        return f"queue: no room: {total.ids} ids wait, at most {self._max_ids} may (max_queue_rows = {self._max_rows})"

    def work_before_s(self, model: str, sender: str, slack_s: float, own_s: float, chunk_s: float) -> float:
        """Return the work that goes before an undivided request of `own_s` work; `chunk_s` is a divided one's chunk."""
        of_model, of_sender = self.models.shares.get(model), None
        before_s = 0.0
        if of_model is not None:
            of_sender = of_model.senders.shares.get(sender)
            if of_sender is not None:
                before_s = of_sender.backlogs[0].work_s if slack_s == math.inf else of_sender.work_before_s(slack_s)
                if (
                    of_sender.queues
                    and of_model.senders.waiting == self.models.waiting == 1
                    and not self.backlogs[1].rows
                ):
                    # Nobody else waits, as most of the time.
                    return before_s
            if others := _others(of_model.senders.waiting, of_sender):
                own_work_s = 0.0 if of_sender is None else of_sender.backlogs[0].work_s
                before_s += min(of_model.work_s(False) - own_work_s, others * (before_s + own_s))
            if self.backlogs[1].rows and (divided_s := of_model.work_s(True)):
                before_s += min(before_s + chunk_s, divided_s)
        return self._among_models_s(of_model, before_s, own_s)

    def work_before_divided_s(self, model: str, sender: str, own_s: float, ahead_s: float) -> float:
        """Return the work before the last chunk of a divided request, `ahead_s` of which is of its own share."""
        of_model, of_sender = self.find(model, sender)
        if of_model is not None:
            if others := _others(of_model.senders.waiting, of_sender):
                others_s = of_model.work_s(True) - (0.0 if of_sender is None else of_sender.backlogs[1].work_s)
                ahead_s += min(others_s, others * (ahead_s + own_s))
            if of_model.work_s(False):
                ahead_s += own_s
        return self._among_models_s(of_model, ahead_s, own_s)

    def _among_models_s(self, of_model: ModelShare | None, before_s: float, own_s: float) -> float:
        """Return the work before a request with what other models are given until its end."""
        others = _others(self.models.waiting, of_model)
        if not others:
            return before_s
        others_s = self.work_s - (0.0 if of_model is None else of_model.work_s(False) + of_model.work_s(True))
        return before_s + min(others_s, others * (before_s + own_s))


def _others(waiting: int, share: Share | None) -> int:
    """Return how many other shares wait: while a share is given some seconds, each of them is given as many."""
    return waiting - (share is not None and share.queues > 0)
