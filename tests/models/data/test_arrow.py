import datetime
import decimal
import uuid

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


BOOL8 = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8()))


@pytest.mark.parametrize("array", [pa.array([True, False]), BOOL8], ids=["bool", "bool8"])
@pytest.mark.parametrize("kind", ["id", "float", "label"])
def test_booleans_are_numbers(array, kind):
    assert convert(array, kind) == [1, 0]


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


def decimals(*values):
    return pa.array([decimal.Decimal(value) for value in values])


@pytest.mark.parametrize(
    ("kind", "array", "message"),
    [
        ("id", pa.array([1, 2.5]), "expected an id, a whole number .* got 2.5 at row 1"),
        (
            "id",
            pa.array([1, 2.0**53]),
            "expected an id that floats hold, below 9007199254740992, got 9007199254740992.0",
        ),
        ("id", pa.array([2.0**24], pa.float32()), "below 16777216, got 16777216.0 at row 0"),
        ("id", pa.array([float("nan")]), "got nan at row 0"),
        ("id", decimals("1", "1.5"), "expected an id, a whole number .* got 1.5 at row 1"),
        ("id", decimals(2**64), "from -9223372036854775808 to 18446744073709551615, got 18446744073709551616"),
        ("id", decimals(-1, 2**63), "below 2.*63, as others are negative, got 9223372036854775808"),
        ("id", pa.array([1, 2, None, 4]), "expected an id, got a null at row 2"),
        ("id", pa.array([1, 2, 3, None]).slice(2), "a null at row 1"),
        ("id", pa.nulls(2), "a null at row 0"),
        ("ids", pa.array([[1], [], [2, 3], [4, None]]), "expected an id, got a null at row 3"),
        ("float", pa.array([1.0, 1e300]), r"expected a number within float32, got 1e\+300 at row 1"),
        ("floats", pa.array([[1.5], [], [2, float("inf")]]), "expected a number within float32, got inf at row 2"),
        ("label", pa.array([1.0, -0.5]), "expected a label from 0 to 1, got -0.5 at row 1"),
        ("label", pa.array([1.0, 2.0]), "expected a label from 0 to 1, got 2.0 at row 1"),
        ("label", pa.array([1.0, float("nan")]), "expected a label from 0 to 1, got nan at row 1"),
        ("label", pa.array([None, 1.0]), "expected a label, got a null at row 0"),
        ("time", pa.array([1.0, None]), "expected a time, got a null at row 1"),
        ("time", pa.array([1.0, float("nan")]), "expected a time, got nan at row 1"),
    ],
)
def test_invalid_values_are_refused_by_column_and_row(kind, array, message):
    with pytest.raises(BadInput, match=f"column 'c': .*{message}"):
        convert(array, kind)


def test_labels_are_whole_numbers_of_any_type():
    assert convert(decimals(1, 0), "label") == [1, 0]
    assert convert(pa.array([1, 0], pa.int8()).dictionary_encode(), "label") == [1, 0]


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
    assert convert(pa.array([2**24 + 1]), "float") == [float(2**24)]


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


UUIDS = [None, uuid.UUID(int=5), None, uuid.UUID("12345678-1234-5678-9abc-0123456789ab")]
UUID_TEXTS = [str(value).encode() if value else b"" for value in UUIDS]


def test_uuids_are_the_text_that_clients_send():
    array = pa.array(UUIDS, pa.uuid())

    assert convert(array, "string") == UUID_TEXTS
    assert convert(array.slice(1, 2), "string") == UUID_TEXTS[1:3]
    assert convert(array.slice(0, 0), "string") == []
    assert convert(pa.ListArray.from_arrays([0, 1, 4], array), "strings") == [UUID_TEXTS[:1], UUID_TEXTS[1:]]
    assert convert(array.storage, "string")[1] == bytes(15) + b"\x05"


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
PAIRS = [[1, 2], None, [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("lists", "layout"),
    [
        *((LISTS, layout(pa.int32())) for layout in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)),
        (PAIRS, pa.list_(pa.int64(), 2)),
    ],
)
def test_every_list_layout_is_accepted_from_any_row(lists, layout):
    for first in range(len(lists) + 1):
        assert convert(pa.array(lists, layout).slice(first), "ids") == [row or [] for row in lists[first:]]


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


