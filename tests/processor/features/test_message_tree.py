"""How much a message would make of its bytes, against what the protobuf runtime makes of them."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.message_tree import MessageTree
from freshet_serving.processor.kernels.wire_format import HOLDER

TREE = MessageTree(eas.Request.DESCRIPTOR)
NAMES = st.text("ab", max_size=2)
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def requests(draw):
    made = eas.Request(signature_name=draw(NAMES), output_filter=draw(st.lists(NAMES, max_size=3)))
    for name in draw(st.lists(NAMES, max_size=4, unique=True)):
        array = made.inputs[name]
        array.dtype = draw(st.sampled_from([0, 1, 9]))
        array.array_shape.dim.extend(draw(st.lists(INT64, max_size=3)))
        array.int64_val.extend(draw(st.lists(INT64, max_size=4)))
        array.float_val.extend(draw(st.lists(st.floats(width=32), max_size=4)))
        array.double_val.extend(draw(st.lists(st.floats(), max_size=4)))
        array.bool_val.extend(draw(st.lists(st.booleans(), max_size=4)))
        array.string_val.extend(draw(st.lists(st.binary(max_size=3), max_size=4)))
    return made


def nodes(message):
    """Fields and values of a message as the runtime writes it; messages within it weigh more."""
    count = 0
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            # An entry, its key, its value and what that holds.
            count += sum(HOLDER + 1 + HOLDER + nodes(held) for held in value.values())
        elif field.message_type is not None:
            count += HOLDER + nodes(value)
        elif not field.is_repeated:
            count += 1
        else:
            count += 2 * len(value) if field.type in (field.TYPE_BYTES, field.TYPE_STRING) else 1 + len(value)
    return count


@given(requests())
def test_count_equals_the_nodes_of_a_parsed_message(made):
    assert TREE.count(made.SerializeToString()) == nodes(made)


GROUP, END = b"\xfb\x06", b"\xfc\x06"
MANY = b"\x12\x00" * 50


@given(st.binary(max_size=80))
@example(GROUP + b"\x12\x01\xff" + END + MANY)
@example(GROUP + GROUP + END + b"\x12\x02\x12\x7f" + END + MANY)
@example(b"\xfa\x06\x01\xff" + MANY)
@example(b"\x10\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00" + MANY)
@example(b"\x92\x80\x80\x80\x00\x00" + MANY)
@example(b"\x12\x02\x08\x01" + MANY)
@example(b"\x11" + bytes(8) + b"\x15" + bytes(4) + MANY)
def test_count_is_an_upper_bound_of_what_the_runtime_parses(data):
    try:
        made = eas.Request.FromString(data)
    except DecodeError:
        TREE.count(data)
        return
    made.DiscardUnknownFields()
    # Entries of one key become one, so there may be fewer.
    assert TREE.count(data) >= nodes(made)
    if data.endswith(MANY):
        assert TREE.count(data) >= 50 * HOLDER


@pytest.mark.parametrize("cut", [1, 30, 99])
def test_truncated_message_is_counted_up_to_the_truncation(cut):
    assert TREE.count(MANY[:cut]) >= cut // 2


def test_endless_nesting_is_not_followed():
    deep = b""
    for _ in range(300):
        deep = b"\x12" + bytes([len(deep)] if len(deep) < 128 else [len(deep) & 127 | 128, len(deep) >> 7]) + deep
    assert TREE.count(deep) > 0


def test_message_over_the_limit_is_refused_before_parsing():
    limits = RequestLimits(max_nodes=120)
    TREE.check_limits(MANY[:60], limits)
    with pytest.raises(TooLarge, match="max_nodes: expected at most 120 fields and values, got 124; send tensors as"):
        TREE.check_limits(MANY[:62], limits)
    packed = eas.Request()
    packed.inputs["a"].int64_val.extend([1] * 125)
    with pytest.raises(TooLarge, match="got 135"):
        TREE.check_limits(packed.SerializeToString(), limits)
