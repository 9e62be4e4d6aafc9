"""What a replica keeps of the requests that it answers: enough rows, of now and then."""

from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.versions.erasure import ErasedUser
from freshet_serving.processor.versions.sample import IDS_OF_ONE, MOST_ROWS, REFRESH_S, ROWS_OF_ONE, RequestSample
from freshet_serving.processor.watching import LEAST_ROWS


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def sample(clock):
    return RequestSample(clock)


def bound(rows, ids=100):
    return SimpleNamespace(rows=rows, ids=ids)


def test_sampling_stops_when_full_and_restarts_later(sample, clock):
    taken = 0
    while sample.wanted:
        sample.take(bound(50))
        taken += 1
    assert taken == MOST_ROWS // ROWS_OF_ONE
    requests, rows = sample.renewed(MOST_ROWS)
    assert (len(requests), rows) == (taken, MOST_ROWS)
    assert not sample.wanted
    clock.advance(REFRESH_S)
    assert sample.renewed(MOST_ROWS)[0] is requests
    assert sample.wanted


def test_request_with_too_many_ids_is_not_sampled(sample):
    sample.take(bound(8, IDS_OF_ONE + 1), {"user": None})
    assert sample.kept() == ()
    assert sample.example is None


def test_few_rows_are_kept_before_they_make_a_sample(sample):
    sample.take(bound(LEAST_ROWS // 8), {"user": None})
    assert sample.renewed(MOST_ROWS) == ((), 0)
    assert [request.rows for request in sample.kept()] == [LEAST_ROWS // 8]
    assert sample.example == {"user": None}


def test_erased_user_is_in_no_sample_and_others_are(clock):
    sample = RequestSample(clock, "m")
    while sample.wanted:
        sample.take(bound(8), {"user": np.array([len(sample.kept()) % 3])})
    sample.renewed(MOST_ROWS)
    clock.advance(REFRESH_S)
    sample.renewed(MOST_ROWS)
    sample.take(bound(8), {"user": np.array([1])})
    before, _ = sample.renewed(MOST_ROWS)
    assert sample.erase_user(ErasedUser("other", ("user",), "1")) == {}
    erased = sample.erase_user(ErasedUser("m", ("user",), "1"))["kept_requests"]
    after, rows = sample.renewed(MOST_ROWS)
    assert erased == len(before) - len(after) + 1 > 1
    assert {int(request.inputs["user"][0]) for request in after} == {0, 2}
    assert rows == sum(request.rows for request in after)
    assert sample.wanted
    assert sample.example is None


def test_requests_that_do_not_say_whose_they_are_are_erased_too(clock):
    sample = RequestSample(clock, "m")
    sample.take(bound(8), {"item": np.array([1])})
    sample.take(bound(8))
    sample.take(bound(8), {"user": np.array([3])})
    assert sample.erase_user(ErasedUser("m", ("user",), "1")) == {"kept_requests": 2}
    assert [request.inputs["user"].tolist() for request in sample.kept()] == [[3]]
