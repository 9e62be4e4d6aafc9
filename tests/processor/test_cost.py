"""Covers: enough rows, padding at the end only, and no cheaper cover exists."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.cost import CostTable

costs = st.integers(1, 200).map(lambda c: c / 8)
ladders = st.dictionaries(st.integers(1, 12), costs, min_size=1, max_size=4)


def cheapest(cost, rows):
    """By trying every multiset of buckets that could matter."""
    best = float("inf")
    for count in range(1, rows + 1):
        for cover in itertools.combinations_with_replacement(sorted(cost), count):
            if sum(cover) >= rows:
                best = min(best, sum(cost[b] for b in cover))
    return best


def check(cover, cost, rows):
    assert set(cover) <= cost.keys()
    assert cover == sorted(cover, reverse=True)
    assert sum(cover) >= rows
    assert sum(cover[:-1]) < rows


@settings(max_examples=120, deadline=None)
@given(cost=ladders, rows=st.integers(1, 200))
def test_a_cover_holds_all_rows_and_pads_only_its_last_bucket(cost, rows):
    check(CostTable(cost).cover(rows), cost, rows)


@settings(max_examples=60, deadline=None)
@given(cost=st.dictionaries(st.integers(1, 7), costs, min_size=1, max_size=3))
def test_up_to_the_largest_bucket_no_cover_is_cheaper(cost):
    table = CostTable(cost)
    for rows in range(1, table.max_rows + 1):
        assert sum(cost[b] for b in table.cover(rows)) == cheapest(cost, rows)


@settings(max_examples=60, deadline=None)
@given(cost=ladders, rows=st.integers(1, 12), whole=st.integers(1, 5))
def test_beyond_the_largest_bucket_the_rest_is_covered_as_by_itself(cost, rows, whole):
    table = CostTable(cost)
    if rows <= table.max_rows:
        assert table.cover(whole * table.max_rows + rows) == [table.max_rows] * whole + table.cover(rows)


def test_65_rows_run_as_64_and_1_rather_than_padded_to_256():
    table = CostTable({1: 10, 64: 100, 256: 380})
    assert table.cover(65) == [64, 1]
    assert table.cover(64) == [64]
    assert table.cover(63) == [64]
    assert table.cover(3) == [1, 1, 1]
    assert table.cover(255) == [256]
    assert table.cover(256) == [256]
    assert table.cover(257) == [256, 1]


def test_a_full_batch_is_split_too_where_its_bucket_is_dearer_than_smaller_ones():
    table = CostTable({1: 1, 64: 10, 256: 100})
    assert table.cover(255) == [64] * 4
    assert table.cover(256) == [64] * 4


def test_where_padding_is_cheaper_than_another_run_it_pads():
    assert CostTable({1: 50, 64: 100, 256: 120}).cover(65) == [256]


def test_a_queue_is_priced_by_the_bucket_that_is_cheapest_a_row():
    table = CostTable({1: 10.0, 64: 100.0, 256: 600.0})
    assert table.total(640) == pytest.approx(1000.0)
    assert table.total(0) == 0.0


def test_no_rows_need_no_bucket():
    assert CostTable({4: 1.0}).cover(0) == []


def test_one_bucket_covers_everything():
    assert CostTable({4: 1.0}).cover(9) == [4, 4, 4]


@pytest.mark.parametrize("cost", [{}, {0: 1.0}, {-1: 1.0, 4: 1.0}])
def test_a_table_without_a_usable_bucket_is_refused(cost):
    with pytest.raises(ValueError, match="at least one bucket of 1 or more rows"):
        CostTable(cost)
