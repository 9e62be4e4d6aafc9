"""The keys of hashed tables against plain Python, for any int64; their transforms, of strings and lists too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features import flat_columns
from freshet_serving.processor.features.evaluation import Transforms
from freshet_serving.processor.features.key_codes import CODES
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import HASHES, Input, Manifest, Transform, codes_a_value

INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
MASK = 2**64 - 1


def mixed(key, j):
    z = (key + (j + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def by_hand(op, key, first, second):
    if op == "quotient_remainder":
        # Python's % is floored, as the contract says.
        place = key % (first * second)
        return [place % first, first + place // first]
    if op == "k_way":
        return [j * first + mixed(key, j) % first for j in range(second)]
    return [(j << first) + (mixed(key, 0) >> (j * first)) % (1 << first) for j in range(second)]


SIZES = {
    "quotient_remainder": st.tuples(st.integers(1, 2**30), st.integers(1, 2**30)),
    "k_way": st.tuples(st.integers(1, 2**24), st.integers(1, 16)),
    "binary_code": st.integers(1, 8).flatmap(lambda k: st.tuples(st.integers(1, min(28, 64 // k)), st.just(k))),
}


@settings(deadline=None)
@given(ids=st.lists(INT64, max_size=20), op=st.sampled_from(HASHES), data=st.data())
def test_keys_equal_plain_python_and_have_disjoint_ranges(ids, op, data):
    first, second = data.draw(SIZES[op])
    keys = CODES[op](np.array(ids, np.int64), first, second)
    assert keys.tolist() == [by_hand(op, key, first, second) for key in ids]
    assert keys.shape == (len(ids), codes_a_value(Transform("t", op, ["id"], [0, first, second])))
    each = {"quotient_remainder": first, "k_way": first, "binary_code": 1 << first}[op]
    for j in range(keys.shape[1]):
        assert ((keys[:, j] >= j * each) & (j == keys.shape[1] - 1 or keys[:, j] < (j + 1) * each)).all()


@settings(deadline=None)
@given(start=INT64, m=st.integers(1, 40), q=st.integers(1, 40))
def test_consecutive_ids_never_share_both_quotient_and_remainder(start, m, q):
    ids = np.array([key for key in range(start, start + m * q) if key < 2**63], np.int64)
    assert len(np.unique(CODES["quotient_remainder"](ids, m, q), axis=0)) == len(ids)


def test_hashed_keys_spread_evenly_without_a_pattern_for_consecutive_ids():
    for op, sizes in (("k_way", (1024, 2)), ("binary_code", (10, 3))):
        keys = CODES[op](np.arange(-50_000, 50_000), *sizes)
        for j in range(keys.shape[1]):
            counts = np.bincount(keys[:, j] - j * 1024, minlength=1024)
            assert counts.min() > 50
            assert counts.max() < 160
        both = len(np.unique(keys[:, :2], axis=0))
        # As many pairs as 100,000 draws out of 2**20 leave.
        assert both == pytest.approx(2**20 * (1 - np.exp(-100_000 / 2**20)), rel=0.01)


def made(column, dtype, ragged, transform):
    manifest = Manifest("m", 1, "", 0.0, [Input("x", dtype, 0, ragged)], [], [], [], 1, {}, {}, transforms=[transform])
    return Transforms(manifest).run({"x": column})["t"]


@pytest.mark.parametrize("op", HASHES)
def test_each_value_expands_to_its_keys_in_order(op):
    transform = Transform("t", op, ["x"], [7, 5, 3])
    k = codes_a_value(transform)
    ids = np.array([-1, 0, 2**63 - 1], np.int64)
    plain = made(ids, "int64", False, transform)
    assert plain.row_splits.tolist() == [0, k, 2 * k, 3 * k]
    assert plain.values.tolist() == CODES[op](ids, 5, 3).reshape(-1).tolist()
    lists = made(Ragged(ids, np.array([0, 0, 2, 3])), "int64", True, transform)
    assert lists.row_splits.tolist() == [0, 0, 2 * k, 3 * k]
    assert lists.values.tolist() == plain.values.tolist()
    words = Strings.of(["", "Zürich", "x"])
    strings = made(words, "string", False, transform)
    assert strings.values.tolist() == CODES[op](hash_strings(words, 7), 5, 3).reshape(-1).tolist()
    empty = made(Ragged(np.empty(0, np.int64), np.array([0, 0])), "int64", True, transform)
    assert (len(empty.values), empty.row_splits.tolist()) == (0, [0, 0])


def test_too_many_keys_in_a_request_are_refused(monkeypatch):
    monkeypatch.setattr(flat_columns, "MAX_VALUES", 10)
    with pytest.raises(BadInput, match="inputs x: expected a result of at most 10 values, got 12"):
        made(np.arange(4), "int64", False, Transform("t", "k_way", ["x"], [0, 5, 3]))
