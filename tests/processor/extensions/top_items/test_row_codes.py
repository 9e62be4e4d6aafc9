"""Codes of rows: whatever is stale, whatever the numbers, a scan answers as numpy does from the rows themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.extensions.top_items.code_scan import DEAD
from freshet_serving.processor.extensions.top_items.row_ranking import CodedVectors
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.package.delta import TableDelta
from tests.processor.extensions.top_items.test_row_ranking import ranked, served

NO_KEYS = np.empty(0, np.int64)
magnitudes = st.sampled_from([0.0, 1e-40, 1e-32, 1e-20, 1e-3, 1.0, 300.0, 1e20, 1e37])


def exact(table, keys, epoch, vector, k):
    """The products of the scan's own kernel, in float32, of every row that there is."""
    there, rows = table.look_up(np.array(keys, np.int64), epoch)
    alone = {}
    for key, known, row in zip(keys, there, rows):
        if known:
            single = served([key], len(row), row[np.newaxis])
            ((_, scores),) = ranked(single, 0, [vector])
            alone |= dict(zip([key], scores))
    best = sorted(alone, key=lambda key: (-alone[key], key))[:k]
    return best, [alone[key] for key in best]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 70), magnitudes, magnitudes, st.integers(1, 30), st.booleans(), st.booleans()
)
def test_scan_by_codes_is_exact_for_any_numbers(seed, dim, of_rows, of_vector, k, skewed, refreshed):
    random = np.random.default_rng(seed)
    keys = np.unique(random.integers(-(2**63), 2**63 - 1, 50))
    with np.errstate(over="ignore"):
        rows = (random.standard_normal((len(keys), dim)) * of_rows).astype(np.float32)
        vector = (random.standard_normal(dim) * of_vector).astype(np.float32)
        if skewed:
            rows[:, 0] *= 1000
            rows *= np.exp(random.standard_normal((len(keys), 1)) * 3).astype(np.float32)
    table = served(keys.tolist(), dim, rows)
    if refreshed:
        table.refresh(0)
    assert ranked(table, 0, [vector], k=k) == [exact(table, keys.tolist(), 0, vector, k)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 700), magnitudes)
def test_bound_holds_for_every_row(seed, dim, magnitude):
    random = np.random.default_rng(seed)
    vector = (random.standard_normal((1, dim)) * magnitude).astype(np.float32)
    coded = CodedVectors.of(vector)
    rows = random.standard_normal((50, dim)).astype(np.float32)
    # Every number lies as far from its code as one can.
    scale = np.abs(rows).max(1, keepdims=True) / np.float32(127)
    codes = np.rint(rows / scale)
    total = (codes * coded.numbers.astype(np.float64)).sum(1)
    assert (np.abs(total) < 2**31).all()
    bound = scale[:, 0].astype(np.float64) * (coded.steps[0] * total + coded.slacks[0])
    assert (rows.astype(np.float64) @ vector[0].astype(np.float64) <= bound * (1 + 1e-6)).all()


def test_codes_are_made_again_only_for_changed_rows():
    table = served(range(200), 3)
    assert table.codes.stale
    table.refresh(0)
    stale, scales = (table.codes.arrays[f"code_{name}"] for name in ("stale", "scales"))
    assert not table.codes.stale
    assert not stale.any()
    table.apply(TableDelta(np.array([70, 900]), np.ones((2, 3), np.float32), np.array([3])), 1)
    assert [int(bit) for bit in np.flatnonzero(np.unpackbits(stale[:4].view(np.uint8), bitorder="little"))] == [
        3,
        70,
        200,
    ]
    assert table.codes.stale
    table.refresh(1)
    assert not table.codes.stale
    assert scales[3] == DEAD
    assert scales[[70, 200]] == pytest.approx(1 / 127)
    assert table.codes.arrays["code_count"][0] == 201


def test_a_key_that_comes_back_has_its_position_again():
    table = served(range(10), 2)
    for epoch, (keys, removed) in enumerate([([50], []), ([], [50]), ([50, 51], [])], 1):
        table.apply(
            TableDelta(np.array(keys, np.int64), np.ones((len(keys), 2), np.float32), np.array(removed, np.int64)),
            epoch,
        )
        table.refresh(epoch)
    assert table.codes.arrays["code_count"][0] == 12
    assert table.codes.arrays["code_more_keys"][:2].tolist() == [50, 51]


def test_more_new_keys_than_were_reserved_get_other_arrays():
    table = served(range(5), 2)
    table.refresh(0)
    before = table.codes.arrays
    table.apply(TableDelta(np.arange(100, 150), np.full((50, 2), 5, np.float32), NO_KEYS), 1)
    table.refresh(1)
    assert table.codes.arrays is before
    table.apply(TableDelta(np.arange(200, 300), np.full((100, 2), 7, np.float32), NO_KEYS), 2)
    after = table.codes.arrays
    assert all(after[name] is not before[name] for name in before if name != "code_keys")
    # A reader of the state before still has what it had.
    assert before["code_count"][0] == 55
    assert not before["code_stale"].any()
    for refreshed in (False, True):
        if refreshed:
            table.refresh(2)
        assert ranked(table, 2, [[1, 1]], k=3) == [([200, 201, 202], [14.0] * 3)]
        assert len(ranked(table, 2, [[1, 1]], k=500)[0][0]) == 155


def test_damaged_index_of_the_file_gives_no_other_keys_position():
    table = served([4, 5, 6], 2)
    index = table.codes._file_index = hash_index.empty_index(16)
    index[:, 0], index[:, 1] = 5, 2**40
    table.apply(TableDelta(np.array([5]), np.full((1, 2), 9, np.float32), NO_KEYS), 1)
    assert table.codes.arrays["code_count"][0] == 4


def test_memory_is_a_byte_a_number_and_five_a_row():
    table = served(range(10_000), 50, np.ones((10_000, 50), np.float32))
    table.refresh(0)
    assert table.codes.nbytes == pytest.approx(10_000 * (50 + 4 + 1 / 8), rel=0.01)
