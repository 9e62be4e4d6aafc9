"""Which deltas behind a bad one stand on it."""

import numpy as np
import pytest
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


@pytest.mark.parametrize(
    ("bad", "later", "apart"),
    [
        pytest.param(delta(1, {1, 2}), [delta(2, {3}), delta(3, {2, 4})], [2], id="rows"),
        pytest.param(delta(1, {1}), [delta(2, {1, 2}), delta(3, {2, 3}), delta(4, {4})], [4], id="transitive"),
        pytest.param(delta(1, removed={1}), [delta(2, {1}), delta(3, removed={1}), delta(4, {2})], [4], id="removals"),
        pytest.param(delta(1, {1}), [delta(2, {1}, table="item")], [2], id="another table"),
        pytest.param(delta(1, {1}, dense=True), [delta(2, {2}, dense=True), delta(3, {3})], [3], id="dense weights"),
        pytest.param(delta(1, {1}), [delta(2, {2}, dense=True)], [2], id="dense weights of a later one"),
    ],
)
def test_delta_is_independent_only_if_nothing_it_changes_is_undone(bad, later, apart):
    assert steps(apart_from(bad, later)) == apart


@given(DELTAS, st.sets(st.integers(0, 5)), st.booleans())
def test_kept_deltas_share_no_rows_with_undone_ones(later, bad, dense):
    first = delta(1, bad, dense=dense)
    made = [delta(n, users, removed, weights) for n, (users, removed, weights) in enumerate(later, 2)]
    kept = apart_from(first, made)
    for one in kept:
        undone = [first, *(d for d in made if d.step < one.step and d not in kept)]
        for other in undone:
            ids = [{*d.tables["user"].keys.tolist(), *d.tables["user"].removed.tolist()} for d in (one, other)]
            assert not ids[0] & ids[1]
            assert not (one.dense and other.dense)
