"""What ranks the items of a request: read from its inputs, refused by name where it cannot be."""

import re

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.extensions.top_items.asked_source import AskedSource, histories_of
from freshet_serving.processor.extensions.top_items.section import ItemRanking
from freshet_serving.processor.features.limits import RequestLimits
from tests.support.ranked import MODEL, histories, manifest, write_ranked

NUMBERS = {item: (item % 7, item) for item in range(40)}


def ids(*items):
    return np.array(items, np.int64)


def text(*names):
    return Strings.of(list(names))


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    write_ranked(folder, numbers=NUMBERS)
    with Processor.initialize(ProcessorConfig(repository=str(folder), sessions=1)) as opened:
        yield opened


def ask(processor, k=5, **inputs):
    inputs = {name.replace("__", "."): column for name, column in inputs.items()}
    return processor.process(PredictRequest(MODEL, inputs, top_items=k))


def test_the_source_is_the_model_unless_the_request_says_otherwise():
    ranking = ItemRanking.of(manifest())
    assert AskedSource.of(ranking, {}).computed
    assert AskedSource.of(ranking, {"source": text("model")}).name == "model"
    like = AskedSource.of(ranking, {"like": ids(3, 4)})
    assert (like.name, like.like.tolist(), like.computed) == ("like", [3, 4], True)
    assert AskedSource.of(ranking, {"like": ids(3), "source": text("like", "like")}).spread(3).like.tolist() == [3] * 3


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"source": text("x")}, "source: expected 'model', 'like', 'popular' or 'new', got 'x'"),
        ({"source": text("new", "model")}, "source: expected one text for all users, got 2 that differ"),
        ({"source": ids(1)}, "source: expected one text for all users, got another type"),
        ({"source": text("like")}, "like: expected the id of an item for source 'like', got none"),
        (
            {"source": text("popular"), "like": ids(1)},
            "like: expected it with source 'like' alone, got source 'popular'",
        ),
        ({"like": text("1")}, "like: expected ids that are whole numbers, got another type"),
        ({"like": np.array([1.5])}, "like: expected ids that are whole numbers, got another type"),
        ({"like": Ragged.of([[1]])}, "like: expected ids that are whole numbers, got another type"),
        ({"like": ids()}, "like: expected an id for each user, got 0 for 0"),
        ({"like": ids(1, 2, 3, 4).reshape(2, 2)}, "like: expected an id for each user, got 4 for 2"),
        (
            {"like": ids(1, 2), "seen": Ragged.of([[1]] * 3)},
            "like: expected a row for each of 3 users, or one for all, got 2",
        ),
        (
            {"source": text("new"), "seen": Ragged.of([])},
            "seen: expected a row for each of 1 users, or one for all, got 0",
        ),
        ({"source": text("new"), "history__item": ids(1)}, "history.item: expected lists of ids, got another type"),
        ({"source": text("new"), "user": ids(1)}, "input 'user' is not one of the model's: item, history.item"),
        ({"source": text("new"), "history__item": Ragged(ids(1), ids(0, 9))}, "history.item: expected lists of ids"),
        ({}, "input 'history.item' is missing"),
        ({"source": text("model")}, "input 'history.item' is missing"),
    ],
)
def test_wrong_requests_are_refused_by_name(processor, inputs, why):
    with pytest.raises(BadInput, match=re.escape(why)):
        ask(processor, **inputs)


def test_versions_without_a_source_say_which_they_have(tmp_path):
    write_ranked(tmp_path)
    with (
        Processor.initialize(ProcessorConfig(repository=str(tmp_path), sessions=1)) as opened,
        pytest.raises(BadInput, match="version 1 has no 'popular', only 'model', 'like'"),
    ):
        ask(opened, source=text("popular"))


def test_a_request_without_a_user_is_one_of_one_user(processor):
    assert ask(processor, source=text("new")).outputs["item_ids"].tolist() == [[39, 38, 37, 36, 35]]
    assert ask(processor, 3, source=text("new"), seen=Ragged.of([[39], [38]])).outputs["item_ids"].tolist() == [
        [38, 37, 36], [39, 37, 36],
    ]  # fmt: skip
    # Items of a history that is sent are left out, too.
    assert ask(processor, 2, source=text("new"), history__item=Ragged.of([[39, 37]])).outputs["item_ids"].tolist() == [
        [38, 36]
    ]


def test_likeness_is_what_follows_a_history_of_the_item(processor):
    for item in (3, 7, 30):
        alone = processor.process(PredictRequest(MODEL, histories([item]), top_items=6))
        like = ask(processor, 6, like=ids(item))
        assert np.array_equal(like.outputs["item_ids"], alone.outputs["item_ids"])
        assert np.array_equal(like.outputs["scores"], alone.outputs["scores"])
    both = ask(processor, 4, like=ids(3, 7), block=Ragged.of([[1, 2]]))
    for item, row in zip((3, 7), both.outputs["item_ids"]):
        wanted = processor.process(
            PredictRequest(MODEL, {**histories([item]), "block": Ragged.of([[1, 2]])}, top_items=4)
        )
        assert np.array_equal(row, wanted.outputs["item_ids"][0])


def test_the_item_itself_is_left_out_of_candidates(processor):
    found = ask(processor, 3, like=ids(3), item=ids(3, 5, 6)).outputs["item_ids"]
    assert sorted(found[0].tolist()) == [5, 6]


def test_unknown_items_are_like_none(processor):
    reply = ask(processor, 4, like=ids(4000))
    assert reply.outputs["item_ids"].shape == (1, 0)
    assert reply.unfilled == 4


def test_limits_hold_for_requests_without_a_network(tmp_path):
    write_ranked(tmp_path, numbers=NUMBERS)
    config = ProcessorConfig(repository=str(tmp_path), sessions=1, limits=RequestLimits(max_rows=4, max_ids=130))
    with Processor.initialize(config) as opened:
        assert ask(opened, 1, source=text("new"), seen=Ragged.of([[]] * 3)).outputs["item_ids"].shape == (3, 1)
        for users, limit in ((5, "max_rows"), (4, "max_ids")):
            with pytest.raises(TooLarge, match=limit):
                ask(opened, 1, source=text("new"), seen=Ragged.of([[]] * users))


def test_histories_are_cut_and_shared():
    ranking = ItemRanking.of(manifest())
    assert [h.tolist() for h in histories_of(ranking, histories([1, 2]), 2)] == [[1, 2]] * 2
    assert [h.tolist() for h in histories_of(ranking, {}, 2)] == [[], []]
