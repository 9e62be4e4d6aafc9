"""How scores lie, and how far a generation has moved them."""

import numpy as np

from freshet_serving.processor.extensions.guard.trend import MIN_SCORES, WINDOW_S, Trend
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.watching.sketch import Sketch, StatsBlock
from tests.support.counters import note_scores

RANDOM = np.random.default_rng(5)


def serve(block, scores):
    return Sketch.total(1, [note_scores(block, scores)])


def test_drift_is_reported_once_two_generations_have_scored_enough():
    block, trend = StatsBlock(1), Trend()
    trend.look(0, Generation(1, 0), serve(block, []))
    trend.look(1, Generation(1, 0), serve(block, RANDOM.beta(2, 20, MIN_SCORES)))
    assert trend.drift is None
    trend.look(2, Generation(1, 1), serve(block, []))
    trend.look(3, Generation(1, 1), serve(block, RANDOM.beta(2, 20, MIN_SCORES)))
    assert trend.drift is not None
    assert trend.drift[0] < 0.1
    trend.look(4, Generation(1, 2), serve(block, []))
    trend.look(5, Generation(1, 2), serve(block, RANDOM.beta(9, 20, MIN_SCORES)))
    assert trend.drift[0] > 0.5


def test_generations_arriving_too_fast_are_combined():
    block, trend = StatsBlock(1), Trend()
    for step in range(20):
        trend.look(step, Generation(1, step), serve(block, RANDOM.beta(2, 20, MIN_SCORES // 4)))
    assert trend.drift is not None
    assert trend.drift[0] < 0.1


def test_scores_come_from_the_last_full_window():
    block, trend = StatsBlock(1), Trend()
    trend.look(0, Generation(1, 0), serve(block, []))
    trend.look(1, Generation(1, 0), serve(block, [0.25] * 10))
    assert trend.scores[0].mean == 0.25
    trend.look(WINDOW_S, Generation(1, 0), serve(block, [0.25] * MIN_SCORES))
    trend.look(WINDOW_S + 1, Generation(1, 0), serve(block, [0.75] * MIN_SCORES))
    assert trend.scores[0].mean == 0.25
    trend.look(2 * WINDOW_S, Generation(1, 0), serve(block, []))
    assert trend.scores[0].mean == 0.75


def test_counter_reset_restarts_the_trend():
    trend = Trend()
    trend.look(0, Generation(1, 0), serve(StatsBlock(1), [0.5] * 9))
    block = StatsBlock(1)
    trend.look(1, Generation(1, 0), Sketch.empty(1))
    trend.look(2, Generation(1, 0), serve(block, [0.5] * 4))
    assert trend.scores[0].count == 4


def test_drift_goes_on_across_a_change_of_version():
    block, trend = StatsBlock(1), Trend()
    trend.look(0, Generation(1, 0), serve(block, []))
    trend.look(1, Generation(1, 0), serve(block, RANDOM.beta(2, 20, MIN_SCORES)))
    other, successor = StatsBlock(1), Trend.following(trend)
    successor.look(2, Generation(2, 0), serve(other, []))
    successor.look(3, Generation(2, 0), serve(other, RANDOM.beta(9, 20, MIN_SCORES)))
    assert successor.drift[0] > 0.5
    assert Trend.following(Trend()).drift is None
