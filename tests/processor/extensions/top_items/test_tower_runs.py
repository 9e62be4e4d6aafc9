"""Vectors are those that the network gives for an item, whatever the number of items."""

import numpy as np
import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.extensions.top_items.item_tower import ItemTower
from freshet_serving.processor.extensions.top_items.tower_runs import TowerRuns
from freshet_serving.processor.package import TableDelta
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.tables.table import descriptors
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.support.towers import CATALOGUE, COLUMNS, World, note, record_of, records, write_towers

ITEMS = range(60)


@pytest.fixture(params=[True, False], ids=["entity", "plain"])
def opened(request, tmp_path):
    world = World.first(ITEMS, request.param)
    files = VersionReader(write_towers(tmp_path, world))
    version = ServedVersion(files, 4, SystemClock())
    return world, version, TowerRuns(files, ItemTower.of(files.manifest, note()))


def vectors(version, runs, weights, items, epoch=0):
    tables = descriptors([table.descriptor() for table in version.tables.values()])
    found = np.empty((len(items), COLUMNS), np.float32)
    runs.vectors(weights, tables, epoch, np.array(items, np.int64), found)
    return found


@pytest.mark.parametrize("count", [0, 1, 5, 16, 17, 50])
def test_vectors_are_those_of_the_network(opened, count):
    world, version, runs = opened
    weights = runs.weights(version.dense)
    found = vectors(version, runs, weights, ITEMS[:count])
    for item, row in zip(ITEMS, found):
        np.testing.assert_allclose(row, world.item_vector(item), atol=1e-5)


def test_only_weights_that_items_read_matter(opened):
    _, version, runs = opened
    weights = runs.weights(version.dense)
    assert weights.holds(version.dense)
    assert weights.holds({name: array.copy() for name, array in version.dense.items()})
    assert weights.holds({**version.dense, "u": version.dense["u"] + 1, "bias": version.dense["bias"] + 1})
    assert not weights.holds({**version.dense, "i": version.dense["i"] + 1})


def test_item_whose_numbers_are_not_finite_has_none(tmp_path):
    world = World.first(ITEMS)
    files = VersionReader(write_towers(tmp_path, world))
    version = ServedVersion(files, 4, SystemClock())
    runs = TowerRuns(files, ItemTower.of(files.manifest, note()))
    bad = records(files.manifest, [record_of(3, 0)])
    price = bad.view(np.float32)
    price[price == np.float32(record_of(3, 0)[1])] = np.inf
    version.tables[CATALOGUE].apply(TableDelta(np.array([3], np.int64), bad, np.empty(0, np.int64)), 1)
    found = vectors(version, runs, runs.weights(version.dense), range(8), 1)
    assert np.isnan(found[3]).all()
    assert np.isfinite(np.delete(found, 3, 0)).all()
