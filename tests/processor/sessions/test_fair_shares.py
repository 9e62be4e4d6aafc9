"""Shares of models and of API keys: even, work-conserving, and none shuts another out of the queue."""

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import Overloaded
from freshet_serving.processor.sessions.batcher import MIXED_S, SHORT_TURN_S, Batcher
from freshet_serving.processor.sessions.fair_shares import MAX_IDLE, FairClock, FairShares, Share
from tests.processor.sessions.tickets import Owned, Target, put

SENDERS = ("", "x", "y")
MAX_ROWS, MOST_ROWS = 8, 12


def linear(name, row_s):
    """A target whose rows cost the same in every batch."""
    return Target(name, {n: n * row_s for n in range(1, MAX_ROWS + 1)})


class Sharing(RuleBasedStateMachine):
    """Models and keys that come and go at random, and what each has been given while it waited beside another."""

    @initialize(hurried=st.booleans())
    def start(self, hurried):
        self.batcher, self.clock, self.hurried = Batcher(MAX_ROWS, 100_000), FakeClock(), hurried
        self.targets = [linear("a", 0.01), linear("b", 0.03), linear("c", 0.1)]
        self.waiting = []
        # By pair of shares: what each has been given since both have waited.
        self.given = {}

    @rule(
        model=st.integers(0, 2),
        sender=st.sampled_from(SENDERS),
        rows=st.lists(st.integers(1, MOST_ROWS), min_size=1, max_size=6),
        chunk_rows=st.sampled_from([0, 0, 0, 3]),
        slack=st.sampled_from([0.05, 0.5, 5.0]),
    )
    def put(self, model, sender, rows, chunk_rows, slack):
        now_s, owner = self.clock.now_s(), self.targets[model]
        deadline_s = now_s + slack if self.hurried else None
        for count in rows:
            ticket = Owned(count, 0, deadline_s, chunk_rows, sender=sender, target=owner, number=len(self.waiting))
            self.batcher.put(ticket, owner, now_s)
            self.waiting.append(ticket)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.2]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(times=st.integers(1, 8))
    def take(self, times):
        for _ in range(times):
            self.take_once()

    def take_once(self):
        now_s, before = self.clock.now_s(), self.shares()
        taken = self.batcher.take(now_s)
        assert bool(taken.batch or taken.expired) == bool(self.waiting), "nothing idles while something waits"
        for ticket in taken.batch:
            assert ticket.deadline_s is None or now_s < ticket.deadline_s
        for ticket in taken.batch + taken.expired:
            if ticket in self.waiting:
                self.waiting.remove(ticket)
        work = {}
        for ticket in taken.batch:
            for share in (ticket.target.model, (ticket.target.model, ticket.sender)):
                work[share] = work.get(share, 0.0) + ticket.cost_s
        for pair in itertools.combinations(sorted(before, key=str), 2):
            if not self.beside(pair) or not set(pair) <= self.shares():
                self.given.pop(pair, None)
                continue
            sums = self.given.setdefault(pair, [0.0, 0.0])
            for n, share in enumerate(pair):
                sums[n] += work.get(share, 0.0)
        self.given = {pair: sums for pair, sums in self.given.items() if set(pair) <= self.shares()}

    def shares(self):
        return {share for t in self.waiting for share in (t.target.model, (t.target.model, t.sender))}

    def turn_s(self, share):
        (target,) = (t for t in self.targets if t.model in (share, share[0]))
        return target.costs.amortised_s(MOST_ROWS)

    def beside(self, pair):
        """Two models, or two keys of one model and one kind of tickets."""
        one, other = pair
        if isinstance(one, str) or isinstance(other, str):
            return isinstance(one, str) and isinstance(other, str)
        divided = {bool(t.chunk_rows) for t in self.waiting if t.target.model == one[0]}
        return one[0] == other[0] and len(divided) == 1 and not self.hurried

    @invariant()
    def shares_differ_by_at_most_a_turn_of_each(self):
        for (one, other), (one_s, other_s) in getattr(self, "given", {}).items():
            # A batch, or a ticket, of each; of models as much again and the batches of a third, because one in a hurry
            # may go before the turn of whoever is next.
            bound_s = self.turn_s(one) + self.turn_s(other)
            if isinstance(one, str):
                bound_s = 2 * (bound_s + self.turn_s("c"))
            assert abs(one_s - other_s) <= bound_s + 1e-9

    def teardown(self):
        for _ in range(20 * len(getattr(self, "waiting", []))):
            self.take_once()
        assert not getattr(self, "waiting", [])


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@given(rows=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(SENDERS)), min_size=1, max_size=40))
def test_tickets_of_one_model_and_key_leave_in_order(rows):
    batcher, targets = Batcher(4, 1000), {name: linear(name, 0.01) for name in "ab"}
    for number, (name, sender) in enumerate(rows):
        batcher.put(Owned(1, 0, sender=sender, target=targets[name], number=number), targets[name], 0.0)
    left = [t for _ in range(2 * len(rows)) for t in batcher.take(0.0).batch]
    assert len(left) == len(rows)
    for name, sender in itertools.product("ab", SENDERS):
        numbers = [t.number for t in left if (t.target.name, t.sender) == (name, sender)]
        assert numbers == sorted(numbers)


