"""Filters of items with vectors read the records of the pinned generation, also where vectors lag."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.top_items.item_vectors import ItemVectors
from freshet_serving.processor.package.delta import write_delta
from tests.support.towers import MODEL, USERS, World, assert_best, change, scores, stock_of, write_towers

ITEMS = range(60)


@pytest.fixture
def opened(open_repository):
    world = World.first(ITEMS, "filters")
    return open_repository(write_towers, world), world


def in_stock(world):
    return {key for key, (_, price) in world.records.items() if stock_of(price) > 0}


def check(processor, worlds, k=9):
    asked = {"user": np.array(USERS), "filter": Strings.of([json.dumps({"stock": [1, None]})])}
    reply = processor.process(PredictRequest(MODEL, asked, top_items=k))
    world = worlds[reply.generation.step]
    of = world if reply.item_generation is None else worlds[reply.item_generation.step]
    for row, user in enumerate(USERS):
        ids, found = reply.outputs["item_ids"][row], reply.outputs["scores"][row]
        wanted = {key: score for key, score in scores(world, of, user).items() if key in in_stock(world)}
        assert set(ids.tolist()) <= wanted.keys()
        best = np.sort(np.array(list(wanted.values())))[::-1][:k]
        np.testing.assert_allclose(found, best, atol=1e-5)
        np.testing.assert_allclose([wanted[key] for key in ids.tolist()], found, atol=1e-5)
    return reply


@pytest.mark.parametrize("catches_up", [True, False])
def test_filters_are_of_the_pin_where_vectors_lag(opened, upload, monkeypatch, catches_up):
    processor, world = opened
    if not catches_up:
        monkeypatch.setattr(ItemVectors, "advance", lambda self, state: False)
    worlds = {0: world}
    check(processor, worlds)
    changes = (
        {"put": range(0, 30, 2)}, {"dense": ["item"], "put": range(10, 20)}, {"put": range(1, 30, 3), "removed": [6]},
        {"put": [6, 70]}, {"dense": ["user"], "put": range(40, 50)},
    )  # fmt: skip
    for step, more in enumerate(changes, 1):
        worlds[step], delta = change(worlds[step - 1], step, **more)
        upload(processor, delta)
        check(processor, worlds)
        if catches_up:
            while processor.host.upkeep.maintain():
                pass
            assert check(processor, worlds, 100).item_generation is None
    processor.rollback(MODEL, "1.2")
    check(processor, worlds)


def test_allowed_and_blocked_items_are_ranked_by_vectors(opened):
    processor, world = opened
    asked = {"user": np.array([1]), "allow": np.array([3, 5, 7, 9, 999]), "block": np.array([5])}
    reply = processor.process(PredictRequest(MODEL, asked, top_items=9))
    kept = world.copy()
    kept.records = {key: kept.records[key] for key in (3, 7, 9)}
    assert_best(reply.outputs["item_ids"][0], reply.outputs["scores"][0], world, kept, 1, 9)
    assert reply.unfilled == 6


def test_items_whose_ids_are_strings_are_named(open_repository, upload):
    world = World.first(ITEMS, "texts")
    processor = open_repository(write_towers, world, delta_guard="off")
    for step, more in enumerate(({}, {"put": [3, 80], "items": [4, 80], "removed": [7]}, {"dense": ["item"]})):
        if step:
            world, delta = change(world, step, **more)
            upload(processor, delta)
        while processor.host.upkeep.maintain():
            pass
        for user in USERS:
            reply = processor.process(PredictRequest(MODEL, {"user": np.array([user])}, top_items=8))
            names, found = reply.outputs["item_ids"][0].tolist(), reply.outputs["scores"][0]
            ids = np.array([int(name.removeprefix("item ")) for name in names])
            assert_best(ids, found, world, world, user, 8)
            candidates = {"user": np.array([user]), "item": Strings.of(names)}
            scored = processor.process(PredictRequest(MODEL, candidates)).outputs["score"][:, 0]
            np.testing.assert_allclose(scored, found, atol=1e-5)


STEPS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(ITEMS), max_size=20), st.lists(st.sampled_from(ITEMS), max_size=5, unique=True),
        st.lists(st.sampled_from(["user", "item", "score"]), max_size=2, unique=True), st.booleans(), st.integers(0, 4),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=6, deadline=None)
@given(steps=STEPS)
def test_filters_hold_over_deltas_removals_towers_passes_and_rollbacks(tmp_path_factory, steps):
    folder, world = tmp_path_factory.mktemp("towers"), World.first(ITEMS, "filters")
    write_towers(folder / "repository", world)
    worlds, served = {0: world}, 0
    config = ProcessorConfig(str(folder / "repository"), undo_depth=8, sessions=1)
    with pytest.MonkeyPatch.context() as patched, Processor.initialize(config) as processor:
        # The least that a pass can do at a time.
        patched.setattr(ItemVectors, "_slice_s", property(lambda self: 0.0, lambda self, seconds: None), raising=False)
        for step, (put, removed, dense, back, slices) in enumerate(steps, 1):
            put = sorted(set(put) - set(removed))
            worlds[step], delta = change(worlds[served], step, put=put, removed=removed, dense=dense, parent=served)
            write_delta(folder / "upload", delta)
            processor.apply_delta(MODEL, data=(folder / "upload").read_bytes())
            for _ in range(slices):
                processor.host.upkeep.maintain()
                check(processor, worlds)
            check(processor, worlds)
            if back:
                processor.rollback(MODEL, f"1.{served}")
                check(processor, worlds)
            else:
                served = step
