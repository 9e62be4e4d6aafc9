"""Codes of texts: one each, for good, whatever their hashes are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.extensions.top_items import text_codes
from freshet_serving.processor.extensions.top_items.text_codes import COLLIDES, MISSING, TextCodes, codes_of


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=4), max_size=30), max_size=8), st.booleans())
def test_a_text_has_one_code_for_good(batches, few_hashes):
    codes, known = TextCodes.reserved("test", 1000, 10_000), {}
    with pytest.MonkeyPatch.context() as patch:
        if few_hashes:
            hashed = text_codes.hash_strings
            patch.setattr(text_codes, "hash_strings", lambda strings, seed: hashed(strings, seed) % 5)
        for batch in batches:
            found = codes.add(Strings.of(batch)).tolist()
            assert codes.find(Strings.of(batch)).tolist() == found
            for text, code in zip(batch, found):
                assert code == known.setdefault(text, code)
                assert (code == MISSING) == (text == b"")
        given_codes = [code for code in known.values() if code >= 0]
        assert sorted(given_codes) == list(range(len(codes)))
        if not few_hashes:
            assert COLLIDES not in known.values()
        assert codes.find(Strings.of([b"unknown text"])).tolist() in ([MISSING], [COLLIDES])


def test_levels_are_filled_one_after_the_other():
    codes = TextCodes.reserved("test")
    texts = [b"%d" % n for n in range(20_000)]
    for first in range(0, len(texts), 1700):
        codes.add(Strings.of(texts[first : first + 1700]))
    assert codes.find(Strings.of(texts)).tolist() == list(range(len(texts)))
    # A reader of another process maps the same bytes.
    assert TextCodes(dict(codes.arrays)).find(Strings.of(texts[::-7])).tolist() == list(range(len(texts)))[::-7]
    assert sum(map(len, texts)) < codes.nbytes < 100 * len(texts)


def test_strings_of_a_larger_buffer_are_those_that_they_name():
    codes = TextCodes.reserved("test")
    whole = Strings.of([b"one", b"two", b"three"])
    part = Strings(whole.data, whole.offsets[1:])
    assert codes.add(part).tolist() == [0, 1]
    assert codes.find(whole).tolist() == [MISSING, 0, 1]


def test_a_text_without_room_is_refused_and_others_stay():
    codes = TextCodes.reserved("test", 3, 10)
    assert codes.add(Strings.of([b"abc", b"de"])).tolist() == [0, 1]
    with pytest.raises(MemoryError):
        codes.add(Strings.of([b"fghijk"]))
    with pytest.raises(MemoryError):
        codes.add(Strings.of([b"f", b"g"]))
    assert codes.find(Strings.of([b"abc", b"f"])).tolist() == [0, MISSING]


def test_codes_of_no_text():
    assert codes_of(()).find(Strings.of([b"a", b""])).tolist() == [MISSING, MISSING]
    assert codes_of((b"a", b"b")).find(Strings.of([b"b", b"c", b"a"])).tolist() == [1, MISSING, 0]
    assert isinstance(codes_of((b"",)).find(Strings.of([])), np.ndarray)
