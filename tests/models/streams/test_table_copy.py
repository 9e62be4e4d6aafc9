"""Copies of tables: what was written is read, and what is damaged or of other columns is none."""

import numpy as np
import pytest

from freshet_serving.models.data.keyed_rows import KeyedRows
from freshet_serving.models.data.source import Field
from freshet_serving.models.streams.table_copy import TableCopy, read_copy, write_copy
from freshet_serving.processor.columns import Ragged, Strings
from tests.models.streams.made import plain

KEY = Field("item", "string")
FIELDS = (Field("price", "float"), Field("city", "string"), Field("tags", "strings"), Field("seen", "ids"))
COLUMNS = {
    "price": np.float32([1.5, np.nan]),
    "city": Strings.of(["Zürich", ""]),
    "tags": Ragged(Strings.of(["a", "bc"]), np.array([0, 2, 2])),
    "seen": Ragged(np.array([2**62, -1, 0]), np.array([0, 1, 3])),
}


@pytest.mark.parametrize("timed", [False, True])
def test_copy_is_read_as_it_was_written(tmp_path, timed):
    times = np.array([5.5, 1e9]) if timed else None
    keys, marks, gone = Strings.of(["x", "y"]), np.array([3, 9]), np.array([False, True])
    rows = KeyedRows(FIELDS, keys, COLUMNS, times, marks, gone)
    write_copy(tmp_path / "copy", KEY, TableCopy("abc", rows, 9, [1, 2, 3]))
    found = read_copy(tmp_path / "copy", KEY, FIELDS, timed)
    assert (found.identity, found.mark, found.read) == ("abc", 9, [1, 2, 3])
    assert found.rows.keys.tolist() == [b"x", b"y"]
    assert (found.rows.marks.tolist(), found.rows.gone.tolist()) == ([3, 9], [False, True])
    assert found.rows.times is None if times is None else found.rows.times.tolist() == [5.5, 1e9]
    taken = found.rows.take(np.arange(2))
    np.testing.assert_array_equal(taken["price"], COLUMNS["price"])
    assert [plain(taken[name]) for name in ("city", "tags", "seen")] == [
        ["Zürich", ""],
        [["a", "bc"], []],
        [[2**62], [-1, 0]],
    ]
    assert read_copy(tmp_path / "copy", KEY, FIELDS, not timed) is None
    assert read_copy(tmp_path / "copy", KEY, FIELDS[:2], timed) is None
    assert read_copy(tmp_path / "none", KEY, FIELDS, timed) is None


def test_copy_damaged_at_any_byte_is_none(tmp_path):
    rows = KeyedRows(FIELDS, Strings.of(["x", "y"]), COLUMNS)
    path = tmp_path / "copy"
    write_copy(path, KEY, TableCopy("abc", rows, 9, []))
    sound = path.read_bytes()
    for at in [*range(0, len(sound), 37), len(sound) - 1]:
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        found = read_copy(path, KEY, FIELDS, False)
        # Only padding of the header may differ.
        assert found is None or sound[at : at + 1] == b" "
    path.write_bytes(sound[: len(sound) // 2])
    assert read_copy(path, KEY, FIELDS, False) is None
