"""What is told of a JSON text without parsing it, against what a parser finds in it."""

import contextlib
import json

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.kernels.json_text import HOLDER, INFINITE, NOT_A_NUMBER, count_nodes, spell_out

# Letters that mean something in JSON, in names and values too.
TEXTS = st.text('ab,:[]{}"\\ \n\u00e9NInfity', max_size=6)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5), max_leaves=30
)
SPACED = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r")])
NONFINITE = {"NaN": NOT_A_NUMBER, "Infinity": INFINITE, "-Infinity": -INFINITE}


def count(text):
    return int(count_nodes(np.frombuffer(text, np.uint8)))


def nodes(document):
    """Values and names of a document; objects as tuples of pairs, for a name may stand twice in the text."""
    if isinstance(document, list):
        return HOLDER + sum(map(nodes, document))
    if isinstance(document, tuple):
        return HOLDER + sum(1 + nodes(value) for _, value in document)
    return 2 if isinstance(document, str) else 1


@given(DOCUMENTS, SPACED, st.booleans(), st.sampled_from([None, 1]))
def test_node_count_equals_that_of_a_parser(document, separators, ascii_only, indent):
    text = json.dumps(document, separators=separators, ensure_ascii=ascii_only, indent=indent).encode()
    assert count(text) == nodes(json.loads(text, object_pairs_hook=tuple))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"", 1), (b"[]", 4), (b" [ ] ", 4), (b"[[],[]]", 12), (b'{"a":{"a":1,"a":2}}', 13), (b"[{},{}]", 12),
        (b'"[,"', 2), (rb'["\"",","]', 8), (rb'["\\",1]', 7), (b'{"a":"b"}', 7),
    ],
)  # fmt: skip
def test_node_count_handles_texts_that_are_easily_miscounted(text, wanted):
    assert count(text) == wanted


@given(st.binary(max_size=60) | st.text('[]{}:,"1 \\', max_size=60).map(str.encode))
def test_parseable_text_has_a_bounded_node_count(text):
    with contextlib.suppress(orjson.JSONDecodeError):
        orjson.loads(text)
        assert 2 * count(text) <= max(HOLDER * len(text), 2)


@given(DOCUMENTS, SPACED)
def test_text_without_nan_or_infinity_is_unchanged(document, separators):
    text = json.dumps(document, separators=separators).encode()
    assert spell_out(text) == text


VALUES = st.lists(st.sampled_from(sorted(NONFINITE)) | TEXTS | st.integers(), max_size=8)


@given(VALUES, SPACED)
def test_every_nan_and_infinity_outside_strings_is_spelled_out(values, separators):
    """The names stand for the numbers, the other texts for themselves."""
    parts = [value if value in NONFINITE else json.dumps(value) for value in values]
    text = spell_out(("[" + separators[0].join(parts) + "]").encode())
    assert orjson.loads(text) == [NONFINITE.get(value, value) for value in values]


@pytest.mark.parametrize(
    "text",
    [
        b"[-NaN]", b"[1NaN]", b"[NaN1]", b"[1-Infinity]", b"[1e-Infinity]", b"[1eNaN]", b"[NaNNaN]", b"[- Infinity]",
        b"[Infinity5]", b"[1Infinity]", b"[Na]", b"[Infinit]", b"[.NaN]", b"[NaN.5]", b"NaN:1", b"[nNaN]", b"[Nan]",
        b'{NaN:1}', b"[--Infinity]", b"[+Infinity]", b"[0Infinity]", b"[-0Infinity]",
    ],
)  # fmt: skip
def test_malformed_number_stays_malformed(text):
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(spell_out(text))


@given(st.text('NaInfity-"\\,[]1e.', max_size=40).map(str.encode))
def test_accepted_text_parses_equally_with_the_standard_library(text):
    try:
        document = orjson.loads(spell_out(text))
    except orjson.JSONDecodeError:
        return
    assert json.dumps(json.loads(text, parse_constant=NONFINITE.get)) == json.dumps(document)
