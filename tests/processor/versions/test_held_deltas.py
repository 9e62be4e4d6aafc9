"""Which deltas behind a bad one stand on it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.package.delta import Delta, TableDelta
from freshet_serving.processor.versions.held_deltas import apart_from

DELTAS = st.lists(st.tuples(st.sets(st.integers(0, 5)), st.sets(st.integers(6, 8)), st.booleans()), max_size=5)


def delta(step, users=(), removed=(), dense=False, table="user"):
    keys = np.array(sorted(users), np.int64)
    changes = TableDelta(keys, np.zeros((len(keys), 2), np.float32), np.array(sorted(removed), np.int64))
    return Delta("m", 1, step, step - 1, {table: changes}, {"w": np.zeros(2, np.float32)} if dense else {})


def steps(deltas):
    return [one.step for one in deltas]


def test_a_delta_of_other_rows_is_apart_and_one_of_the_same_is_not():
    assert steps(apart_from(delta(1, {1, 2}), [delta(2, {3}), delta(3, {2, 4})])) == [2]


def test_what_stands_on_what_stands_on_it_is_not_apart():
    assert steps(apart_from(delta(1, {1}), [delta(2, {1, 2}), delta(3, {2, 3}), delta(4, {4})])) == [4]


def test_removals_count_as_changes():
    assert steps(apart_from(delta(1, removed={1}), [delta(2, {1}), delta(3, removed={1}), delta(4, {2})])) == [4]


def test_rows_of_another_table_are_other_rows():
    assert steps(apart_from(delta(1, {1}), [delta(2, {1}, table="item")])) == [2]


def test_dense_weights_that_the_bad_one_changed_are_no_longer_to_be_trusted():
    assert steps(apart_from(delta(1, {1}, dense=True), [delta(2, {2}, dense=True), delta(3, {3})])) == [3]
    assert steps(apart_from(delta(1, {1}), [delta(2, {2}, dense=True)])) == [2]


@given(DELTAS, st.sets(st.integers(0, 5)), st.booleans())
def test_nothing_that_is_kept_shares_anything_with_what_is_not(later, bad, dense):
    first = delta(1, bad, dense=dense)
    made = [delta(n, users, removed, weights) for n, (users, removed, weights) in enumerate(later, 2)]
    kept = apart_from(first, made)
    for one in kept:
        undone = [first, *(d for d in made if d.step < one.step and d not in kept)]
        for other in undone:
            ids = [{*d.tables["user"].keys.tolist(), *d.tables["user"].removed.tolist()} for d in (one, other)]
            assert not ids[0] & ids[1]
            assert not (one.dense and other.dense)
