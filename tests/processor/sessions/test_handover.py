"""The hand-over of trays: every reservation is taken once, alone with its own kind, and nothing waits for nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from freshet_serving.processor.sessions.handover import Handover, Span

CAPACITY = 8


def spans(handover, *rows, target="m", tag=1):
    return [handover.reserve(target, tag, n, CAPACITY) for n in rows]


def test_writers_fill_one_tray_side_by_side_and_a_reader_takes_it_whole():
    handover = Handover(2)
    first, second = spans(handover, 3, 4)
    assert (first, second) == (Span(1, 0, 3, True), Span(1, 3, 4, False))
    assert handover.take() is None
    assert not handover.filled(second)
    assert handover.filled(first)
    assert handover.take() == 1
    assert not handover.busy


def test_a_reader_that_waits_closes_the_tray_to_those_who_come_later():
    handover = Handover(2)
    (early,) = spans(handover, 3)
    assert handover.take() is None
    (late,) = spans(handover, 3)
    assert late.tray != early.tray
    assert handover.filled(early)
    assert handover.take() == early.tray


def test_without_a_reader_a_tray_fills_up():
    handover = Handover(2)
    taken = spans(handover, 3, 3, 2, 1)
    assert [span.tray for span in taken] == [1, 1, 1, 0]
    assert [handover.filled(span) for span in taken] == [False, False, True, True]
    assert [handover.take(), handover.take()] == [1, 0]


def test_another_tag_or_target_never_shares_a_tray():
    handover = Handover(3)
    (old,) = spans(handover, 1)
    (new,) = spans(handover, 1, tag=2)
    (other,) = spans(handover, 1, target="n", tag=2)
    assert len({old.tray, new.tray, other.tray}) == 3


def test_who_finds_no_tray_free_comes_again_when_one_is():
    handover = Handover(1)
    (full,) = spans(handover, CAPACITY)
    assert spans(handover, 1) == [None]
    handover.filled(full)
    assert handover.take() == full.tray
    assert spans(handover, 1) == [None]
    handover.give_back(full.tray)
    assert spans(handover, 1) == [Span(0, 0, 1, True)]


def test_a_tray_that_could_not_be_opened_is_free_again():
    handover = Handover(1)
    for rows in (1, CAPACITY):
        (span,) = spans(handover, rows)
        handover.abandon(span)
        assert not handover.busy
        assert handover.take() is None
    assert spans(handover, 1) == [Span(0, 0, 1, True)]


class Machine(RuleBasedStateMachine):
    """Writers and readers in any order, and a plain account of what every tray holds."""

    def __init__(self):
        super().__init__()
        self.handover = Handover(3)
        self.flip = 0
        self.unfilled, self.waiting, self.taken = [], {}, {}
        self.reserved = self.read = 0

    @rule(model=st.sampled_from("ab"), rows=st.integers(1, CAPACITY))
    def reserve(self, model, rows):
        span = self.handover.reserve(model, self.flip, rows, CAPACITY)
        if span is None:
            assert len(self.waiting) + len(self.taken) == 3
            return
        assert span.tray not in self.taken
        kept = self.waiting.setdefault(span.tray, [])
        assert span.opens == (not kept)
        assert span.first == sum(other.rows for _, other in kept)
        assert span.first + span.rows <= CAPACITY
        assert {kind for kind, _ in kept} <= {(model, self.flip)}
        kept.append(((model, self.flip), span))
        self.unfilled.append(span)
        self.reserved += 1

    @rule()
    def flips(self):
        self.flip += 1

    @precondition(lambda self: self.unfilled)
    @rule(data=st.data())
    def fill(self, data):
        span = self.unfilled.pop(data.draw(st.integers(0, len(self.unfilled) - 1)))
        self.handover.filled(span)

    @rule()
    def take(self):
        tray = self.handover.take()
        if tray is None:
            # Nothing could be: every tray that holds something is still being filled.
            written = {span.tray for span in self.unfilled}
            assert set(self.waiting) <= written
            return
        spans = self.waiting.pop(tray)
        assert not any(span.tray == tray for span in self.unfilled)
        self.taken[tray] = spans
        self.read += len(spans)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data):
        tray = data.draw(st.sampled_from(sorted(self.taken)))
        del self.taken[tray]
        self.handover.give_back(tray)

    @invariant()
    def every_span_is_in_one_place(self):
        assert self.reserved == self.read + sum(len(spans) for spans in self.waiting.values())
        assert self.handover.busy == bool(self.waiting)

    def teardown(self):
        for span in self.unfilled:
            self.handover.filled(span)
        while (tray := self.handover.take()) is not None:
            self.read += len(self.waiting.pop(tray))
            self.handover.give_back(tray)
        assert self.read == self.reserved
        assert not self.handover.busy


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHandover = Machine.TestCase


@given(st.lists(st.integers(1, CAPACITY), max_size=20))
def test_trays_are_read_in_the_order_in_which_they_were_ready(rows):
    handover = Handover(len(rows) + 1)
    ready = []
    for n in rows:
        (span,) = spans(handover, n)
        handover.filled(span)
        if span.opens:
            ready.append(span.tray)
    assert [handover.take() for _ in ready] == ready
    assert handover.take() is None