def test_all_null_columns_are_accepted_where_null_is():
    nothing = pa.nulls(2)

    assert convert(nothing, "string") == [b"", b""]
    assert convert(nothing, "float") == [None, None]
    assert convert(nothing, "ids") == [[], []]
    assert convert(nothing, "strings") == [[], []]


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


@pytest.mark.parametrize(
    ("time", "remedy"),
    [
        (1.7e12, "milliseconds? Divide by 1,000, or"),
        (-1e12, "milliseconds? Divide by 1,000, or"),
        (1.7e15, "microseconds? Divide by 1,000,000, or"),
        (1.7e18, "nanoseconds? Divide by 1,000,000,000, or"),
        (1e300, "nanoseconds?"),
    ],
)
def test_times_of_finer_units_are_refused_with_the_remedy(time, remedy):
    with pytest.raises(
        BadInput, match=r"column 'c': expected a time in seconds since 1970, got .* at row 1"
    ) as refused:
        convert(pa.array([1.7e9, time]), "time")
    assert remedy in str(refused.value)
    assert convert(pa.array([1e12 - 1]), "time") == [1e12 - 1]


@pytest.mark.parametrize(
    ("kind", "t", "message"),
    [
        ("id", pa.string(), r"features\.c: expected integers for kind 'id', got .* string \(kind = 'string' fits\)"),
        ("string", pa.int64(), r"expected strings for kind 'string', got .* int64 \(kind = 'id' fits\)"),
        ("string", pa.decimal128(38, 0), r"\(kind = 'id' fits\)"),
        ("string", pa.float64(), r"\(kind = 'float' fits\)"),
        ("float", pa.string(), r"expected numbers for kind 'float'"),
        ("id", pa.list_(pa.int64()), r"\(kind = 'ids' fits\)"),
        ("id", pa.list_(pa.decimal128(38, 0)), r"\(kind = 'ids' fits\)"),
        ("ids", pa.list_(pa.string()), r"expected lists of integers.*\(kind = 'strings' fits\)"),
        ("ids", pa.decimal128(38, 0), r"\(kind = 'id' fits\)"),
        ("ids", pa.float64(), r"\(kind = 'id' fits\)"),
        ("ids", pa.string(), r"expected lists of .*fits\); text such as 'a\|b' is a list in CSV alone"),
        (
            "strings",
            pa.string(),
            r"expected lists of strings.*\(kind = 'string' fits\); text such as 'a\|b' is a list in CSV alone",
        ),
        ("id", pa.struct({"a": pa.int64()}), r"got a column of type struct<a: int64>$"),
        ("label", pa.string(), r"data\.label: expected a column of numbers from 0 to 1, got 'c' of type string"),
        ("time", pa.string(), r"data\.time: expected a column of timestamps or numbers"),
    ],
)
def test_wrong_type_is_refused_with_the_matching_kind(kind, t, message):
    with pytest.raises(BadInput, match=message):
        arrow.check_type(t, kind, "c")


def split(array: pa.Array, kind: str) -> list:
    return plain(arrow.column(arrow.canonical(arrow.split_text(array, kind, "c", where, "|"), kind, "c", where), kind))


def test_lists_in_text_need_no_utf8():
    for layout in (pa.binary(), pa.binary_view()):
        cells = pa.array([b"\xff|\xfe", b"", None, b"a"], layout)
        assert split(cells, "strings") == [[b"\xff", b"\xfe"], [], [], [b"a"]]
    for kind in ("ids", "floats"):
        assert split(pa.array([b"1|2"], pa.binary(3)), kind) == [[1, 2]]
        with pytest.raises(BadInput, match=r"column 'c': expected .* between '\|', got '\ufffd\|2' at row 1"):
            split(pa.array([b"1|2", b"\xff|2"]), kind)
