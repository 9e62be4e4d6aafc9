"""Items' vectors are of the generation that is named, through deltas, new weights, passes and rollbacks."""

import numpy as np
import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.top_items import item_vectors, vector_pass
from freshet_serving.processor.extensions.top_items.item_tower import ItemTower
from freshet_serving.processor.extensions.top_items.tower_runs import TowerRuns
from freshet_serving.processor.extensions.top_items.vector_table import ReadVectors
from tests.support.packages import open_version
from tests.support.towers import COLUMNS, World, change, manifest, write_towers

ITEMS = range(30)


def vectors_of(version):
    """The generation of items' vectors, and the vectors by item, as a reader finds them."""
    described = version.manifest
    tower = ItemTower.of(described, described.notes["item_ranking"])
    number = [t.name for t in described.tables].index(tower.table)
    read = ReadVectors.of(tower, 1, version.change.frame.arrays[number])
    from freshet_serving.processor.extensions.top_items import code_scan

    keys = np.array(range(-5, 200), np.int64)
    rows, there = np.zeros((len(keys), COLUMNS), np.float32), np.zeros(len(keys), np.bool_)
    code_scan.read_rows(read.table, version.change.epoch, COLUMNS, keys, rows, there)
    return read.generation, dict(zip(keys[there].tolist(), rows[there]))


def assert_vectors(version, world, of):
    """The vectors are of the world `of`, for the items of both."""
    _, found = vectors_of(version)
    assert found.keys() == world.catalogue & of.catalogue
    for key, row in found.items():
        np.testing.assert_allclose(row, of.item_vector(key), atol=1e-5)


@pytest.fixture(params=[True, False], ids=["entity", "plain"])
def opened(request, tmp_path):
    world = World.first(ITEMS, request.param)
    return open_version(write_towers(tmp_path, world), 8), world


def test_vectors_are_there_when_a_version_opens(opened):
    version, world = opened
    assert vectors_of(version)[0] is None
    assert_vectors(version, world, world)


def test_deltas_of_rows_bring_vectors_with_them(opened):
    version, world = opened
    after, delta = change(world, 1, items=[3, 4, 77], users=[1], put=[4, 99], removed=[7])
    version.apply(delta)
    assert vectors_of(version)[0] is None
    assert_vectors(version, after, after)
    version.rollback(0)
    assert_vectors(version, world, world)


def test_rows_of_a_category_touch_its_items(tmp_path):
    world = World.first(ITEMS)
    version = open_version(write_towers(tmp_path, world), 8)
    after, delta = change(world, 1, categories=[2, 5])
    version.apply(delta)
    assert_vectors(version, after, after)
    again, delta = change(after, 2, put=[1, 2, 3, 50])
    version.apply(delta)
    last, delta = change(again, 3, categories=[0, 1, 2, 3, 4])
    version.apply(delta)
    assert vectors_of(version)[0] is None
    assert_vectors(version, last, last)


def test_weights_that_items_do_not_read_change_no_vector(opened):
    version, world = opened
    after, delta = change(world, 1, dense=["user", "score"])
    version.apply(delta)
    assert vectors_of(version)[0] is None
    assert_vectors(version, after, after)


def test_new_tower_makes_vectors_lag_until_a_pass_ends(opened):
    version, world = opened
    after, delta = change(world, 1, dense=["item"], removed=[5])
    version.apply(delta)
    assert str(vectors_of(version)[0]) == "1.0"
    assert_vectors(version, after, world)
    later, delta = change(after, 2, items=[3], put=[5, 60])
    version.apply(delta)
    # Item 5 has come back, with the vector that it had; item 60 has none yet.
    assert_vectors(version, later, world)
    while version.maintain():
        pass
    assert vectors_of(version)[0] is None
    assert_vectors(version, later, later)


def test_rollback_before_a_pass_ends_restores_what_was_current(opened):
    version, world = opened
    version.apply(change(world, 1, dense=["item"], removed=[5])[1])
    version.rollback(0)
    assert vectors_of(version)[0] is None
    assert_vectors(version, world, world)
    version.apply(change(world, 1, items=[2], parent=0)[1])
    assert vectors_of(version)[0] is None


