import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from freshet_serving.models.data import arrow
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import plain


def where(row: int) -> str:
    return f"row {row} of x"


def convert(array: pa.Array, kind: str) -> list:
    return plain(arrow.column(arrow.canonical(array, kind, "c", where), kind))


@pytest.mark.parametrize("t", [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()])
def test_every_integer_type_is_accepted_as_id(t):
    assert convert(pa.array([1, 0, 7], t), "id") == [1, 0, 7]


UNSIGNED = [1, 2**63 - 1, 2**63, 2**64 - 1]
CARRIED = [1, 2**63 - 1, -(2**63), -1]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(UNSIGNED, pa.uint64()),
        pa.array([decimal.Decimal(n) for n in UNSIGNED], pa.decimal128(38, 0)),
        pa.array([decimal.Decimal(n) for n in UNSIGNED], pa.decimal256(60, 4)),
        pa.array(UNSIGNED, pa.uint64()).dictionary_encode(),
    ],
)
def test_unsigned_ids_beyond_63_bits_carry_their_bits(array):
    assert convert(array, "id") == CARRIED
    assert convert(pa.ListArray.from_arrays([0, 4], array), "ids") == [CARRIED]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([decimal.Decimal(n) for n in (2**53, 2**53 + 1, -5)], pa.decimal128(38, 0)),
        pa.array([decimal.Decimal(n) for n in (2**53, 2**53 + 1, -5)], pa.decimal128(20, 3)),
    ],
)
def test_decimal_ids_are_read_to_the_bit(array):
    assert convert(array, "id") == [2**53, 2**53 + 1, -5]
    assert arrow.infer_kind(pa.decimal128(38, 0), "c") == "id"


@pytest.mark.parametrize("t", [pa.float16(), pa.float32(), pa.float64()])
def test_floats_without_a_fraction_are_ids(t):
    assert convert(pa.array([0, 7, -3], t), "id") == [0, 7, -3]
    assert convert(pa.array([[0, 7], None], pa.list_(t)), "ids") == [[0, 7], []]


def test_booleans_and_extension_types_are_ids():
    assert convert(pa.array([True, False]), "id") == [1, 0]
    assert convert(pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8())), "id") == [1, 0]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([1, 2.5]), "expected an id, a whole number .* got 2.5 at row 1"),
        (pa.array([1, 2.0**53]), "expected an id that floats hold, below 9007199254740992, got 9007199254740992.0"),
        (pa.array([2.0**24], pa.float32()), "below 16777216, got 16777216.0 at row 0"),
        (pa.array([float("nan")]), "got nan at row 0"),
        (
            pa.array([decimal.Decimal("1"), decimal.Decimal("1.5")]),
            "expected an id, a whole number .* got 1.5 at row 1",
        ),
        (
            pa.array([decimal.Decimal(2**64)]),
            "from -9223372036854775808 to 18446744073709551615, got 18446744073709551616",
        ),
        (
            pa.array([decimal.Decimal(-1), decimal.Decimal(2**63)]),
            "below 2.*63, as others are negative, got 9223372036854775808",
        ),
    ],
)
def test_numbers_that_are_no_ids_are_refused_by_row(array, message):
    with pytest.raises(BadInput, match=message):
        convert(array, "id")


@pytest.mark.parametrize(
    ("kind", "t", "hint"),
    [
        ("ids", pa.decimal128(38, 0), "id"),
        ("ids", pa.float64(), "id"),
        ("string", pa.decimal128(38, 0), "id"),
        ("id", pa.list_(pa.decimal128(38, 0)), "ids"),
        ("string", pa.float64(), "float"),
    ],
)
def test_hints_name_a_kind_that_keeps_ids(kind, t, hint):
    with pytest.raises(BadInput, match=rf"\(kind = '{hint}' fits\)"):
        arrow.check_type(t, kind, "c")


def test_labels_are_whole_numbers_of_any_type():
    for array in (
        pa.array([decimal.Decimal(1), decimal.Decimal(0)], pa.decimal128(38, 0)),
        pa.array([1, 0], pa.int8()).dictionary_encode(),
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8())),
    ):
        assert convert(array, "label") == [1, 0]


def test_null_id_is_refused_by_column_and_row():
    with pytest.raises(BadInput, match="column 'c': expected an id, got a null at row 2 of x"):
        convert(pa.array([1, 2, None, 4]), "id")


