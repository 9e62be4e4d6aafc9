import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.extensions.online_features.plain_values import decode_text, encode_lists, key_formatter
from freshet_serving.processor.extensions.online_features.protobuf_fields import MalformedMessage
from freshet_serving.processor.extensions.online_features.value_types import VALUE_TYPES


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_are_decimal(value):
    assert decode_text(b"%d" % value, VALUE_TYPES["int64"]) == np.array(value, "<i8").tobytes()


@given(st.floats(allow_nan=False))
def test_numbers_are_read_as_python_writes_them(value):
    assert decode_text(repr(value).encode(), VALUE_TYPES["double"]) == np.array(value, "<f8").tobytes()


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_lists_are_json(values):
    assert decode_text(json.dumps(values).encode(), VALUE_TYPES["int32_list"]) == np.array(values, "<i4").tobytes()


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("bool", b"true", b"\1"),
        ("bool", b"0", b"\0"),
        ("string", "ä".encode(), "ä".encode()),
        ("bytes", b"\xff", b"\xff"),
        ("string_list", b'["a", "b"]', (b"a", b"b")),
        ("bool_list", b"[true, false]", b"\1\0"),
        ("float_list", b"[]", b""),
    ],
)
def test_other_types_are_text_as_well(kind, text, expected):
    assert decode_text(text, VALUE_TYPES[kind]) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int64", b""),
        ("int64", b"1.5"),
        ("int64", b"1_0"),
        ("int64", b"1 2"),
        ("int64", b"9007199254740994.0"),
        ("int64", b"nan"),
        ("bool", b"2"),
        ("bool", b"-1.0"),
        ("bool_list", b"[7.3]"),
        ("int64_list", b"[9007199254740993, 9007199254740994.0]"),
        ("int64_list", b"[1,]"),
        ("int64_list", b"[null]"),
        ("int64", b"9" * 19),
        ("int32", b"2147483648"),
        ("int64", b"9" * 5000),
        ("double", b"1_0"),
        ("double", b"0x1"),
        ("float", b"1e300"),
        ("bool", b"yes"),
        ("string", b"\xff"),
        ("int64_list", b"7"),
        ("int64_list", b"[1.5]"),
        ("int64_list", b"[" * 3000),
        ("int64_list", b"[[1]]"),
        ("string_list", b"[1]"),
        ("int64_list", b'{"a": 1}'),
        ("int64_list", b"[" + b"0," * 20000 + b"0]"),
    ],
)
def test_text_of_another_type_is_malformed(kind, text):
    with pytest.raises(MalformedMessage):
        decode_text(text, VALUE_TYPES[kind])


def test_a_key_is_the_template_with_the_values_in_place():
    form = key_formatter("u:{country}:{user}:x", ["user", "country"], ["int64", "string"])
    assert form([np.array(-7, "<i8").tobytes(), b"de"]) == b"u:de:-7:x"


def test_uint64_is_decimal_and_carries_its_bits():
    ids = [5, 2**63, 2**64 - 1]
    for value in ids:
        assert decode_text(b"%d" % value, VALUE_TYPES["int64"], True) == np.array(value, "<u8").tobytes()
    assert decode_text(json.dumps(ids).encode(), VALUE_TYPES["int64_list"], True) == np.array(ids, "<u8").tobytes()
    for text in (b"-1", b"18446744073709551616"):
        with pytest.raises(MalformedMessage, match="expected int64"):
            decode_text(text, VALUE_TYPES["int64"], True)
    with pytest.raises(MalformedMessage, match="expected int64"):
        decode_text(b"9223372036854775808", VALUE_TYPES["int64"])


def test_keys_of_uint64_have_no_sign():
    carried = np.array(2**63 + 5, "<u8").tobytes()
    assert key_formatter("user:{id}", ["id"], ["int64"], {"id"})([carried]) == b"user:9223372036854775813"


NUMBERS = ("2.0", "2e0", "2", "+2", "1.0", "0.0", "1.5", "nan", "NaN", "1e300", "true", "True", "False", "yes", "1 2")
NUMBERS += ("9223372036854775807", "9223372036854775808", "9007199254740994.0", '"2"', "null", "", "[1]", "0x1", "inf")


@pytest.mark.parametrize("kind", ["int32", "int64", "unix_timestamp", "float", "double", "bool"])
def test_number_is_read_alike_alone_and_in_a_list(kind):
    def outcome(text, name):
        try:
            return decode_text(text.encode(), VALUE_TYPES[name])
        except MalformedMessage:
            return None

    for number in NUMBERS:
        alone = outcome(number, kind)
        for around in ("[{}]", " [ {} ]\n") if number else ():
            assert outcome(around.format(number), f"{kind}_list") == alone, number
        assert outcome(f" {number}\n", kind) == alone


def test_whole_numbers_written_as_floats_are_integers():
    assert decode_text(b"2.0", VALUE_TYPES["int64"]) == np.array(2, "<i8").tobytes()
    mixed = decode_text(b"[9007199254740993, 1.0]", VALUE_TYPES["int64_list"])
    assert mixed == np.array([9007199254740993, 1], "<i8").tobytes()
    assert decode_text(b"[NaN, 1]", VALUE_TYPES["float_list"]) == np.array([np.nan, 1], "<f4").tobytes()


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9), max_size=5), st.booleans())
def test_lists_of_ids_are_read_as_they_were_written(content, unsigned):
    kind = VALUE_TYPES["int64_list"]
    lists = Ragged.of(content)
    texts = encode_lists(kind, replace(lists, values=lists.values.astype(np.int64)), unsigned)
    assert [decode_text(text, kind, unsigned) for text in texts] == [np.array(row, "<i8").tobytes() for row in content]
    if unsigned:
        assert not any(b"-" in text for text in texts)


@given(
    st.lists(st.lists(st.floats(width=32, allow_infinity=False), max_size=9), max_size=5),
    st.sampled_from(["float_list", "double_list"]),
)
def test_lists_of_floats_are_read_as_they_were_written(content, name):
    kind = VALUE_TYPES[name]
    flat = np.array([number for row in content for number in row], np.float32)
    texts = encode_lists(kind, replace(Ragged.of(content), values=flat))
    for row, text in zip(content, texts):
        read = np.frombuffer(decode_text(text, kind), kind.dtype).astype(np.float32)
        np.testing.assert_array_equal(read, np.array(row, np.float32))


@given(st.lists(st.lists(st.text(), max_size=9), max_size=5))
def test_lists_of_texts_are_read_as_they_were_written(content):
    kind = VALUE_TYPES["string_list"]
    lists = Ragged.of(content)
    lists = lists if lists.row_splits[-1] else replace(lists, values=Strings.of([]))
    texts = [decode_text(text, kind) for text in encode_lists(kind, lists)]
    assert texts == [tuple(text.encode() for text in row) for row in content]
