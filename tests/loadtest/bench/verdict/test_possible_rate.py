import math

import numpy as np
import pytest

from loadtest.bench.verdict.possible_rate import possible, sojourns


def test_query_waits_only_for_earlier_queries():
    gaps = np.array([0.0, 1.0, 1.0, 10.0, 0.5])
    services = np.array([3.0, 1.0, 1.0, 2.0, 1.0])
    assert sojourns(gaps, services).tolist() == [3.0, 3.0, 3.0, 2.0, 2.5]


def test_possible_rate_is_that_of_a_constant_service_queue():
    rate = possible({100: 0.010}, {100: 1}, 1, 0.041, 0.99)
    assert done_within(0.041 - 0.010, 0.010, rate) == pytest.approx(0.99, abs=0.002)


def done_within(wait_s, service_s, rate):
    """The share of an M/D/1 queue's customers that wait no longer (Erlang, 1909)."""
    load, t = rate * service_s, wait_s / service_s
    return (1 - load) * sum(
        (-load * (t - k)) ** k / math.factorial(k) * math.exp(load * (t - k)) for k in range(int(t) + 1)
    )


def test_more_cores_or_latency_allowance_raise_the_possible_rate():
    service_s, shares = {100: 0.01, 700: 0.07}, {100: 9, 700: 1}
    one = possible(service_s, shares, 1, 0.2, 0.99)
    assert possible(service_s, shares, 2, 0.2, 0.99) > 2 * one
    assert possible(service_s, shares, 1, 0.4, 0.99) > one
    assert one < 1 / 0.016


def test_possible_rate_is_zero_when_large_queries_are_late():
    assert possible({100: 0.01, 700: 0.07}, {100: 9, 700: 1}, 1, 0.06, 0.99) < 1e-3