def test_nulls_of_a_slice_are_counted_from_its_first_row():
    with pytest.raises(BadInput, match="a null at row 1 of x"):
        convert(pa.array([1, 2, 3, None]).slice(2), "id")


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 2], pa.int16()),
        pa.array([1.0, None, 2.0]),
        pa.array([1.0, None, 2.0], pa.float16()),
        pa.array([decimal.Decimal("1.0"), None, decimal.Decimal("2.0")]),
    ],
)
def test_every_number_is_accepted_as_float_and_null_is_nan(array):
    assert convert(array, "float") == [1.0, None, 2.0]


def test_bools_are_accepted_as_floats_and_labels():
    assert convert(pa.array([True, False]), "float") == [1.0, 0.0]
    assert convert(pa.array([True, False]), "label") == [1.0, 0.0]


def test_large_integers_round_to_float32():
    assert convert(pa.array([2**24 + 1]), "float") == [float(2**24)]


def test_numbers_beyond_float32_are_refused():
    with pytest.raises(BadInput, match=r"column 'c': expected a number within float32, got 1e\+300 at row 1 of x"):
        convert(pa.array([1.0, 1e300]), "float")


@pytest.mark.parametrize(
    "t", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]
)
def test_every_string_layout_is_accepted_and_null_is_empty(t):
    assert convert(pa.array(["x", "é", None, "", "long enough for no view"], t).slice(1), "string") == [
        "é".encode(),
        b"",
        b"",
        b"long enough for no view",
    ]


def test_bytes_under_a_null_are_not_read():
    array = pa.StringArray.from_buffers(
        3, pa.py_buffer(np.array([0, 1, 4, 5], np.int32)), pa.py_buffer(b"a???b"), pa.py_buffer(b"\x05")
    )

    assert convert(array, "string") == [b"a", b"", b"b"]


@pytest.mark.parametrize(
    ("kind", "values"), [("string", ["a", "b", "a"]), ("id", [7, 8, 7]), ("float", [1.5, 2.5, 1.5])]
)
def test_dictionaries_are_decoded(kind, values):
    expected = [v.encode() if isinstance(v, str) else v for v in values]

    assert convert(pa.array(values).dictionary_encode(), kind) == expected
    assert convert(pa.array([None, *values]).dictionary_encode().slice(1), kind) == expected


def test_canonical_string_column_shares_the_arrow_buffer():
    array = pa.array(["aa", "bbb", "c"], pa.large_string())
    strings = arrow.column(arrow.canonical(array, "string", "c", where).slice(1), "string")
    address = strings.data.__array_interface__["data"][0]

    assert address == array.buffers()[2].address + 2
    assert strings.offsets.tolist() == [0, 3, 4]


LISTS = [[1, 2], None, [], [3], [4, 5, 6]]


@pytest.mark.parametrize("layout", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
@pytest.mark.parametrize("first", range(6))
def test_every_list_layout_is_accepted_from_any_row(layout, first):
    array = pa.array(LISTS, layout(pa.int32())).slice(first)

    assert convert(array, "ids") == [row or [] for row in LISTS[first:]]


def test_fixed_size_lists_are_accepted():
    array = pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int64(), 2))

    assert convert(array, "ids") == [[1, 2], [], [3, 4], [5, 6]]
    assert convert(array.slice(1), "ids") == [[], [3, 4], [5, 6]]


def test_values_under_a_null_list_are_not_read():
    array = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()), pa.array([1, 2, 3, 4]), mask=pa.array([False, True, False])
    )

    assert convert(array, "ids") == [[1], [], [4]]


def test_lists_of_strings_may_hold_nulls_and_dictionaries():
    lists = pa.array([["a", None], None, ["ccc"]])
    packed = pa.ListArray.from_arrays(lists.offsets, lists.values.dictionary_encode())

    assert convert(lists, "strings") == [[b"a", b""], [], [b"ccc"]]
    assert convert(packed.slice(2), "strings") == [[b"ccc"]]


def test_lists_of_any_numbers_are_floats_and_null_is_nan():
    for values in ([[1.5, None], None, [], [-3]], [[1, None], None, [], [4]]):
        assert convert(pa.array(values), "floats") == [row or [] for row in values]
    made = arrow.column(arrow.canonical(pa.array([[1, 2], [3]]), "floats", "c", where), "floats")
    assert made.values.dtype == np.float32


def test_infinite_number_in_a_list_is_refused_by_row():
    with pytest.raises(BadInput, match="column 'c': expected a number within float32, got inf at row 2 of x"):
        convert(pa.array([[1.5], [], [2.5, float("inf")]]), "floats")


def test_null_id_in_a_list_is_refused_by_row():
    with pytest.raises(BadInput, match="column 'c': expected an id, got a null at row 3 of x"):
        convert(pa.array([[1], [], [2, 3], [4, None]]), "ids")


