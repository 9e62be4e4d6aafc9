"""Filters of items with vectors: of the pinned records, whatever the vectors are of."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.package.delta import write_delta
from tests.support.towers import MODEL, USERS, World, change, scores, stock_of, write_towers

ITEMS = range(150)
K = 12


@pytest.fixture
def opened(tmp_path):
    world = World.first(ITEMS)
    write_towers(tmp_path / "repository", world)
    config = ProcessorConfig(repository=str(tmp_path / "repository"), undo_depth=8, sessions=1)
    with Processor.initialize(config) as processor:
        yield processor, world


def apply(processor, delta, tmp_path):
    write_delta(tmp_path / "upload", delta)
    processor.apply_delta(MODEL, data=(tmp_path / "upload").read_bytes())


def check(processor, worlds, stocks, user, block=()):
    """Check one list with a filter on stock against all scores under the generations that the reply names."""
    inputs = {
        "user": np.array([user], np.int64),
        "filter": Strings.of([json.dumps({"stock": {"in": list(stocks)}})]),
        "block": Ragged.of([list(block)]),
    }
    reply = processor.process(PredictRequest(MODEL, inputs, top_items=K))
    world = worlds[reply.generation.step]
    of = world if reply.item_generation is None else worlds[reply.item_generation.step]
    every = scores(world, of, user)
    passing = {k: s for k, s in every.items() if k not in block and stock_of(world.records[k]) in stocks}
    ids, found = reply.outputs["item_ids"][0], reply.outputs["scores"][0]
    assert len(ids) == min(K, len(passing)) == K - reply.unfilled
    assert set(ids.tolist()) <= passing.keys()
    np.testing.assert_allclose(found, sorted(passing.values(), reverse=True)[:K], atol=1e-5)


def test_stock_of_a_delta_counts_in_its_generation_while_vectors_lag(opened, tmp_path):
    processor, world = opened
    worlds = {0: world}
    check(processor, worlds, [1, 2], 1)
    for step, dense in enumerate((["item"], [], ["item", "score"], []), 1):
        put = range(40 * step - 40, 40 * step - 15)
        worlds[step], delta = change(
            worlds[step - 1], step, items=[step, 9], put=put, removed=[149 - step], dense=dense
        )
        apply(processor, delta, tmp_path)
        for user in (0, 3, 77):
            check(processor, worlds, [step % 4], user, block=[1, 2, 3])
            check(processor, worlds, [0, 1, 3], user)


STEPS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(ITEMS), max_size=20), st.lists(st.sampled_from(ITEMS), max_size=5, unique=True),
        st.lists(st.sampled_from(["user", "item", "score"]), max_size=2, unique=True), st.booleans(),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(steps=STEPS, stocks=st.lists(st.integers(0, 4), max_size=3), user=st.sampled_from([*USERS, 50]))
def test_filters_hold_over_deltas_removals_towers_and_rollbacks(tmp_path_factory, steps, stocks, user):
    folder, world = tmp_path_factory.mktemp("towers"), World.first(ITEMS)
    write_towers(folder / "repository", world)
    worlds, served = {0: world}, 0
    config = ProcessorConfig(repository=str(folder / "repository"), undo_depth=8, sessions=1)
    with Processor.initialize(config) as processor:
        for step, (put, removed, dense, back) in enumerate(steps, 1):
            put = sorted(set(put) - set(removed))
            worlds[step], delta = change(worlds[served], step, put=put, removed=removed, dense=dense, parent=served)
            apply(processor, delta, folder)
            check(processor, worlds, stocks, user)
            if back:
                processor.rollback(MODEL, f"1.{served}")
                check(processor, worlds, stocks, user)
            else:
                served = step
