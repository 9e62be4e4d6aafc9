"""When a version that has taken over is taken back, and when it is not."""

import numpy as np
import pytest

from freshet_serving.processor.extensions.guard.version_monitor import VersionMonitor
from freshet_serving.processor.watching import DeltaBounds, Sketch, StatsBlock
from tests.support.counters import note_scores

BOUNDS = DeltaBounds(watch_s=10)
RANDOM = np.random.default_rng(3)


class Served:
    """Versions that answer requests one after another, and their monitor."""

    def __init__(self):
        self.blocks, self.monitor, self.now_s = {}, VersionMonitor(), 0.0
        self.look(1)

    def serve(self, number, high=20, failed=0, requests=1000, lost=0):
        block = self.blocks.setdefault(number, StatsBlock(1))
        array = RANDOM.beta(2, high, requests * 4).astype(np.float32)
        array[:lost] = np.nan
        note_scores(block, array, requests).fail(failed)
        return self

    def look(self, number, after_s=1.0, vouched=False):
        self.now_s += after_s
        block = self.blocks.setdefault(number, StatsBlock(1))
        return self.monitor.look(BOUNDS, self.now_s, number, Sketch.total(1, [block]), vouched)


@pytest.fixture
def served():
    made = Served().serve(1)
    made.look(1)
    made.look(2)
    return made


def test_version_with_the_same_scores_stays_and_is_trusted_in_the_end(served):
    assert served.serve(2).look(2) is None
    assert served.serve(2).look(2, after_s=BOUNDS.watch_s) is None
    assert served.serve(2, high=2).look(2) is None


@pytest.mark.parametrize(
    ("kind", "served_as"), [("shift", {"high": 2}), ("errors", {"failed": 300}), ("nonfinite", {"lost": 200})]
)
def test_version_that_serves_badly_is_taken_back(served, kind, served_as):
    rollback = served.serve(2, **served_as).look(2)
    assert (rollback.bad, rollback.good, rollback.verdict.kind) == (2, 1, kind)
    # It is asked for again until the version is gone.
    assert served.look(2) is not None


def test_nothing_is_taken_back_on_the_way_back(served):
    served.serve(2, high=2).look(2)
    assert served.look(1) is None
    assert served.serve(1, failed=1000).look(1) is None


def test_version_that_a_person_has_chosen_stays():
    served = Served().serve(1)
    served.look(1)
    served.look(2, vouched=True)
    assert served.serve(2, high=2).look(2) is None


def test_version_after_few_requests_is_compared_with_nothing():
    served = Served().serve(1, requests=10)
    served.look(1)
    served.look(2)
    assert served.serve(2, high=2).look(2) is None


def test_last_full_window_is_compared_with_where_the_newest_is_short():
    served = Served().serve(1)
    served.look(1, after_s=BOUNDS.watch_s)
    served.serve(1, requests=3)
    served.look(1)
    served.look(2)
    assert served.serve(2, high=2).look(2).verdict.kind == "shift"


def test_counts_that_begin_again_are_no_change_of_version(served):
    served.serve(2).look(2, after_s=BOUNDS.watch_s)
    served.blocks[2] = StatsBlock(1)
    assert served.look(2) is None
    assert served.serve(2, high=2).look(2) is None