def test_all_null_columns_are_accepted_where_null_is():
    nothing = pa.nulls(2)

    assert convert(nothing, "string") == [b"", b""]
    assert convert(nothing, "float") == [None, None]
    assert convert(nothing, "ids") == [[], []]
    assert convert(nothing, "strings") == [[], []]
    with pytest.raises(BadInput, match="a null at row 0"):
        convert(nothing, "id")


@pytest.mark.parametrize("bad", [-0.5, 2.0, float("nan")])
def test_labels_outside_0_to_1_are_refused(bad):
    with pytest.raises(BadInput, match=f"column 'c': expected a label from 0 to 1, got {bad} at row 1 of x"):
        convert(pa.array([1.0, bad]), "label")


def test_null_label_is_refused():
    with pytest.raises(BadInput, match="column 'c': expected a label, got a null at row 0 of x"):
        convert(pa.array([None, 1.0]), "label")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_become_unix_seconds(unit):
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)

    assert convert(pa.array([at], pa.timestamp(unit, "UTC")), "time") == [1704067200.0]
    assert convert(pa.array([at.replace(tzinfo=None)], pa.timestamp(unit)), "time") == [1704067200.0]


def test_dates_and_numbers_are_accepted_as_times():
    day = datetime.date(2024, 1, 1)

    assert convert(pa.array([day], pa.date32()), "time") == [1704067200.0]
    assert convert(pa.array([day], pa.date64()), "time") == [1704067200.0]
    assert convert(pa.array([1704067200, 1704067201]), "time") == [1704067200.0, 1704067201.0]
    assert convert(pa.array([0.25]), "time") == [0.25]


@pytest.mark.parametrize("time", [1.7e12, -1e12, 1e300])
def test_time_in_milliseconds_is_refused_with_an_explanation(time):
    with pytest.raises(
        BadInput, match=r"column 'c': expected a time in seconds since 1970, got .* at row 1.*; (milli|nano)"
    ):
        convert(pa.array([1.7e9, time]), "time")
    assert convert(pa.array([1e12 - 1]), "time") == [1e12 - 1]


@pytest.mark.parametrize(
    ("time", "remedy"),
    [
        (1_700_000_000_000, "milliseconds? Divide by 1,000, or"),
        (1_700_000_000_000_000, "microseconds? Divide by 1,000,000, or"),
        (1_700_000_000_000_000_000, "nanoseconds? Divide by 1,000,000,000, or"),
    ],
)
def test_times_of_finer_units_are_named_with_the_remedy(time, remedy):
    with pytest.raises(BadInput) as refused:
        convert(pa.array([1_700_000_000, time]), "time")
    assert remedy in str(refused.value)


def test_missing_time_is_refused():
    with pytest.raises(BadInput, match="column 'c': expected a time, got a null at row 1"):
        convert(pa.array([1.0, None]), "time")
    with pytest.raises(BadInput, match="column 'c': expected a time, got nan at row 1"):
        convert(pa.array([1.0, float("nan")]), "time")


@pytest.mark.parametrize(
    ("kind", "array", "message"),
    [
        (
            "id",
            pa.array(["a"]),
            r"features\.c: expected integers for kind 'id', got .* string \(kind = 'string' fits\)",
        ),
        ("string", pa.array([1]), r"expected strings for kind 'string', got .* int64 \(kind = 'id' fits\)"),
        ("float", pa.array(["a"]), r"expected numbers for kind 'float'"),
        ("id", pa.array([[1]]), r"\(kind = 'ids' fits\)"),
        ("ids", pa.array([["a"]]), r"expected lists of integers.*\(kind = 'strings' fits\)"),
        ("strings", pa.array(["a"]), r"expected lists of strings.*\(kind = 'string' fits\)"),
        ("id", pa.array([{"a": 1}]), r"got a column of type struct<a: int64>$"),
        (
            "label",
            pa.array(["a"]),
            r"data\.label: expected a column of numbers from 0 to 1, got 'c' of type string",
        ),
        ("time", pa.array(["a"]), r"data\.time: expected a column of timestamps or numbers"),
    ],
)
def test_wrong_type_is_refused_with_the_matching_kind(kind, array, message):
    with pytest.raises(BadInput, match=message):
        convert(array, kind)


@pytest.mark.parametrize("kind", ["ids", "strings"])
def test_text_for_a_list_is_refused_with_the_way_to_split_it(kind):
    with pytest.raises(
        BadInput, match=r"features.tags: expected lists of .*fits\); text such as 'a\|b' is a list in CSV alone"
    ):
        arrow.check_type(pa.string(), kind, "tags")
