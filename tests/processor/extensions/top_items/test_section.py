"""Which versions rank items, by their notes, and how their requests are read."""

from dataclasses import replace

import pytest

from freshet_serving.processor.extensions.top_items.section import (
    NOTE,
    ItemRanking,
    describe_ranking,
    item_ranking_note,
)
from freshet_serving.processor.package import ITEM_IDS, SCORES, Manifest, ranks_items
from tests.support.ranked import DIM, manifest, with_filters


def test_requests_for_best_items_leave_the_candidates_out():
    ranking = ItemRanking.of(manifest())
    assert (ranking.item, ranking.output, ranking.table) == ("item", "user_vector", 0)
    assert ranking.history == ("history.item",)
    # What the network reads is asked for where it is run: other sources need nothing of the user.
    assert ranking.manifest.expected_inputs(()) == []
    assert [i.name for i in ranking.manifest.inputs[2:]] == ["filter", "allow", "block", "seen", "like", "source"]
    assert [(o.name, o.dtype) for o in ranking.manifest.outputs] == [(ITEM_IDS, "int64"), (SCORES, "float32")]
    assert ranks_items(ranking.manifest)
    assert not ranks_items(manifest())


def test_ranking_is_described_only_where_there_is_one():
    assert describe_ranking(manifest()).startswith("user_vector by the rows of item, without those of history.item")
    assert describe_ranking(manifest(notes={})) == ""
    assert describe_ranking(with_filters(manifest())).endswith(
        "; sources model, like; filters on price, stock, category, tags, sizes, sellers"
    )


def test_note_survives_the_manifest_file():
    assert ItemRanking.of(Manifest.from_json(replace(manifest(), executables=[]).to_json())).item == "item"


@pytest.mark.parametrize(
    "note",
    [
        {},
        {NOTE: None},
        {NOTE: ["user_vector", "item"]},
        {NOTE: {"output": "user_vector"}},
        item_ranking_note("absent", "item"),
        item_ranking_note("score", "item"),
        item_ranking_note("user_vector", "absent"),
        {NOTE: {"output": ["user_vector"], "feature": {}}},
    ],
)
def test_note_of_what_is_not_there_ranks_nothing(note):
    assert ItemRanking.of(manifest(notes=note)) is None


def test_items_that_no_request_could_send_are_not_ranked():
    made = manifest()
    (item,) = made.features
    texts = replace(made, features=[replace(item, kind="string")])
    packed = replace(made, inputs=[replace(i, columns=2) if i.name == "item" else i for i in made.inputs])
    computed = replace(made, features=[replace(item, input="item.bucket")])
    for other in (texts, packed, computed, replace(made, tables=[replace(made.tables[0], dim=DIM + 1)])):
        assert ItemRanking.of(other) is None
