"""Next items ranked by counting what came before."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.evaluation import next_item_baselines
from freshet_serving.models.evaluation.next_item_baselines import LAST_ITEM, LAST_TWO, POPULARITY, NextItemBaselines
from tests.models.data.test_next_item_rows import rows_of
from tests.models.data.test_sequence_columns import Log

ITEM = "h.i"
TOP = 3


def log_of(events):
    """events: (user, item) in the order of the log."""
    users, items = zip(*events)
    return Log(list(users), [str(item) for item in items], [1] * len(events), list(range(len(events))))


def counted(events, before, most=4, **options):
    log = rows_of(log_of(events), len(events), max_length=most)
    baselines = NextItemBaselines(log, ITEM, before, TOP)
    baselines.rank(log, ITEM, before, **options)
    return baselines


def plain_ranks(events, before, most):
    """Ranks by name of the events from `before` on, from a plain loop."""
    popularity, after, two_after, past = Counter(), Counter(), Counter(), {}
    for user, item in events[:before]:
        own = past.setdefault(user, [])
        popularity[item] += 1
        after.update([(own[-1], item)] if own else [])
        two_after.update([(own[-2], item)] if own[1:] else [])
        own.append(item)
    ranks = {POPULARITY: [], LAST_ITEM: [], LAST_TWO: []}
    for user, item in events[before:]:
        own = past.setdefault(user, [])
        last, second = ([None, None, *own][-1], [None, None, *own][-2])
        history = own[-most:]
        second = second if len(history) > 1 else None
        shares = {
            POPULARITY: lambda i: 0.0,
            LAST_ITEM: lambda i, last=last: share(after, last, i),
            LAST_TWO: lambda i, last=last, second=second: share(after, last, i) + share(two_after, second, i),
        }
        for name, of in shares.items():
            score = {i: (round(of(i), 12), popularity[i]) for i in popularity if i == item or i not in history}
            ranks[name].append(sum(s >= score[item] for s in score.values()) if item in popularity else 1 << 62)
        own.append(item)
    return ranks


def share(pairs, before, item):
    total = sum(n for (one, _), n in pairs.items() if one == before)
    return pairs[before, item] / total if total else 0.0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=2, max_size=40), st.data())
def test_ranks_are_those_of_a_plain_loop(events, data):
    before, most = data.draw(st.integers(1, len(events) - 1)), data.draw(st.integers(1, 4))
    results = counted(events, before, most).results()
    for name, ranks in plain_ranks(events, before, most).items():
        ranks = np.array(ranks, float)
        assert results[name].groups == len(ranks)
        assert results[name].hit_rate == pytest.approx(np.mean(ranks <= TOP))
        assert results[name].ndcg == pytest.approx(np.where(ranks <= TOP, 1 / np.log2(ranks + 1), 0).mean())


def steps(rows, users=20, items=50):
    """Each user steps from item to item."""
    return [(n % users, (n % users * 7 + n // users) % items) for n in range(rows)]


def test_last_item_tells_the_next_one_where_users_step():
    baselines = counted(steps(900), 800)
    results = baselines.results()
    assert results[LAST_ITEM].hit_rate == results[LAST_TWO].hit_rate == 1
    assert results[POPULARITY].hit_rate < 0.3
    assert baselines.line().startswith("baseline: popularity HR 0.")
    assert baselines.line().endswith("last two HR 1.0000 NDCG 1.0000 in the first 3 over 100 events")
    assert [line["name"] for line in baselines.lines()] == [POPULARITY, LAST_ITEM, LAST_TWO]


def test_network_that_counting_beats_is_named():
    baselines = counted(steps(900), 800)
    assert baselines.advice(1.0) == ""
    assert baselines.advice(0.99).startswith("the network does not beat counting (last item, NDCG 1.0000)")


def test_each_users_last_event_alone_may_count():
    assert counted(steps(900), 800, last_only=True).targets == 20


def test_ranking_ends_after_so_many_steps(monkeypatch):
    monkeypatch.setattr(next_item_baselines, "MOST_STEPS", 40)
    assert counted(steps(900), 800).targets == 20, "two followers for each"


def test_nothing_to_rank_has_no_line():
    baselines = counted(steps(900), 900)
    assert (baselines.line(), list(baselines.lines()), baselines.advice(0.5)) == ("", [], "")


def test_log_without_events_before_ranks_nothing_first():
    assert counted(steps(30), 0).results()[POPULARITY].hit_rate == 0
