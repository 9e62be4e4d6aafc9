import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.data import numbered_texts
from freshet_serving.models.data.numbered_texts import DistinctTexts, NumberedTexts
from freshet_serving.processor.columns import Strings

PARTS = st.lists(st.lists(st.text(max_size=9)), max_size=6)


@settings(max_examples=30)
@given(PARTS)
def test_texts_have_numbers_in_their_order(parts):
    texts, numbers, every = NumberedTexts(), [], []
    for part in parts:
        numbers += texts.append(Strings.of(part)).tolist()
        every += [text.encode() for text in part]
    assert numbers == list(range(1, len(every) + 1))
    assert texts.take(np.array([0, *numbers], np.int64)).tolist() == [b"", *every]
    for first in range(len(texts) + 1):
        assert texts.since(first).tolist() == every[first:]


@settings(max_examples=30)
@given(PARTS)
def test_a_text_has_one_number_in_a_copy_too(parts):
    texts, copy, saved = DistinctTexts(), DistinctTexts(), 0
    for part in parts:
        column = Strings.of([*part, "first"])
        numbers = texts.numbers(column, np.arange(len(column)))
        assert texts.take(numbers).tolist() == column.tolist()
        copy.extend(texts.since(saved))
        saved = len(texts)
        assert copy.numbers(column, np.arange(len(column))).tolist() == numbers.tolist()


def test_texts_outgrow_the_first_room():
    texts = NumberedTexts()
    long = ["x" * 5000, "y" * 3]
    numbers = texts.append(Strings.of(long * 2000))
    assert texts.take(numbers[-2:]).tolist() == [word.encode() for word in long]


def test_many_texts_are_taken_in_parts(monkeypatch):
    monkeypatch.setattr(numbered_texts, "TAKEN_TEXTS", 2)
    texts = NumberedTexts()
    numbers = texts.append(Strings.of(["ann", "", "ünal", "bob", "eve"]))
    assert texts.take(numbers[::-1]).tolist() == [b"eve", b"bob", "ünal".encode(), b"", b"ann"]
    assert texts.nbytes > 0