def sent(batcher, target, sender, count, rows=1, deadline_s=None):
    tickets = [Owned(rows, 0, deadline_s, sender=sender, target=target) for _ in range(count)]
    for ticket in tickets:
        batcher.put(ticket, target, 0.0)
    return tickets


def test_key_waits_for_one_ticket_of_a_saturating_key():
    batcher, target = Batcher(1, 1000), linear("m", 0.01)
    sent(batcher, target, "loud", 50)
    assert batcher.take(0.0).batch[0].sender == "loud"
    quiet = sent(batcher, target, "quiet", 1)
    assert any(batcher.take(0.0).batch == quiet for _ in range(2))


def test_batch_holds_tickets_of_several_keys_in_equal_parts():
    batcher, target = Batcher(8, 1000), linear("m", 0.01)
    for sender in ("x", "y"):
        sent(batcher, target, sender, 20)
    senders = [t.sender for t in batcher.take(0.0).batch]
    assert sorted(senders) == ["x"] * 4 + ["y"] * 4


def test_urgent_ticket_of_a_saturating_key_does_not_overtake_another_key():
    batcher, target = Batcher(1, 1000), linear("m", 0.01)
    sent(batcher, target, "loud", 50, deadline_s=0.6)
    patient = sent(batcher, target, "quiet", 1, deadline_s=100.0)
    assert any(batcher.take(0.0).batch == patient for _ in range(2))


def check(batcher, model, sender="", rows=1, own_s=0.001, slack_s=None):
    batcher.check_capacity(rows, own_s, slack_s, 1, 0.0, model=model, sender=sender)


def test_saturated_model_does_not_make_another_model_late():
    batcher, busy = Batcher(MAX_ROWS, 100_000), linear("busy", 0.01)
    put(batcher, *[4] * 100, target=busy, deadline_s=0.9)
    check(batcher, "light", slack_s=0.01)
    with pytest.raises(Overloaded, match="a reply may take"):
        check(batcher, "busy", slack_s=0.9)
    assert batcher.wait_s("light") == 0.0
    assert batcher.wait_s("busy") > 1.0


def test_saturated_key_does_not_make_another_key_late():
    batcher, target = Batcher(MAX_ROWS, 100_000), linear("m", 0.01)
    sent(batcher, target, "loud", 100, 4, deadline_s=0.9)
    check(batcher, "m", "quiet", slack_s=0.01)
    with pytest.raises(Overloaded):
        check(batcher, "m", "loud", slack_s=0.9)


def test_full_queue_refuses_whom_it_is_full_of():
    batcher, busy, light = Batcher(4, 100), linear("busy", 0.01), linear("light", 0.01)
    put(batcher, *[4] * 25, target=busy)
    with pytest.raises(Overloaded, match="no room: 100 rows wait"):
        check(batcher, "busy")
    for _ in range(12):
        check(batcher, "light", rows=4)
        put(batcher, 4, target=light)
    with pytest.raises(Overloaded, match="no room: 148 rows wait"):
        check(batcher, "light", rows=4)


def test_full_queue_admits_one_request_of_any_size_of_a_share_without_any():
    batcher, busy, light = Batcher(4, 100), linear("busy", 0.01), linear("light", 0.01)
    put(batcher, *[4] * 25, target=busy)
    check(batcher, "light", rows=500)
    put(batcher, 500, target=light)
    with pytest.raises(Overloaded):
        check(batcher, "light")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(SENDERS), st.integers(1, 9)), max_size=150))
@settings(deadline=None)
def test_all_shares_together_hold_little_more_than_the_bound(requests):
    batcher, targets = Batcher(4, 60), {name: linear(name, 0.01) for name in "abc"}
    for name, sender, rows in requests:
        try:
            check(batcher, name, sender, rows)
        except Overloaded:
            continue
        batcher.put(Owned(rows, 0, sender=sender, target=targets[name]), targets[name], 0.0)
    shares = 9
    assert batcher.queue_rows <= 60 * sum(1 / n for n in range(1, shares + 1)) + 9 * shares


def test_expired_work_is_not_charged():
    batcher, one, other = Batcher(1, 1000), linear("one", 0.1), linear("other", 0.1)
    put(batcher, *[1] * 20, target=one, deadline_s=0.5)
    fresh, others = put(batcher, *[1] * 3, target=one), put(batcher, *[1] * 3, target=other)
    left = [t for _ in range(4) for t in batcher.take(0.6).batch]
    assert sum(t in fresh for t in left) == sum(t in others for t in left) == 2


