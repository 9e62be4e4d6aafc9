"""Whatever the threads, items come as if one task had run after another."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.data.ordered_prefetch import ordered_prefetch


class Broken(Exception):
    pass


def task(items, held=None):
    def run():
        for item in items:
            if item is None:
                raise Broken
            if held is not None:
                held.append(item)
            yield item

    return run


def taken(items):
    """What comes of an iterator before it ends or breaks, and whether it broke."""
    found = []
    try:
        for item in items:
            found.append(item)
    except Broken:
        return found, True
    return found, False


def readers():
    return [t for t in threading.enumerate() if t.name == "freshet-reading"]


@settings(max_examples=40, deadline=None)
@given(
    tasks=st.lists(st.lists(st.none() | st.integers(0, 9), max_size=6), max_size=8),
    threads=st.integers(1, 5),
    most=st.integers(0, 12),
)
def test_items_and_errors_arrive_in_task_order(tasks, threads, most):
    one_after_another = taken(item for t in tasks for item in task(t)())

    assert taken(ordered_prefetch(map(task, tasks), threads, lambda item: item, most)) == one_after_another
    assert readers() == []


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6), threads=st.integers(2, 4), taken=st.integers(0, 9))
def test_stopping_early_leaves_no_thread_behind(lengths, threads, taken):
    items = ordered_prefetch((task(range(n)) for n in lengths), threads, lambda item: 1, 2)
    for _ in zip(range(taken), items):
        pass
    items.close()

    assert readers() == []


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_prefetched_items_are_limited_per_thread(threads):
    begun = []
    items = ordered_prefetch((task(range(1000), begun) for _ in range(10)), threads, lambda item: 1, 4)
    next(items)
    # Each lane holds four items that wait and one in its thread's hand; the caller has one.
    assert len(begun) <= threads * 5 + 1
    items.close()


def test_task_creation_error_is_raised_in_order():
    def tasks():
        yield task([1, 2])
        raise Broken

    assert taken(ordered_prefetch(tasks(), 3, lambda item: 1, 9)) == ([1, 2], True)
    assert taken(ordered_prefetch(tasks(), 1, lambda item: 1, 9)) == ([1, 2], True)


def test_several_tasks_run_concurrently():
    together = threading.Barrier(2, timeout=30)

    def waits():
        together.wait()
        yield 1

    assert list(ordered_prefetch(iter([waits, waits]), 2, lambda item: 1, 1)) == [1, 1]
