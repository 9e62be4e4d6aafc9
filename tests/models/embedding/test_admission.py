"""Who gets a row, and when: counters against a dictionary, shared ones against both of their promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.embedding.admission import BLOCK_COUNTERS, AdmitAll, CountingBloom, ExactCounts
from freshet_serving.models.embedding.optimizer import row_optimizer
from freshet_serving.models.embedding.variable import EmbeddingVariable

some_ids = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 8), max_size=12)
batches = st.lists(some_ids, max_size=12)


def met(admission, ids):
    """The ids of a batch that are admitted now. All are without a row."""
    keys = np.array(ids, np.int64)
    return set(keys[admission.met(keys)].tolist())


def make_table(admission):
    return EmbeddingVariable("t", 4, row_optimizer("adagrad"), admission=admission)


@settings(max_examples=50)
@given(batches, st.integers(1, 4))
def test_exact_counts_equal_a_dictionary(batches, after):
    admission, wanted = ExactCounts(after), {}
    for ids in batches:
        for key in ids:
            wanted[key] = wanted.get(key, 0) + 1
        due = {key for key in ids if wanted[key] >= after}
        assert met(admission, ids) == due
        for key in due:
            # It has its row now; should it lose that, it begins anew.
            del wanted[key]
        assert len(admission) == len(wanted)


@settings(max_examples=50)
@given(batches, st.integers(1, 4))
def test_shared_counters_never_admit_an_id_late(batches, after):
    admission, seen = CountingBloom(after, 10, 0.5), {}
    for ids in batches:
        for key in ids:
            seen[key] = seen.get(key, 0) + 1
        assert met(admission, ids) >= {key for key in ids if seen[key] >= after}


@pytest.mark.parametrize(("after", "error"), [(2, 0.01), (2, 0.1), (5, 0.01)])
def test_shared_counters_stay_within_their_error_rate(after, error):
    ids = np.random.default_rng(after).integers(-(2**63), 2**63 - 1, 50_000)
    admission = CountingBloom(after, len(ids), error)
    admission.met(np.repeat(ids, after - 1))
    fresh = np.random.default_rng(99).integers(-(2**63), 2**63 - 1, 5_000)
    early = admission.met(fresh).mean()
    assert 0.3 * error <= early <= 1.6 * error
    assert admission.met(ids).all(), "and none late"


def test_counter_saturates_at_its_largest_value():
    admission = CountingBloom(65535, 10, 0.01)
    key = np.array([7])
    assert not admission.met(np.repeat(key, 65534)).any()
    assert admission.met(np.repeat(key, 1 << 17)).all()
    assert admission.met(key)[0]


@pytest.mark.parametrize("make", [lambda: ExactCounts(3), lambda: CountingBloom(3, 3 * BLOCK_COUNTERS, 0.01), AdmitAll])
def test_exported_or_incrementally_restored_counts_continue_equally(make):
    ours, restored, follower = make(), make(), make()
    draw = np.random.default_rng(0)
    for _ in range(20):
        met(ours, draw.integers(0, 60, 25))
        follower.restore(ours.changes())
        ours.clear_changed()
    restored.restore(ours.export())
    assert all(len(part) == 0 for name, part in ours.changes().items() if name != "counters")
    for ids in draw.integers(0, 80, (10, 25)):
        assert met(ours, ids) == met(restored, ids) == met(follower, ids)
    ours.clear()
    assert met(ours, [1]) == met(make(), [1])


@pytest.mark.parametrize("make", [lambda: ExactCounts(3), lambda: CountingBloom(3, 1000, 0.001)])
def test_id_gets_its_row_after_enough_occurrences(make):
    table = make_table(make())
    seven, two = np.array([7]), np.array([7, 7])
    assert (table.insert(seven) < 0).all()
    assert (table.find(seven) < 0).all()
    assert len(table) == 0
    (first, second) = table.insert(two).tolist()
    assert first == second >= 0
    assert table.insert(np.array([7, 8, 9, 7])).tolist() == [first, -2, -2, first]
    assert len(table) == 1


def test_removed_id_must_be_admitted_again():
    table = make_table(ExactCounts(2))
    for _ in range(2):
        assert (table.insert(np.array([5])) < 0).all()
        assert (table.insert(np.array([5])) >= 0).all()
        table.remove(np.array([5]))


def test_cleared_table_has_no_counts():
    table = make_table(ExactCounts(2))
    table.insert(np.array([5]))
    table.clear()
    assert (table.insert(np.array([5])) < 0).all()
