"""Windows of a next-item stream: what no longer follows is held, and of hundreds of good windows none is."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.training.rank_guard import RankGuard, WindowRanks
from freshet_serving.models.training.window_guard import FIRST_WINDOWS

CONFIG = GuardConfig()


def gains_of(random, events, ndcg):
    """Gains of events whose mean is about `ndcg`."""
    hits = random.random(events) < ndcg / 0.55
    return np.where(hits, 1 / np.log2(random.integers(2, 12, events)), 0.0)


def window(random, events=1000, ndcg=0.1, new=0.0, again=None):
    made = WindowRanks()
    gains = gains_of(random, events, ndcg)
    gains[random.random(events) < new] = np.nan
    made.add(gains)
    if again is not None:
        before = gains_of(random, 512, ndcg)
        made.again(before, np.where(random.random(512) < again, 0.0, before))
    return made.figures()


def compared(random, ndcg=0.1):
    guard = RankGuard(CONFIG)
    guard.begin_with(window(random, 5000, ndcg))
    return guard


@pytest.mark.parametrize("ndcg", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("events", [300, 3000])
def test_good_windows_are_never_held(ndcg, events):
    random = np.random.default_rng(4)
    guard = compared(random, ndcg)
    level = ndcg
    for _ in range(500):
        # From hour to hour there is more or less to know.
        level = np.clip(level * math.exp(random.normal(0, 0.03)), 0.8 * ndcg, 1.25 * ndcg)
        assert guard.judge(window(random, events, level, new=0.1 * random.random(), again=0.02)) == ""


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.sampled_from([0.05, 0.1, 0.4]), st.integers(0, 30))
def test_a_window_that_follows_from_nothing_is_held(seed, ndcg, good):
    random = np.random.default_rng(seed)
    guard = compared(random, ndcg)
    for _ in range(good):
        guard.judge(window(random, 3000, ndcg, again=0.0))
    assert "ranked before they were learned" in guard.judge(window(random, 3000, ndcg / 20))


def test_weights_that_forget_earlier_events_are_held():
    random = np.random.default_rng(1)
    guard = compared(random, 0.3)
    assert guard.judge(window(random, 3000, 0.3, again=0.05)) == ""
    assert "of earlier events fell by" in guard.judge(window(random, 3000, 0.3, again=0.8))


def test_new_items_do_not_count_unless_most_are_new():
    random = np.random.default_rng(1)
    guard = compared(random)
    assert guard.judge(window(random, 3000, new=0.4)) == ""
    assert "have an item without a row" in guard.judge(window(random, 3000, new=0.9))
    assert guard.judge(window(random, 20, new=1.0)) == ""


def test_short_windows_do_not_count_as_usual():
    random = np.random.default_rng(1)
    guard = compared(random)
    before = guard.saved()
    assert guard.judge(window(random, 50)) == ""
    assert guard.saved() == before
    assert not window(random, 50).enough


def test_what_is_usual_is_restored():
    random = np.random.default_rng(1)
    guard = compared(random)
    for _ in range(5):
        guard.judge(window(random, 3000, again=0.0))
    other = RankGuard(CONFIG)
    other.restore(guard.saved())
    assert other.saved() == guard.saved()
    assert other.judge(window(random, 3000, 0.004)) != ""


def test_without_held_out_events_the_first_windows_say_what_is_usual():
    random = np.random.default_rng(1)
    guard = RankGuard(CONFIG)
    guard.begin_with(window(random, 10))
    assert [guard.judge(window(random, 3000, 0.001))] == [""]
    for _ in range(FIRST_WINDOWS):
        guard.judge(window(random, 3000, 0.2))
    assert guard.judge(window(random, 3000, 0.004)) != ""


def popular_window(random, events=2000, follows=True, level=0.35):
    """Most gains are popularity's; some events follow from the last item, unless nothing does."""
    popular = gains_of(random, events, level)
    share = 0.12 if follows else 0.0
    of_network = np.where(random.random(events) < share, 1.0, popular)
    # What the network believes to follow takes places that popularity would have had right.
    of_network[random.random(events) < 0.06] = 0.0
    made = WindowRanks()
    made.add(np.stack([of_network, popular], axis=1))
    return made.figures()


@pytest.mark.parametrize("seed", range(3))
def test_lost_lift_is_held_though_popularity_keeps_the_ndcg(seed):
    random = np.random.default_rng(seed)
    guard, alone = RankGuard(CONFIG), RankGuard(CONFIG)
    guard.begin_with(before := popular_window(random, 5000))
    alone.begin_with(dataclasses.replace(before, lift=None))
    for _ in range(300):
        # Days differ in how popular the popular items are.
        good = popular_window(random, level=0.35 * math.exp(random.normal(0, 0.05)))
        assert guard.judge(good) == ""
        alone.judge(dataclasses.replace(good, lift=None))
    bad = popular_window(random, follows=False)
    assert "from that of popularity alone over 2,000 events" in guard.judge(bad)
    assert alone.judge(dataclasses.replace(bad, lift=None)) == "", "the NDCG alone does not tell"
    assert guard.judge(popular_window(random)) == ""


def test_network_that_gains_nothing_over_popularity_is_not_held_for_it():
    random = np.random.default_rng(2)
    guard = RankGuard(CONFIG)
    guard.begin_with(popular_window(random, 5000, follows=False))
    for _ in range(100):
        assert guard.judge(popular_window(random, follows=False)) == ""


def test_lift_is_of_events_that_both_rank():
    made = WindowRanks()
    made.add(np.array([[1.0, 0.5], [0.0, 0.5], [np.nan, np.nan], [0.5, np.nan]]))
    figures = made.figures()
    assert (figures.events, figures.unranked, figures.ndcg, figures.lift) == (3, 1, 0.5, 0.0)
    assert figures.lift_error == pytest.approx(0.5 / math.sqrt(2))
    made = WindowRanks()
    made.add(np.array([1.0, 0.0]))
    assert made.figures().lift is None


def test_usual_lift_goes_on_after_a_restart_and_older_checkpoints_learn_it():
    random = np.random.default_rng(3)
    guard, other, older = (RankGuard(CONFIG) for _ in range(3))
    guard.begin_with(popular_window(random, 5000))
    for _ in range(20):
        guard.judge(popular_window(random))
    saved = guard.saved()
    other.restore(saved)
    older.restore({name: figure for name, figure in saved.items() if name != "lift"})
    bad = popular_window(random, follows=False)
    assert guard.judge(bad) == other.judge(bad) != ""
    assert older.judge(bad) == ""


def test_launch_that_popularity_foretells_is_not_held():
    random = np.random.default_rng(4)
    guard = RankGuard(CONFIG)
    guard.begin_with(popular_window(random, 5000))
    for _ in range(20):
        guard.judge(popular_window(random))
    launched, made = random.random(2000) < 0.4, WindowRanks()
    popular = np.where(launched, 1.0, gains_of(random, 2000, 0.35))
    of_network = np.where(launched, 0.63, np.where(random.random(2000) < 0.12, 1.0, popular))
    made.add(np.stack([of_network, popular], axis=1))
    assert made.figures().lift < 0
    assert guard.judge(made.figures()) == ""
