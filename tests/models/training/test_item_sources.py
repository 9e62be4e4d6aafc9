"""Popularity and age of items: those of a plain count of the log, however it is cut, and precise for years."""

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.embedding.optimizer import OPTIMIZERS
from freshet_serving.models.embedding.variable import EmbeddingVariable, RowInitializer
from freshet_serving.models.training.item_counts import FEWEST_ROWS, PopularityClock
from freshet_serving.models.training.item_sources import HOUR_S, NAME, UNIT_HOURS, ItemSources, with_sources
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.extensions.top_items.section import ItemRanking
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package.item_rows import LOG_FLOOR, SCALE
from tests.support.ranked import manifest

HOUR = HOUR_S
logs = st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 9e7), st.booleans()), max_size=40)


def made(columns=2, seed=0):
    table = EmbeddingVariable(NAME, columns, OPTIMIZERS["sgd"], 1, RowInitializer("zeros"))
    return ItemSources(table, seed, counted=columns == 2)


def rows_of(sources):
    export = sources.table.export()
    return dict(zip(export.keys.tolist(), export.rows))


def hours(sources, key):
    return (float(rows_of(sources)[key][-1]) - 1) * UNIT_HOURS


@settings(deadline=None, max_examples=60)
@given(logs, st.integers(1, 9))
def test_numbers_are_those_of_a_plain_count(log, size):
    sources, clock = made(), PopularityClock.at(100)
    sources.counts.clock = clock
    counted, seen = defaultdict(float), {}
    for first in range(0, len(log), size):
        part = log[first : first + size]
        keys = np.array([key for key, _, _ in part], np.int64)
        times = np.array([time for _, time, _ in part])
        sources.see(keys, times)
        sources.count(keys, 100 + first)
        for key, time, _ in part:
            counted[key] += math.exp(clock.logs(np.array([100 + first]))[0])
            seen[key] = min(time, seen.get(key, time))
    rows = rows_of(sources)
    assert rows.keys() == seen.keys()
    for key, (popularity, _) in rows.items():
        assert math.isclose(popularity * SCALE - LOG_FLOOR, math.log(counted[key]), abs_tol=1e-4)
        expected = (seen[key] - sources.origin_s) / HOUR
        assert abs(hours(sources, key) - expected) * HOUR <= 7.5


@settings(deadline=None)
@given(logs, st.integers(1, 9))
def test_times_are_the_same_however_the_log_is_cut(log, size):
    keys, times = np.array([k for k, _, _ in log], np.int64), np.array([t for _, t, _ in log], np.float64)
    whole, cut = made(1), made(1)
    for sources in (whole, cut):
        sources.restore({"origin_s": 0.0, "newest_s": 0.0})
    whole.see(keys, times)
    whole.see(keys[::-1], times[::-1])
    for first in range(0, len(log), size):
        cut.see(keys[first : first + size], times[first : first + size])
    assert {k: row.tobytes() for k, row in rows_of(whole).items()} == {
        k: row.tobytes() for k, row in rows_of(cut).items()
    }
    assert whole.saved() == cut.saved()


