"""Counts in items' rows: those of a log as of its events one by one, and popularity that forgets."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.embedding.optimizer import OPTIMIZERS
from freshet_serving.models.embedding.variable import EmbeddingVariable
from freshet_serving.models.training.item_counts import (
    HALF_LIVES,
    ItemCounts,
    ItemRowInitializer,
    PopularityClock,
    fitting_half_life,
)
from freshet_serving.processor.package.item_rows import ItemRows, joined_keys

DIM, SUCCESSORS = 2, 8
LAYOUT = ItemRows.around(DIM, {"successors": SUCCESSORS})
histories = st.lists(st.lists(st.integers(-3, 3), max_size=6), min_size=1, max_size=5)


def made_counts():
    table = EmbeddingVariable("t", LAYOUT.width, OPTIMIZERS["sgd"], 1, ItemRowInitializer(layout=LAYOUT))
    return table, ItemCounts(table, LAYOUT)


def arrays(users):
    keys = np.array([item for user in users for item in user], np.int64)
    firsts = np.array([n == 0 for user in users for n in range(len(user))], bool)
    return keys, firsts, np.zeros(len(keys), np.int64)


def counted(table):
    """How often each item followed each, by distance, and the totals."""
    export, found = table.export(), {}
    for key, row in zip(export.keys.tolist(), export.rows):
        assert joined_keys(row[LAYOUT.own]) == key
        for place, successor in enumerate(joined_keys(row[LAYOUT.keys].reshape(3, -1).T).tolist()):
            for after in (0, 1):
                times = row[LAYOUT.times(after)][place]
                if times:
                    found[key, successor, after] = times
        found[key] = tuple(row[LAYOUT.totals].tolist())
    return found


def reference(users):
    pairs, totals = Counter(), {item: [0, 0] for user in users for item in user}
    for user in users:
        for after in (0, 1):
            for before, item in zip(user, user[after + 1 :]):
                pairs[before, item, after] += 1
                totals[before][after] += 1
    return dict(pairs) | {item: tuple(map(float, both)) for item, both in totals.items()}


@settings(deadline=None, max_examples=50)
@given(histories)
def test_pass_counts_what_its_events_one_by_one_do(users):
    table, counts = made_counts()
    counts.count_log(*arrays(users), 100)
    assert counted(table) == reference(users)
    later, one_by_one = made_counts()
    for user in users:
        for end in range(1, len(user) + 1):
            refs = later.insert(np.array(user[:end], np.int64))
            one_by_one.count_events(refs, np.array([0, end]), np.array([1]), 100)
    assert counted(later) == reference(users)


@settings(deadline=None, max_examples=50)
@given(histories, histories)
def test_next_pass_counts_in_place_of_the_one_before(first, second):
    table, counts = made_counts()
    counts.count_log(*arrays(first), 100)
    counts.count_log(*arrays(second), 100)
    found, wanted = counted(table), reference(second)
    assert {key: found[key] for key in wanted} == wanted


def test_most_frequent_successors_stay():
    table, counts = made_counts()
    users = [[0, n] for n in range(1, 20) for _ in range(n)]
    counts.count_log(*arrays(users), 100)
    assert {key[1] for key in counted(table) if isinstance(key, tuple)} == set(range(12, 20))
    refs = table.insert(np.array([0, 50]))
    for _ in range(200):
        counts.count_events(refs, np.array([0, 2]), np.array([1]), 100)
    found = counted(table)
    assert found[0, 50, 0] > 100
    assert found[0, 19, 0] > 0


def test_popularity_halves_and_a_pass_and_later_events_agree():
    keys, rows = np.array([1, 1, 2, 3]), np.array([0, 9000, 10_000, 10_000])
    table, counts = made_counts()
    counts.count_log(keys, np.ones(4, bool), rows, 10_000)
    half_life = counts.clock.half_life
    shares = {key: np.exp(32.0 * row[DIM] - 20) for key, row in zip(table.export().keys.tolist(), table.export().rows)}
    expected = 0.5 ** (10_000 / half_life) + 0.5 ** (1000 / half_life)
    np.testing.assert_allclose(shares[1] / shares[2], expected, rtol=1e-4)
    counts.count_events(table.insert(np.array([3])), np.array([0, 1]), np.array([1]), 10_000 + int(half_life))
    later = {key: np.exp(32.0 * row[DIM] - 20) for key, row in zip(table.export().keys.tolist(), table.export().rows)}
    np.testing.assert_allclose(later[3] / later[2], 1 + 2, rtol=1e-4)


def test_half_life_is_the_one_that_foretells_the_log():
    random = np.random.default_rng(5)
    steady, rows = random.zipf(1.5, 20_000) % 100, np.arange(20_000)
    assert fitting_half_life(steady, rows, 100, 20_000) >= 1
    # Another tenth of the items every 2,000 rows, as of news.
    news = random.integers(0, 10, 20_000) + rows // 2000 * 10
    assert fitting_half_life(news, rows, 100, 20_000) <= 1 / 16
    assert fitting_half_life(steady[::-1], rows[::-1], 100, 20_000) >= 1


def test_no_events_have_the_longest_half_life():
    assert fitting_half_life(np.empty(0, np.int64), np.empty(0, np.int64), 0, 100) == HALF_LIVES[-1]


def test_saved_clock_counts_alike():
    clock = PopularityClock.at(12_345)
    assert PopularityClock(**clock.saved()) == clock


def test_clock_that_is_lost_goes_on_where_it_was():
    table, counts = made_counts()
    counts.count_log(np.repeat([1, 2], 50), np.ones(100, bool), np.full(100, 10_000), 10_000)
    before = counts.clock
    refs = table.insert(np.array([1]))
    counts.clock = PopularityClock(20_000, before.half_life, 1.0)
    for _ in range(30):
        counts.count_events(refs, np.array([0, 1]), np.array([1]), 20_000)
    raised = table.export().rows[:, DIM] * 32
    counts.clock = None
    clock = counts.go_on(20_000)
    counts.count_events(refs, np.array([0, 1]), np.array([1]), 20_000)
    gained = np.exp(table.export().rows[0, DIM] * 32 - raised[0]) - 1
    shares = np.exp(raised - raised.max())
    np.testing.assert_allclose(gained, shares.sum() / shares[0] / PopularityClock.at(20_000).total, rtol=0.02)
    assert clock.row == 20_000


def test_targets_are_left_out_of_their_own_counts():
    table, counts = made_counts()
    counts.count_log(*arrays([[1, 2, 3], [1, 2, 4]]), 100)
    refs = table.find(np.array([1, 2, 3]))
    found = counts.followed(refs[1:2], refs[:1], refs[2:], True)
    assert found.own.tolist() == [[0.0, 0.0]]
    np.testing.assert_allclose(counts.followed(refs[1:2], refs[:1], refs[2:], False).own, [[1 / 22, 1 / 22]])


def test_items_without_a_row_are_not_counted():
    table, counts = made_counts()
    refs = np.array([table.insert(np.array([1]))[0], -1, table.insert(np.array([2]))[0]])
    counts.count_events(refs, np.array([0, 3]), np.array([3]), 0)
    assert counted(table) == {1: (0.0, 1.0), (1, 2, 1): 1.0, 2: (0.0, 0.0)}
