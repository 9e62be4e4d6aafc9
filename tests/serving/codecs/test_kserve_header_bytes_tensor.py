"""Strings in the binary layout, read through serving.codecs.kserve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.serving.codecs import kserve
from freshet_serving.serving.codecs.kserve_header import decode_bytes
from tests.serving.codecs.infer_requests import binary, prefixed, tensor
from tests.serving.fakes import FLAT


@pytest.mark.parametrize(
    ("raw", "count", "message"),
    [
        (b"\x01\0\0", 1, "length-prefixed"),
        (b"\x02\0\0\0a", 1, "element 0 extends beyond"),
        (b"\xff\xff\xff\xffa", 1, "element 0 extends beyond"),
        (b"\x01\0\0\0ab", 1, "1 elements fill 5 bytes, got 6"),
        (prefixed([b"ab", b"cd"])[:-1], 2, "element 1 extends beyond"),
    ],
)
def test_mismatched_bytes_tensor_is_refused(raw, count, message):
    tensors = [
        tensor("user", "INT64", [1], [1]),
        tensor("price", "FP32", [1], [1]),
        tensor("city", "BYTES", [count], nbytes=len(raw)),
    ]
    body, headers = binary(tensors, [raw])
    with pytest.raises(BadInput, match=message):
        kserve.decode(body, headers, FLAT)


@given(st.lists(st.binary(max_size=12), max_size=30), st.integers(0, 7))
def test_any_strings_round_trip_through_the_binary_layout(values, pad):
    raw = prefixed(values)
    tensors = [
        tensor("user", "INT64", [1], [1]),
        tensor("price", "FP32", [1], [1]),
        tensor("city", "BYTES", [len(values)], nbytes=len(raw)),
    ]
    body, headers = binary(tensors, [raw], pad)
    city = kserve.decode(body, headers, FLAT)[0]["city"]
    assert isinstance(city, Strings)
    assert city.tolist() == values


@given(st.binary(max_size=120), st.integers(0, 40))
def test_arbitrary_bytes_tensor_is_decoded_or_refused_with_freshet_error(raw, count):
    tensors = [
        tensor("user", "INT64", [1], [1]),
        tensor("price", "FP32", [1], [1]),
        tensor("city", "BYTES", [count], nbytes=len(raw)),
    ]
    body, headers = binary(tensors, [raw])
    try:
        city = kserve.decode(body, headers, FLAT)[0]["city"]
    except FreshetError:
        return
    assert prefixed(city.tolist()) == raw


def test_element_overlapping_the_next_length_is_refused():
    """The 8 bytes are enough for two lengths; the first one says that it is followed by what should be the second."""
    with pytest.raises(BadInput, match="element 0 extends beyond the tensor's 8 bytes"):
        decode_bytes(np.frombuffer(b"\4\0\0\0abcd", np.uint8), 2, "city")


@pytest.mark.parametrize(("length", "copied"), [(300_000, True), (10, False)], ids=["long", "short"])
def test_numbers_beside_long_strings_do_not_keep_the_body(length, copied):
    raw = prefixed([b"a" * length])
    tensors = [
        tensor("user", "INT64", [1], nbytes=8),
        tensor("price", "FP32", [1], [1]),
        tensor("city", "BYTES", [1], nbytes=len(raw)),
    ]
    body, headers = binary(tensors, [np.array([7]).tobytes(), raw])
    # The JSON before a tensor may end anywhere, and a tensor that is not aligned is copied in any case.
    at = len(body) - len(raw) - 8
    aligned = np.zeros(len(body) + 8, np.uint8)
    begin = -(aligned.ctypes.data + at) % 8
    aligned[begin : begin + len(body)] = np.frombuffer(body, np.uint8)
    memory = aligned[begin : begin + len(body)]
    inputs, _ = kserve.decode(memory.data, headers, FLAT)
    assert inputs["user"].tolist() == [7]
    assert np.shares_memory(inputs["user"], memory) != copied
