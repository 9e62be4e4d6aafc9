"""When what is served is taken back, and when it is not."""

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.guard.post_deploy_monitor import PostDeployMonitor
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.watching import DeltaBounds, LabelSums, Sketch, StatsBlock
from tests.support.counters import note_scores

BOUNDS = DeltaBounds(watch_s=10)
RANDOM = np.random.default_rng(3)
FIRST, SECOND, THIRD = (Generation(1, step, f"{step:032x}") for step in (1, 2, 3))


@pytest.mark.parametrize(
    "sums", [(1e300, 0, 20_000), (0, 1e300, 20_000), (-1, 0, 5), (float("nan"), 0, 5), (0, float("inf"), 5), (0, 6, 5)]
)
def test_impossible_label_sums_are_refused(sums):
    with pytest.raises(BadInput, match=r"(scores|labels): expected a sum from 0 to \d+, the number of rows, got "):
        LabelSums(*sums).validate()
    LabelSums(5.0, 5.0, 5).validate()


class Served:
    """A version that answers requests, and its aftermath. Everything has moved scores unless said otherwise."""

    def __init__(self):
        self.block, self.post_deploy_monitor, self.now_s = StatsBlock(1), PostDeployMonitor(), 0.0
        self.moved, self.vouched = 100, 0
        self.look(FIRST)

    def serve(self, requests=1000, failed=0, high=20, lost=0):
        array = RANDOM.beta(2, high, requests * 4).astype(np.float32)
        array[:lost] = np.nan
        note_scores(self.block, array, requests).fail(failed)
        return self

    def look(self, generation, after_s=0.25):
        self.now_s += after_s
        self.newest = generation
        sketch = Sketch.total(1, [self.block])
        return self.post_deploy_monitor.look(BOUNDS, self.now_s, generation, sketch, self.moved, self.vouched)


@pytest.fixture
def served():
    made = Served().serve()
    made.look(SECOND)
    return made


def test_version_is_looked_at_soon_after_its_load():
    monitor = PostDeployMonitor()
    assert monitor.monitored(FIRST)
    monitor.look(BOUNDS, 0.0, FIRST, Sketch.total(1, [StatsBlock(1)]), 0)
    assert not monitor.monitored(FIRST)
    assert monitor.monitored(SECOND)


def test_generation_with_unchanged_scores_stays(served):
    assert served.post_deploy_monitor.monitored(SECOND)
    for _ in range(20):
        assert served.serve().look(SECOND) is None


def test_shifted_scores_roll_back_to_the_previous_generation(served):
    assert served.serve(high=2).look(SECOND) is not None
    back = served.serve(high=2).look(SECOND)
    assert (back.bad, back.good, back.verdict.kind) == (SECOND, FIRST, "shift")
    assert "limit 1:" in back.verdict.reason


def test_score_shift_explained_by_the_preview_stays(served):
    served.moved = 1
    assert served.serve(high=2).look(SECOND) is None


def test_failures_and_non_finite_scores_roll_back_despite_the_preview(served):
    served.moved = 1
    assert served.serve(requests=200, failed=300).look(SECOND).verdict.kind == "errors"
    assert Served().serve().look(SECOND) is None


def test_many_non_finite_scores_roll_back(served):
    assert served.serve(lost=5).look(SECOND) is None
    assert served.serve(lost=500).look(SECOND).verdict.kind == "nonfinite"


def test_generations_arriving_too_fast_are_judged_and_undone_together(served):
    served.serve(requests=10, high=2).look(THIRD)
    back = served.serve(high=2).look(THIRD)
    assert (back.bad, back.good) == (SECOND, FIRST)


def test_rollback_goes_to_the_last_generation_that_passed(served):
    served.serve().look(SECOND)
    served.look(THIRD)
    back = served.serve(high=2).look(THIRD)
    assert (back.bad, back.good) == (THIRD, SECOND)


def test_generation_is_trusted_after_the_monitoring_period(served):
    served.serve().look(SECOND, after_s=BOUNDS.watch_s + 1)
    assert not served.post_deploy_monitor.monitored(served.newest)
    assert served.serve(high=2).look(SECOND) is None


def test_manually_released_generation_is_trusted(served):
    served.vouched = THIRD.step
    assert served.look(THIRD) is None
    assert not served.post_deploy_monitor.monitored(served.newest)
    assert served.serve(high=2).look(THIRD) is None


def test_generation_without_requests_stays_monitored(served):
    served.look(SECOND, after_s=1000)
    assert served.post_deploy_monitor.monitored(SECOND)


def test_rolled_back_to_generation_is_trusted(served):
    assert served.look(FIRST) is None
    assert not served.post_deploy_monitor.monitored(served.newest)
    assert served.serve(high=2).look(FIRST) is None


def test_counter_reset_restarts_the_monitoring(served):
    served.block = StatsBlock(1)
    assert served.look(SECOND) is None
    assert not served.post_deploy_monitor.monitored(served.newest)


def test_generation_without_a_scored_predecessor_is_not_compared():
    first = Served()
    first.look(SECOND)
    assert first.serve(high=2).look(SECOND) is None


def test_worse_label_calibration_rolls_back(served):
    served.post_deploy_monitor.tell(FIRST, LabelSums(1300.0, 1000.0, 20_000))
    served.post_deploy_monitor.tell(SECOND, LabelSums(1430.0, 1000.0, 20_000))
    assert served.look(SECOND) is None
    served.post_deploy_monitor.tell(SECOND, LabelSums(4000.0, 2000.0, 40_000))
    back = served.look(SECOND)
    assert (back.good, back.verdict.kind) == (FIRST, "calibration")
    assert back.verdict.reason.startswith("scores are 1.81 times the labels of 60000 rows, and were 1.30 times")


def test_few_labels_are_treated_as_chance(served):
    served.post_deploy_monitor.tell(FIRST, LabelSums(1000.0, 1000.0, 20_000))
    served.post_deploy_monitor.tell(SECOND, LabelSums(100.0, 70.0, 2000))
    assert served.look(SECOND) is None


def test_labels_of_good_generations_are_the_reference(served):
    served.post_deploy_monitor.tell(SECOND, LabelSums(1000.0, 1000.0, 20_000))
    served.serve().look(SECOND, after_s=BOUNDS.watch_s + 1)
    served.look(THIRD)
    served.post_deploy_monitor.tell(THIRD, LabelSums(1500.0, 1000.0, 20_000))
    assert served.look(THIRD).verdict.kind == "calibration"
