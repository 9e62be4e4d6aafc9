"""The hand-over of trays: every reservation is taken once, alone with its own kind, and nothing waits for nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from freshet_serving.processor.extensions.device_stages.staging_pool import Span, StagingPool

CAPACITY = 8


def spans(staging_pool, *rows, target="m", tag=1):
    return [staging_pool.reserve(target, tag, n, CAPACITY) for n in rows]


def test_writers_fill_one_staging_buffer_for_one_reader():
    staging_pool = StagingPool(2)
    first, second = spans(staging_pool, 3, 4)
    assert (first, second) == (Span(1, 0, 3, True), Span(1, 3, 4, False))
    assert staging_pool.take() is None
    assert not staging_pool.mark_filled(second)
    assert staging_pool.mark_filled(first)
    assert staging_pool.take() == 1
    assert not staging_pool.busy


def test_waiting_reader_closes_the_staging_buffer_to_later_writers():
    staging_pool = StagingPool(2)
    (early,) = spans(staging_pool, 3)
    assert staging_pool.take() is None
    (late,) = spans(staging_pool, 3)
    assert late.staging != early.staging
    assert staging_pool.mark_filled(early)
    assert staging_pool.take() == early.staging


def test_staging_buffer_fills_up_without_a_reader():
    staging_pool = StagingPool(2)
    taken = spans(staging_pool, 3, 3, 2, 1)
    assert [span.staging for span in taken] == [1, 1, 1, 0]
    assert [staging_pool.mark_filled(span) for span in taken] == [False, False, True, True]
    assert [staging_pool.take(), staging_pool.take()] == [1, 0]


def test_staging_buffer_that_fails_to_open_is_free_again():
    staging_pool = StagingPool(1)
    for rows in (1, CAPACITY):
        (span,) = spans(staging_pool, rows)
        staging_pool.abandon(span)
        assert not staging_pool.busy
        assert staging_pool.take() is None
    assert spans(staging_pool, 1) == [Span(0, 0, 1, True)]


class Machine(RuleBasedStateMachine):
    """Writers and readers in any order, and a plain account of what every tray holds."""

    def __init__(self):
        super().__init__()
        self.staging_pool = StagingPool(3)
        self.publish_seq = 0
        self.unfilled, self.waiting, self.taken = [], {}, {}
        self.reserved = self.read = 0

    @rule(model=st.sampled_from("ab"), rows=st.integers(1, CAPACITY))
    def reserve(self, model, rows):
        span = self.staging_pool.reserve(model, self.publish_seq, rows, CAPACITY)
        if span is None:
            assert len(self.waiting) + len(self.taken) == 3
            return
        assert span.staging not in self.taken
        kept = self.waiting.setdefault(span.staging, [])
        assert span.opens == (not kept)
        assert span.first == sum(other.rows for _, other in kept)
        assert span.first + span.rows <= CAPACITY
        assert {kind for kind, _ in kept} <= {(model, self.publish_seq)}
        kept.append(((model, self.publish_seq), span))
        self.unfilled.append(span)
        self.reserved += 1

    @rule()
    def publishes(self):
        self.publish_seq += 1

    @precondition(lambda self: self.unfilled)
    @rule(data=st.data())
    def fill(self, data):
        span = self.unfilled.pop(data.draw(st.integers(0, len(self.unfilled) - 1)))
        self.staging_pool.mark_filled(span)

    @rule()
    def take(self):
        staging = self.staging_pool.take()
        if staging is None:
            # Nothing could be: every tray that holds something is still being filled.
            written = {span.staging for span in self.unfilled}
            assert set(self.waiting) <= written
            return
        spans = self.waiting.pop(staging)
        assert not any(span.staging == staging for span in self.unfilled)
        self.taken[staging] = spans
        self.read += len(spans)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def release(self, data):
        staging = data.draw(st.sampled_from(sorted(self.taken)))
        del self.taken[staging]
        self.staging_pool.release(staging)

    @invariant()
    def every_span_is_in_one_place(self):
        assert self.reserved == self.read + sum(len(spans) for spans in self.waiting.values())
        assert self.staging_pool.busy == bool(self.waiting)

    def teardown(self):
        for span in self.unfilled:
            self.staging_pool.mark_filled(span)
        while (staging := self.staging_pool.take()) is not None:
            self.read += len(self.waiting.pop(staging))
            self.staging_pool.release(staging)
        assert self.read == self.reserved
        assert not self.staging_pool.busy


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestHandover = Machine.TestCase


@given(st.lists(st.integers(1, CAPACITY), max_size=20))
def test_staging_buffers_are_read_in_the_order_they_became_ready(rows):
    staging_pool = StagingPool(len(rows) + 1)
    ready = []
    for n in rows:
        (span,) = spans(staging_pool, n)
        staging_pool.mark_filled(span)
        if span.opens:
            ready.append(span.staging)
    assert [staging_pool.take() for _ in ready] == ready
    assert staging_pool.take() is None
