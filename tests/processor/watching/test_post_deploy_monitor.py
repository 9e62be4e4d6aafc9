"""When what is served is taken back, and when it is not."""

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.watching.delta_guard import DeltaBounds
from freshet_serving.processor.watching.post_deploy_monitor import LabelSums, PostDeployMonitor
from freshet_serving.processor.watching.sketch import Sketch, StatsBlock, note_batch

BOUNDS = DeltaBounds(watch_s=10)
RANDOM = np.random.default_rng(3)
FIRST, SECOND, THIRD = (Generation(1, step, f"{step:032x}") for step in (1, 2, 3))


@pytest.mark.parametrize(
    "sums", [(1e300, 0, 20_000), (0, 1e300, 20_000), (-1, 0, 5), (float("nan"), 0, 5), (0, float("inf"), 5), (0, 6, 5)]
)
def test_sums_that_no_rows_can_have_are_refused(sums):
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
        address = array.ctypes.data
        note_batch(
            self.block.counts_address, self.block.sums_address, requests, array.size, 0, address, array.size, 0, 0, 0
        )
        self.block.fail(failed)
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


def test_what_scores_as_before_stays(served):
    assert served.post_deploy_monitor.monitored(SECOND)
    for _ in range(20):
        assert served.serve().look(SECOND) is None


def test_scores_that_lie_elsewhere_are_taken_back_to_what_was_served_before(served):
    assert served.serve(high=2).look(SECOND) is not None
    back = served.serve(high=2).look(SECOND)
    assert (back.bad, back.good, back.verdict.kind) == (SECOND, FIRST, "shift")
    assert "limit 1:" in back.verdict.reason


def test_scores_that_lie_elsewhere_by_other_requests_stay(served):
    served.moved = 1
    assert served.serve(high=2).look(SECOND) is None


def test_failures_and_scores_that_are_no_numbers_are_taken_back_whatever_was_previewed(served):
    served.moved = 1
    assert served.serve(requests=200, failed=300).look(SECOND).verdict.kind == "errors"
    assert Served().serve().look(SECOND) is None


def test_scores_that_are_no_numbers_are_taken_back_where_they_are_many(served):
    assert served.serve(lost=5).look(SECOND) is None
    assert served.serve(lost=500).look(SECOND).verdict.kind == "nonfinite"


def test_generations_that_come_too_fast_are_taken_together_and_back(served):
    served.serve(requests=10, high=2).look(THIRD)
    back = served.serve(high=2).look(THIRD)
    assert (back.bad, back.good) == (SECOND, FIRST)


def test_a_generation_that_has_stood_its_test_is_what_is_gone_back_to(served):
    served.serve().look(SECOND)
    served.look(THIRD)
    back = served.serve(high=2).look(THIRD)
    assert (back.bad, back.good) == (THIRD, SECOND)


def test_after_a_while_nothing_is_doubtful_any_more(served):
    served.serve().look(SECOND, after_s=BOUNDS.watch_s + 1)
    assert not served.post_deploy_monitor.monitored(served.newest)
    assert served.serve(high=2).look(SECOND) is None


def test_what_a_person_has_released_is_good(served):
    served.vouched = THIRD.step
    assert served.look(THIRD) is None
    assert not served.post_deploy_monitor.monitored(served.newest)
    assert served.serve(high=2).look(THIRD) is None


def test_without_requests_it_stays_doubtful(served):
    served.look(SECOND, after_s=1000)
    assert served.post_deploy_monitor.monitored(SECOND)


def test_a_generation_that_was_gone_back_to_is_good(served):
    assert served.look(FIRST) is None
    assert not served.post_deploy_monitor.monitored(served.newest)
    assert served.serve(high=2).look(FIRST) is None


def test_counting_anew_begins_anew(served):
    served.block = StatsBlock(1)
    assert served.look(SECOND) is None
    assert not served.post_deploy_monitor.monitored(served.newest)


def test_before_anything_was_scored_there_is_nothing_to_compare_with():
    first = Served()
    first.look(SECOND)
    assert first.serve(high=2).look(SECOND) is None


def test_labels_that_are_off_by_more_than_before_take_a_generation_back(served):
    served.post_deploy_monitor.tell(FIRST, LabelSums(1300.0, 1000.0, 20_000))
    served.post_deploy_monitor.tell(SECOND, LabelSums(1430.0, 1000.0, 20_000))
    assert served.look(SECOND) is None
    served.post_deploy_monitor.tell(SECOND, LabelSums(4000.0, 2000.0, 40_000))
    back = served.look(SECOND)
    assert (back.good, back.verdict.kind) == (FIRST, "calibration")
    assert back.verdict.reason.startswith("scores are 1.81 times the labels of 60000 rows, and were 1.30 times")


def test_a_few_labels_are_chance(served):
    served.post_deploy_monitor.tell(FIRST, LabelSums(1000.0, 1000.0, 20_000))
    served.post_deploy_monitor.tell(SECOND, LabelSums(100.0, 70.0, 2000))
    assert served.look(SECOND) is None


def test_labels_of_good_generations_are_what_others_are_measured_by(served):
    served.post_deploy_monitor.tell(SECOND, LabelSums(1000.0, 1000.0, 20_000))
    served.serve().look(SECOND, after_s=BOUNDS.watch_s + 1)
    served.look(THIRD)
    served.post_deploy_monitor.tell(THIRD, LabelSums(1500.0, 1000.0, 20_000))
    assert served.look(THIRD).verdict.kind == "calibration"
