"""Popular, new and like items: equal to a plain sort, under deltas, removals, filters and rollbacks."""

import json
from functools import partial

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import TableDelta
from tests.support.ranked import MODEL, NUMBERS, columns_of, numbers_of, ranked_delta, write_ranked
from tests.support.towers import MODEL as PAIR
from tests.support.towers import World, change, write_towers

ITEMS = range(40)


def numbers(items, step=0):
    random = np.random.default_rng(step)
    return {item: (float(random.integers(0, 9)), float(np.float32(random.random()))) for item in items}


def listed(numbers_by_item, items, column, k):
    """The items with the largest numbers, of those that there are."""
    return sorted((item for item in numbers_by_item if item in items), key=lambda i: (-numbers_by_item[i][column], i))[
        :k
    ]


def top(processor, source, k=6, **more):
    reply = processor.process(PredictRequest(MODEL, {"source": Strings.of([source]), **more}, top_items=k))
    return reply.outputs["item_ids"][0].tolist(), reply.outputs["scores"][0]


def test_sources_rank_by_their_numbers(open_repository):
    pairs = numbers(ITEMS)
    processor = open_repository(partial(write_ranked, numbers=pairs), ITEMS)
    for column, (source, scale, shift) in enumerate((("popular", 2.0, -20.0), ("new", 4096.0, 0.0))):
        ids, scores = top(processor, source)
        assert ids == listed(pairs, ITEMS, column, 6)
        np.testing.assert_allclose(scores, [pairs[item][column] * scale + shift for item in ids], rtol=1e-6)
        assert len(top(processor, source, 60)[0]) == 40


@pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")
def test_deltas_removals_and_a_rollback_change_what_is_popular(open_repository, upload):
    pairs = numbers(ITEMS)
    processor = open_repository(partial(write_ranked, numbers=pairs), ITEMS)
    before = top(processor, "popular", 40)[0]
    after = {**pairs, 7: (50.0, 0.5), 99: (3.0, 2.0)}
    delta = ranked_delta(1, [99], removed=[3])
    changed = {item: after[item] for item in (7, 99)}
    delta.tables[NUMBERS] = TableDelta(*numbers_of(changed), np.array([3], np.int64))
    upload(processor, delta)
    there = {*ITEMS, 99} - {3}
    for _ in range(2):
        for column, source in enumerate(("popular", "new")):
            assert top(processor, source, 45)[0] == listed(after, there, column, 45)
        assert (top(processor, "popular", 1)[0], top(processor, "new", 1)[0]) == ([7], [99])
        processor.host.upkeep.maintain()
    processor.rollback(MODEL, Generation(1, 0))
    assert top(processor, "popular", 40)[0] == before


@pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")
def test_rows_of_items_that_are_not_there_do_not_count(open_repository, upload):
    pairs = numbers(range(60))
    processor = open_repository(partial(write_ranked, numbers=pairs), ITEMS)
    assert top(processor, "new", 9)[0] == listed(pairs, ITEMS, 1, 9)
    # The numbers of the items that this removes stay.
    gone = listed(pairs, ITEMS, 1, 3)
    upload(processor, ranked_delta(1, removed=gone))
    assert top(processor, "new", 9)[0] == listed(pairs, set(ITEMS) - set(gone), 1, 9)


@pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")
def test_filters_and_lists_hold_for_sources(open_repository, upload):
    pairs = numbers(ITEMS)
    processor = open_repository(partial(write_ranked, numbers=pairs, recorded=ITEMS), ITEMS)
    step = dict.fromkeys(ITEMS, 0)
    for _ in range(2):
        stock = {item: columns_of([item], step[item])["stock"][0] for item in ITEMS}
        for column, source in enumerate(("popular", "new")):
            wanted = Strings.of([json.dumps({"stock": {"not": 0}})])
            ids = top(processor, source, 40, filter=wanted, block=Ragged.of([[5, 6]]))[0]
            assert ids == listed(pairs, {i for i in ITEMS if stock[i]} - {5, 6}, column, 40)
            allowed = top(processor, source, 40, filter=wanted, allow=Ragged.of([[1, 2, 3, 4, 77]]))[0]
            assert allowed == listed(pairs, {i for i in (1, 2, 3, 4) if stock[i]}, column, 40)
        processor.host.upkeep.maintain()
        if not step[1]:
            step |= dict.fromkeys(range(20), 1)
            upload(processor, ranked_delta(1, recorded=range(20)))


@pytest.mark.parametrize("entity", [True, False])
def test_items_are_like_others_by_their_vectors(open_repository, upload, entity):
    world = World.first(ITEMS, entity)
    processor = open_repository(write_towers, world)

    worlds = [world]

    def check(items):
        for item in items:
            reply = processor.process(PredictRequest(PAIR, {"like": np.array([item], np.int64)}, top_items=8))
            assert reply.generation.step == len(worlds) - 1
            # Vectors that lag are those of the generation that the reply names.
            of = worlds[(reply.item_generation or reply.generation).step]
            others = {key: float(of.item_vector(item) @ of.item_vector(key)) for key in of.catalogue - {item}}
            best = np.sort(np.array(list(others.values())))[::-1][:8]
            np.testing.assert_allclose(reply.outputs["scores"][0], best, atol=1e-4)
            ids = reply.outputs["item_ids"][0].tolist()
            np.testing.assert_allclose([others[key] for key in ids], best, atol=1e-4)

    check((0, 5, 39))
    for step, more in enumerate(({"items": [1, 2], "put": [50], "removed": [3]}, {"dense": ["item"], "put": [60]}), 1):
        after, delta = change(worlds[-1], step, **more)
        worlds.append(after)
        upload(processor, delta)
        check((1, 5, 50))
    reply = processor.process(PredictRequest(PAIR, {"like": np.array([3], np.int64)}, top_items=8))
    assert (reply.outputs["item_ids"].shape, reply.unfilled) == ((1, 0), 8)


def test_items_of_two_towers_whose_ids_are_strings_have_like_ones(open_repository):
    world = World.first(ITEMS, "texts")
    processor = open_repository(write_towers, world)
    ask = {"like": Strings.of(["item 4"]), "block": Ragged.of([["item 5"]])}
    ids = processor.process(PredictRequest(PAIR, ask, top_items=50)).outputs["item_ids"][0]
    assert {str(i) for i in ids} == {f"item {i}" for i in ITEMS if i not in (4, 5)}


@pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")
def test_sources_follow_many_deltas_and_rollbacks(open_repository, upload):
    random = np.random.default_rng(4)
    states = [(0, numbers(ITEMS))]
    processor = open_repository(partial(write_ranked, numbers=states[0][1]), ITEMS)
    for step in range(1, 9):
        if len(states) > 2 and random.random() < 0.4:
            states.pop()
            processor.rollback(MODEL, Generation(1, states[-1][0]))
        parent, pairs = states[-1]
        changed = numbers(random.integers(0, 60, 6).tolist(), step)
        gone = sorted(pairs.keys() - changed.keys())[:1]
        delta = ranked_delta(step, sorted(changed), removed=gone, parent=parent)
        delta.tables[NUMBERS] = TableDelta(*numbers_of(changed), np.array(gone, np.int64))
        upload(processor, delta)
        left = {item: pair for item, pair in {**pairs, **changed}.items() if item not in gone}
        states.append((step, left))
        for column, source in enumerate(("popular", "new")):
            assert top(processor, source, 30)[0] == listed(left, left, column, 30)
