"""Predicted latencies: how they depend on cores, load and batches."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.extensions.core_planner.queueing import Load


def linear(run_s, request_s):
    return lambda requests: run_s + requests * request_s


def test_idle_cores_answer_in_the_time_that_computing_takes():
    assert Load(10.0, linear(0.0, 0.001)).response_p99_s(8) == pytest.approx(0.001)


def test_group_without_requests_takes_no_time():
    assert Load().response_p99_s(1) == 0.0


def test_more_work_than_cores_takes_forever():
    assert Load(2000.0, linear(0.0, 0.001)).response_p99_s(2) == math.inf


def test_larger_batches_do_what_single_requests_could_not():
    batched, single = Load(2000.0, linear(0.0009, 0.0001), 32.0), Load(2000.0, linear(0.0009, 0.0001), 1.0)
    assert single.response_p99_s(1) == math.inf
    assert 0.001 < batched.response_p99_s(1) < 0.02


def test_prediction_is_multiplied_by_its_correction():
    loads = [Load(500.0, linear(0.0, 0.001), correction=correction) for correction in (1.0, 2.0)]
    assert loads[1].response_p99_s(1) == pytest.approx(2 * loads[0].response_p99_s(1))


@given(
    rate=st.floats(0.1, 1e5),
    run_s=st.floats(0, 0.01),
    request_s=st.floats(1e-5, 0.01),
    most=st.integers(1, 64),
    cores=st.integers(1, 63),
)
def test_prediction_is_at_least_what_one_request_takes(rate, run_s, request_s, most, cores):
    load = Load(rate, linear(run_s, request_s), float(most))
    assert load.response_p99_s(cores) >= run_s + request_s
    assert math.isinf(load.response_p99_s(cores)) == (load.least_busy >= cores)
