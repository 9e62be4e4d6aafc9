"""The cores of a plan: none twice, and few that change hands."""

from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.extensions.core_planner.core_sets import SHARED, cores_of

CORES = frozenset(range(16))


def test_groups_take_the_highest_shared_cores():
    assert cores_of({"a": 2}, {}, frozenset(range(4))) == {"a": {2, 3}, SHARED: {0, 1}}


def test_group_keeps_its_cores_when_another_grows():
    before = cores_of({"a": 2, "b": 2}, {}, CORES)
    after = cores_of({"a": 5, "b": 2}, before, CORES)
    assert after["b"] == before["b"]
    assert after["a"] > before["a"]


def test_core_that_is_gone_is_replaced():
    assert cores_of({"a": 2}, {"a": frozenset({2, 9})}, frozenset(range(4)))["a"] == {2, 3}


@given(turns=st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=8))
def test_every_core_is_in_one_set(turns):
    sets = {}
    for counts in turns:
        before, sets = sets, cores_of(dict(zip("abc", counts, strict=True)), sets, CORES)
        assert [len(sets[name]) for name in "abc"] == counts
        assert sorted(cpu for cpus in sets.values() for cpu in cpus) == sorted(CORES)
        for name in before.keys() - {SHARED}:
            assert len(sets[name] & before[name]) == min(len(sets[name]), len(before[name]))
