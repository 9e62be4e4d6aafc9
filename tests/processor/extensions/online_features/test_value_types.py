import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.value_types import (
    VALUE_TYPES,
    build_column,
    encode_default,
    value_type,
    value_type_numbered,
)

INT64, FLOAT, STRING = VALUE_TYPES["int64"], VALUE_TYPES["float"], VALUE_TYPES["string"]


def test_columns_are_arrays_strings_and_ragged_lists_of_these():
    numbers = build_column(INT64, [encode_default(INT64, n, "") for n in (1, -2)])
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [1, -2]
    texts = build_column(STRING, [b"a", "ä".encode(), b""])
    assert isinstance(texts, Strings)
    assert texts.tolist() == [b"a", "ä".encode(), b""]
    kind = VALUE_TYPES["int32_list"]
    lists = build_column(kind, [encode_default(kind, row, "") for row in ([1, 2], [], [3])])
    assert isinstance(lists, Ragged)
    assert (lists.values.tolist(), lists.row_splits.tolist()) == ([1, 2, 3], [0, 2, 2, 3])
    kind = VALUE_TYPES["string_set"]
    lists = build_column(kind, [encode_default(kind, row, "") for row in (["a"], [], [b"b", "c"])])
    assert (lists.values.tolist(), lists.row_splits.tolist()) == ([b"a", b"b", b"c"], [0, 1, 1, 3])


@pytest.mark.parametrize("kind", VALUE_TYPES.values(), ids=VALUE_TYPES)
def test_every_type_has_an_empty_value_that_makes_a_column(kind):
    assert len(build_column(kind, [kind.empty, kind.empty])) == 2


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int64", 1.5), ("int64", "1"), ("int64", [1]), ("int32", 2**31), ("int64", 2**64), ("int64", None),
        ("float", "a"), ("float", 1e300), ("int64_list", 1), ("int64_list", [[1]]), ("int64_list", [1, "a"]),
        ("string", 7), ("string_list", ["ab", 7]), ("string_list", 7),
    ],
)  # fmt: skip
def test_a_default_of_another_type_is_refused(kind, value):
    with pytest.raises(BadInput, match=f"input 'x': expected a default of type {kind}, got "):
        encode_default(VALUE_TYPES[kind], value, "input 'x'")


def test_types_that_are_no_input_are_refused_by_name():
    assert value_type("decimal_set", "x").number == 46
    with pytest.raises(BadInput, match=r"f: expected a type such as .*, got 'int46' \(did you mean 'int64'\?\)"):
        value_type("int46", "f")
    for number, name in ((20, "map"), (34, "struct"), (42, "value_list"), (47, "scalar_map"), (48, "zoned_timestamp")):
        with pytest.raises(BadInput, match=f"feature v:a: type {name}.* cannot be a model's input"):
            value_type_numbered(number, "feature v:a")
    with pytest.raises(BadInput, match="type number 99 cannot"):
        value_type_numbered(99, "feature v:a")
