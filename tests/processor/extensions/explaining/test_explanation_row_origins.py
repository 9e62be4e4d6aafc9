"""Where rows come from, by what deltas did to a table."""

import numpy as np

from freshet_serving.processor.extensions.explaining.explanation import (
    DELTA,
    FILE,
    NOWHERE,
    REMOVED,
    RowOrigin,
    row_origins,
)
from freshet_serving.processor.extensions.remote_rows.remote_table import RemoteTable
from freshet_serving.processor.package.delta import TableDelta
from freshet_serving.processor.package.manifest_entries import TableEntry
from freshet_serving.processor.tables.table import ServedTable, packed
from freshet_serving.processor.tables.tier import SLOT_BOOKS_NBYTES

DIM = 4


def table_of(keys, **more):
    keys = np.array(keys, np.int64)
    return ServedTable(TableEntry("t", DIM, len(keys)), packed(keys, np.ones((len(keys), DIM), np.float32)), **more)


def delta(upserts, removed=()):
    keys = np.array(upserts, np.int64)
    return TableDelta(keys, np.full((len(keys), DIM), 2, np.float32), np.array(removed, np.int64))


def origins(table, keys, epoch):
    return row_origins(table, np.array(keys, np.int64), epoch)


def test_row_origin_is_the_file_a_delta_or_nowhere():
    table = table_of([1, 2])
    table.apply(delta([2, 3]), 5)
    assert origins(table, [1, 2, 3, 4], 5) == [
        RowOrigin(FILE),
        RowOrigin(DELTA, 5),
        RowOrigin(DELTA, 5),
        RowOrigin(NOWHERE),
    ]


def test_older_epoch_sees_the_rows_its_deltas_left():
    table = table_of([1, 2])
    table.apply(delta([2, 3]), 1)
    table.apply(delta([3], removed=[1, 2]), 2)
    assert origins(table, [1, 2, 3], 0) == [RowOrigin(FILE), RowOrigin(FILE), RowOrigin(NOWHERE)]
    assert origins(table, [1, 2, 3], 1) == [RowOrigin(FILE), RowOrigin(DELTA, 1), RowOrigin(DELTA, 1)]
    assert origins(table, [1, 2, 3], 2) == [RowOrigin(REMOVED, 2), RowOrigin(REMOVED, 2), RowOrigin(DELTA, 2)]


def test_reclaimed_row_keeps_its_epoch_and_a_removal_does_not():
    table = table_of([1, 2])
    table.retire(table.apply(delta([2], removed=[1]), 1), 2)
    table.reclaim(3, 4)
    assert origins(table, [1, 2], 1) == [RowOrigin(NOWHERE), RowOrigin(DELTA, 1)]


def test_rows_moved_by_a_memory_budget_keep_their_origin(tmp_path):
    table = table_of(range(8), budget_nbytes=2 * (4 * DIM + SLOT_BOOKS_NBYTES), scratch=tmp_path)
    table.retire(table.apply(delta([0, 1, 2]), 1), 2)
    for publish_seq in range(3, 9):
        table.maintain(publish_seq, publish_seq + 1, 0.0)
    moved = origins(table, range(8), 1)
    assert [origin.kind for origin in moved] == [DELTA] * 3 + [FILE] * 5
    assert {origin.epoch for origin in moved[:3]} <= {1, -1}
    assert -1 in {origin.epoch for origin in moved[:3]}, "two slots hold two rows: another is in the log"


def test_table_without_rows_of_its_own_reports_deltas():
    table = RemoteTable(TableEntry("t", DIM, 100))
    table.apply(delta([7]), 1)
    assert origins(table, [7, 8], 1) == [RowOrigin(DELTA, 1), RowOrigin(NOWHERE)]
