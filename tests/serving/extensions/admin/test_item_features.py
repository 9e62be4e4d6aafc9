"""The items of a reply for people: ids, scores, and columns as of the generation that the reply names."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.serving.extensions.admin import item_features
from freshet_serving.serving.extensions.admin.example_requests import ExampleRequests
from freshet_serving.serving.extensions.admin.item_features import listed_items, ranked_items
from tests.support.ranked import MODEL, columns_of, manifest, write_ranked

BODY = json.dumps({"outputs": {"item_ids": [[8, 7], [1, 2]], "scores": [[2.5, 1.0], [0, 0]]}}).encode()


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked")
    write_ranked(folder, recorded=range(0, 40, 2))
    with Processor.initialize(ProcessorConfig(str(folder), sessions=1)) as opened:
        yield opened


def test_items_of_the_first_user_have_columns(processor):
    told = listed_items(processor.host, MODEL, "1.0", BODY)
    assert (told["ids"], told["scores"]) == (["8", "7"], [2.5, 1.0])
    assert told["columns"]["stock"] == [str(columns_of([8], 0)["stock"][0]), None]


@pytest.mark.parametrize("generation", ["1.7", "2.0", "x", "", None])
def test_generation_out_of_reach_has_no_columns(processor, generation):
    assert listed_items(processor.host, MODEL, generation, BODY)["columns"] == {}


def test_held_lock_gives_no_columns(processor, monkeypatch):
    monkeypatch.setattr(item_features, "LOCK_S", 0.0)
    with processor.host.catalogue[MODEL].pick().lock, ThreadPoolExecutor(1) as other:
        assert other.submit(listed_items, processor.host, MODEL, "1.0", BODY).result()["columns"] == {}
    assert listed_items(None, MODEL, "1.0", BODY)["columns"] == {}


def test_signature_has_an_example_of_one_user(processor):
    ranks = ExampleRequests().signature(processor.host.catalogue[MODEL].pick())["ranks"]
    assert ranks["item"] == "item"
    (history,) = ranks["inputs"]
    assert history["name"] == "history.item"
    assert len(json.loads(history["example"])) == 1
    assert ranked_items(manifest(notes={})) is None
