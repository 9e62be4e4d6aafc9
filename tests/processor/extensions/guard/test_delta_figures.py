"""The figures of a delta: what it changes of rows, of weights and of scores."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from freshet_serving.processor.extensions.guard.delta_figures import (
    GROWTH,
    HOUR_S,
    MANY_ROWS,
    RowLengths,
    delta_figures,
    rank_correlation,
    score_figures,
)
from freshet_serving.processor.package.delta import Delta, TableDelta
from freshet_serving.processor.watching import LEAST_ROWS

NONE = np.empty(0, np.int64)
ROWS = 2000


def stored(dim=4, seed=0):
    return np.random.default_rng(seed).standard_normal((ROWS, dim)).astype(np.float32)


def before(rows):
    def look_up(table, keys):
        known = keys < ROWS
        return known, rows[keys[known]]

    return look_up


def figures_of(keys, rows, old, removed=NONE, dense=None, weights=None, random=0, there=ROWS, longest=0.0):
    tables = {"user": TableDelta(np.asarray(keys, np.int64), np.asarray(rows, np.float32), removed)}
    delta = Delta("m", 1, 1, 0, tables, dense or {})
    # As it is told: with what the delta brings and takes.
    there += int(np.sum(np.asarray(keys) >= ROWS)) - len(removed)
    random = np.random.default_rng(random)
    found = delta_figures(delta, before(old), {"user": there}, weights or {}, random, lambda table, known: longest)
    assert {f.kind for f in found} >= {"new", "removed"}, "none of them is a figure too"
    return {(f.kind, f.what): f.value for f in found if f.value or f.kind not in ("new", "removed")}


def test_delta_without_changes_has_zero_figures():
    old = stored()
    assert figures_of(range(100), old[:100], old) == {("moved", "user"): 0.0, ("size", "user"): 0.0}


def test_new_rows_are_counted_and_do_not_count_as_moved():
    found = figures_of(range(ROWS, ROWS + 100), stored()[:100], stored())
    assert found == {("new", "user"): pytest.approx(100 / MANY_ROWS)}


def test_new_ids_are_counted_for_their_table():
    old, count = stored(), 50_000
    found = figures_of(range(ROWS, ROWS + count), np.zeros((count, 4)), old, there=20_000)
    assert found["new", "user"] == pytest.approx(2.5)
    half = figures_of(range(ROWS // 2, ROWS + ROWS // 2), np.zeros((ROWS, 4)), old)
    assert half["new", "user"] == pytest.approx(ROWS / 2 / MANY_ROWS, rel=0.15)


@given(st.integers(0, 999), st.integers(1, 3000))
def test_one_long_row_is_detected_at_any_position(seed, count):
    rows = np.ones((count, 4), np.float32)
    rows[seed % count] = 1e6
    found = figures_of(range(count), rows, stored(), random=seed, longest=4.0)
    assert found["longest", "user"] == pytest.approx(5e5, rel=1e-5)


def test_sampling_finds_long_rows_that_a_stride_would_miss():
    """1,500 of 2,000 rows, but none that every fourth would show."""
    old = stored()
    new = old.copy()
    new[np.arange(ROWS) % 4 != 0] *= 3
    assert figures_of(range(ROWS), new, old)["moved", "user"] == pytest.approx(2 * 0.75**0.5, rel=0.1)


@given(st.integers(0, 999))
def test_row_order_of_a_delta_changes_figures_only_by_chance(seed):
    old = stored()
    new = old * np.random.default_rng(1).choice([0.5, 1.5], (ROWS, 1)).astype(np.float32)
    order = np.random.default_rng(seed).permutation(ROWS)
    one, other = figures_of(range(ROWS), new, old), figures_of(order, new[order], old, random=seed)
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert other[key] == pytest.approx(value, abs=0.1)


def test_sampled_rows_depend_only_on_the_generator():
    old, new = stored(), stored(seed=1)
    found = [figures_of(range(ROWS), new, old, random=seed)["moved", "user"] for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_zeroed_rows_moved_by_their_full_length():
    old = stored()
    found = figures_of(range(100), np.zeros((100, 4)), old)
    assert found["moved", "user"] == pytest.approx(1.0)
    assert found["size", "user"] > 10


def test_rows_of_a_different_table_moved_but_kept_their_length():
    old = stored()
    found = figures_of(range(1000), stored(seed=1)[:1000], old)
    assert found["moved", "user"] == pytest.approx(2**0.5, rel=0.1)
    assert found["size", "user"] < 0.1


def test_large_delta_is_sampled_across_all_its_rows():
    old = stored()
    new = old.copy()
    new[ROWS // 2 :] *= 2
    assert figures_of(range(ROWS), new, old)["moved", "user"] == pytest.approx(0.7, abs=0.1)


def test_few_rows_report_only_the_longest():
    found = figures_of(range(31), np.full((31, 4), 1e6), stored(), longest=4.0)
    assert found == {("longest", "user"): pytest.approx(5e5)}
    assert figures_of(range(31), np.zeros((31, 4)), stored()) == {}


def test_removed_rows_are_reported_as_a_share_of_the_table():
    found = figures_of(NONE, np.empty((0, 4)), stored(), removed=np.arange(500))
    assert found == {("removed", "user"): 0.25}


def test_few_removals_are_a_large_share_of_a_small_table():
    found = figures_of(NONE, np.empty((0, 4)), stored(), removed=np.arange(31), there=40)
    assert found == {("removed", "user"): 31 / 40}
    tiny = figures_of(NONE, np.empty((0, 4)), stored(), removed=np.arange(2), there=3)
    assert tiny["removed", "user"] < 0.1


def test_share_is_not_reported_for_uncountable_rows():
    found = figures_of(range(ROWS, ROWS + 50), np.ones((50, 4)), stored(), removed=np.arange(31), there=math.inf)
    assert found == {}


def test_dense_weights_move_by_their_combined_length():
    weights = {"a": np.ones((3, 3), np.float32), "b": np.zeros(4, np.float32)}
    dense = {"a": np.ones((3, 3), np.float32), "b": np.full(4, 1.5, np.float32)}
    found = figures_of(NONE, np.empty((0, 4)), stored(), dense=dense, weights=weights)
    assert found == {("dense", ""): pytest.approx(1.0)}


def test_overflowing_numbers_moved_by_the_maximum_distance():
    old = stored()
    assert figures_of(range(100), np.full((100, 4), 3e38), old)["moved", "user"] == 1e6


@given(st.floats(1.01, 3.0), st.integers(0, 100))
def test_scaled_scores_moved_by_their_factor(times, seed):
    scores = np.random.default_rng(seed).random((64, 1)).astype(np.float32)
    found = {f.kind: f.value for f in score_figures({"s": scores}, {"s": (scores * times).astype(np.float32)})}
    assert found["bias"] == pytest.approx(times - 1, rel=1e-3)
    assert found["spread"] == pytest.approx(np.log(times), rel=1e-3)
    assert found["disorder"] < 0.01
    assert found["nonfinite"] == 0


def test_new_non_finite_scores_are_reported_and_others_compared():
    old = np.linspace(0, 1, 64, dtype=np.float32)
    new = old.copy()
    new[:16] = np.nan
    found = {f.kind: f.value for f in score_figures({"s": old}, {"s": new})}
    assert found["nonfinite"] == 0.25
    assert found["bias"] == found["disorder"] == 0


def test_previously_non_finite_scores_are_not_a_change():
    old = np.full(64, np.nan, np.float32)
    assert [f.value for f in score_figures({"s": old}, {"s": old})] == [0.0]


def test_equal_scores_have_no_rank_order():
    old = np.full(64, 0.5, np.float32)
    found = {f.kind: f.value for f in score_figures({"s": old}, {"s": old + np.float32(0.05)})}
    assert found == {"nonfinite": 0.0, "bias": pytest.approx(0.1, rel=1e-3), "evidence": 1.0}


def test_four_repeated_rows_count_as_evidence_of_four():
    old = np.tile(np.array([0.1, 0.2, 0.3, 0.4], np.float32), 16)
    found = {f.kind: f.value for f in score_figures({"s": old}, {"s": 2 * old})}
    assert found.keys() == {"nonfinite", "bias", "spread", "disorder", "evidence"}
    assert found["evidence"] == pytest.approx(4)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60).filter(lambda counts: sum(counts) >= LEAST_ROWS))
def test_repeated_rows_count_as_less_evidence(counts):
    old = np.repeat(np.linspace(0.1, 0.9, len(counts)), counts).astype(np.float32)
    found = {f.kind: f.value for f in score_figures({"s": old}, {"s": old})}
    assert 1 <= found["evidence"] <= len(counts) * (1 + 1e-9)
    assert (found["evidence"] == pytest.approx(len(counts))) == (len(set(counts)) == 1)


def test_one_row_dominating_the_traffic_counts_as_hardly_more():
    old = np.concatenate([np.full(200, 0.5), np.linspace(0, 0.4, 56)]).astype(np.float32)
    found = {f.kind: f.value for f in score_figures({"s": old}, {"s": old})}
    assert 1 < found["evidence"] < 2


def test_rows_distinguished_by_any_output_or_state_are_different():
    alike, apart = np.full(64, 0.5, np.float32), np.linspace(0, 1, 64, dtype=np.float32)
    for before, after in (
        ({"a": alike, "b": apart}, {"a": alike, "b": apart}),
        ({"a": alike}, {"a": apart}),
        ({"a": apart}, {"a": alike}),
    ):
        found = {f.kind: f.value for f in score_figures(before, after)}
        assert found["evidence"] == pytest.approx(64)


@settings(max_examples=40)
@given(arrays(np.float32, 40, elements=st.floats(-10, 10, width=32), unique=True), st.integers(0, 99), st.booleans())
def test_step_and_its_reverse_have_equal_length(old, seed, positive):
    new = (old * np.random.default_rng(seed).uniform(-2, 2)).astype(np.float32)
    if positive:
        old, new = np.exp(old / 4), np.exp(new / 4)
    there = {f.kind: f.value for f in score_figures({"s": old}, {"s": new})}
    back = {f.kind: f.value for f in score_figures({"s": new}, {"s": old})}
    if "shift" not in back:
        return
    assert there["shift"] == pytest.approx(-back["shift"], abs=1e-5)
    assert abs(there["shift"]) <= abs(np.log(1e6)) + 1e-6


@settings(max_examples=40)
@given(arrays(np.float64, 40, elements=st.floats(-1e3, 1e3), unique=True))
def test_rank_correlation_depends_only_on_the_order(values):
    assert rank_correlation(values, np.arange(40.0)[np.argsort(np.argsort(values))]) == pytest.approx(1.0)
    assert rank_correlation(values, -values) == pytest.approx(-1.0)


def test_equal_values_share_a_rank():
    assert rank_correlation(np.array([1.0, 1, 2, 2]), np.array([1.0, 1, 2, 2])) == pytest.approx(1.0)
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([1.0, 1, 1, 1])) == 0.0


def test_unsampled_table_has_no_known_row_length():
    lengths = RowLengths()
    lengths.served("user", 3.0, 0.0)
    assert lengths.longest("user") is None


def test_row_length_grows_with_served_rows_and_never_shrinks():
    lengths = RowLengths()
    lengths.begin("user", 2.0, 0.0)
    lengths.served("user", 1.5, 1.0)
    lengths.served("user", 0.1, 2.0)
    assert lengths.longest("user") == 3.0


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(0, 600)), max_size=100))
def test_row_length_at_most_doubles_within_an_hour(served):
    lengths, now_s = RowLengths(), 0.0
    lengths.begin("user", 1.0, now_s)
    for times, seconds in served:
        now_s += seconds
        lengths.served("user", times, now_s)
    assert 1.0 <= lengths.longest("user") <= GROWTH ** (1 + now_s // HOUR_S)
