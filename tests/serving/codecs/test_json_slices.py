import json
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.serving.codecs.json_slices import LEVELS, load_in_slices

# Letters that mean something in JSON, in names and values too.
TEXTS = st.text('ab,:[]{}"\\ \n\u00e9', max_size=6)
NUMBERS = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=8), max_leaves=40
)
SPACED = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r")])
NBYTES = st.integers(1, 40)


@given(DOCUMENTS, SPACED, st.booleans(), st.sampled_from([None, 1]), NBYTES, st.integers(0, LEVELS))
def test_document_in_slices_equals_the_whole(document, separators, ascii_only, indent, nbytes, levels):
    text = json.dumps(document, separators=separators, ensure_ascii=ascii_only, indent=indent).encode()
    sliced = load_in_slices(memoryview(text), orjson.loads, nbytes, levels)
    # As text, which tells 1 from 1.0 and true, and one order of names from another.
    assert orjson.dumps(sliced) == orjson.dumps(orjson.loads(text))


@given(st.text('[]{}:,"1 \\\n', max_size=80).map(str.encode) | st.binary(max_size=60), st.integers(1, 8))
def test_what_slices_accept_the_whole_is(text, nbytes):
    with suppress(ValueError):
        sliced = load_in_slices(text, orjson.loads, nbytes)
        assert sliced == orjson.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        b"[1111,,2222]", b"[1111,2222,]", b"[,1111,2222]", b'{"a":1,,"b":2}', b'{"a":1,"b":2,}', b'{"a":1}{"b":2}',
        b"[1111],[2222]", b"[1111,2222}", b'{"a":1111,2:2222}', b'["a,b,c,d,e,f', b"[[1111,2222],[3333,4444]",
        b'{"a" 1111,"b":2222}', b'{1111:1111,"b":2222}', b"[1111 2222,3333]", b"[        ,       ]", b"[[1,2],[3,4}]",
        b"]1111[",
    ],
)  # fmt: skip
@pytest.mark.parametrize("nbytes", [1, 2, 3, 5])
def test_malformed_text_is_refused(text, nbytes):
    with pytest.raises(ValueError):
        load_in_slices(text, orjson.loads, nbytes)


@pytest.mark.parametrize(
    "document",
    [
        {"instances": [[n, n + 1] for n in range(500)]},
        {"instances": [{"id": n, "tags": ["a,b", "[c]"]} for n in range(300)]},
        {"inputs": {"ids": [[n, n] for n in range(400)], "floats": [0.5] * 900}},
        {"inputs": [{"name": "x", "shape": [600], "datatype": "FP32", "data": [0.25] * 600}], "parameters": {}},
    ],
)  # fmt: skip
def test_slices_are_short_whatever_holds_the_values(document):
    lengths = []

    def loads(text):
        lengths.append(len(text))
        return orjson.loads(text)

    assert load_in_slices(orjson.dumps(document), loads, 100) == document
    assert max(lengths) <= 2 * 100 + len(b"[]")


def test_later_of_two_members_of_one_name_counts():
    text = b'{"a":1111,"b":2222,"a":3333}'
    assert load_in_slices(text, orjson.loads, 3) == orjson.loads(text) == {"a": 3333, "b": 2222}


def test_long_name_is_parsed_with_its_value():
    document = {"n" * 400: [1] * 200, "b": 1}
    assert load_in_slices(orjson.dumps(document), orjson.loads, 20) == document


def test_deep_nesting_is_not_cut_further():
    text = b"[" * 500 + b"1" + b"]" * 500
    assert load_in_slices(text, orjson.loads, 8) == orjson.loads(text)
