"""When a guard scores the rows before a window."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.stream_guard import StreamGuard

pytestmark = pytest.mark.tensorflow


class Scorer:
    """A trainer that counts how often it scores."""

    def __init__(self):
        self.times = 0

    def score(self, columns):
        self.times += 1
        return np.full(len(columns["user"]), 0.5, np.float32)


def guard_of(**settings):
    scorer = Scorer()
    guard = StreamGuard(GuardConfig(**settings), scorer)
    guard.see(SimpleNamespace(batch=Batch({"user": np.arange(4)}, np.zeros(4, np.float32), None, 0)), np.full(4, 0.5))
    return guard, scorer


def test_rows_before_a_window_are_scored_once_and_only_if_more_rows_come():
    guard, scorer = guard_of()
    guard.prepare()
    assert scorer.times == 0
    guard.begin()
    assert scorer.times == 0, "a run's last delta scores nothing"
    guard.prepare()
    guard.prepare()
    assert scorer.times == 1


def test_a_guard_that_is_off_scores_nothing():
    guard, scorer = guard_of(enabled=False)
    guard.begin()
    guard.prepare()
    assert scorer.times == 0


def test_rows_are_scored_again_by_the_weights_after_a_rollback():
    guard, scorer = guard_of()
    guard.begin()
    guard.prepare()
    guard.reset()
    guard.prepare()
    assert scorer.times == 2
