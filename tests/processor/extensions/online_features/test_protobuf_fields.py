import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.extensions.online_features.protobuf_fields import (
    MalformedMessage,
    encode_varint,
    pack_varints,
    read_fields,
    read_varint,
    unpack_varints,
)
from freshet_serving.processor.extensions.online_features.value_types import FIXED32, FIXED64, LENGTH, VARINT


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def encoded(fields):
    out = b""
    for number, wire, value in fields:
        out += varint(number << 3 | wire)
        if wire == VARINT:
            out += varint(value)
        elif wire == LENGTH:
            out += varint(len(value)) + value
        else:
            out += value
    return out


FIELDS = st.lists(
    st.tuples(st.integers(1, (1 << 29) - 1), st.just(VARINT), st.integers(0, 2**64 - 1))
    | st.tuples(st.integers(1, 100), st.just(LENGTH), st.binary(max_size=200))
    | st.tuples(st.integers(1, 100), st.just(FIXED64), st.binary(min_size=8, max_size=8))
    | st.tuples(st.integers(1, 100), st.just(FIXED32), st.binary(min_size=4, max_size=4)),
    max_size=10,
)


@given(FIELDS)
def test_fields_are_read_as_they_were_written(fields):
    assert list(read_fields(encoded(fields))) == fields


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_malformed(data):
    try:
        fields = list(read_fields(data))
    except MalformedMessage:
        return
    assert sum(len(value) if isinstance(value, bytes) else 1 for _, _, value in fields) <= len(data)


@pytest.mark.parametrize(
    "data",
    [b"\x08", b"\x00\x01", b"\x0a\x05ab", b"\x09\x01", b"\x0b", b"\x0e\x01", b"\x08" + b"\xff" * 11, b"\xff" * 9],
)
def test_what_is_no_message_is_malformed(data):
    with pytest.raises(MalformedMessage):
        list(read_fields(data))


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_packed_varints_are_unpacked_at_once(values):
    unpacked = unpack_varints(b"".join(map(varint, values)))
    assert unpacked.dtype == np.uint64
    assert unpacked.tolist() == values


@given(st.binary(max_size=40))
def test_packed_bytes_equal_varints_read_one_by_one(data):
    found, at = [], 0
    try:
        while at < len(data):
            value, at = read_varint(data, at)
            found.append(value)
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            unpack_varints(data)
    else:
        assert unpack_varints(data).tolist() == found


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=20))
def test_packed_varints_are_those_of_protobuf(values):
    packed, starts = pack_varints(np.array(values, np.uint64))
    assert packed == b"".join(map(varint, values)) == b"".join(map(encode_varint, values))
    assert [packed[a:b] for a, b in zip(starts, starts[1:])] == list(map(varint, values))
    assert unpack_varints(packed).tolist() == values
