"""What the items of a version are, and what their vectors are computed of, follows from its manifest."""

import re
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.top_items.item_tower import IDENTITY, SIGMOID, ItemTower, ScoreForm
from freshet_serving.processor.extensions.top_items.section import OPTIONS, ItemRanking, describe_ranking
from freshet_serving.processor.package import Feature, Input, TableEntry, Transform
from tests.support.towers import COLUMNS, DIM, manifest, note


def tower_of(described, **more):
    return ItemTower.of(described, note() | more)


def test_records_are_the_catalogue_where_an_entity_has_all_that_items_are_made_of():
    tower = tower_of(manifest(True))
    assert (tower.key, tower.table, tower.vectors, tower.columns) == ("item", "entities.item", "item_vector", COLUMNS)
    assert (tower.direct, tower.spread) == ({"item"}, frozenset())
    assert [(lookup.table, lookup.most, lookup.ragged) for lookup in tower.lookups] == [("category", 2, True)]
    assert tower.inputs == {"item", "category", "price"}
    assert tower.tables == {"item", "category", "entities.item"}
    assert tower.weights == ("i",)


def test_rows_are_the_catalogue_where_items_have_an_id_alone():
    tower = tower_of(manifest(False))
    assert (tower.table, tower.direct, tower.lookups, tower.entity) == ("item", frozenset(), (), None)
    assert tower.inputs == {"item"}


def test_tables_that_a_transform_of_the_key_looks_up_belong_to_any_item():
    described = manifest(False)
    halves = Transform("half", "floor_divide", ["item"], [2])
    bucket = Feature("half", "id", "half", side="item", table="half", offset=2 * DIM, width=DIM)
    more = {"tables": [*described.tables, TableEntry("half", DIM, 0)], "transforms": [halves]}
    tower = tower_of(replace(described, features=[*described.features, bucket], width=3 * DIM, **more))
    assert (tower.table, tower.spread) == ("item", {"half"})


def test_ranking_reads_requests_without_the_inputs_of_items():
    ranking = ItemRanking.of(manifest(True))
    assert [i.name for i in ranking.manifest.inputs] == ["user", "item", *OPTIONS]
    assert [o.name for o in ranking.manifest.outputs] == ["item_ids", "scores"]
    assert (
        describe_ranking(manifest(True))
        == "user_vector by item_vector of the items of entities.item; sources model, like"
    )


def unknown_input(described):
    feature = Feature("stock", "float", "stock", side="item", offset=described.width)
    inputs = [*described.inputs, Input("stock", "float32")]
    return replace(described, features=[*described.features, feature], inputs=inputs, width=described.width + 1)


def of_strings(described):
    inputs = [replace(i, dtype="string") if i.name == "item" else i for i in described.inputs]
    features = [replace(f, kind="string") if f.input == "item" else f for f in described.features]
    return replace(described, inputs=inputs, features=features)


def without_items(described):
    return replace(described, features=[f for f in described.features if f.side != "item"])


def with_floats_alone(described):
    features = [f for f in described.features if f.side != "item"]
    stock = Feature("stock", "float", "stock", side="item", offset=DIM)
    return replace(described, features=[*features, stock], inputs=[*described.inputs, Input("stock", "int64")])


def with_users_that_read_prices(described):
    bucket = Transform("dear", "bucketize", ["price"], floats=[0.5])
    dear = Feature("dear", "id", "dear", table="user", offset=described.width, width=DIM)
    return replace(described, features=[*described.features, dear], transforms=[bucket])


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (with_users_that_read_prices(manifest(True)), "feature 'dear' of side 'context' reads 'price' of items"),
        (unknown_input(manifest(True)), "need .*stock.*which only requests have: make them columns of an entity"),
        (unknown_input(manifest(False)), "need stock, which only requests have"),
        (
            of_strings(manifest(False)),
            "input 'item': expected items that are numbers, or the key of an entity with filters",
        ),
        (without_items(manifest(True)), "no features of side 'item'"),
        (with_floats_alone(manifest(False)), "no feature looks up 'stock' itself"),
    ],
)
def test_version_that_cannot_rank_items_says_why(made, why):
    with pytest.raises(BadInput, match=why):
        tower_of(made)
    assert ItemRanking.of(made) is None
    assert re.search(why, describe_ranking(made))


@pytest.mark.parametrize(
    "more",
    [
        {"output": "absent"}, {"vectors": "absent"}, {"vectors": "score"}, {"vectors": 3}, {"score": {"link": "cubic"}},
        {"score": {"link": SIGMOID, "scale": "i"}}, {"score": {"link": SIGMOID, "bias": "absent"}},
        {"score": {"scale": 5}}, {"score": {"link": []}}, {"output": []},
    ],
)  # fmt: skip
def test_notes_that_do_not_fit_are_refused(more):
    with pytest.raises(BadInput):
        tower_of(manifest(True), **more)


@pytest.mark.parametrize("weights", [None, "i", ["absent"], [3], {}])
def test_weights_that_do_not_fit_are_not_known(weights):
    assert tower_of(manifest(True), weights=weights).weights == ()


def test_score_is_what_the_model_makes_of_a_product():
    dense = {"scale": np.array([[2.0]], np.float32), "bias": np.array([-1.0], np.float32)}
    products = np.array([-200.0, 0.0, 0.5, 200.0], np.float32)
    form = ScoreForm(SIGMOID, "scale", "bias")
    numbers = form.numbers(dense)
    np.testing.assert_allclose(form.score(products, numbers), [0, 1 / (1 + np.e), 0.5, 1], atol=1e-7)
    assert form.score(products, numbers).dtype == np.float32
    plain = ScoreForm(IDENTITY)
    assert np.array_equal(plain.score(products, plain.numbers({})), products)
