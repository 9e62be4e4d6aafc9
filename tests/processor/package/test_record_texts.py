"""Texts of records: what is packed comes back, and forged words are refused before they are followed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.record_texts import (
    TextColumn,
    check_texts,
    pack_texts,
    text_nbytes,
    unpack_texts,
)

COLUMNS = [TextColumn("colour", 1), TextColumn("tags", 0, 2), TextColumn("sizes", 2)]
texts = st.one_of(st.just(b""), st.binary(max_size=9))
rows_of_texts = st.lists(st.tuples(texts, st.lists(texts, max_size=4), texts, texts), max_size=6)


def columns(rows):
    colours, tags, first, second = zip(*rows) if rows else ((), (), (), ())
    flat = [tag for row in tags for tag in row]
    sizes = [size for pair in zip(first, second) for size in pair]
    ragged = Ragged(Strings.of(flat), np.cumsum([0, *map(len, tags)]))
    return [Strings.of(list(colours)), ragged, Strings.of(sizes)]


def packed(rows, room=0):
    given_ = columns(rows)
    words = np.zeros((len(rows), -(-text_nbytes(given_, COLUMNS, len(rows)) // 4) + room), np.int32)
    pack_texts(given_, COLUMNS, words)
    return words


@settings(deadline=None, max_examples=60)
@given(rows_of_texts, st.integers(0, 3))
def test_packed_texts_come_back(rows, room):
    if not rows:
        return
    colours, tags, sizes = unpack_texts(packed(rows, room), COLUMNS, "entity 'item'")
    assert colours.tolist() == [row[0] for row in rows]
    flat, splits = tags.values.tolist(), tags.row_splits.tolist()
    assert [flat[a:b] for a, b in zip(splits, splits[1:])] == [row[1][:2] for row in rows]
    assert sizes.tolist() == [size for row in rows for size in row[2:]]


def test_texts_of_a_slice_of_strings_are_its_own():
    whole = Strings.of(["before", "red", "green"])
    part = Strings(whole.data, whole.offsets[1:])
    words = np.zeros((2, 4), np.int32)
    pack_texts([part], COLUMNS[:1], words)
    assert unpack_texts(words, COLUMNS[:1], "")[0].tolist() == [b"red", b"green"]


def test_texts_that_do_not_fit_are_not_kept_alone():
    words = np.full((3, 3), 0, np.int32)
    pack_texts([Strings.of(["1234", "12345", "x"])], COLUMNS[:1], words)
    assert words[1].tolist() == [-1, 0, 0]
    assert unpack_texts(words, COLUMNS[:1], "") is None
    assert unpack_texts(words[[0, 2]], COLUMNS[:1], "")[0].tolist() == [b"1234", b"x"]
    words[1, 2] = 7
    with pytest.raises(BadInput, match="expected zeros in place of texts that are not kept"):
        check_texts(words, COLUMNS[:1], "entity 'item'")


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 9), min_size=1, max_size=9))
def test_forged_texts_are_refused_or_stay_within_their_record(forged):
    words = np.full((3, 12), 0x41414141, np.int32)
    words[1, : len(forged)] = forged
    words[[0, 2]] = packed([(b"a", [b"b"], b"c", b"d")], 12)[:, :12]
    try:
        found = unpack_texts(words, COLUMNS, "entity 'item'")
    except BadInput:
        return
    if found is None:
        return
    colours, tags, sizes = found
    assert sum(map(len, [*colours.tolist(), *tags.values.tolist(), *sizes.tolist()])) <= 3 * 48


@pytest.mark.parametrize(("place", "value"), [(0, 2), (1, -1), (1, 1 << 30), (3, -5), (3, 400)])
def test_wrong_numbers_and_lengths_are_named(place, value):
    words = packed([(b"a", [b"b"], b"c", b"d")])
    words[0, place] = value
    with pytest.raises(BadInput, match=r"entity 'item': expected texts that pack_texts"):
        check_texts(words, COLUMNS, "entity 'item'")
