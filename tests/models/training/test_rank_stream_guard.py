"""Windows are judged by ranks: earlier events are ranked again, before weights change and before a delta."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.training.rank_stream_guard import EARLIER, RankStreamGuard

pytestmark = pytest.mark.tensorflow


class Ranked(RankStreamGuard):
    """Ranks events as it is told, and notes what it was asked."""

    gain = 1.0

    def _ranked(self, works, most):
        self.asked = [*getattr(self, "asked", []), (list(works), most)]
        return np.full(len(works) * most, self.gain)


@pytest.fixture
def guard():
    return Ranked(GuardConfig(), None, 10)


def test_earlier_events_are_ranked_once_before_weights_change_and_once_after(guard):
    guard.see("a", np.ones(300))
    guard.see("b", np.ones(300))
    guard.begin()
    assert not hasattr(guard, "asked")
    guard.prepare()
    guard.prepare()
    guard.gain = 0.5
    guard._look_again()
    assert guard.asked == [(["a", "b"], EARLIER // 2)] * 2
    assert guard._window.figures().fall == pytest.approx(np.log(2))


def test_only_the_newest_batches_are_kept(guard):
    for name in "abcde":
        guard.see(name, np.zeros(300))
    assert [work for work, _ in guard._works] == ["d", "e"]
    assert guard._window.figures().events == 1500


def test_run_without_events_ranks_none(guard):
    guard.begin()
    guard.prepare()
    guard._look_again()
    assert guard._window.figures().fall is None


def test_guard_that_is_off_ranks_nothing():
    guard = Ranked(GuardConfig(enabled=False), None, 10)
    guard.see("a", np.ones(300))
    guard.begin()
    guard.prepare()
    assert not hasattr(guard, "asked")
