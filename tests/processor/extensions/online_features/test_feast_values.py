import contextlib

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.extensions.online_features.feast_values import (
    MAX_VALUES,
    decode_timestamp,
    decode_value,
    encode_lists,
    encode_timestamp,
)
from freshet_serving.processor.extensions.online_features.protobuf_fields import MalformedMessage
from freshet_serving.processor.extensions.online_features.value_types import VALUE_TYPES
from tests.processor.extensions.online_features.value_messages import SCALARS, VECTORS, Value, value_of

CONTENT = {
    "bytes": st.binary(max_size=40),
    "string": st.text(max_size=20),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(),
    "float": st.floats(width=32),
    "bool": st.booleans(),
    "unix_timestamp": st.integers(-(2**63), 2**63 - 1),
}
LISTS = [f"{kind}_{many}" for kind in CONTENT for many in ("list", "set")]


def raw(decoded):
    return [text.hex() for text in decoded] if isinstance(decoded, tuple) else decoded.hex()


def decoded_by_protobuf(message, kind):
    """What protobuf's own runtime holds: None for null, else the value in the form of decode_value()."""
    field = message.WhichOneof("val")
    if field in (None, "null_val"):
        return None
    if field != f"{kind.name}_val":
        raise MalformedMessage
    content = getattr(message, field)
    if kind.dtype is None:
        texts = [t.encode() if isinstance(t, str) else t for t in (content.val if kind.is_list else [content])]
        return tuple(texts) if kind.is_list else texts[0]
    with np.errstate(invalid="ignore"):
        return np.asarray(list(content.val) if kind.is_list else content, kind.dtype).tobytes()


@pytest.mark.parametrize("kind", VECTORS["values"])
def test_a_value_that_feast_wrote_is_decoded_to_the_bit(kind):
    for serialized, expected in VECTORS["values"][kind]:
        assert raw(decode_value(bytes.fromhex(serialized), VALUE_TYPES[kind])) == expected


def test_every_type_that_is_served_is_among_the_vectors():
    assert set(VECTORS["values"]) == set(VALUE_TYPES)


@given(st.data())
def test_any_value_is_decoded_as_protobuf_does(data):
    name = data.draw(st.sampled_from(sorted(CONTENT) + LISTS))
    kind = VALUE_TYPES[name]
    scalar = name.removesuffix("_list").removesuffix("_set")
    content = data.draw(st.lists(CONTENT[scalar], max_size=20) if kind.is_list else CONTENT[scalar])
    serialized = value_of(name, content).SerializeToString()
    assert decode_value(serialized, kind) == decoded_by_protobuf(Value.FromString(serialized), kind)


@given(st.data())
def test_damaged_messages_decode_as_protobuf_does_or_are_malformed(data):
    """Two messages end to end are merged; a cut or changed byte is whatever it is."""
    kind = VALUE_TYPES[data.draw(st.sampled_from(sorted(CONTENT) + LISTS))]
    parts = []
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from([kind.name, kind.name, "int64", "int64_list"]))
        scalar = name.removesuffix("_list").removesuffix("_set")
        content = st.lists(CONTENT[scalar], max_size=4) if VALUE_TYPES[name].is_list else CONTENT[scalar]
        parts.append(value_of(name, data.draw(content)).SerializeToString())
    serialized = bytearray(b"".join(parts))
    if serialized and data.draw(st.booleans()):
        serialized[data.draw(st.integers(0, len(serialized) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_value(bytes(serialized), kind)
    except MalformedMessage:
        return
    try:
        expected = decoded_by_protobuf(Value.FromString(bytes(serialized)), kind)
    except DecodeError:
        # Only what lies beside the value may be more than we look at: text that is not UTF-8 in another field.
        return
    assert decoded == expected


@given(st.binary(max_size=60), st.sampled_from(sorted(VALUE_TYPES)))
def test_any_bytes_are_a_value_or_malformed(data, name):
    with contextlib.suppress(MalformedMessage):
        decode_value(data, VALUE_TYPES[name])


def test_null_is_no_value_and_another_type_is_malformed():
    kind = VALUE_TYPES["int64"]
    assert decode_value(b"", kind) is None
    assert decode_value(Value(null_val=0).SerializeToString(), kind) is None
    for number, (name, _) in SCALARS.items():
        if number != 4:
            with pytest.raises(MalformedMessage):
                decode_value(value_of(name, {"bytes": b"", "string": ""}.get(name, 1)).SerializeToString(), kind)
    with pytest.raises(MalformedMessage):
        decode_value(value_of("int64_list", [1]).SerializeToString(), kind)
    with pytest.raises(MalformedMessage):
        decode_value(value_of("int64", 1).SerializeToString(), VALUE_TYPES["int64_list"])


def test_text_is_utf8_and_bytes_are_anything():
    data = b"\xff\xfe"
    assert decode_value(value_of("bytes", data).SerializeToString(), VALUE_TYPES["bytes"]) == data
    with pytest.raises(MalformedMessage):
        decode_value(b"\x12\x02" + data, VALUE_TYPES["string"])


def test_lists_decode_packed_and_unpacked_up_to_a_limit():
    unpacked = b"".join(b"\x08" + bytes([n]) for n in range(5))
    serialized = b"\x72" + bytes([len(unpacked)]) + unpacked
    assert decode_value(serialized, VALUE_TYPES["int64_list"]) == np.arange(5).tobytes()
    longest = list(range(MAX_VALUES))
    assert (
        len(decode_value(value_of("int64_list", longest).SerializeToString(), VALUE_TYPES["int64_list"]))
        == 8 * MAX_VALUES
    )
    for kind, content in (("int64_list", [0]), ("float_list", [0.0]), ("string_list", [""]), ("bool_set", [True])):
        with pytest.raises(MalformedMessage, match="more than"):
            decode_value(value_of(kind, content * (MAX_VALUES + 1)).SerializeToString(), VALUE_TYPES[kind])


@given(st.integers(-(10**10), 10**10), st.integers(0, 999_999_999))
def test_a_timestamp_is_seconds_since_1970(seconds, nanos):
    data = Timestamp(seconds=seconds, nanos=nanos).SerializeToString()
    assert decode_timestamp(data) == seconds + nanos / 1e9
    with pytest.raises(MalformedMessage):
        decode_timestamp(b"\x0a\x00")


@given(st.sampled_from(["int64_list", "unix_timestamp_list", "double_list", "float_list", "string_list"]), st.data())
def test_lists_are_encoded_as_protobuf_does(name, data):
    content = data.draw(st.lists(st.lists(CONTENT[name.removesuffix("_list")], max_size=9), max_size=5))
    kind = VALUE_TYPES[name]
    flat = [value for row in content for value in row]
    values = Strings.of(flat) if kind.dtype is None else np.array(flat, kind.dtype)
    lists = Ragged(values, np.concatenate([[0], np.cumsum([len(row) for row in content])]).astype(np.int64))
    assert encode_lists(kind, lists) == [value_of(name, row).SerializeToString() for row in content]


@given(st.integers(-(10**10), 10**10))
def test_whole_seconds_are_encoded_as_protobuf_does(seconds):
    assert encode_timestamp(seconds) == Timestamp(seconds=seconds).SerializeToString()
