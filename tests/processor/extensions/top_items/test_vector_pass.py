"""Any mix of deltas, removals, new towers, passes and rollbacks: vectors are those of the generation that is named."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.top_items import item_vectors, vector_pass
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.tables.budgets import Budgets
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.processor.extensions.top_items.test_item_vectors import vectors_of
from tests.support.packages import connect
from tests.support.towers import CATEGORIES, MODEL, World, change, write_towers

ITEMS = range(20)
KEYS = st.lists(st.integers(0, 29), max_size=4, unique=True)
DELTAS = st.fixed_dictionaries(
    {
        "items": KEYS,
        "categories": st.lists(st.sampled_from(CATEGORIES), max_size=2, unique=True),
        "put": KEYS,
        "removed": KEYS,
        "dense": st.lists(st.sampled_from(["user", "item", "score"]), max_size=2, unique=True),
        "refused": st.integers(0, 5).map(lambda n: n == 0),
    }
)
WORK = st.one_of(DELTAS, DELTAS, st.integers(1, 3), st.sampled_from(["slice", "slice", "all"]))


class Played:
    """A version, and the world of each generation that it has served, by digest."""

    def __init__(self, package, first, undo_depth, tier_folder):
        # With a budget every settled row is cold.
        budgets = Budgets({f"{MODEL}/*": 1}, tier_folder) if tier_folder else None
        self.version = ServedVersion(VersionReader(package), undo_depth, SystemClock(), budgets=budgets)
        self.version.attach_replicas(connect(self.version))
        self.worlds = {self.version.digest: first}
        self.chain = [self.version.digest]
        self.tag = 0

    @property
    def world(self):
        return self.worlds[self.version.digest]

    def play(self, work):
        version = self.version
        if isinstance(work, dict):
            self.apply(dict(work))
        elif isinstance(work, int):
            step = version.position.step - work
            if step >= 0 and version.as_of(step) is not None:
                version.rollback(step)
                del self.chain[step + 1 :]
        elif work == "slice":
            version.maintain()
        else:
            self.settle()
        self.check()

    def apply(self, work):
        version, refused = self.version, work.pop("refused")
        self.tag += 1
        work["removed"] = [key for key in work["removed"] if key not in {*work["put"], *work["items"]}]
        after, delta = change(self.world, self.tag, **work)
        delta = replace(delta, step=version.position.step + 1, parent_step=version.position.step)

        def examine(state):
            if refused:
                raise BadInput("no")

        if refused:
            with pytest.raises(BadInput):
                version.apply(delta, examine=examine)
            return
        version.apply(delta, digest=f"{self.tag:032x}")
        self.worlds[version.digest] = after
        self.chain.append(version.digest)

    def settle(self):
        for _ in range(400):
            if not self.version.maintain():
                break
        assert vectors_of(self.version)[0] is None

    def check(self):
        generation, found = vectors_of(self.version)
        of = self.world if generation is None else self.worlds[generation.digest]
        assert found.keys() == self.world.catalogue & of.catalogue
        for key, row in found.items():
            np.testing.assert_allclose(row, of.item_vector(key), atol=1e-5)


@pytest.mark.parametrize("entity", [True, False])
def test_vectors_are_of_the_generation_that_is_named(entity, tmp_path_factory, monkeypatch):
    repository = tmp_path_factory.mktemp("repository")
    package = write_towers(repository, World.first(ITEMS, entity))
    monkeypatch.setattr(vector_pass, "ROWS", 7)
    monkeypatch.setattr(item_vectors, "SLICE_S", 0.0)
    monkeypatch.setattr(item_vectors, "LONGEST_SLICE_S", 0.0)

    @given(
        st.lists(WORK, min_size=1, max_size=14), st.sampled_from([0, 2, 4]), st.sampled_from([False, False, True]),
        st.sampled_from([3, 1000]),
    )  # fmt: skip
    @settings(max_examples=40, deadline=None)
    def play(works, undo_depth, tiered, at_once):
        monkeypatch.setattr(vector_pass, "AT_ONCE", at_once)
        played = Played(package, World.first(ITEMS, entity), undo_depth, tiered and repository)
        for work in works:
            played.play(work)
        played.settle()
        played.check()

    play()
