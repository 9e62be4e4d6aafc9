"""A crew calls each call once, tells results in order, and what went wrong."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.training.worker_pool import WorkerPool, even_ranges

CREWS = {size: WorkerPool(size) for size in (1, 2, 4)}


@settings(deadline=None, max_examples=50)
@given(size=st.sampled_from([1, 2, 4]), calls=st.integers(0, 20), alone=st.booleans())
def test_every_call_runs_once_with_its_result_in_place(size, calls, alone):
    called = []

    def make(number):
        def call():
            called.append(number)
            return number * number

        return call

    assert CREWS[size].run([make(n) for n in range(calls)], alone) == [n * n for n in range(calls)]
    assert sorted(called) == list(range(calls))


def test_calls_of_one_run_execute_concurrently():
    both = threading.Barrier(2, timeout=60)
    CREWS[2].run([both.wait, both.wait])


def test_error_is_raised_after_all_calls_finish():
    done = []

    def fail():
        raise ValueError("no")

    for size in (1, 2):
        with pytest.raises(ValueError, match="no"):
            CREWS[size].run([lambda: done.append(1), fail])
    assert done == [1, 1]


def test_cpu_time_of_helper_threads_is_reported():
    worker_pool, both = WorkerPool(2), threading.Barrier(2, timeout=60)
    worker_pool.run([both.wait, both.wait])
    assert worker_pool.helper_cpu_s > 0
    assert CREWS[1].helper_cpu_s == 0


@given(rows=st.integers(1, 1000), parts=st.integers(1, 16))
def test_shares_are_even_and_contain_every_row_once(rows, parts):
    found = even_ranges(rows, parts)
    assert [row for start, stop in found for row in range(start, stop)] == list(range(rows))
    assert len({stop - start for start, stop in found}) <= 2
    assert len(found) == min(rows, parts)
