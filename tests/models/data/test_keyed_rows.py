"""Rows found by key, and as of a time."""

import numpy as np

from freshet_serving.models.data.keyed_rows import KeyedRows, join_rows
from freshet_serving.models.data.source import Field
from freshet_serving.processor.columns import Ragged, Strings

FIELDS = [Field("price", "float"), Field("tags", "strings")]


def rows_of(keys, prices, times=None):
    columns = {"price": np.float32(prices), "tags": Ragged.of([[f"t{p}"] for p in prices])}
    return KeyedRows(FIELDS, keys, columns, None if times is None else np.float64(times))


def test_last_row_of_a_key_counts_whatever_the_type_of_keys():
    for keys, asked in ((np.array([5, 7, 5]), np.array([5, 6])), (Strings.of("aba"), Strings.of("ac"))):
        rows = rows_of(keys, [1, 2, 3])
        ids = rows_of(asked, [0, 0]).ids
        assert rows.rows(ids, None).tolist() in ([2, 3], [3, 2])
        assert len(rows.newest) == 2
        assert rows.repeated() == 1


def test_rows_need_not_be_sorted_by_time():
    rows = rows_of(np.array([1, 1, 1]), [1, 2, 3], [30.0, 10.0, 20.0])
    places = rows.rows(np.array([1, 1, 1, 1]), np.array([5.0, 10.0, 25.0, 99.0]))
    np.testing.assert_array_equal(rows.take(places)["price"], np.float32([np.nan, 2, 3, 1]))


def test_joined_rows_are_those_of_the_parts():
    none = KeyedRows.none(Field("item", "id"), FIELDS, timed=False)
    both = join_rows([none, rows_of(np.array([1, 2]), [1, 2]), rows_of(np.array([2]), [3])])
    assert both.take(both.rows(np.array([1, 2, 3]), None))["price"].tolist()[:2] == [1, 3]
    assert len(join_rows([none, none])) == 0
