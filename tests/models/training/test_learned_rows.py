"""A run goes on only at a position of the data that it has learned."""

import dataclasses

import numpy as np
import pytest

from freshet_serving.models.data.source import Batch, Field, Schema
from freshet_serving.models.training.learned_rows import ROWS, LearnedRows
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput


class Table:
    """Rows in memory."""

    def __init__(self, batch):
        self.batch = batch
        self.schema = Schema((Field("user", "id"), Field("city", "string"), Field("tags", "ids")), "label", "time")

    def count_rows(self):
        return len(self.batch)

    def batches(self, rows, start=0):
        for first in range(start, len(self.batch), rows):
            yield self.batch.slice(first, min(first + rows, len(self.batch)))


def table(rows, seed=0, **columns):
    random = np.random.default_rng(seed)
    made = {
        "user": random.integers(0, 99, rows),
        "city": Strings.of([f"city {n}" for n in random.integers(0, 9, rows)]),
        "tags": Ragged(np.arange(rows), np.arange(rows + 1)),
    }
    time = np.arange(rows) + 1.7e9
    return Table(Batch(made | columns, random.integers(0, 2, rows).astype(np.float32), time, 0))


def replaced(source, row, **changes):
    """The table with another label at a row."""
    label = source.batch.label.copy()
    label[row] = 1 - label[row]
    return Table(dataclasses.replace(source.batch, label=label, **changes))


def learned(source, position, **options):
    rows = LearnedRows({}, **options)
    rows.recognise(source, 0, 0)
    rows.learned(source.batch.slice(0, position))
    return rows


@pytest.mark.parametrize("position", [1, 40, ROWS, 500])
def test_data_that_grew_are_recognised(position):
    source = table(500)
    rows = learned(source, position)
    rows.recognise(source, position, 500)
    longer = np.concatenate([source.batch.label, np.ones(9, np.float32)])
    columns = {"user": np.append(source.batch.columns["user"], np.zeros(9, np.int64))}
    rows.recognise(Table(Batch(columns, longer, np.append(source.batch.time, np.full(9, 1.8e9)), 0)), position, 509)


def test_fewer_rows_are_refused():
    rows = learned(table(500), 500)
    with pytest.raises(BadInput, match=r"^data.path: expected the 500 rows .* got fewer, 499: add new rows behind"):
        rows.recognise(table(499), 500, 499)


@pytest.mark.parametrize("row", [0, ROWS - 1, 300 - ROWS, 299])
def test_other_rows_are_refused_with_their_column(row):
    source = table(500)
    with pytest.raises(BadInput, match="expected the rows that were learned, got other ones: column 'label' differs"):
        learned(source, 300).recognise(replaced(source, row), 300, 500)


@pytest.mark.parametrize("column", ["user", "city", "time"])
def test_columns_and_times_are_compared(column):
    source = table(500)
    changed = source.batch.columns | {column: table(500, 1).batch.columns[column]} if column != "time" else None
    other = {"columns": changed} if changed else {"time": source.batch.time - 1e8}
    with pytest.raises(BadInput, match=f"{column}' differs"):
        learned(source, 300).recognise(Table(dataclasses.replace(source.batch, **other)), 300, 500)


def test_columns_that_come_and_go_are_joined_or_learned_later_do_not_matter():
    source, more = table(500), table(500, price=np.ones(500, np.float32))
    del more.batch.columns["city"]
    learned(source, 300).recognise(more, 300, 500)
    learned(more, 300).recognise(source, 300, 500)
    learned(source, 300, joined=["user"]).recognise(table(500, user=np.zeros(500, np.int64)), 300, 500)
    learned(source, 500).recognise(replaced(source, 450), 300, 500)
    # A checkpoint without digests is continued.
    LearnedRows({}).recognise(table(500, 1), 300, 500)


def test_data_without_rows_are_remembered_by_nothing():
    rows = LearnedRows({})
    rows.recognise(table(0), 0, 0)
    rows.learned(table(0).batch)
    assert rows.state == {}


def test_data_without_an_end_are_recognised():
    source = table(500)
    learned(source, 300).recognise(source, 300, None)
    with pytest.raises(BadInput, match="got other ones"):
        learned(source, 300).recognise(replaced(source, 299), 300, None)
