"""Simulated cores: every request is served once, in order, when a core is free."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.bench.core_kernels import BATCHES, BINS, BUSY_S, COUNT, DROPPED, LATE, WAITED_S, simulate

COSTS = np.concatenate([[0.0], 0.001 * np.arange(1, 9)])


def served(times, rows, cores, until=100.0, groups=None, most=8, timeout_s=10.0, late_s=0.0025):
    times, rows = np.array(times, np.float64), np.array(rows, np.int64)
    groups = np.zeros(len(times), np.int64) if groups is None else np.array(groups, np.int64)
    count = int(groups.max(initial=0)) + 1
    sums, bins, waiting = np.zeros((count, 6)), np.zeros((count, BINS), np.int64), np.empty(len(times), np.int64)
    left = simulate(
        until, times, groups, rows, waiting, np.zeros(cores), np.stack([COSTS] * count), most, np.full(count, late_s),
        timeout_s, sums, bins,
    )  # fmt: skip
    return sums, bins, waiting[:left].tolist()


def test_idle_core_serves_at_once():
    sums, _, left = served([0.0, 1.0], [1, 2], 1)
    assert sums[0, [COUNT, BATCHES, LATE]].tolist() == [2, 2, 0]
    assert sums[0, BUSY_S] == pytest.approx(0.003)
    assert (sums[0, WAITED_S], left) == (0.0, [])


def test_what_waits_is_one_batch():
    sums, _, _ = served([0.0, 0.0001, 0.0002, 0.0003], [1, 1, 1, 1], 1)
    assert sums[0, BATCHES] == 2


def test_batch_ends_at_its_most_rows():
    sums, _, _ = served([0.0, 0.0001, 0.0002], [1, 5, 5], 1)
    assert sums[0, BATCHES] == 3


def test_larger_request_than_a_batch_is_a_batch():
    sums, _, _ = served([0.0], [20], 1)
    assert sums[0, BUSY_S] == pytest.approx(0.020)


def test_group_that_waits_longest_is_next():
    sums, _, left = served([0.0, 0.0001, 0.0002], [8, 8, 8], 1, groups=[0, 1, 0], until=0.010)
    assert (sums[:, COUNT].tolist(), left) == ([1, 1], [2])


def test_request_that_waits_too_long_is_dropped_and_late():
    sums, _, _ = served([0.0, 0.0001], [8, 1], 1, timeout_s=0.005)
    assert sums[0, [COUNT, DROPPED, LATE]].tolist() == [2, 1, 2]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 0.05), st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=40),
    st.integers(1, 5),
    st.floats(0, 0.06),
)
def test_every_request_is_served_or_left(requests, cores, until):
    requests.sort()
    times, rows, groups = zip(*requests, strict=True)
    sums, bins, left = served(times, rows, cores, until, groups)
    assert int(sums[:, COUNT].sum()) + len(left) == len(requests)
    assert bins.sum() == sums[:, COUNT].sum()
    assert left == sorted(set(left))
