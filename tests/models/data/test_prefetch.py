"""Work done ahead: everything once and in order, never further ahead than it may, and no thread left behind."""

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.data.prefetch import PrefetchPipeline


def ahead_threads():
    return [t for t in threading.enumerate() if t.name == "ahead"]


@settings(deadline=None, max_examples=60)
@given(
    items=st.lists(st.integers(), max_size=20),
    stages=st.integers(0, 3),
    depth=st.integers(1, 3),
    taken=st.one_of(st.none(), st.integers(0, 20)),
    fails_at=st.one_of(st.none(), st.integers(0, 20)),
    fails_in=st.integers(0, 3),
)
def test_items_arrive_once_in_order_until_an_error_or_close(items, stages, depth, taken, fails_at, fails_in):
    def source():
        for n, item in enumerate(items):
            if n == fails_at and fails_in == 0:
                raise KeyError(n)
            yield n, [item]

    def make(number):
        def work(numbered):
            n, passed = numbered
            if n == fails_at and fails_in == number:
                raise KeyError(n)
            return n, [*passed, number]

        return work

    fails = fails_at is not None and fails_in <= stages and fails_at < len(items)
    whole = [(n, [item, *range(1, stages + 1)]) for n, item in enumerate(items[:fails_at] if fails else items)]
    found, error = [], None
    with PrefetchPipeline(source(), *(make(n + 1) for n in range(stages)), depth=depth) as ahead:
        try:
            while taken is None or len(found) < taken:
                found.append(next(ahead))
        except StopIteration:
            assert not fails
        except KeyError as raised:
            error = raised
            assert list(ahead) == []
    assert found == (whole if taken is None else whole[:taken])
    assert (error is not None) == (fails and (taken is None or taken > len(whole)))
    assert ahead_threads() == []


def test_stages_run_ahead_only_by_their_queue_length():
    read, one_more = [], threading.Semaphore(0)

    def source():
        for n in range(20):
            read.append(n)
            one_more.release()
            yield n

    # One in hand and two in the queue of each of the two threads.
    with PrefetchPipeline(source(), lambda n: n, depth=2) as ahead:
        for n in range(20):
            for _ in range(6 if n == 0 else n < 15):
                assert one_more.acquire(timeout=60)
            assert len(read) == min(20, n + 6)
            assert next(ahead) == n


def test_source_generator_is_closed_when_consumption_stops():
    closed = threading.Event()

    def source():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with PrefetchPipeline(source()) as ahead:
        assert next(ahead) == 1
    assert closed.is_set()
