"""The batcher as a state machine, its rules one by one, and a simulated server under three times its load."""

import heapq
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import Overloaded
from freshet_serving.processor.sessions.batcher import PATIENCE_S, Batcher, Ticket
from tests.processor.sessions.tickets import TARGETS, Owned, Target, put


def due_s(ticket):
    return ticket.arrived_s + PATIENCE_S if ticket.deadline_s is None else ticket.deadline_s


class Batching(RuleBasedStateMachine):
    @initialize(
        max_rows=st.integers(1, 12), max_queue_rows=st.integers(1, 40), window_s=st.sampled_from([0.0, 0.0, 0.5, 4.0])
    )
    def start(self, max_rows, max_queue_rows, window_s):
        self.max_rows, self.max_queue_rows, self.window_s = max_rows, max_queue_rows, window_s
        self.batcher = Batcher(max_rows, max_queue_rows, window_s, 3 * max_queue_rows)
        self.clock = FakeClock()
        self.waiting, self.left, self.until_s = [], [], None
        # By number: rows of the request, and those of them that have left.
        self.whole, self.gone = [], []

    @rule(
        owner=st.sampled_from(TARGETS),
        rows=st.integers(1, 60),
        ids=st.sampled_from([3, 3, 4]),
        slack=st.none() | st.integers(-1, 6),
        chunk_rows=st.sampled_from([0, 0, 0, 1, 5, 100]),
        first=st.sampled_from([(0, 0), (0, 0), (2, 0), (3, 2)]),
    )
    def put(self, owner, rows, ids, slack, chunk_rows, first):
        now_s = self.clock.now_s()
        deadline_s = None if slack is None else now_s + slack
        first = first if chunk_rows else (0, 0)
        ticket = Owned(rows, ids * rows, deadline_s, chunk_rows, *first, target=owner, number=len(self.whole))
        alike = [t for t in self.waiting if bool(t.chunk_rows) == bool(chunk_rows)]
        asked = {"ids": ticket.ids, "divided": chunk_rows > 0, "model": owner.model}
        own, models = [t for t in alike if t.target is owner], len({t.target.model for t in self.waiting})

        def fits(tickets, parts):
            return (sum(t.rows for t in tickets) + rows) * parts <= self.max_queue_rows and (
                sum(t.ids for t in tickets) + ticket.ids
            ) * parts <= 3 * self.max_queue_rows

        if not own or fits(alike, 1) or (models > 1 and fits(own, models)):
            self.batcher.check_capacity(rows, 0.0, None, 1, 0.0, **asked)
            self.batcher.put(ticket, owner, now_s)
            self.waiting.append(ticket)
            self.whole.append(rows)
            self.gone.append(0)
            self.until_s = None
        else:
            with pytest.raises(Overloaded):
                self.batcher.check_capacity(rows, 0.0, None, 1, 0.0, **asked)

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(free=st.integers(1, 3), hurry=st.booleans())
    def take(self, free=1, hurry=False):
        now_s = self.clock.now_s()
        taken = self.batcher.take(now_s, free, hurry)
        for ticket in taken.batch + taken.expired:
            number = ticket.number
            assert ticket.first == self.gone[number], "rows leave in order"
            self.gone[number] += ticket.rows
            if self.gone[number] == self.whole[number]:
                self.waiting.remove(ticket)
                self.left.append(ticket)
            else:
                assert ticket.rows in (0, ticket.chunk_rows), "only a piece leaves a rest behind"
                assert ticket in taken.batch
                assert ticket.rows or not self.gone[number], "what has no rows comes first"
        for ticket in taken.batch:
            assert ticket.deadline_s is None or ticket.deadline_s > now_s
        for ticket in taken.expired:
            alone_s = self.batcher.predict_s(ticket.target, ticket.rows, ticket.ids)
            assert ticket.deadline_s <= now_s or now_s + alone_s > ticket.deadline_s
        assert len({id(t.target) for t in taken.batch}) <= 1
        if taken.batch and taken.batch[0].chunk_rows:
            (piece,) = taken.batch
            assert piece.rows <= piece.chunk_rows
            return
        assert not any(t.chunk_rows for t in taken.batch)
        assert sum(t.rows for t in taken.batch) <= self.max_rows or len(taken.batch) == 1
        # Of one target the most urgent leave first, and in order of arrival where they are equally urgent.
        places = [(due_s(t), t.arrived_s) for t in taken.batch]
        assert places == sorted(places)
        if taken.batch:
            behind = [t for t in self.waiting if t.target is taken.batch[0].target and not t.chunk_rows]
            assert all(due_s(t) >= places[-1][0] for t in behind)
            assert taken.until_s is None
        elif self.window_s == 0 or hurry:
            assert not self.waiting, "an idle session takes what there is"
        elif self.waiting:
            assert not any(t.chunk_rows for t in self.waiting), "the window is for what others may join"
            oldest_s = min(t.arrived_s for t in self.waiting)
            assert now_s < taken.until_s <= oldest_s + self.window_s
            assert now_s < oldest_s + self.window_s

    @invariant()
    def the_queue_is_what_was_put_and_has_not_left(self):
        if hasattr(self, "batcher"):
            batcher, waiting = self.batcher, self.waiting
            assert batcher.queue_rows == sum(t.rows for t in waiting)
            assert len(batcher) == len(waiting)
            assert len({id(t) for t in self.left}) == len(self.left)
            assert batcher.work_s == pytest.approx(sum(t.target.costs.amortised_s(t.rows, t.ids) for t in waiting))
            assert (batcher.batches(9) > 0) == bool(waiting)

    def teardown(self):
        while getattr(self, "waiting", None):
            before = self.batcher.queue_rows + sum(t.lookup_chunks for t in self.waiting)
            self.take(hurry=True)
            assert self.batcher.queue_rows + sum(t.lookup_chunks for t in self.waiting) < before
        assert getattr(self, "gone", 0) == getattr(self, "whole", 0)


