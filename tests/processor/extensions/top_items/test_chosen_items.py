"""Requests that say which items count: filter, allow, block, seen and candidates, of one generation, exactly."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.extensions.top_items import best_items
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.generation import Generation
from tests.support.plain_filters import passes
from tests.support.ranked import MODEL, RECORDS, best, columns_of, histories, ranked_delta, write_ranked

ITEMS = range(300)
RECORDED = range(0, 300, 3)


@pytest.fixture
def opened(open_repository):
    return partial(open_repository, partial(write_ranked, items=ITEMS, recorded=RECORDED))


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    """For tests that only ask."""
    folder = tmp_path_factory.mktemp("chosen")
    write_ranked(folder, ITEMS, recorded=RECORDED)
    with Processor.initialize(ProcessorConfig(str(folder), sessions=1)) as opened:
        yield opened


def ask(processor, users, k=10, wanted=None, **more):
    inputs = {**histories(*users), **more}
    if wanted is not None:
        inputs["filter"] = Strings.of([json.dumps(wanted)])
    return processor.process(PredictRequest(MODEL, inputs, top_items=k))


def records_at(step, keys):
    columns = columns_of(keys, step)
    return {key: {name: values[n] for name, values in columns.items()} for n, key in enumerate(keys)}


def expected(contents, step, history, k, counts):
    """The best items among those that count."""
    ids, scores = best(contents, step, history, len(contents))
    good = [n for n, key in enumerate(ids.tolist()) if counts(key)]
    return ids[good][:k], scores[good][:k]


FIRST = dict.fromkeys(ITEMS, 0)


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"stock": [1, None]},
        {"price": [None, 9.5], "category": {"not": ["b"]}},
        {"tags": ["t1", "t3"]},
        {"sizes": {"not": [0, 2]}},
        {"category": "no such text"},
    ],
)
def test_items_that_pass_are_ranked_as_if_there_were_no_others(processor, wanted):
    records = records_at(0, RECORDED)
    for users in ([[1, 2]], [[5], [], [7, 8]]):
        reply = ask(processor, users, 20, wanted)
        lists = [expected(FIRST, 0, user, 20, lambda key: passes(wanted, records.get(key))) for user in users]
        count = min(len(ids) for ids, _ in lists)
        assert reply.unfilled == 20 - count
        for n, (ids, scores) in enumerate(lists):
            assert reply.outputs["item_ids"][n].tolist() == ids[:count].tolist()
            np.testing.assert_allclose(reply.outputs["scores"][n], scores[:count], atol=1e-5)


@pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")
@pytest.mark.parametrize("compute", ["threads", "inline"])
def test_what_a_delta_takes_out_is_in_no_reply_of_its_generation(opened, upload, compute):
    processor, records, contents = opened(compute=compute), records_at(0, RECORDED), dict(FIRST)
    states = {0: (dict(contents), dict(records))}
    for step in range(1, 5):
        recorded, gone = range(step, 300, 4), [key for key in records if key % 5 == step % 5]
        unrecorded = set(gone) - set(recorded)
        upload(processor, ranked_delta(step, [step], [250 + step], recorded=recorded, unrecorded=unrecorded))
        contents[step] = step
        del contents[250 + step]
        records = {key: one for key, one in records.items() if key not in unrecorded} | records_at(step, recorded)
        states[step] = dict(contents), dict(records)
        check(processor, step, *states[step])
    processor.rollback(MODEL, Generation(1, 3))
    check(processor, 3, *states[3])


def test_a_delta_of_stock_alone_is_served_with_the_guard_on(opened, upload):
    processor, records = opened(), records_at(0, RECORDED)
    for step in (1, 2):
        made = ranked_delta(step, recorded=range(0, 300, 3))
        upload(processor, replace(made, tables={RECORDS: made.tables[RECORDS]}, dense={}))
        records = records_at(step, range(0, 300, 3))
        reply = ask(processor, [[1, 2]], 300, {"stock": [1, None]})
        assert reply.generation.step == step
        assert set(reply.outputs["item_ids"][0].tolist()) == {key for key in records if records[key]["stock"]}


def check(processor, step, contents, records):
    for wanted in ({"stock": {"not": 0}}, {"stock": [1, 3]}, {"tags": {"not": "t2"}}):
        good = {key for key in contents if passes(wanted, records.get(key))}
        reply = ask(processor, [[1, 2]], 300, wanted)
        assert reply.generation.step == step
        ids, scores = expected(contents, step, [1, 2], 300, good.__contains__)
        assert set(reply.outputs["item_ids"][0].tolist()) == set(ids.tolist())
        np.testing.assert_allclose(reply.outputs["scores"][0], scores, atol=1e-5)


def test_listed_items_alone_count_and_nothing_is_scanned(processor, monkeypatch):
    records = records_at(0, RECORDED)
    monkeypatch.setattr(best_items, "rank_rows", None)
    allowed = [9, 3, 12, 999, 3, 30, 1]
    reply = ask(processor, [[1, 2]], 10, allow=np.array(allowed))
    ids, scores = expected(FIRST, 0, [1, 2], 10, set(allowed).__contains__)
    assert reply.outputs["item_ids"].tolist() == [ids.tolist()]
    np.testing.assert_allclose(reply.outputs["scores"][0], scores, atol=1e-5)
    wanted = {"stock": [1, None]}
    reply = ask(processor, [[1, 2], [3]], 10, wanted, allow=Ragged.of([allowed, list(range(60))]))
    for n, (user, some) in enumerate((([1, 2], allowed), ([3], range(60)))):
        counts = lambda key, some=some: key in some and passes(wanted, records.get(key))  # noqa: E731
        ids, _ = expected(FIRST, 0, user, reply.outputs["item_ids"].shape[1], counts)
        assert reply.outputs["item_ids"][n].tolist() == ids.tolist()


def test_blocked_and_seen_items_do_not_count(processor):
    every = ask(processor, [[1, 2]], 300).outputs["item_ids"][0].tolist()
    reply = ask(processor, [[1, 2]], 300, block=np.array(every[:50]), seen=Ragged.of([every[60:70]]))
    assert reply.outputs["item_ids"][0].tolist() == every[50:60] + every[70:]
    both = ask(processor, [[1], [2]], 4, seen=Ragged.of([every[:9], []])).outputs["item_ids"]
    assert (
        both[0].tolist()
        == [key for key in ask(processor, [[1]], 30).outputs["item_ids"][0] if key not in every[:9]][:4]
    )
    assert both[1].tolist() == ask(processor, [[2]], 4).outputs["item_ids"][0].tolist()
    # A list may hold what is no item.
    assert ask(processor, [[1, 2]], 5, block=np.array([10**9])).outputs["item_ids"][0].tolist() == every[:5]


def test_candidates_pass_the_filter_and_history_among_them_counts(processor):
    records = records_at(0, RECORDED)
    reply = ask(processor, [[3, 6]], 50, {"stock": {"in": [1, 2, 3]}}, item=np.arange(0, 60, 3))
    wanted = {key for key in range(0, 60, 3) if records[key]["stock"]}
    assert set(reply.outputs["item_ids"][0].tolist()) == wanted
    assert {3, 6} & wanted
    both = ask(processor, [[1]], 50, item=np.arange(9), allow=np.array([2, 3, 50]), block=np.array([3]))
    assert both.outputs["item_ids"].tolist() == [[2]]


def test_requests_with_one_filter_share_a_scan_and_others_do_not(opened):
    processor = opened()
    ranker = processor.predictor.answerers["top_items"]
    works = []
    ranker._worker = type(
        "Held", (), {"full": lambda s, n: False, "offer": lambda s, work, most: works.append(work) or True}
    )()
    for more in ({}, {"filter": '{"stock": 1}'}, {"filter": '{"stock": 1}'}, {"allow": np.array([1])}):
        inputs = histories([1]) | {n: Strings.of([v]) if isinstance(v, str) else v for n, v in more.items()}
        processor.predictor.submit(PredictRequest(MODEL, inputs, top_items=3), print)
    ranker._worker = None
    assert [work.chosen.shared_by for work in works] == [b"", b'{"stock": 1}', b'{"stock": 1}', None]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"filter": Strings.of(["{}", '{"stock": 1}'])}, "filter: expected one text for all users, got 2 that differ"),
        ({"filter": np.array([1])}, "filter: expected one text for all users, got another type"),
        ({"filter": Strings.of(['{"stock": "x"}'])}, "filter.stock: expected a number, got 'x'"),
        ({"allow": np.array([1.5], np.float32)}, "allow: expected ids that are whole numbers, got another type"),
        ({"block": Strings.of(["a"])}, "block: expected ids that are whole numbers, got another type"),
        (
            {"seen": Ragged.of([[1], [2], [3]])},
            "seen: expected a list of ids for each of 1 users, or one for all, got 3",
        ),
        ({"item": np.array([1.5], np.float32)}, "item: expected ids that are whole numbers"),
        ({"other": np.array([1])}, "other"),
    ],
)
def test_what_chooses_no_items_is_refused_by_name(processor, more, message):
    with pytest.raises(BadInput) as refused:
        ask(processor, [[1]], 3, **more)
    assert message in str(refused.value)


def test_versions_without_filters_say_so(tmp_path):
    write_ranked(tmp_path)
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        with pytest.raises(
            BadInput, match="filter: model 'next' version 1 has no columns to filter on: give its items"
        ):
            ask(processor, [[1]], 3, {"stock": 1})
        assert ask(processor, [[1]], 3, block=np.array([5])).outputs["item_ids"].shape == (1, 3)


def test_filters_and_lists_and_long_clauses_count_as_ids(opened):
    processor = opened(limits=RequestLimits(max_ids=650))
    assert ask(processor, [[1], [2]], 3).outputs["item_ids"].shape == (2, 3)
    with pytest.raises(TooLarge, match="max_ids: expected at most 650 items to rank"):
        ask(processor, [[1], [2]], 3, {"stock": 1})
    with pytest.raises(
        TooLarge, match="max_ids: expected at most 650 ids to allow, block, rank and leave out, got 800"
    ):
        ask(processor, [[1], [2]], 3, allow=np.arange(400))

    quick = {name: {"not": 3} for name in ("stock", "price")}
    assert ask(processor, [[1]], 3, quick).outputs["item_ids"].shape == (1, 3)
    for wanted in ({"tags": "t1", "stock": 1}, {"stock": {"in": list(range(40))}, "price": 1}):
        with pytest.raises(TooLarge, match="max_ids: expected at most 650 items to rank"):
            ask(processor, [[1]], 3, wanted)


def test_empty_filter_and_empty_lists_leave_what_they_say(processor):
    every = ask(processor, [[1]], 5).outputs["item_ids"].tolist()
    assert ask(processor, [[1]], 5, filter=Strings.of([""])).outputs["item_ids"].tolist() == every
    assert ask(processor, [[1]], 5, block=np.empty(0, np.int64)).outputs["item_ids"].tolist() == every
    nothing = ask(processor, [[1]], 5, allow=np.empty(0, np.int64))
    assert (nothing.outputs["item_ids"].shape, nothing.unfilled) == ((1, 0), 5)
