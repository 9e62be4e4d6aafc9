"""The hash index against a dict, over every int64 and up to its highest load."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from freshet_serving.processor.kernels.index import (
    ABSENT,
    EMPTY,
    LINE_ENTRIES,
    MAX_CAPACITY,
    audit,
    build,
    capacity_for,
    claim,
    empty_index,
    find,
    home,
    rehash,
)

MIN, MAX = -(2**63), 2**63 - 1
special = st.sampled_from([0, -1, -2, 1, MIN, MAX, MIN + 1, MAX - 1])
ids = special | st.integers(MIN, MAX) | st.integers(-8, 8)
id_lists = st.lists(ids, max_size=60)


def at(index):
    return index.ctypes.data, len(index)


def keys_of(keys):
    return np.array(keys, np.int64)


def found(index, keys):
    refs = np.full(len(keys), 12345, np.int64)
    find(*at(index), keys_of(keys), refs)
    return refs.tolist()


def claimed(index, keys):
    entries = np.full(len(keys), -7, np.int64)
    return claim(*at(index), keys_of(keys), entries), entries


@settings(deadline=None)
@given(keys=st.lists(ids, unique=True, max_size=60), others=id_lists, spare=st.integers(1, 40))
def test_built_index_finds_exactly_its_keys(keys, others, spare):
    index = empty_index(len(keys) + spare)
    assert build(*at(index), keys_of(keys)) == -1
    wanted = {key: n for n, key in enumerate(keys)}
    assert found(index, keys + others) == [wanted.get(k, ABSENT) for k in keys + others]
    assert audit(*at(index), len(keys)) == len(keys)


@settings(deadline=None)
@given(keys=st.lists(ids, min_size=1, unique=True, max_size=30), data=st.data())
def test_build_reports_the_position_of_the_first_duplicate_key(keys, data):
    cut = data.draw(st.integers(1, len(keys)))
    twice = [*keys[:cut], data.draw(st.sampled_from(keys[:cut])), *keys[cut:]]
    index = empty_index(capacity_for(len(twice)))
    assert build(*at(index), keys_of(twice)) == cut


class Claims(RuleBasedStateMachine):
    """Claims, refs and growth in any order, beside a dict of what they must amount to."""

    @initialize(keys=st.lists(ids, unique=True, max_size=20))
    def start(self, keys):
        self.index = empty_index(capacity_for(len(keys)))
        assert build(*at(self.index), keys_of(keys)) == -1
        self.refs = {key: n for n, key in enumerate(keys)}
        self.next = len(keys)

    @rule(keys=st.lists(ids, max_size=10))
    def claim_some(self, keys):
        new = set(keys) - self.refs.keys()
        if (len(self.refs) + len(new)) * 8 > len(self.index) * 7:
            self.grow()
            new = set(keys) - self.refs.keys()
        before = dict(zip(self.refs, claimed(self.index, list(self.refs))[1].tolist()))
        count, entries = claimed(self.index, keys)
        assert count == len(new)
        for key, entry in zip(keys, entries.tolist()):
            assert self.index[entry, 0] == key
            assert before.setdefault(key, entry) == entry
        assert len(set(before.values())) == len(before)
        self.refs |= dict.fromkeys(new, ABSENT)

    @rule(data=st.data())
    def give_refs(self, data):
        absent = sorted(k for k, ref in self.refs.items() if ref == ABSENT)
        if absent:
            chosen = data.draw(st.lists(st.sampled_from(absent), unique=True))
            for key, entry in zip(chosen, claimed(self.index, chosen)[1].tolist()):
                self.index[entry, 1] = self.refs[key] = self.next
                self.next += 1

    @rule()
    def grow(self):
        grown = empty_index(len(self.index) + len(self.index) // 2 + 1)
        live = {k: ref for k, ref in self.refs.items() if ref >= 0}
        assert rehash(*at(self.index), *at(grown)) == len(live)
        self.index, self.refs = grown, live

    @invariant()
    def the_index_is_the_dict(self):
        probes = [*self.refs, 0, -1, MIN, MAX, 77]
        assert found(self.index, probes) == [self.refs.get(k, ABSENT) for k in probes]
        assert (self.index[:, 1] != EMPTY).sum() == len(self.refs)


TestClaims = Claims.TestCase
TestClaims.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)


def test_every_key_is_found_at_the_highest_load():
    random = np.random.default_rng(0)
    keys = np.unique(random.integers(MIN, MAX, 7000, dtype=np.int64))
    index = empty_index(-(-len(keys) * 8 // 7))
    assert build(*at(index), keys) == -1
    assert found(index, keys) == list(range(len(keys)))
    strangers = np.setdiff1d(random.integers(MIN, MAX, 2000, dtype=np.int64), keys)
    assert set(found(index, strangers)) == {ABSENT}


def test_probe_wraps_around_at_the_end_of_the_array():
    last = [k for k in range(4000) if home(k, 64) >= 62]
    keys, strangers = last[:20], last[20:]
    index = empty_index(64)
    assert build(*at(index), keys_of(keys)) == -1
    assert sorted(claimed(index, keys)[1].tolist()) == [*range(18), 62, 63]
    assert found(index, keys) == list(range(20))
    assert set(found(index, strangers)) == {ABSENT}


def test_one_free_entry_ends_every_probe():
    keys = list(range(15))
    index = empty_index(16)
    assert build(*at(index), keys_of(keys)) == -1
    assert found(index, [*keys, 99, MIN]) == [*keys, ABSENT, ABSENT]


@pytest.mark.parametrize("keys", [[0], [0, 1], range(0, 4096, 64), range(10_000)])
def test_home_positions_stay_within_any_capacity(keys):
    for capacity in (16, 17, 1000, 2**31 + 3, MAX_CAPACITY):
        homes = np.array([home(k, capacity) for k in keys])
        assert homes.min() >= 0
        assert homes.max() < capacity


def test_consecutive_ids_spread_over_the_index():
    homes = np.array([home(k, 1 << 16) for k in range(1 << 12)])
    filled = np.bincount(homes >> 12, minlength=16)
    assert filled.min() > 180
    assert filled.max() < 340


@pytest.mark.parametrize("keys", [0, 1, 2, 7, 11, 12, 100, 10_000, 2**20])
def test_new_index_is_underloaded_and_uses_whole_cache_lines(keys):
    capacity = capacity_for(keys)
    assert capacity % LINE_ENTRIES == 0
    assert keys * 4 <= capacity * 3
    assert capacity <= max(16, keys * 10 / 7 + 2 * LINE_ENTRIES)


def test_capacity_has_a_maximum():
    assert capacity_for(2**32) == MAX_CAPACITY


@pytest.mark.parametrize("ref", [ABSENT, -3, MIN, 3, MAX])
def test_audit_finds_a_ref_outside_the_rows(ref):
    index = empty_index(16)
    build(*at(index), keys_of([4, 5, 6]))
    assert audit(*at(index), 3) == 3
    index[np.flatnonzero(index[:, 1] == 1)[0], 1] = ref
    assert audit(*at(index), 3) == -1