TestBatching = Batching.TestCase
TestBatching.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_empty_queue_returns_no_batch_and_no_time():
    taken = Batcher(4, 10).take(0.0)
    assert (taken.batch, taken.expired, taken.until_s) == ([], [], None)


def test_batch_stops_before_the_ticket_that_exceeds_its_limit():
    batcher = Batcher(10, 100)
    tickets = put(batcher, 4, 6, 1)
    assert batcher.take(0.0).batch == tickets[:2]
    assert batcher.take(0.0).batch == tickets[2:]


def test_batch_in_front_of_a_device_grows_while_rows_cost_nothing():
    flat, steep = Target("flat", {8: 1.0, 64: 1.01}), Target("steep", {8: 1.0, 64: 8.0})
    for target, count in ((flat, 64), (steep, 8)):
        batcher = Batcher(8, 1000)
        batcher.grows = True
        tickets = put(batcher, *[1] * 100, target=target)
        assert batcher.take(0.0).batch == tickets[:count]


def test_other_models_in_front_of_a_device_keep_batches_short():
    batcher, flat = Batcher(8, 1000), Target("flat", {8: 1.0, 64: 1.01})
    batcher.grows = True
    put(batcher, *[1] * 20, target=flat)
    put(batcher, 1)
    assert len(batcher.take(0.0).batch) <= 8


def test_batch_holds_one_target_and_skips_the_others():
    batcher = Batcher(10, 100)
    first, other = put(batcher, 1), put(batcher, 1, target=Target("other"), now_s=0.1)
    last = put(batcher, 1, now_s=0.2)
    assert [batcher.take(0.0).batch for _ in range(2)] == [first + last, other]


def test_targets_share_a_batch_by_identity():
    class Equal(Target):
        def __eq__(self, other):
            return True

        __hash__ = None

    batcher = Batcher(10, 100)
    first, second = put(batcher, 1, target=Equal()), put(batcher, 1, target=Equal())
    assert [batcher.take(0.0).batch for _ in range(2)] == [first, second]


def test_light_model_waits_for_one_batch_and_not_the_queue():
    batcher, busy, light = Batcher(4, 1000), Target("busy", {4: 0.01}), Target("light", {4: 0.01})
    put(batcher, *[4] * 20, target=busy)
    for turn in range(10):
        assert batcher.take(0.0).batch[0].rows == 4
        asked = put(batcher, 1, target=light, now_s=0.001 * turn)
        assert batcher.take(0.0).batch == asked


