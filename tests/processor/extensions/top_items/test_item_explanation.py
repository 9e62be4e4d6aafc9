"""An item's place and its parts: equal to what the ranker returns, and why an item is not in a list."""

import json

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.extensions.explaining.explanation import Explainer, GenerationRef
from freshet_serving.processor.extensions.top_items import item_explanation as module
from freshet_serving.processor.extensions.top_items.item_explanation import ExplainedItem
from freshet_serving.processor.extensions.top_items.vector_pass import VectorPass
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.package.delta import write_delta
from tests.support import towers
from tests.support.ranked import (
    LENGTH,
    MODEL,
    best,
    columns_of,
    histories,
    manifest,
    matrix_of,
    ranked_delta,
    rows_of,
    write_ranked,
)
from tests.support.waiting import until

pytestmark = pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")

ITEMS, HISTORY = range(40), [3, 5, 30, 5]


class Opened:
    """A processor of one model, and the item explanations of its versions."""

    def __init__(self, folder, model=MODEL):
        self.folder, self.model, self.explainer = folder, model, Explainer("a test")
        self.processor = Processor.initialize(ProcessorConfig(str(folder / "repository"), sessions=1, undo_depth=8))

    def upload(self, delta):
        write_delta(self.folder / "upload", delta)
        self.processor.apply_delta(self.model, data=(self.folder / "upload").read_bytes())

    def best(self, inputs, k=40, row=0):
        outputs = self.processor.process(PredictRequest(self.model, inputs, top_items=k)).outputs
        return outputs["item_ids"][row].tolist(), outputs["scores"][row]

    def explained(self, inputs, item, row=0, step=None, **options):
        version = self.processor.host.catalogue[self.model].pick()
        (side,) = self.explainer.explain(inputs, row, GenerationRef(version, step), item=item, **options)["sides"]
        return side["item"]


@pytest.fixture
def opened(tmp_path):
    write_ranked(tmp_path / "repository", ITEMS, recorded=range(0, 40, 2))
    one = Opened(tmp_path)
    yield one
    one.processor.close()


@pytest.fixture(params=[True, False], ids=["entity", "rows"])
def paired(request, tmp_path):
    world = towers.World.first(ITEMS, request.param)
    towers.write_towers(tmp_path / "repository", world)
    one = Opened(tmp_path, towers.MODEL)
    one.world = world
    yield one
    one.processor.close()


def filtered(wanted, **lists):
    more = {name: Ragged.of([ids]) for name, ids in lists.items()}
    return {**histories(HISTORY), "filter": Strings.of([json.dumps(wanted)]), **more}


@pytest.mark.parametrize("history", [HISTORY, [], list(range(LENGTH + 3))])
def test_each_listed_item_has_its_place_and_score(opened, history):
    ids, scores = opened.best(histories(history))
    for place, (item, score) in enumerate(zip(ids, scores), 1):
        told = opened.explained(histories(history), item)
        assert (told["place"], told["ranked"], told["why_not"]) == (place, len(ids), [])
        np.testing.assert_allclose([told["score"], sum(told["parts"].values())], score, atol=1e-5)


def test_row_is_the_number_of_the_user(opened):
    both = histories(HISTORY, [7])
    for row in range(2):
        (first, *_), _ = opened.best(both, row=row)
        assert opened.explained(both, first, row)["place"] == 1


def test_filtered_items_have_their_place_and_others_the_clause(opened):
    wanted = {"price": [3, None], "category": {"not": ["a"]}, "stock": [1, None]}
    inputs = filtered(wanted)
    ids, _ = opened.best(inputs)
    values = columns_of(list(ITEMS), 0)
    for item in ITEMS:
        told = opened.explained(inputs, item)
        if item in ids:
            assert told["place"] == ids.index(item) + 1
            continue
        assert told["place"] is None
        clauses = [why for why in told["why_not"] if why.startswith("filter.")]
        if item % 2:
            assert "filter.price: expected [3, null], got no record" in clauses
            continue
        assert ("filter.stock: expected [1, null], got 0" in clauses) == (values["stock"][item] == 0)
        assert any(why.startswith("filter.category: expected {") for why in clauses) == (
            values["category"][item] == "a"
        )


def test_lists_of_the_request_and_the_history_are_named(opened):
    inputs = {
        **histories(HISTORY),
        "block": Ragged.of([[9]]),
        "seen": Ragged.of([[9, 11]]),
        "allow": Ragged.of([[9, 3]]),
    }
    assert [why.partition(":")[0] for why in opened.explained(inputs, 9)["why_not"]] == ["block", "seen"]
    assert [why.partition(":")[0] for why in opened.explained(inputs, 3)["why_not"]] == ["history"]
    assert [why.partition(":")[0] for why in opened.explained(inputs, 20)["why_not"]] == ["allow"]
    del inputs["allow"], inputs["block"], inputs["seen"]
    candidates = {**inputs, "item": np.array([3, 8])}
    assert opened.explained(candidates, 3)["why_not"] == []
    assert opened.explained(candidates, 7)["why_not"][0].startswith("item: it is not among")


def test_nearest_events_are_those_of_the_largest_cosine(opened):
    told = opened.explained(histories([*HISTORY, 5000]), 8)["nearest"]
    own, rows = rows_of([8], 0)[0], rows_of(HISTORY, 0)
    products = rows @ own
    cosines = products / np.linalg.norm(rows, axis=1) / np.linalg.norm(own)
    order = sorted(range(4), key=lambda n: (-cosines[n], -n))
    assert [(event["place"], event["id"]) for event in told] == [(n, str(HISTORY[n])) for n in order]
    np.testing.assert_allclose([event["cosine"] for event in told], cosines[order], rtol=1e-5)
    np.testing.assert_allclose([event["product"] for event in told], products[order], rtol=1e-5)


