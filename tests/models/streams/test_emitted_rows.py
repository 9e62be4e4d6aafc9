"""Rows found by their keys: the newest file's, each a positive once."""

import numpy as np

from freshet_serving.models.streams.emitted_rows import MERGED, NOWHERE, EmittedRows, RowLocation


def test_found_rows_become_positives():
    rows = EmittedRows()
    rows.add(1, [b"a", b"b", b"c"], np.array([0, 1, 2]), np.array([False, True, False]), 10.0)
    rows.add(2, [b"d"], np.array([9]), np.array([False]), 20.0)
    assert rows.find([b"c", b"x", b"b", b"d", b"c"], taken=True) == [
        RowLocation(1, 2, False),
        None,
        RowLocation(1, 1, True),
        RowLocation(2, 9, False),
        RowLocation(1, 2, True),
    ]
    assert rows.find([], taken=True) == []
    assert len(rows) == 4


def test_old_files_are_forgotten():
    rows = EmittedRows()
    rows.add(1, [b"a"], np.array([0]), np.array([False]), 10.0)
    rows.add(2, [b"b"], np.array([0]), np.array([False]), 20.0)
    rows.forget(15.0)
    assert rows.find([b"a", b"b"], taken=True) == [None, RowLocation(2, 0, False)]


def test_many_keys_of_many_files_are_found():
    rows, keys = EmittedRows(), [b"%d" % n for n in range(5000)]
    for file in range(5):
        rows.add(file, keys[1000 * file : 1000 * file + 1000], np.arange(1000), np.zeros(1000, bool), file)
    order = np.random.default_rng(1).permutation(5000)
    assert rows.find([keys[n] for n in order], taken=True) == [RowLocation(n // 1000, n % 1000, False) for n in order]


def test_locating_a_row_does_not_make_it_positive():
    rows = EmittedRows()
    rows.add(1, [b"a"], np.array([0]), np.array([False]), 10.0)
    for _ in range(2):
        assert rows.find([b"a", b"x"]) == [RowLocation(1, 0, False), None]


def test_disowned_key_is_found_before_its_earlier_row():
    rows = EmittedRows()
    rows.add(1, [b"a"], np.array([0]), np.array([False]), 10.0)
    rows.add(2, [b"a", b"b"], np.array([NOWHERE, 3]), np.array([False, False]), 20.0)
    disowned, owned = rows.find([b"a", b"b"], taken=True)
    assert (disowned.disowned, owned.disowned) == (True, False)


def test_hashes_differ_between_processes():
    """Nobody who chooses keys can have two of one hash."""
    rows = [EmittedRows() for _ in range(2)]
    for each in rows:
        each.add(1, [b"a"], np.array([0]), np.array([False]), 10.0)
    assert len({int(each._runs[0].hashes[0]) for each in rows}) == 2


def test_runs_are_merged_and_the_newest_file_wins():
    rows, files = EmittedRows(), MERGED**2 + MERGED + 3
    for file in range(files):
        rows.add(file, [b"same", b"%d" % file], np.array([0, 1]), np.array([False, False]), float(file))
        assert rows.find([b"%d" % file], taken=True) == [RowLocation(file, 1, False)]
    assert len(rows._runs) == 1 + 1 + 3
    assert rows.find([b"same"]) == [RowLocation(files - 1, 0, False)]
    # What was found in a run is a positive in what the run has become.
    assert rows.find([b"0", b"%d" % (MERGED + 1)]) == [RowLocation(0, 1, True), RowLocation(MERGED + 1, 1, True)]
    rows.forget(MERGED**2)
    assert rows.find([b"0", b"%d" % (files - 1)]) == [None, RowLocation(files - 1, 1, True)]
    assert len(rows) == 2 * (MERGED + 3)
