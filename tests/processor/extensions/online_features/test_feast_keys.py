import numpy as np
import pytest

from freshet_serving.processor.extensions.online_features.feast_keys import (
    feature_field,
    key_serializer,
    murmur3_32,
    timestamp_field,
)
from tests.processor.extensions.online_features.value_messages import VECTORS


# Of the reference implementation, https://github.com/aappleby/smhasher.
@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
        (b"\x21\x43\x65", 0, 0x7E4A8634),
        (b"\x21\x43", 0, 0xA0F7B07A),
        (b"\x21", 0, 0x72661CF4),
        (b"Hello, world!", 0x9747B28C, 0x24884CBA),
        (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
    ],
)
def test_murmur3_is_the_reference(data, seed, expected):
    assert murmur3_32(data, seed) == expected


@pytest.mark.parametrize("name", VECTORS["fields"])
def test_a_field_is_the_one_that_feast_writes(name):
    view, _, feature = name.partition(":")
    if feature or name.endswith(":"):
        assert feature_field(view, feature).hex() == VECTORS["fields"][name]
    else:
        assert murmur3_32(name.encode()).to_bytes(4, "little").hex() == VECTORS["fields"][name]
    assert timestamp_field("view") == b"_ts:view"


@pytest.mark.parametrize("vector", VECTORS["keys"], ids=lambda v: "+".join(v["names"]))
def test_key_equals_feasts_in_any_order_of_parts(vector):
    dtypes = {"int64": "<i8", "int32": "<i4", "unix_timestamp": "<i8"}
    values = []
    for value, kind in zip(vector["values"], vector["types"]):
        if kind in dtypes:
            values.append(np.array(value, dtypes[kind]).tobytes())
        else:
            values.append(bytes.fromhex(value) if kind == "bytes" else value.encode())
    for order in (slice(None), slice(None, None, -1)):
        serialize = key_serializer("shop", vector["names"][order], vector["types"][order])
        assert serialize(values[order]).hex() == vector["key"]
