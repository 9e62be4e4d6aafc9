"""An imported model of two towers ranks its items once the import names the user's inputs."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import keras
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.two_vectors import TwoVectors, hint, two_vectors
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.top_items.section import NOTE
from tests.compiler.imports.replies import replies, started

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

READ = {"a": frozenset({"item", "price"}), "b": frozenset({"user"})}
USERS, ITEMS = 30, 50


def test_vectors_follow_from_the_users_inputs():
    assert two_vectors(READ, ["user"]) == TwoVectors("b", "a", frozenset({"item", "price"}))
    assert two_vectors(READ, ["item", "price"]) == TwoVectors("a", "b", frozenset({"user"}))
    for user in ([], ["item"], ["user", "item"], ["other"]):
        assert two_vectors(READ, user) is None
    assert two_vectors({**READ, "score": frozenset({"user"})}, ["user"]) is None
    assert two_vectors({"a": frozenset(), "b": frozenset({"user"})}, ["user"]) is None
    assert two_vectors({"a": frozenset({"user", "item"}), "b": frozenset({"user"})}, ["user"]) is None


def test_hint_names_outputs_that_may_be_vectors():
    assert "'a' and 'b' may be vectors" in hint(READ)
    assert hint({"a": frozenset({"user"}), "b": frozenset({"user", "item"})}) == ""
    assert hint({"a": frozenset({"user"})}) == ""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    def tower(name, rows):
        given = keras.Input((), dtype="int64", name=name)
        hidden = keras.layers.Dense(8, "relu")(keras.layers.Embedding(rows, 4)(given))
        return given, keras.layers.Dense(3)(hidden)

    (user, of_user), (item, of_item) = tower("user_id", USERS), tower("item_id", ITEMS)
    model = keras.Model([user, item], {"query": of_user, "product": of_item})
    path = tmp_path_factory.mktemp("towers") / "model.keras"
    model.save(path)
    return path, model


def imported(saved, folder, **options):
    return import_model(saved[0], str(folder), "pair", options=ImportOptions(buckets=(1, 16), **options))


def test_imported_towers_rank_their_items(saved, tmp_path):
    made = imported(saved, tmp_path, user=("user_id",))
    line = "top items: 'query' is the user's vector, and 'product' that of an item, made of item_id"
    assert line in made.report["notes"]
    users = np.array([0, 7, 29])
    items = np.arange(ITEMS)
    vectors = saved[1].predict({"user_id": np.zeros(ITEMS, np.int64), "item_id": items}, verbose=0)["product"]
    queries = saved[1].predict({"user_id": users, "item_id": np.zeros(3, np.int64)}, verbose=0)["query"]
    scores = queries @ vectors.T
    outputs = replies(tmp_path, "pair", {"user_id": users}, top_items=7)
    for row in range(3):
        best = np.sort(scores[row])[::-1][:7]
        np.testing.assert_allclose(outputs["scores"][row], best, atol=1e-5)
        np.testing.assert_allclose(scores[row][outputs["item_ids"][row]], best, atol=1e-5)


def test_import_without_the_users_inputs_says_what_to_name(saved, tmp_path):
    made = imported(saved, tmp_path)
    assert any("name the user's inputs by --user" in note for note in made.report["notes"])
    with started(tmp_path) as processor:
        assert NOTE not in processor.host.catalogue["pair"].pick().manifest.notes
        with pytest.raises(BadInput, match="cannot rank all items"):
            processor.process(PredictRequest("pair", {"user_id": np.array([1])}, top_items=7))
