"""The ladder is the cheapest there is, and padding is all that it costs."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.compiler.building.bucket_list import MAX_SIZES, bucket_list, interpolated
from freshet_serving.processor.errors import BadInput

samples = st.lists(st.integers(1, 12), min_size=1, max_size=30)


@st.composite
def costs(draw):
    """Costs that do not fall with the rows."""
    steps = draw(st.lists(st.integers(0, 40), min_size=12, max_size=12))
    sums = list(itertools.accumulate(steps, initial=1))
    return lambda rows: float(sums[min(rows, 12)])


def expected_cost(rows, buckets, cost):
    """The sum that bucket_list() minimises."""
    ascending = sorted(buckets)
    spent = 0.0
    for size in rows:
        whole, rest = divmod(size, ascending[-1])
        spent += whole * cost(ascending[-1])
        if rest:
            spent += cost(next(bucket for bucket in ascending if bucket >= rest))
    return spent


@settings(max_examples=60, deadline=None)
@given(samples, st.integers(1, 4), costs())
def test_chosen_bucket_list_has_the_lowest_cost(rows, most, cost):
    found = bucket_list(rows, most, cost)
    assert found == sorted(set(found))
    assert len(found) <= most
    assert found[-1] >= max(rows)
    spent = expected_cost(rows, found, cost)
    others = itertools.chain.from_iterable(itertools.combinations(range(1, 13), n) for n in range(1, most + 1))
    assert spent == min(expected_cost(rows, o, cost) for o in others if o[-1] >= max(rows))


@settings(max_examples=25, deadline=None)
@given(samples, costs())
def test_more_buckets_never_cost_more(rows, cost):
    spent = [expected_cost(rows, bucket_list(rows, most, cost), cost) for most in range(1, 6)]
    assert spent == sorted(spent, reverse=True)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=20), st.integers(1, 4), st.integers(1, 32))
def test_buckets_respect_the_maximum_and_cover_every_request(rows, most, largest):
    found = bucket_list(rows, most, lambda n: 1.0 + n, max_bucket=largest)
    assert found[-1] <= largest
    assert expected_cost(rows, found, lambda n: 1.0 + n) >= sum(rows)


def test_traffic_with_two_sizes_gets_two_buckets():
    assert bucket_list([64] * 90 + [5] * 10, 2, lambda n: 10 + n) == [5, 64]
    assert bucket_list([64] * 90 + [5] * 10, 1, lambda n: 10 + n) == [64]


def test_free_padding_needs_only_one_bucket():
    assert expected_cost([1, 7, 30], bucket_list([1, 7, 30], 3, lambda n: 1.0), lambda n: 1.0) == 3.0


def test_sample_with_many_sizes_is_rounded_up_and_covered():
    rows = list(range(1, 4 * MAX_SIZES))
    found = bucket_list(rows, 3, lambda n: 50.0 + n, max_bucket=1 << 16)
    assert found[-1] == rows[-1]
    assert len(found) == 3


@pytest.mark.parametrize(
    ("rows", "most", "message"),
    [
        ([], 3, "sample: expected at least one request"),
        ([0, 4], 3, "sample: expected 1 to 1048576 rows a request, got 0 to 4"),
        ([1 << 30], 3, "sample: expected 1 to 1048576 rows"),
        ([4], 0, "buckets: expected 1 or more"),
    ],
)
def test_invalid_sample_is_refused(rows, most, message):
    with pytest.raises(BadInput, match=message):
        bucket_list(rows, most, float)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(1, 500), st.floats(0.1, 1e4), min_size=1, max_size=6), st.integers(1, 2000))
def test_interpolated_cost_is_monotonic_and_meets_the_measurements(measured, rows):
    cost = interpolated(measured)
    assert cost(rows + 1) >= cost(rows) * (1 - 1e-9)
    for at, value in measured.items():
        assert cost(at) >= value * (1 - 1e-9)
    with pytest.raises(BadInput, match="expected at least one"):
        interpolated({})