def test_saturated_models_get_equal_work_for_any_batch_sizes():
    batcher = Batcher(8, 10_000)
    small, large = Target("small", {1: 0.001}), Target("large", {8: 0.010})
    of_small, of_large = put(batcher, *[1] * 1500, target=small), put(batcher, *[8] * 100, target=large)
    given = {"small": 0.0, "large": 0.0}
    for _ in range(60):
        batch = batcher.take(0.0).batch
        name, target = ("small", small) if batch[0] in of_small else ("large", large)
        assert name == "small" or batch[0] in of_large
        given[name] += target.costs.batch_s(sum(ticket.rows for ticket in batch), 0)
    assert given["small"] == pytest.approx(given["large"], abs=0.03)


def test_ticket_that_would_miss_its_deadline_goes_first():
    batcher, busy, light = Batcher(1, 1000), Target("busy", {1: 0.1}), Target("light", {1: 0.1})
    late, patient = put(batcher, 1, target=busy, deadline_s=0.15), put(batcher, 1, 1, target=busy, deadline_s=5.0)
    assert batcher.take(0.0).batch == late
    asked = put(batcher, 1, target=light)
    tight = put(batcher, 1, target=busy, deadline_s=0.15)
    assert [batcher.take(0.0).batch for _ in range(3)] == [tight, asked, patient[:1]]


def test_ticket_without_a_deadline_does_not_starve():
    batcher = Batcher(1, 1000)
    patient = put(batcher, 1)
    taken, now_s = [], 0.0
    while patient[0] not in taken:
        now_s += 0.1
        put(batcher, 1, 1, deadline_s=now_s + 0.5, now_s=now_s)
        taken += batcher.take(now_s).batch
        assert now_s < 2 * PATIENCE_S


def test_full_queue_sheds_load_with_its_drain_time():
    target = Target(cost={1: 0.5})
    batcher = Batcher(4, 10)
    put(batcher, 5, 5, target=target)
    with pytest.raises(Overloaded, match=r"no room: 10 rows wait \(max_queue_rows = 10\)") as shed:
        batcher.check_capacity(1, 0.0, None, 2, 3.0)
    assert shed.value.retry_after_s == pytest.approx((10 * 0.5 + 3.0) / 2, rel=1e-3)
    assert not shed.value.late


def test_request_missing_its_deadline_is_refused_with_the_wait():
    target = Target(cost={1: 0.01})
    batcher = Batcher(4, 1000)
    put(batcher, 4, 4, 2, target=target, deadline_s=0.12)
    batcher.check_capacity(1, 0.01, 0.2, 1, 0.0)
    with pytest.raises(
        Overloaded, match=r"a reply may take 160\.0 ms, the request's deadline allows 100\.0 ms"
    ) as shed:
        batcher.check_capacity(1, 0.01, 0.1, 1, 0.0)
    assert shed.value.late
    assert shed.value.retry_after_s == pytest.approx(0.1, rel=1e-3)
    # Half as long on two sessions.
    batcher.check_capacity(1, 0.01, 0.1, 2, 0.0)


def test_urgent_request_does_not_wait_for_patient_ones():
    batcher = Batcher(4, 1000)
    put(batcher, *[4] * 20, target=Target(cost={1: 0.01}))
    batcher.check_capacity(1, 0.01, 0.05, 1, 0.0)
    with pytest.raises(Overloaded):
        batcher.check_capacity(1, 0.01, 0.8, 1, 0.0)


def test_empty_queue_refuses_nothing_for_its_deadline():
    Batcher(4, 1000).check_capacity(1, 100.0, 0.001, 1, 0.0)


def test_expired_tickets_are_dropped_and_live_ones_between_run_together():
    batcher = Batcher(10, 100)
    live, dead = [], []
    for _ in range(3):
        live += put(batcher, 1)
        dead += put(batcher, 1, deadline_s=0.5)
    taken = batcher.take(0.5)
    assert (taken.batch, taken.expired) == (live, dead)


def test_deadline_is_the_first_moment_that_is_too_late():
    batcher = Batcher(4, 100)
    (ticket,) = put(batcher, 1, deadline_s=1.0)
    assert batcher.take(0.999).batch == [ticket]
    put(batcher, 1, deadline_s=1.0)
    assert batcher.take(1.0).batch == []


