"""The checker of lists takes those that a plain loop makes, and finds each way in which one can be wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.programs.list_checker import (
    BRANDS,
    TAGS,
    Asked,
    Change,
    ListChecker,
    Listed,
    changed,
    first_contents,
    passes,
)

ITEMS = 60
WANTED = {"stock": [1, None], "price": [None, 35], "brand": {"not": ["ark"]}}


@pytest.fixture
def checker():
    random, made = np.random.default_rng(1), ListChecker()
    made.contents[0] = first_contents(ITEMS, random)
    made.contents[1] = changed(made.contents[0], Change(dense=("i", "scale")), random)
    sold = [n for n in range(ITEMS) if made.contents[1].there[n]]
    made.contents[2] = changed(made.contents[1], Change(put=sold, removed=[], users=[1]), random, 1.0)
    return made


def listed(checker, asked, step, of):
    """The lists that a loop over items makes."""
    c, before, lists, all_scores = checker.contents[step], checker.contents[of], [], []
    for user in asked.users:
        found = []
        for n, key in enumerate(c.ids.tolist()):
            x = [*before.rows[n], *(before.of_category[n, :-1] @ before.categories), before.price[n]]
            product = sum((c.users[user] @ c.dense["u"]) * (np.array(x) @ before.dense["i"]))
            score = 1 / (1 + math.exp(-(c.dense["scale"][0, 0] * product + c.dense["bias"][0])))
            plain = c.stock[n] >= 1 and c.price[n] <= 35 and c.brand[n] != 0
            if c.there[n] and before.there[n] and (asked.wanted is None or plain):
                found.append((-score, key))
        best = sorted(found)[: asked.k]
        lists.append([key for _, key in best])
        all_scores.append([-score for score, _ in best])
    return Listed(step, of, lists, all_scores, asked.k - len(lists[0]))


@pytest.mark.parametrize(("step", "of"), [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("wanted", [None, WANTED])
def test_lists_of_a_plain_loop_are_right(checker, step, of, wanted):
    asked = Asked([1, 3], 7, wanted)
    assert checker.problem(asked, listed(checker, asked, step, of)) == ""


def test_wrong_lists_are_found(checker):
    asked = Asked([1], 5, WANTED)
    good = listed(checker, asked, 0, 0)
    longer = listed(checker, replace(asked, k=6), 0, 0)
    (ids,), (scores,) = good.ids, good.scores
    wrong = {
        "scores of another generation": replace(good, of=1),
        "out of stock": replace(good, step=2, of=2),
        "nobody has published": replace(good, step=7),
        "lacks a better item": replace(good, ids=[longer.ids[0][1:]], scores=[longer.scores[0][1:]]),
        "in place of": replace(good, ids=[ids[:4]], scores=[scores[:4]]),
        "missing in place of": replace(good, unfilled=1),
        "ids that no item has": replace(good, ids=[[*ids[:4], 2]]),
        "items in place of 5": replace(good, ids=[[*ids[:4], ids[0]]]),
        "0 lists": replace(good, ids=[], scores=[]),
    }
    for message, reply in wrong.items():
        problem = checker.problem(asked, reply)
        assert problem, message
        if message not in ("out of stock", "in place of"):
            assert message in problem
    blocked = replace(asked, lists={"block": [[ids[0]]]})
    assert "not to be listed" in checker.problem(blocked, good)
    assert "not to be listed" in checker.problem(replace(asked, lists={"allow": [ids[1:] + longer.ids[0][5:]]}), good)
    checker.contents[0].stock[np.searchsorted(checker.contents[0].ids, ids[0])] = 0
    assert "sold out" in checker.problem(asked, good)


def test_filters_are_those_of_the_page(checker):
    c = checker.contents[0]
    none = np.isnan(c.rating)
    assert not passes(c, {"rating": [None, None]})[none].any()
    assert passes(c, {"rating": {"not": [None, None]}})[none].all()
    assert (passes(c, {"brand": {"not": BRANDS}}) == (c.brand < 0)).all()
    assert (passes(c, {"tags": TAGS[:1]}) == c.tags[:, 0]).all()
    assert (passes(c, {"category": {"in": [2]}}) == (c.of_category[:, 2] > 0)).all()
    assert (passes(c, {"stock": True}) == (c.stock == 1)).all()
