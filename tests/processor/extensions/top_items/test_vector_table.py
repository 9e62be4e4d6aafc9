"""A table of vectors says which generation they are of, and what the score makes of their products."""

import numpy as np
import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.top_items import code_scan
from freshet_serving.processor.extensions.top_items.item_readers import ItemReaders
from freshet_serving.processor.extensions.top_items.item_tower import ItemTower
from freshet_serving.processor.extensions.top_items.tower_runs import TowerWeights
from freshet_serving.processor.extensions.top_items.vector_table import (
    ABSENT,
    OF,
    SCORE,
    ReadVectors,
    VectorTable,
    reserved_rows,
    vectors_of,
)
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import TableDelta
from freshet_serving.processor.tables.table import RowVersions
from tests.support.towers import COLUMNS, manifest, note

TOWER = ItemTower.of(manifest(True), note())
LAGGING = Generation(1, 7, "0123456789abcdef" * 2)


def table_of(*keys):
    rows = reserved_rows(len(keys), COLUMNS)
    rows[...] = np.array(keys, np.float32)[:, None]
    return VectorTable("vectors-1", np.array(keys, np.int64), rows, TowerWeights({}), ItemReaders(TOWER, {}))


def read(table, generation=None, numbers=(1, 0)):
    said = {OF: vectors_of(generation), SCORE: np.array(numbers, np.float32)}
    return ReadVectors.of(TOWER, 1, table.arrays | said)


def rows_of(found, keys, epoch):
    rows, there = np.zeros((len(keys), COLUMNS), np.float32), np.zeros(len(keys), np.bool_)
    code_scan.read_rows(found.table, epoch, COLUMNS, np.array(keys, np.int64), rows, there)
    return {key: row[0] for key, row, is_there in zip(keys, rows, there) if is_there}


def test_readers_find_the_vectors_of_each_epoch():
    table = table_of(3, 5, 9)
    versions = RowVersions()
    new = np.full((1, COLUMNS), 50, np.float32)
    table.stage(TableDelta(np.array([5]), new, np.array([9])), 1, versions)
    found = read(table)
    assert rows_of(found, [3, 4, 5, 9], 0) == {3: 3, 5: 5, 9: 9}
    assert rows_of(found, [3, 4, 5, 9], 1) == {3: 3, 5: 50}
    table.table.undo(versions, 2)
    assert rows_of(found, [5, 9], 1) == {5: 5, 9: 9}
    assert table.nbytes > 0


def test_vectors_without_items_are_read_as_none():
    assert rows_of(read(table_of()), [0, 1], 0) == {}


def test_lagging_vectors_name_their_generation():
    assert read(table_of(1)).generation is None
    assert read(table_of(1), LAGGING).generation == LAGGING


@pytest.mark.parametrize("arrays", [{}, {OF: np.array([ABSENT, 0, 0, 0], np.int64)}])
def test_without_vectors_a_reader_is_asked_to_try_again(arrays):
    with pytest.raises(NotReady, match="vectors are not there yet"):
        ReadVectors.of(TOWER, 1, arrays)


@pytest.mark.parametrize("scale", [2.0, 0.0, -3.0])
def test_queries_have_the_order_of_the_scores(scale):
    found = read(table_of(1), numbers=(scale, 0.5))
    user, items = np.ones((1, COLUMNS), np.float32), np.array([[-1.0], [0.5], [2.0]], np.float32) * np.ones(COLUMNS)
    products = (items @ found.queries(user)[0]).astype(np.float32)
    scores = 1 / (1 + np.exp(-(scale * (items @ user[0]) + 0.5)))
    np.testing.assert_allclose(found.scores(products), scores, atol=1e-6)
    assert (np.argsort(products, kind="stable") == np.argsort(scores, kind="stable")).all()
