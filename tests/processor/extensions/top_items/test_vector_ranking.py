"""The best items by vectors: equal to all items sent as candidates, under the generations that the reply names."""

import numpy as np
import pytest

from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import BadInput
from tests.support.towers import MODEL, USERS, World, assert_best, change, note, write_towers

ITEMS = range(40)


@pytest.fixture
def opened(open_repository):
    def make(entity=True, notes=None, **options):
        world = World.first(ITEMS, entity)
        return open_repository(write_towers, world, notes, **options), world

    return make


def ask(k, users):
    return PredictRequest(MODEL, {"user": np.array(users, np.int64)}, top_items=k)


def check(processor, worlds, k=7):
    """Check the lists of all users under the generations that the reply names; return the vectors' generation."""
    users = [*USERS, 99]
    reply = processor.process(ask(k, users))
    world = worlds[reply.generation.step]
    of = world if reply.item_generation is None else worlds[reply.item_generation.step]
    for row, user in enumerate(users):
        assert_best(reply.outputs["item_ids"][row], reply.outputs["scores"][row], world, of, user, k)
    return reply


@pytest.mark.parametrize(("entity", "options"), [(True, {"sessions": 2}), (False, {"compute": "inline"})])
def test_scores_are_those_of_candidates(opened, entity, options):
    processor, world = opened(entity, **options)
    reply = check(processor, {0: world})
    for row, user in enumerate([*USERS, 99]):
        items = reply.outputs["item_ids"][row]
        scored = processor.process(PredictRequest(MODEL, {"user": np.array([user]), "item": items}))
        np.testing.assert_allclose(scored.outputs["score"][:, 0], reply.outputs["scores"][row], atol=1e-5)


@pytest.mark.parametrize("entity", [True, False])
def test_lists_follow_deltas_and_name_vectors_that_lag(opened, upload, entity):
    processor, world = opened(entity)
    worlds = {0: world}
    changes = (
        {"items": [1, 2], "put": [50]}, {"users": [1], "dense": ["user", "score"]}, {"dense": ["item"], "removed": [3]},
        {"put": [3, 70], "dense": ["score"]}, {"dense": ["user", "item", "score"]},
    )  # fmt: skip
    for step, more in enumerate(changes, 1):
        worlds[step], delta = change(worlds[step - 1], step, **more)
        upload(processor, delta)
        reply = check(processor, worlds)
        assert reply.generation.step == step
        assert step > 2 or reply.item_generation is None
        check(processor, worlds, 200)
    while processor.host.upkeep.maintain():
        pass
    assert check(processor, worlds, 200).item_generation is None


def test_versions_whose_items_have_no_vectors_of_their_own_say_so(opened):
    notes = {"item_ranking": note() | {"score": {"link": "cubic"}}}
    processor, _ = opened(notes=notes)
    with pytest.raises(BadInput, match="score that this release does not know"):
        processor.process(ask(3, [1]))