def test_batches_are_short_while_several_models_are_asked():
    row_s = SHORT_TURN_S / 2
    batcher, busy, light = Batcher(MAX_ROWS, 1000), linear("busy", row_s), linear("light", row_s)
    put(batcher, *[1] * 40, target=busy)
    assert len(batcher.take(0.0).batch) == MAX_ROWS
    put(batcher, 1, target=light)
    put(batcher, 1, target=busy)
    sizes = [len(batcher.take(0.0).batch) for _ in range(4)]
    assert max(sizes) <= 2
    assert batcher.turn_rows(busy, 0.0) <= 2
    assert len(batcher.take(MIXED_S).batch) == MAX_ROWS


def test_newcomer_begins_at_the_turn_that_is_served():
    clock: FairClock[Share] = FairClock(Share)
    one, other = clock.open("one"), clock.open("other")
    clock.give(one, 5.0)
    clock.close(one)
    clock.give(other, 7.0)
    assert clock.open("one") is one
    assert one.given_s == 5.0, "it is ahead of nobody any more, but what it was given still counts"
    assert clock.open("new").given_s == 0.0
    clock.give(other, 1.0)
    assert clock.open("newer").given_s == 7.0
    # Once nothing waits, shares are equal.
    clock = FairClock(Share)
    alone = clock.open("alone")
    clock.give(alone, 5.0)
    clock.close(alone)
    assert (clock.open("alone").given_s, clock.open("other").given_s) == (5.0, 5.0)


def test_idle_shares_beyond_a_bound_are_dropped_unless_they_are_ahead():
    clock: FairClock[Share] = FairClock(Share)
    clock.open("waits")
    ahead = clock.open("ahead")
    clock.give(ahead, 5.0)
    clock.close(ahead)
    for number in range(3 * MAX_IDLE):
        clock.close(clock.open(str(number)))
        assert len(clock.shares) <= MAX_IDLE
    assert clock.open("ahead") is ahead


def test_prediction_counts_others_only_as_far_as_they_are_given_work_meanwhile():
    shares = FairShares(100, 100)
    for name, work_s in (("busy", 10.0), ("light", 1.0)):
        model = shares.models.open(name)
        sender = model.senders.open("")
        for backlog in (shares.backlogs[0], sender.backlogs[0]):
            backlog.rows, backlog.work_s = backlog.rows + 1, backlog.work_s + work_s
        sender.slack_work_s[5] += work_s
    assert shares.work_before_s("light", "", 1e9, 0.5, 0.0) == pytest.approx(1.0 + 1.5)
    assert shares.work_before_s("busy", "", 1e9, 0.5, 0.0) == pytest.approx(10.0 + 1.0)
    assert shares.work_before_s("new", "", 1e9, 0.5, 0.0) == pytest.approx(1.0)


COST = {1: 2e-4, 8: 2.3e-4, 16: 3.2e-4, 32: 4.9e-4, 64: 8e-4, 128: 1.6e-3, 256: 3.2e-3}
DEADLINE_S, SIMULATED_S = 0.1, 1.5


def latencies(rates):
    """Latencies of the requests of each model, and how many were refused; rates by (model, rows), one session."""
    random, order = np.random.default_rng(7), itertools.count()
    batcher, targets = Batcher(256, 65536), {model: Target(model, COST) for model, _ in rates}
    events = []
    for (model, rows), rate in rates.items():
        times = np.cumsum(random.exponential(1 / rate, int(2 * rate * SIMULATED_S)))
        events += [(at, next(order), model, rows) for at in times[times < SIMULATED_S].tolist()]
    heapq.heapify(events)
    taken, refused, batch, running_s = {model: [] for model, _ in rates}, dict.fromkeys(targets, 0), [], 0.0
    while events:
        now_s, _, model, rows = heapq.heappop(events)
        if rows:
            target = targets[model]
            own_s = batcher.predict_s(target, rows, 0)
            try:
                batcher.check_capacity(rows, own_s, DEADLINE_S, 1, running_s, model=model)
                batcher.put(Owned(rows, 0, now_s + DEADLINE_S, target=target), target, now_s)
            except Overloaded:
                refused[model] += 1
        else:
            taken[model] += [now_s - ticket.arrived_s for ticket in batch]
            batch, running_s = [], 0.0
        while not batch and len(batcher):
            batch = batcher.take(now_s).batch
            if batch:
                target = batch[0].target
                running_s = batcher.predict_s(target, sum(t.rows for t in batch), 0)
                heapq.heappush(events, (now_s + running_s, next(order), target.name, 0))
    return taken, refused


def test_light_model_keeps_its_latency_beside_three_times_saturation():
    light, saturation = ("light", 8), 256 / COST[256] / 64
    alone, _ = latencies({light: 200})
    beside, refused = latencies({light: 200, ("busy", 64): 3 * saturation})
    for percentile in (50, 99):
        assert np.percentile(beside["light"], percentile) < 5 * np.percentile(alone["light"], percentile)
    assert refused["light"] == 0
    in_time = sum(latency_s <= DEADLINE_S for latency_s in beside["busy"])
    assert in_time > 0.85 * saturation * SIMULATED_S
    assert refused["busy"] > 1.5 * saturation * SIMULATED_S
