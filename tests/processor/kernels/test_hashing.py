"""Strings to ids, and ids to first rows: functions of their arguments alone."""

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.kernels.hashing import hash_strings, init_rows

texts = st.lists(st.text(max_size=40) | st.binary(max_size=300), max_size=20)
seeds = st.integers(0, 2**63 - 1)
ids = st.integers(-(2**63), 2**63 - 1)


def reference(strings, seed):
    parts = [s.encode() if isinstance(s, str) else s for s in strings]
    unsigned = [xxhash.xxh3_64_intdigest(p, seed) for p in parts]
    return [u - 2**64 if u >= 2**63 else u for u in unsigned]


def rows_of(keys, seed=3, limit=0.25, dim=8):
    rows = np.full((len(keys), dim), np.nan, np.float32)
    init_rows(np.array(keys, np.int64), np.uint64(seed), np.float32(limit), rows)
    return rows


@pytest.mark.parametrize(("string", "id"), [("", 3244421341483603138), ("a", -1817709641818812897)])
def test_id_is_xxh3_64_of_the_bytes_in_twos_complement(string, id):
    assert hash_strings(Strings.of([string]), 0).tolist() == [id]


@pytest.mark.parametrize("seed", [0, 1, 7, 2**31, 2**32 + 5, 2**63 - 1])
def test_ids_of_every_length_equal_the_library(seed):
    random = np.random.default_rng(seed % 1000)
    strings = [random.bytes(length) for length in (*range(300), 5000, 100_000)]
    hashed = hash_strings(Strings.of(strings), seed)
    assert hashed.dtype == np.int64
    assert hashed.tolist() == reference(strings, seed)


@settings(max_examples=60, deadline=None)
@given(strings=texts, seed=seeds, data=st.data())
def test_slice_of_a_larger_buffer_hashes_only_its_own_strings(strings, seed, data):
    whole = Strings.of(strings)
    start = data.draw(st.integers(0, len(strings)))
    stop = data.draw(st.integers(start, len(strings)))
    part = Strings(whole.data, whole.offsets[start : stop + 1])
    assert hash_strings(part, seed).tolist() == reference(strings[start:stop], seed)


def test_different_seed_gives_different_ids():
    strings = Strings.of([str(n) for n in range(100)])
    hashed = [hash_strings(strings, seed) for seed in (0, 1, 7, 2**63 - 1)]
    assert len(np.unique(np.concatenate(hashed))) == 400


@settings(deadline=None)
@given(keys=st.lists(ids, min_size=1, max_size=20), order=st.randoms(use_true_random=False))
def test_initial_row_depends_on_its_id_and_not_its_position(keys, order):
    shuffled = keys[:]
    order.shuffle(shuffled)
    by_key = dict(zip(shuffled, rows_of(shuffled)))
    np.testing.assert_array_equal(rows_of(keys), [by_key[k] for k in keys])
    np.testing.assert_array_equal(rows_of(keys[:1])[0], by_key[keys[0]])


@pytest.mark.parametrize("limit", [1.0, 0.25, 1e-3, 0.3])
def test_initial_rows_fill_their_bounds_and_stay_inside(limit):
    rows = rows_of(range(-5000, 5000), limit=limit, dim=16)
    bound = np.float32(limit)
    assert rows.min() >= -bound
    assert rows.max() < bound
    assert rows.min() < -0.99 * bound
    assert rows.max() > 0.99 * bound
    assert abs(rows.mean()) < 0.01 * bound
    np.testing.assert_allclose(rows.std(), limit / np.sqrt(3), rtol=0.02)


def test_ids_seeds_and_columns_give_distinct_rows():
    keys = [0, 1, -1, 2**63 - 1, -(2**63), 2, 3]
    rows = np.concatenate([rows_of(keys, seed) for seed in (0, 1, 2, 2**64 - 1)])
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert len(np.unique(rows)) > 0.95 * rows.size
    np.testing.assert_array_equal(rows_of(keys, 5), rows_of(keys, 5))


def test_wider_table_starts_with_the_columns_of_the_narrower_one():
    np.testing.assert_array_equal(rows_of([1, 2, 3], dim=16)[:, :4], rows_of([1, 2, 3], dim=4))


def test_empty_ids_do_no_work():
    assert hash_strings(Strings.of([]), 7).shape == (0,)
    assert rows_of([]).shape == (0, 8)