def test_earlier_generations_and_removed_items_are_explained(opened):
    opened.upload(ranked_delta(1, [1, 2, 50], removed=[8], recorded=[2]))
    gone = opened.explained(histories(HISTORY), 8)
    assert gone["why_not"] == ["it has no row"]
    assert gone["row"] == {"found": "default", "why": "removed", "step": 1}
    assert opened.explained(histories(HISTORY), 50)["row"] == {"found": "row", "from": "delta", "step": 1}
    before = dict.fromkeys(ITEMS, 0)
    now = {key: at for key, at in {**before, 1: 1, 2: 1, 50: 1}.items() if key != 8}
    for step, contents in ((0, before), (1, now)):
        ids, scores = best(contents, step, HISTORY, 60)
        for n in (0, 7, len(ids) - 1):
            told = opened.explained(histories(HISTORY), int(ids[n]), step=step)
            assert told["place"] == n + 1
            np.testing.assert_allclose(told["score"], scores[n], atol=1e-4)
    assert opened.explained(histories(HISTORY), 50, step=0)["why_not"] == ["it has no row"]


def test_place_among_too_many_items_of_the_past_is_not_searched(opened, monkeypatch):
    opened.upload(ranked_delta(1, [1]))
    monkeypatch.setattr(module, "MOST_PAST_ITEMS", 10)
    told = opened.explained(histories(HISTORY), 9, step=0)
    assert told["place"] is None
    assert "expected at most 10 items" in told["note"]
    assert opened.explained(histories(HISTORY), 9)["place"] is not None


def test_items_beyond_the_longest_list_are_said_to_be(opened, monkeypatch):
    monkeypatch.setattr(module, "MAX_TOP_ITEMS", 5)
    ids, _ = opened.best(histories(HISTORY))
    assert opened.explained(histories(HISTORY), ids[4])["place"] == 5
    assert opened.explained(histories(HISTORY), ids[5])["why_not"] == ["score: it is not among the best 5"]


def test_limits_of_ids_hold(opened):
    with pytest.raises(TooLarge, match="max_ids: expected at most 30 items to rank"):
        opened.explained(histories(HISTORY), 9, limits=RequestLimits(max_ids=30))


@pytest.mark.parametrize("item", ["x", "", "1.5", str(2**64), str(-(2**63) - 1)])
def test_wrong_ids_are_refused_by_name(item):
    with pytest.raises(BadInput, match="item: expected a"):
        ExplainedItem.of(manifest(), item)


def test_versions_that_rank_no_items_are_refused():
    with pytest.raises(BadInput, match="item: expected a model that ranks items, got 'next' version 1"):
        ExplainedItem.of(manifest(notes={}), 1)


def test_places_of_two_towers_are_those_of_the_ranker(paired):
    for user in (0, 4, 99):
        inputs = {"user": np.array([user])}
        ids, scores = paired.best(inputs)
        for place in (1, 5, len(ids)):
            told = paired.explained(inputs, ids[place - 1])
            assert told["place"] == place
            np.testing.assert_allclose(told["score"], scores[place - 1], atol=1e-5)
            parts = told["parts"]
            logit = parts["scale"] * parts["product"] + parts["bias"]
            np.testing.assert_allclose(1 / (1 + np.exp(-logit)), told["score"], atol=1e-6)


def test_vectors_that_lag_are_named_and_new_items_have_none_yet(paired, monkeypatch):
    _, delta = towers.change(paired.world, 1, put=[50], items=[50], dense=["item"])
    inputs = {"user": np.array([2])}
    with monkeypatch.context() as held:
        # The thread that computes the vectors begins as soon as the delta is served: between two reads it may be done.
        held.setattr(VectorPass, "step", lambda *_: False)
        paired.upload(delta)
        told = paired.explained(inputs, 50)
        assert told["why_not"] == ["no vector yet: it came after the generation of the vectors"]
        assert told["item_generation"] == "1.0"
        reply = paired.processor.process(PredictRequest(towers.MODEL, inputs, top_items=40))
        assert str(reply.item_generation) == "1.0"
    until(lambda: paired.explained(inputs, 50)["place"] is not None)
    assert paired.processor.process(PredictRequest(towers.MODEL, inputs, top_items=40)).item_generation is None


def test_past_vectors_give_a_score_and_no_place(paired):
    _, delta = towers.change(paired.world, 1, users=[2], dense=["user", "score"])
    paired.upload(delta)
    told = paired.explained({"user": np.array([2])}, 7, step=0)
    assert told["place"] is None
    assert "served generation alone" in told["note"]
    wanted = towers.scores(paired.world, paired.world, 2)[7]
    np.testing.assert_allclose(told["score"], wanted, atol=1e-5)


def test_unknown_items_of_two_towers_are_no_items(paired):
    assert paired.explained({"user": np.array([2])}, 700)["why_not"] == ["it is no item"]


def test_matrix_of_the_step_scores(opened):
    vector = np.sum(rows_of(HISTORY, 0), axis=0) @ matrix_of(0)
    told = opened.explained(histories(HISTORY), 8)
    np.testing.assert_allclose(told["parts"]["product"], rows_of([8], 0)[0] @ vector, atol=1e-4)


def test_other_sources_than_the_model_are_not_explained():
    item = ExplainedItem.of(manifest(), 3)
    with pytest.raises(BadInput, match="source: expected 'model', which is what is explained, got 'like'"):
        item.candidate({"like": np.array([4])})
