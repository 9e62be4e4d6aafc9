"""Texts of filters: what they mean, and what is refused by name."""

import json
import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.top_items.filter_text import (
    MAX_CLAUSES,
    MAX_DEPTH,
    MAX_NBYTES,
    _distinct,
    read_filter,
)
from freshet_serving.processor.package import Input
from tests.support.ranked import COLUMNS

BY_NAME = {spec.name: spec for spec in COLUMNS} | {"seller": Input("seller", "int64", declared="uint64")}


def read(wanted):
    return read_filter((wanted if isinstance(wanted, str) else json.dumps(wanted)).encode(), BY_NAME)


def one(wanted):
    (clause,) = read(wanted)
    return clause


def test_ranges_are_as_the_column_holds_numbers():
    clause = one({"price": [None, 0.1]})
    assert (clause.low, clause.high, clause.negated) == (None, np.float32(0.1), False)
    assert one({"price": [1e200, None]}).low == np.inf
    clause = one({"stock": [0.5, 3.5]})
    assert (clause.low, clause.high) == (1, 3)
    assert (one({"stock": [-(2**63), 2**64 - 1]}).low, one({"stock": [None, 2**64 - 1]}).high) == (None, None)
    assert len(one({"stock": [2**63, None]}).numbers) == 0
    assert len(one({"seller": [None, -1]}).numbers) == 0
    assert one({"seller": [2**63, 2**64 - 1]}).low == 2**63


def test_sets_have_each_value_once():
    assert one({"category": ["b", "a", "b"]}).texts == (b"a", b"b")
    assert one({"category": "a"}).texts == (b"a",)
    assert one({"stock": {"in": [3, 1, 3, 1.5, 2**63, 2.0]}}).numbers.tolist() == [1, 2, 3]
    assert one({"stock": True}).numbers.tolist() == [1]
    assert one({"price": {"in": [2, 0.1, 1e300 / 10]}}).numbers.tolist() == [np.float32(0.1), 2]
    assert one({"category": []}).texts == ()


def test_not_is_counted():
    assert one({"stock": {"not": 3}}).negated
    assert not one({"stock": {"not": {"not": 3}}}).negated
    assert one({"price": {"not": [1, 2]}}).negated
    assert [clause.column.name for clause in read({"stock": 1, "tags": "a"})] == ["stock", "tags"]
    assert read({}) == []


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"price": "cheap"}, "filter.price: expected a number, got 'cheap'"),
        ({"price": ["a", "b"]}, "filter.price: expected a number or null, got 'a'"),
        (
            {"price": [1]},
            "filter.price: expected a range [low, high] or {'in': [...]} for a column of numbers, got a list",
        ),
        ({"price": [True, 2]}, "filter.price: expected a number or null, got true"),
        ({"price": {"in": [True]}}, "filter.price: expected a list of numbers, got true"),
        ({"price": None}, "filter.price: expected a number, got null"),
        ({"price": {}}, "filter.price: expected {'in': [...]} or {'not': ...}, got an object with nothing"),
        ({"price": {"in": 3}}, "filter.price: expected {'in': [...]}"),
        (
            {"price": {"in": [1], "not": 2}},
            "filter.price: expected {'in': [...]} or {'not': ...}, got an object with in, not",
        ),
        ({"price": {"lt": 3}}, "filter.price: expected {'in': [...]} or {'not': ...}, got an object with lt"),
        ({"price": [[1, 2], 3]}, "filter.price: expected a number or null, got "),
        ({"stock": 2**64}, "filter.stock: expected whole numbers of 64 bits, got 18446744073709551616"),
        ({"stock": 10**300}, "filter.stock: expected whole numbers of 64 bits, got a number beyond 64 bits"),
        ({"category": 3}, "filter.category: expected a text for a column of texts, got 3"),
        ({"category": True}, "filter.category: expected a text for a column of texts, got true"),
        ({"category": [None, 3]}, "filter.category: expected a list of texts for a column of texts, got null"),
        ({"category": ["a", 3]}, "filter.category: expected a list of texts"),
        ({"category": "\ud800"}, "filter.category: expected Unicode texts, got a lone surrogate"),
        ({"colour": "red"}, "filter: 'colour' is no column to filter on; expected one of price, stock, category"),
        ([], "filter: expected a JSON object, got a list"),
        ("3", "filter: expected a JSON object, got "),
        ("", "filter: expected a JSON object, got ''"),
        ('{"price": NaN}', "filter: expected finite numbers, got NaN"),
        ('{"price": [-Infinity, 2]}', "filter: expected finite numbers, got -Infinity"),
        ('{"price": 1e999}', "filter.price: expected a number, got Infinity"),
        ('{"price": 1, "price": 2}', "filter: expected each key once, got 'price' again"),
        ('{"price": {"not": 1, "not": 2}}', "filter: expected each key once, got 'not' again"),
        ('{"price": ' + "[" * 30_000 + "]" * 30_000 + "}", "filter: expected a JSON object, got "),
        ('{"stock": ' + "9" * 5000 + "}", "filter: expected a JSON object, got "),
        ({f"c{n}": 1 for n in range(MAX_CLAUSES + 1)}, "filter: expected at most 64 columns, got 65"),
        (" " * (MAX_NBYTES + 1), f"filter: expected at most {MAX_NBYTES} bytes, got {MAX_NBYTES + 1}"),
        ({"stock": {"in": list(range(10_001))}}, "filter: expected at most 10000 values, got 10001"),
    ],
)
def test_what_is_no_filter_is_refused_by_name(wanted, message):
    with pytest.raises(BadInput) as refused:
        read(wanted)
    assert str(refused.value).startswith(message)
    assert len(str(refused.value)) < 600


def test_nots_are_bounded():
    wanted = 3
    for _ in range(MAX_DEPTH):
        wanted = {"not": wanted}
    with pytest.raises(BadInput, match=rf"filter.stock: expected at most {MAX_DEPTH} 'not' in one another"):
        read({"stock": wanted})


def test_keys_are_compared_few_times_each():
    compared = 0

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    keys = [Key(f"k{n}") for n in range(2000)]
    with pytest.raises(BadInput, match="filter: expected each key once, got 'k1999' again"):
        _distinct([(key, 1) for key in [*keys, Key("k1999")]])
    assert compared < 4 * len(keys)


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(BadInput, match="filter: expected a JSON object"):
        read_filter(b"\xff\xfe{}", BY_NAME)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["in", "not", "x"]), inner)),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from([*BY_NAME, "other"]), json_values, max_size=3))
def test_any_json_is_read_or_refused(wanted):
    clauses = []
    with suppress(BadInput):
        clauses = read(wanted)
    for clause in clauses:
        assert (clause.texts is not None) == (clause.column.dtype == "string")
        for number in (clause.low, clause.high):
            assert number is None or not math.isnan(number)


@settings(max_examples=50)
@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data):
    with suppress(BadInput):
        read_filter(data, BY_NAME)
