"""Strings and Ragged: what goes in comes out, slices too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import (
    BufferLayout,
    ColumnLayout,
    PackedColumns,
    Ragged,
    Strings,
    equal_strings,
    exact_array,
    join_columns,
    slice_column,
    take_rows,
)

texts = st.lists(st.text(max_size=8) | st.binary(max_size=8), max_size=10)


def encoded(strings):
    return [s.encode() if isinstance(s, str) else s for s in strings]


@given(strings=texts)
def test_strings_round_trip_as_utf8_bytes(strings):
    built = Strings.of(strings)
    assert built.tolist() == encoded(strings)
    assert len(built) == len(strings)
    assert built.data.dtype == np.uint8
    assert built.offsets.dtype == np.int64
    assert built.offsets[0] == 0


@settings(max_examples=40)
@given(strings=texts, data=st.data())
def test_slice_shares_the_buffer_and_holds_its_own_strings(strings, data):
    whole = Strings.of(strings)
    start = data.draw(st.integers(0, len(strings)))
    stop = data.draw(st.integers(start, len(strings)))
    part = Strings(whole.data, whole.offsets[start : stop + 1])
    assert part.tolist() == encoded(strings[start:stop])
    assert len(part) == stop - start


def test_strings_are_built_from_any_iterable():
    assert Strings.of(str(n) for n in range(3)).tolist() == [b"0", b"1", b"2"]


@settings(max_examples=40)
@given(rows=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=6))
def test_ragged_integers_are_concatenated_values_and_row_splits(rows):
    built = Ragged.of(rows)
    assert built.values.dtype == built.row_splits.dtype == np.int64
    assert len(built) == len(rows)
    splits = built.row_splits.tolist()
    assert [built.values[a:b].tolist() for a, b in zip(splits, splits[1:])] == rows


@settings(max_examples=40)
@given(rows=st.lists(st.lists(st.integers(-9, 9) | st.floats(width=32), max_size=5), max_size=6))
def test_ragged_numbers_are_floats_where_one_of_them_is(rows):
    built = Ragged.of(rows)
    flat = [value for row in rows for value in row]
    floats = any(isinstance(value, float) for value in flat)
    assert built.values.dtype == (np.float32 if floats else np.int64)
    np.testing.assert_array_equal(built.values, flat)


@settings(max_examples=40)
@given(rows=st.lists(st.lists(st.text(max_size=5), max_size=5), max_size=6))
def test_ragged_strings_are_concatenated(rows):
    built = Ragged.of(rows)
    flat = [s for row in rows for s in row]
    assert built.row_splits.tolist() == np.cumsum([0, *map(len, rows)]).tolist()
    if flat:
        assert isinstance(built.values, Strings)
        assert built.values.tolist() == encoded(flat)
    else:
        assert built.values.tolist() == []


@settings(max_examples=40)
@given(rows=st.lists(texts, min_size=1, max_size=6), data=st.data())
def test_rows_are_taken_in_any_order_and_repeatedly(rows, data):
    picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    strings = [encoded(row) for row in rows]
    places = np.array(picks, np.int64)

    flat = take_rows(Strings.of([b",".join(row) for row in strings]), places)
    lists = take_rows(Ragged.of(strings), places)

    assert flat.tolist() == [b",".join(strings[i]) for i in picks]
    assert lists.values.tolist() == [one for i in picks for one in strings[i]]
    assert np.diff(lists.row_splits).tolist() == [len(strings[i]) for i in picks]


@settings(max_examples=40)
@given(rows=st.lists(st.lists(st.binary(max_size=4), max_size=4), max_size=8), data=st.data())
def test_joined_slices_are_the_column(rows, data):
    cut = data.draw(st.integers(0, len(rows)))
    strings = Strings.of([b"".join(row) for row in rows])
    lists = Ragged(Strings.of([one for row in rows for one in row]), np.cumsum([0, *map(len, rows)]))
    for column in (strings, lists, np.arange(len(rows))):
        joined = join_columns([slice_column(column, 0, cut), slice_column(column, cut, len(rows))])
        flat, whole = (c.values if isinstance(c, Ragged) else c for c in (joined, column))
        assert flat.tolist() == whole.tolist()
        if isinstance(column, Ragged):
            assert joined.row_splits.tolist() == column.row_splits.tolist()


def test_id_beyond_64_bits_is_refused():
    for row in ([2**64], [-1, 2**63]):
        with pytest.raises(OverflowError):
            Ragged.of([row])


def test_lists_of_large_ids_are_unsigned():
    assert Ragged.of([[5, 2**63], [2**64 - 1]]).values.tolist() == [5, 2**63, 2**64 - 1]


def test_packed_columns_are_views_when_aligned_and_copies_otherwise():
    values = np.arange(6, dtype=np.int64)
    places = BufferLayout((ColumnLayout("ids", values.dtype, 3, 2, 0),), values.nbytes)
    for start in range(9):
        columns = PackedColumns(b"\0" * start + values.tobytes(), start, places)
        np.testing.assert_array_equal(columns["ids"], values.reshape(3, 2))
        assert columns["ids"].flags.aligned
        assert list(columns) == ["ids"]
        assert len(columns) == 1
    with pytest.raises(KeyError):
        columns["floats"]


@pytest.mark.parametrize("values", [[5, 2**63], [[2**64 - 1, 1], [0, 3]]])
def test_large_integers_keep_their_bits(values):
    assert exact_array(values).tolist() == values


def test_floats_stay_floats_however_large():
    assert exact_array([1.5, 1e30]).dtype == np.float64


@pytest.mark.parametrize("values", [[2**64], [-1, 2**63]])
def test_integers_that_fit_no_type_overflow(values):
    with pytest.raises(OverflowError):
        exact_array(values)


@given(st.lists(st.sampled_from(["", "a", "b", "ab", "ü"]), max_size=9), st.sampled_from(["", "a", "ab", "ü", "c"]))
def test_strings_are_compared_by_their_bytes(strings, word):
    column = slice_column(Strings.of(["before", *strings]), 1, 1 + len(strings))
    assert equal_strings(column, word.encode()).tolist() == [text == word for text in strings]