def test_rollback_behind_a_new_table_names_what_it_serves(opened):
    version, world = opened
    after, delta = change(world, 1, dense=["item"], removed=[5], put=[60])
    version.apply(delta)
    while version.maintain():
        pass
    assert_vectors(version, after, after)
    version.rollback(0)
    generation, found = vectors_of(version)
    assert str(generation) == "1.1"
    assert found.keys() == world.catalogue & after.catalogue
    while version.maintain():
        pass
    assert vectors_of(version)[0] is None
    assert_vectors(version, world, world)


def test_delta_beyond_the_bound_makes_vectors_lag(opened, monkeypatch):
    version, world = opened
    monkeypatch.setattr(vector_pass, "AT_ONCE", 4)
    after, delta = change(world, 1, items=range(10))
    version.apply(delta)
    assert str(vectors_of(version)[0]) == "1.0"
    assert_vectors(version, after, world)
    while version.maintain():
        pass
    assert vectors_of(version)[0] is None
    assert_vectors(version, after, after)


def test_pass_reads_the_generation_that_it_began_with(opened, monkeypatch):
    version, world = opened
    monkeypatch.setattr(vector_pass, "ROWS", 2)
    first, delta = change(world, 1, dense=["item"])
    version.apply(delta)
    version._watchers._derived[0]._slice_s = 0.0
    version.maintain()
    worlds = {1: first}
    for step in range(2, 30):
        worlds[step], delta = change(worlds[step - 1], step, items=range(10, 30), put=[step], dense=["item"])
        version.apply(delta)
    while str(vectors_of(version)[0]) == "1.0":
        version.maintain()
    assert str(vectors_of(version)[0]) == "1.1"
    assert_vectors(version, worlds[29], first)
    while version.maintain():
        pass
    assert_vectors(version, worlds[29], worlds[29])


@pytest.fixture
def failing(monkeypatch):
    """Sets the name of what fails, such as "vectors" of TowerRuns; "" for nothing."""
    fails = {"now": ""}

    def may_fail(owner, name):
        works = getattr(owner, name)

        def call(*given):
            if fails["now"] == name:
                raise MemoryError
            return works(*given)

        monkeypatch.setattr(owner, name, call)

    may_fail(TowerRuns, "vectors")
    may_fail(item_vectors.ItemVectors, "_copied")
    return fails


def settled(version):
    for _ in range(400):
        if not version.maintain():
            return
    raise AssertionError("it does not end")


def test_vectors_that_cannot_be_computed_lag_until_they_can(opened, failing):
    version, world = opened
    failing["now"] = "vectors"
    after, delta = change(world, 1, items=[3], put=[50], removed=[5])
    version.apply(delta)
    assert version.maintain()
    assert str(vectors_of(version)[0]) == "1.0"
    assert_vectors(version, after, world)
    failing["now"] = ""
    settled(version)
    assert vectors_of(version)[0] is None
    assert_vectors(version, after, after)


def test_rollback_without_room_for_a_copy_has_no_vectors_until_a_pass_ends(opened, failing):
    version, world = opened
    version.apply(change(world, 1, dense=["item"], put=[60])[1])
    settled(version)
    failing["now"] = "_copied"
    version.rollback(0)
    with pytest.raises(NotReady):
        vectors_of(version)
    again, delta = change(world, 2, items=[3], put=[61], parent=0)
    version.apply(delta)
    with pytest.raises(NotReady):
        vectors_of(version)
    settled(version)
    assert_vectors(version, again, again)


def test_version_opens_without_vectors_where_they_cannot_be_computed(tmp_path, failing):
    failing["now"] = "vectors"
    world = World.first(ITEMS)
    version = open_version(write_towers(tmp_path, world), 8)
    with pytest.raises(NotReady):
        vectors_of(version)
    failing["now"] = ""
    settled(version)
    assert_vectors(version, world, world)


def test_manifest_names_what_items_are_made_of():
    described = manifest(True)
    tower = ItemTower.of(described, described.notes["item_ranking"])
    assert (tower.key, tower.table, tower.direct) == ("item", "entities.item", {"item"})
    assert [lookup.table for lookup in tower.lookups] == ["category"]
    assert tower.inputs == {"item", "category", "price"}
