"""Covers: enough rows, padding at the end only, and no cheaper cover exists."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.running import cost as cost_module
from freshet_serving.processor.running.cost import CostTable

costs = st.integers(1, 200).map(lambda c: c / 8)
ladders = st.dictionaries(st.integers(1, 12), costs, min_size=1, max_size=4)


def cheapest(cost, rows):
    """By trying every multiset of buckets that could matter."""
    best = float("inf")
    for count in range(1, rows + 1):
        for bucket_plan in itertools.combinations_with_replacement(sorted(cost), count):
            if sum(bucket_plan) >= rows:
                best = min(best, sum(cost[b] for b in bucket_plan))
    return best


def check(bucket_plan, cost, rows):
    assert set(bucket_plan) <= cost.keys()
    assert list(bucket_plan) == sorted(bucket_plan, reverse=True)
    assert sum(bucket_plan) >= rows
    assert sum(bucket_plan[:-1]) < rows


@settings(max_examples=120, deadline=None)
@given(cost=ladders, rows=st.integers(1, 200))
def test_bucket_plan_holds_all_rows_and_pads_only_the_last(cost, rows):
    check(CostTable(cost).bucket_plan(rows), cost, rows)


@settings(max_examples=60, deadline=None)
@given(cost=st.dictionaries(st.integers(1, 7), costs, min_size=1, max_size=3))
def test_bucket_plan_is_cheapest_up_to_the_largest_bucket(cost):
    table = CostTable(cost)
    for rows in range(1, table.max_rows + 1):
        assert sum(cost[b] for b in table.bucket_plan(rows)) == cheapest(cost, rows)


@settings(max_examples=60, deadline=None)
@given(cost=ladders, rows=st.integers(1, 12), whole=st.integers(1, 5))
def test_rows_beyond_the_largest_bucket_are_planned_separately(cost, rows, whole):
    table = CostTable(cost)
    if rows <= table.max_rows:
        assert table.bucket_plan(whole * table.max_rows + rows) == (table.max_rows,) * whole + table.bucket_plan(rows)


def test_65_rows_run_as_64_and_1_instead_of_256():
    table = CostTable({1: 10, 64: 100, 256: 380})
    assert table.bucket_plan(65) == (64, 1)
    assert table.bucket_plan(64) == (64,)
    assert table.bucket_plan(63) == (64,)
    assert table.bucket_plan(3) == (1, 1, 1)
    assert table.bucket_plan(255) == (256,)
    assert table.bucket_plan(256) == (256,)
    assert table.bucket_plan(257) == (256, 1)
    assert table.bucket_plan(0) == ()


def test_amortised_cost_uses_the_cheapest_batch_and_is_additive():
    table = CostTable({1: 10.0, 64: 100.0, 256: 600.0})
    assert table.amortised_s(640) == pytest.approx(1000.0, rel=1e-6)
    assert table.amortised_s(0) == 0.0
    assert table.amortised_s(3, 5) + table.amortised_s(4, 6) == pytest.approx(table.amortised_s(7, 11))


def test_batch_cost_is_its_bucket_plan_plus_rows_and_ids():
    table = CostTable({1: 10.0, 64: 100.0})
    assert table.batch_s(65) == pytest.approx(110.0, rel=1e-4)
    assert table.batch_s(130) == pytest.approx(220.0, rel=1e-4)
    extra_s = table.batch_s(65, 1000) - table.batch_s(65)
    assert extra_s == pytest.approx(1000 * table.id_s)
    assert table.batch_s(0) == 0.0


def test_rows_are_split_while_parts_cost_little_more_than_one():
    table = CostTable({1: 1.0, 4: 1.5, 16: 5.0})
    assert [table.splits(rows, 3) for rows in (1, 2, 4, 7, 8, 9, 12, 1000)] == [1, 1, 1, 2, 2, 3, 3, 3]
    # Free of any extra cost: 8 rows run as 4 and 4 anyway.
    assert table.splits(8, 3, worth=1.0) == 2
    assert table.splits(5, 3, worth=1.0) == 1
    assert table.splits(1000, 1) == 1


@settings(max_examples=60, deadline=None)
@given(cost=ladders, rows=st.integers(1, 300), most=st.integers(1, 40))
def test_split_parts_stay_within_their_cost_limit(cost, rows, most):
    table = CostTable(cost)
    parts = table.splits(rows, most)
    assert 1 <= parts <= min(rows, most)
    assert parts == 1 or parts * table.batch_s(-(-rows // parts)) <= cost_module.WORTH * table.batch_s(rows)


@settings(max_examples=60, deadline=None)
@given(cost=ladders)
def test_one_outlier_moves_a_cost_slightly_and_keeps_the_plan(cost):
    table = CostTable(cost)
    bucket_plans = [table.bucket_plan(rows) for rows in range(table.max_rows + 1)]
    for bucket in cost:
        before = table.cost[bucket]
        table.record_run(bucket, 1000 * before)
        assert before < table.cost[bucket] < 1.04 * before
    assert bucket_plans == [table.bucket_plan(rows) for rows in range(table.max_rows + 1)]


def test_lasting_cost_change_changes_the_bucket_plan():
    table = CostTable({1: 10.0, 64: 100.0, 256: 380.0})
    for _ in range(200):
        table.record_run(64, 380.0)
    assert table.cost[64] == pytest.approx(380.0, rel=0.05)
    assert table.bucket_plan(130) == (256,)
    assert table.batch_s(64) > 300.0


def test_exploration_corrects_a_disturbed_bucket_calibration():
    table = CostTable({64: 1.0, 256: 8.0})
    assert table.bucket_plan(200) == (64,) * 4
    assert table.explore(200) == (256,)
    for _ in range(8):
        table.record_run(256, 3.0)
    assert table.bucket_plan(200) == (256,)
    assert table.explore(300) == table.bucket_plan(300)


def test_zero_duration_run_does_not_change_costs():
    table = CostTable({1: 10.0})
    table.record_run(1, 0.0)
    table.record_fill(1, 1, 1, 0.0)
    assert table.cost == {1: 10.0}
    assert (table.run_s, table.row_s, table.id_s) == (cost_module.RUN_S, cost_module.ROW_S, cost_module.ID_S)


def test_sparse_cost_is_learnt_for_all_batch_shapes():
    table, random = CostTable({256: 1.0}), np.random.default_rng(0)

    def truth(rows, ids):
        return 5e-5 + 2e-7 * rows + 9e-8 * ids

    for _ in range(3000):
        rows = int(random.integers(1, 257))
        ids = rows * int(random.integers(1, 60))
        table.record_fill(
            1, rows, ids, truth(rows, ids) * random.choice([1.0, 1.0, 1.0, 30.0], p=[0.4, 0.3, 0.29, 0.01])
        )
    for rows, ids in [(1, 26), (64, 26 * 64), (256, 26 * 256), (256, 60 * 256), (16, 16)]:
        learnt = table.run_s + rows * table.row_s + ids * table.id_s
        assert learnt == pytest.approx(truth(rows, ids), rel=0.35)


@pytest.mark.parametrize(
    ("cost", "rows", "ids", "piece"),
    [
        ({256: 0.005}, 65536, 26 * 65536, 256),
        # Buckets that are quicker than a turn go together, up to a batch.
        ({64: 0.001}, 65536, 0, 256),
        ({64: 0.008}, 65536, 0, 128),
        ({64: 0.5}, 65536, 0, 64),
        ({1024: 0.005}, 65536, 0, 256),
        # 400,000 ids take a turn, or as long as the largest bucket does.
        ({256: 0.005}, 1000, 4_000_000, 100),
        ({256: 0.1}, 1000, 4_000_000, 256),
        ({256: 0.005}, 2, 1 << 40, 1),
    ],
)
def test_chunk_is_a_bucket_or_fits_into_one_turn(cost, rows, ids, piece):
    assert CostTable(cost).chunk_rows(rows, ids, 256) == piece


@pytest.mark.parametrize("cost", [{}, {0: 1.0}, {-1: 1.0, 4: 1.0}])
def test_table_without_a_usable_bucket_is_refused(cost):
    with pytest.raises(ValueError, match="expected at least one of 1 or more rows"):
        CostTable(cost)


def test_exploration_tries_a_dear_bucket_only_when_rows_fill_it():
    table = CostTable({16: 1.0, 64: 100.0, 256: 900.0})
    assert table.bucket_plan(64) == (16,) * 4
    assert [table.explore(rows) for rows in (63, 64, 65)] == [(64,), (64,), (256,)]


@pytest.mark.parametrize(
    ("buckets", "rows", "sessions", "most", "chunk"),
    [
        ((1, 4, 64, 128, 192, 256), 700, 2, 256, 175),
        ((1, 4, 64, 128, 192, 256), 1000, 2, 256, 250),
        ((1, 4, 64, 128, 192, 256), 200, 2, 256, 100),
        ((1, 4, 64, 128, 192, 256), 100, 1, 256, 100),
        # Full ones, where even ones need dearer buckets.
        ((1, 4), 9, 1, 4, 4),
        ((1, 4), 10, 2, 4, 4),
    ],
)
def test_balanced_chunks_leave_no_remainder_for_one_session(buckets, rows, sessions, most, chunk):
    seconds = {1: 0.001, 4: 0.0012, 64: 0.006, 128: 0.012, 192: 0.018, 256: 0.024}
    assert CostTable({bucket: seconds[bucket] for bucket in buckets}).balanced_chunk_rows(rows, sessions, most) == chunk


def test_crowded_run_updates_its_cost_only_when_it_is_faster():
    costs = CostTable({1: 0.001, 64: 0.010})
    for _ in range(100):
        costs.record_run(64, 0.014, crowded=True)
    assert costs.cost[64] == 0.010
    for _ in range(100):
        costs.record_run(64, 0.008, crowded=True)
    assert costs.cost[64] == pytest.approx(0.008, rel=0.01)
    for _ in range(200):
        costs.record_run(64, 0.010)
    assert costs.cost[64] == pytest.approx(0.010, rel=0.01)


@given(rows=st.integers(1, 5000), sessions=st.integers(1, 8), most=st.sampled_from([1, 7, 64, 256]))
def test_balanced_chunks_respect_the_maximum_and_need_no_extra_turns(rows, sessions, most):
    piece = CostTable({1: 0.001, 64: 0.006, 256: 0.024}).balanced_chunk_rows(rows, sessions, most)
    assert 1 <= piece <= most
    assert -(-rows // (sessions * piece)) == -(-rows // (sessions * most))


@pytest.mark.parametrize(
    ("cost", "seconds", "rows"),
    [
        # Small batches cost no more a row: as few rows as last this long.
        ({1: 0.001, 8: 0.008, 64: 0.064}, 0.005, 8),
        ({1: 0.001, 8: 0.008, 64: 0.064}, 1.0, 64),
        # Small batches cost much more a row: the smallest that does not, however long it takes.
        ({1: 0.005, 8: 0.006, 64: 0.045}, 0.001, 8),
        ({1: 0.9, 256: 1.0}, 0.001, 256),
        ({4: 1.0}, 0.001, 4),
    ],
)
def test_turn_is_as_short_as_costs_little(cost, seconds, rows):
    assert CostTable(cost).turn_rows(seconds) == rows
