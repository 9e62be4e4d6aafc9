"""Stamps of keys without a row, and of epochs that a record has no room for; rows are in the tables' own tests."""

import numpy as np

from freshet_serving.processor.kernels.row_stamps import ABSENT_STAMP, UNKNOWN_STAMP
from freshet_serving.processor.package import TableDelta, TableEntry
from freshet_serving.processor.tables.table import ServedTable, packed
from tests.processor.kernels.stamps import stamps

DIM = 4


def rows(count, value=1.0):
    return np.full((count, DIM), value, np.float32)


def opened(keys, spec=None, **options):
    keys = np.array(keys, np.int64)
    return ServedTable(spec or TableEntry("t", DIM, len(keys)), packed(keys, rows(len(keys))), **options)


def change(table, epoch, upserts=(), removed=()):
    delta = TableDelta(np.array(upserts, np.int64), rows(len(upserts)), np.array(removed, np.int64))
    return table.apply(delta, epoch)


def test_removed_key_differs_from_every_row_and_equals_one_never_seen():
    table = opened([5, 7])
    change(table, 3, [9], [5])
    assert stamps(table.descriptor(), [5, 7, 9, 11], 3) == [ABSENT_STAMP, 0, 3, ABSENT_STAMP]
    assert stamps(table.descriptor(), [5, 7, 9, 11], 2) == [0, 0, ABSENT_STAMP, ABSENT_STAMP]


def test_key_without_a_row_changes_with_the_row_of_the_unknown_key():
    table = opened([5, 100], TableEntry("t", DIM, 2, unknown_key=100))
    assert stamps(table.descriptor(), [6], 0) == [ABSENT_STAMP - 1]
    change(table, 4, [5, 100])
    before = stamps(table.descriptor(), [5, 6], 4)
    assert before == [4, ABSENT_STAMP - 5]
    # The key reads the unknown key's row now, which is of the same delta as its own was.
    change(table, 5, [], [5])
    assert stamps(table.descriptor(), [5, 6], 5) == [ABSENT_STAMP - 5, ABSENT_STAMP - 5]
    change(table, 6, [], [100])
    assert stamps(table.descriptor(), [5, 6], 6) == [ABSENT_STAMP, ABSENT_STAMP]


def test_epoch_beyond_a_records_room_is_unknown_once_the_row_was_in_the_log(tmp_path):
    table = opened([5, 7], budget_nbytes=1 << 20, scratch=tmp_path)
    late = UNKNOWN_STAMP + 8
    table.retire(change(table, late, [5]), 1)
    table.reclaim(1, 2)
    assert stamps(table.descriptor(), [5, 7], late) == [late, 0]
    table._tier.demote(table._row, np.flatnonzero(table._tier._settled[: table._slots.bump]), 2)
    assert stamps(table.descriptor(), [5, 7], late) == [UNKNOWN_STAMP, 0]
    table._tier.promote(table._row, np.array([5, 7]), np.ones(2, np.uint8))
    assert stamps(table.descriptor(), [5, 7], late) == [UNKNOWN_STAMP, 0]
