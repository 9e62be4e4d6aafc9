"""Rows found by their keys: the newest file's, each a positive once."""

import numpy as np

from models.joining.emitted_rows import EmittedRows, RowPlace


def test_rows_are_found_and_are_positives_from_then_on():
    rows = EmittedRows()
    rows.add(1, [b"a", b"b", b"c"], np.array([0, 1, 2]), np.array([False, True, False]), 10.0)
    rows.add(2, [b"d"], np.array([9]), np.array([False]), 20.0)
    assert rows.find([b"c", b"x", b"b", b"d", b"c"]) == [
        RowPlace(1, 2, False),
        None,
        RowPlace(1, 1, True),
        RowPlace(2, 9, False),
        RowPlace(1, 2, True),
    ]
    assert rows.find([]) == []
    assert len(rows) == 4


def test_old_files_are_forgotten():
    rows = EmittedRows()
    rows.add(1, [b"a"], np.array([0]), np.array([False]), 10.0)
    rows.add(2, [b"b"], np.array([0]), np.array([False]), 20.0)
    rows.forget(15.0)
    assert rows.find([b"a", b"b"]) == [None, RowPlace(2, 0, False)]


def test_many_keys_of_many_files():
    rows, keys = EmittedRows(), [b"%d" % n for n in range(5000)]
    for file in range(5):
        rows.add(file, keys[1000 * file : 1000 * file + 1000], np.arange(1000), np.zeros(1000, bool), file)
    order = np.random.default_rng(1).permutation(5000)
    assert rows.find([keys[n] for n in order]) == [RowPlace(n // 1000, n % 1000, False) for n in order]