def test_late_ticket_is_dropped_only_when_others_wait():
    target = Target(cost={1: 1.0})
    batcher = Batcher(4, 100)
    hopeless, hopeful = put(batcher, 1, target=target, deadline_s=0.9), put(batcher, 1, target=target, deadline_s=5.0)
    taken = batcher.take(0.0)
    assert (taken.batch, taken.expired) == (hopeful, hopeless)
    alone = put(batcher, 1, target=target, deadline_s=0.9)
    assert batcher.take(0.0).batch == alone


def test_batch_does_not_grow_past_its_earliest_deadline():
    target = Target(cost={1: 1.0})
    batcher = Batcher(10, 100)
    tight, loose = put(batcher, 1, target=target, deadline_s=2.5), put(batcher, 1, 1, target=target, deadline_s=9.0)
    assert batcher.take(0.0).batch == [*tight, loose[0]]
    assert batcher.take(2.0).batch == [loose[1]]


def test_already_late_ticket_does_not_limit_the_batch():
    target = Target(cost={1: 1.0, 4: 3.0})
    batcher = Batcher(10, 100)
    tickets = put(batcher, 1, 1, 1, target=target) + put(batcher, 1, target=target, deadline_s=2.5)
    tickets += put(batcher, 1, target=target, now_s=2.0)
    assert batcher.take(0.0).batch == tickets


def test_window_in_front_of_a_device_ends_when_a_bucket_is_full():
    target, batcher = Target("flat", {8: 0.01, 64: 0.011}), Batcher(8, 1000, window_s=0.5)
    batcher.grows = True
    tickets = put(batcher, *[1] * 63, target=target)
    assert batcher.take(0.0).batch == []
    tickets += put(batcher, 1, target=target)
    assert batcher.take(0.0).batch == tickets


def test_window_holds_tickets_until_the_first_has_waited_that_long():
    batcher = Batcher(4, 100, window_s=0.5)
    first = put(batcher, 1)
    taken = batcher.take(0.0)
    assert (taken.batch, taken.until_s) == ([], 0.5)
    second = put(batcher, 1, now_s=0.3)
    assert batcher.take(0.4).until_s == 0.5
    assert batcher.take(0.5).batch == first + second


def test_full_batch_or_tight_deadline_or_urgency_ends_the_window():
    batcher = Batcher(4, 100, window_s=0.5)
    full = put(batcher, 2, 2)
    assert batcher.take(0.0).batch == full
    target = Target(cost={1: 0.1})
    tight = put(batcher, 1, target=target, deadline_s=0.3)
    assert batcher.take(0.0).until_s == pytest.approx(0.2, rel=1e-3)
    assert batcher.take(0.2).batch == tight
    put(batcher, 1)
    assert batcher.take(0.0).batch == []
    assert batcher.take(0.0, hurry=True).batch


def test_session_leaves_work_for_idle_ones_when_worth_a_batch():
    target = Target(cost={1: 1.0, 4: 1.2})
    batcher = Batcher(100, 100)
    tickets = put(batcher, *[1] * 16, target=target)
    assert (batcher.batches(2), batcher.batches(9)) == (2, 4)
    assert batcher.take(0.0, free=2).batch == tickets[:8]
    assert batcher.take(0.0, free=1).batch == tickets[8:]
    few = put(batcher, 1, 1, target=target)
    assert batcher.take(0.0, free=2).batch == few


def test_pace_follows_the_sessions_and_barely_moves_for_one_outlier():
    batcher = Batcher(4, 100)
    batcher.record_duration(1.0, 1000.0)
    assert 1.0 < batcher.slowdown < 1.04
    for _ in range(200):
        batcher.record_duration(batcher.slowdown, 3.0)
    assert batcher.slowdown == pytest.approx(3.0, rel=0.01)
    assert batcher.predict_s(TARGETS[1], 1, 0) == pytest.approx(1.5, rel=0.01)


# A simulated server: sessions, Poisson arrivals, costs that are off, no clock but the simulation's.


@dataclass
class Outcome:
    good: int
    late: int
    refused: int
    expired: int
    seconds: float

    @property
    def goodput(self):
        return self.good / self.seconds