def test_a_pass_is_counted_with_the_half_life_that_fits():
    sources, random = made(), np.random.default_rng(0)
    rows = np.arange(20_000)
    # Another item is popular in each tenth.
    keys = np.where(random.random(20_000) < 0.5, rows // 2000, random.integers(100, 130, 20_000))
    sources.see(keys, 1e9 + 60.0 * rows)
    sources.count_log(keys, rows, 20_000)
    by_popularity = sorted(rows_of(sources).items(), key=lambda item: -item[1][0])
    assert [key for key, _ in by_popularity[:2]] == [9, 8]
    assert [round(hours(sources, key) * 60) for key in range(10)] == [
        int(np.flatnonzero(keys == key)[0]) for key in range(10)
    ]


def test_items_that_only_have_a_record_are_as_old_as_the_newest_event():
    sources = made()
    sources.describe(np.array([1, 2]))
    # Without times nothing is known of them.
    assert rows_of(sources) == {}
    sources.see(np.array([1]), np.array([5 * HOUR]))
    sources.see(np.array([1]), np.array([9 * HOUR]))
    sources.describe(np.array([1, 2, 2]))
    sources.see(np.array([1]), np.array([20 * HOUR]))
    sources.describe(np.array([2, 3]))
    assert [hours(sources, key) for key in (1, 2, 3)] == pytest.approx([0, 4, 15], abs=1e-3)
    assert rows_of(sources)[2][0] == 0
    sources.keep(sources.table, np.array([], np.int64))
    assert len(rows_of(sources)) == 3
    items = made().table
    items.insert(np.array([1]))
    sources.keep(items, np.array([3]))
    assert set(rows_of(sources)) == {1, 3}


def test_events_without_a_time_say_nothing_of_it():
    sources = made(1)
    sources.see(np.array([1]), np.array([np.nan]))
    assert sources.saved() == {}
    sources.see(np.array([1, 2, 2]), np.array([np.nan, 7.0, np.inf]))
    assert (set(rows_of(sources)), sources.origin_s, sources.newest_s) == ({2}, 7.0, 7.0)


def test_only_changed_rows_are_published():
    sources = made(1)
    sources.see(np.array([1, 2]), np.array([10.0, 20.0]) * HOUR)
    sources.table.clear_changed()
    sources.see(np.array([1, 2, 3]), np.array([10.0, 5.0, 30.0]) * HOUR)
    assert sources.table.changes().keys.tolist() == [2, 3]


def test_times_are_precise_for_years():
    sources = made(1)
    sources.see(np.array([0]), np.array([0.0]))
    for years, most_s in ((7, 15.0), (29, 60.0)):
        hour = years * 365.25 * 24
        sources.see(np.array([years]), np.array([hour * HOUR + 7.0]))
        assert abs(hours(sources, years) * HOUR - hour * HOUR - 7.0) <= most_s / 2


def test_popularity_has_three_decimals_after_ten_thousand_half_lives():
    sources = made()
    sources.counts.clock = clock = PopularityClock.at(64 * FEWEST_ROWS, 1 / 64)
    row = int(clock.row + 10_000 * clock.half_life)
    sources.count(np.array([1, 1, 2]), row)
    one, two = (rows_of(sources)[key][0] * SCALE - LOG_FLOOR for key in (1, 2))
    assert abs(two - clock.logs(np.array([row]))[0]) < 1e-3
    assert abs(one - two - math.log(2)) < 1e-3


def test_a_clock_goes_on_and_ids_may_be_texts():
    sources = made(seed=7)
    names = Strings.of(["a", "b"])
    assert sources.keys_of(names).tolist() == hash_strings(names, 7).tolist()
    assert sources.saved() == {}
    sources.see(sources.keys_of(names), np.array([3.0, 4.0]))
    again = made(seed=7)
    again.restore(sources.saved())
    assert (again.origin_s, again.newest_s) == (3.0, 4.0)


def test_versions_name_the_sources_that_they_have():
    item = manifest().features[0]
    described, name = with_sources(manifest(), item, 2)
    assert (name, described.tables[-1].dim, described.tables[-1].hash_seed) == (NAME, 2, 0)
    sources = made()
    assert list(ItemRanking.of(sources.noted(described)).sources) == ["popular"]
    sources.see(np.array([1]), np.array([3.0]))
    ranking = ItemRanking.of(sources.noted(described))
    assert list(ranking.sources) == ["popular", "new"]
    assert (ranking.sources["new"].column, ranking.sources["new"].origin_s) == (1, 3.0)
    assert ranking.sources["popular"].scores(np.float32([20 / 32]))[0] == 0
    assert with_sources(described, item, 1)[1] == NAME + "_"
    assert sources.noted(manifest(notes={})).notes == {}
    assert made(1).noted(described).notes["item_ranking"]["sources"] == {}
