"""Columns of one user as words: what is unpacked is what was packed, to the bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.extensions.user_state.kept_columns import packed, unpacked, version_of

numbers = st.one_of(
    hnp.arrays(np.int64, st.integers(0, 9)),
    hnp.arrays(np.float32, st.integers(0, 9)),
    hnp.arrays(np.float32, st.tuples(st.just(1), st.integers(1, 4))),
)
texts = st.lists(st.binary(max_size=9), max_size=5).map(Strings.of)
lists = st.one_of(hnp.arrays(np.int64, st.integers(0, 9)), hnp.arrays(np.float32, st.integers(0, 9)), texts).map(
    lambda values: Ragged(values, np.array([0, len(values)], np.int64))
)
columns = st.dictionaries(st.text(max_size=12), st.one_of(numbers, texts, lists), max_size=5)


def plain(column):
    """A column as Python values that tell every bit."""
    if isinstance(column, Ragged):
        return "list", plain(column.values), column.row_splits.tolist()
    if isinstance(column, Strings):
        return column.tolist()
    return column.dtype.name, column.shape, column.tobytes()


@settings(max_examples=50)
@given(st.integers(1, 2**53 - 1), columns)
def test_unpacked_is_what_was_packed(version, sent):
    words = packed(version, sent)
    assert version_of(words) == version
    assert {name: plain(column) for name, column in unpacked(words).items()} == {n: plain(c) for n, c in sent.items()}


def test_slice_of_texts_is_packed_without_its_buffer():
    whole = Strings.of(["aa", "b", "cc"])
    part = Strings(whole.data, whole.offsets[1:])
    words = packed(1, {"t": part})
    assert unpacked(words)["t"].tolist() == [b"b", b"cc"]
    assert b"aa" not in words.tobytes()