def simulate(rate, seconds, timeout_s, *, sessions=2, seed=0, noise=0.2, wrong=1.0, admission=True):
    """Requests of 1 to 64 rows at `rate` a second; a batch takes what the table says, times noise, times `wrong`."""
    random = np.random.default_rng(seed)
    target = Target(cost={1: 3e-4, 16: 5e-4, 64: 1.5e-3, 256: 5.5e-3})
    batcher, order = Batcher(256, 65536), itertools.count()
    outcome = Outcome(0, 0, 0, 0, seconds)
    events = [(at, next(order), "arrive", None) for at in _arrivals(random, rate, seconds)]
    heapq.heapify(events)
    free, running_s = sessions, 0.0
    while events:
        now_s, _, what, batch = heapq.heappop(events)
        if what == "arrive":
            rows = int(random.choice([1, 8, 64]))
            ticket = Ticket(rows, 26 * rows, now_s + timeout_s)
            try:
                own_s = batcher.predict_s(target, rows, ticket.ids)
                if admission:
                    batcher.check_capacity(rows, own_s, timeout_s, sessions, running_s)
                batcher.put(ticket, target, now_s)
            except Overloaded:
                outcome.refused += 1
        else:
            free += 1
            tickets, predicted_s, took_s = batch
            running_s -= predicted_s
            batcher.record_duration(predicted_s, took_s)
            good = sum(now_s <= t.deadline_s for t in tickets)
            outcome.good += good
            outcome.late += len(tickets) - good
        while free and len(batcher):
            taken = batcher.take(now_s, free)
            outcome.expired += len(taken.expired)
            if taken.batch:
                rows, ids = sum(t.rows for t in taken.batch), sum(t.ids for t in taken.batch)
                predicted_s = batcher.predict_s(target, rows, ids)
                took_s = wrong * target.costs.batch_s(rows, ids) * random.lognormal(0, noise)
                running_s += predicted_s
                free -= 1
                heapq.heappush(events, (now_s + took_s, next(order), "end", (taken.batch, predicted_s, took_s)))
    return outcome


def _arrivals(random, rate, seconds):
    times = np.cumsum(random.exponential(1 / rate, int(2 * rate * seconds)))
    return times[times < seconds].tolist()


SATURATION = 2 / (np.mean([1, 8, 64]) * 5.5e-3 / 256)


@pytest.mark.parametrize("wrong", [1.0, 2.5, 0.5])
@pytest.mark.parametrize("timeout_s", [0.02, 0.2])
def test_goodput_at_triple_saturation_stays_at_90_percent(timeout_s, wrong):
    capacity = SATURATION / wrong
    peak = max(simulate(load * capacity, 0.5, timeout_s, wrong=wrong).goodput for load in (0.85, 1.0))
    over = simulate(3 * capacity, 0.5, timeout_s, wrong=wrong)
    assert over.goodput >= 0.9 * peak
    # Most of what is not answered in time was told so at once, and little was computed for nothing.
    assert over.refused > 10 * over.expired
    assert over.late < 0.1 * over.good


def test_without_admission_the_queue_fills_with_expiring_work():
    bounded, full = (simulate(3 * SATURATION, 0.6, 0.2, admission=a) for a in (True, False))
    assert full.expired > 0.3 * full.good
    assert full.expired > 20 * bounded.expired


def test_at_half_load_nothing_is_refused_and_nothing_is_late():
    outcome = simulate(0.5 * SATURATION, 3.0, 0.05)
    assert outcome.refused == outcome.expired == outcome.late == 0


def test_last_ticket_is_dropped_when_late_behind_a_batch():
    target = Target(cost={1: 0.5, 4: 5.0})
    batcher = Batcher(10, 100)
    soon, hopeless = put(batcher, 1, target=target, deadline_s=1.0), put(batcher, 4, target=target, deadline_s=1.5)
    taken = batcher.take(0.0)
    assert (taken.batch, taken.expired) == (soon, hopeless)


def test_zero_duration_batch_does_not_change_the_pace():
    batcher = Batcher(4, 100)
    for predicted_s, measured_s in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0)):
        batcher.record_duration(predicted_s, measured_s)
    assert batcher.slowdown == 1.0


def test_nothing_waits_after_the_last_ticket():
    batcher = Batcher(4, 100)
    for target in TARGETS:
        put(batcher, 1, 1, 1, target=target)
    while batcher.take(0.0).batch:
        pass
    put(batcher, 1)
    assert len(batcher.take(0.0).batch) == 1
    assert (batcher._shares.models.waiting, batcher._target_queues) == (0, {})
