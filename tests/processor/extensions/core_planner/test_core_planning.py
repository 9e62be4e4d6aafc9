"""Session groups that a plan moves while they serve."""

import numpy as np
import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.cores import available
from freshet_serving.processor.extensions.core_planner.core_planning import CorePlanning, batch_costs, p99_s
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig
from freshet_serving.processor.watching import SHORT_S, Histogram
from tests.processor.sessions.fakes import Answers, FakeReplica, group


class TurnClock(SystemClock):
    """Sessions live in real time; plans are made at times that the test says."""

    def __init__(self):
        self.planned_s = 0.0

    def now_s(self):
        return self.planned_s


@pytest.fixture
def two_groups():
    with group(sessions=2) as one, group(sessions=2) as other:
        yield {"one": one, "other": other}


def planning(groups, configs, clock=None):
    return CorePlanning(groups, SessionConfig(groups=configs), available(), clock or TurnClock(), start=False)


@pytest.mark.skipif(len(available()) < 2, reason="needs two cores")
def test_group_with_a_budget_has_its_own_cores(two_groups):
    plan = planning(two_groups, {"one": GroupConfig(p99_ms=50.0)})
    own, shared = (two_groups[name].options.cpus[0] for name in ("one", "other"))
    assert own | shared == available()
    assert not own & shared
    assert len(two_groups["one"]) == len(own)
    assert plan.describe("one")["planned"]["cores"] == len(own)
    assert plan.describe("other")["planned"]["weight"] == 1.0


def test_groups_that_share_have_sessions_by_weight(two_groups):
    planning(two_groups, {"one": GroupConfig(share=3.0), "other": GroupConfig(share=1.0)})
    cores = len(available())
    assert (len(two_groups["one"]), len(two_groups["other"])) == (3 * cores, cores)


@pytest.mark.skipif(len(available()) < 2, reason="needs two cores")
def test_requests_are_answered_while_sessions_move(two_groups):
    clock = TurnClock()
    plan = planning(two_groups, {"one": GroupConfig(p99_ms=50.0), "other": GroupConfig(p99_ms=50.0)}, clock)
    answers, replica, replies = Answers(), FakeReplica(), {}
    for number in range(60):
        two_groups["one"].enqueue(answers.work(replica, number, [number]))
        if number % 10 == 9:
            clock.planned_s += 5.0
            plan.turn()
            replies |= answers.wait(10)
    assert [float(replies[number].outputs["y"][0, 0]) for number in range(60)] == [2.0 * n for n in range(60)]
    assert "requests/s" in plan.describe("one")["planned"]["why"]


def test_idle_shared_cores_are_lent(two_groups):
    assert len(planning(two_groups, {"one": GroupConfig(share=1.0)}).lent) == len(available()) - 1


def test_plan_is_made_again_until_it_is_closed(two_groups):
    plan = CorePlanning(two_groups, SessionConfig(groups={"one": GroupConfig(share=1.0)}), available(), SystemClock())
    plan.close()
    assert not plan._thread.is_alive()


def test_percentile_is_the_bound_above_it():
    responses = Histogram(SHORT_S)
    for _ in range(99):
        responses.observe(0.003)
    responses.observe(1.0)
    assert 0.003 <= p99_s(responses, responses.counts) <= 0.0045


def test_costs_of_batches_grow_as_tables_say_and_are_as_large_as_measured():
    costs = batch_costs([CostTable({1: 0.001, 8: 0.002, 64: 0.008})], 8.0, 1.0, 0.004)
    assert costs(1) == pytest.approx(0.004)
    assert costs(8) == pytest.approx(0.016, rel=0.1)
    assert batch_costs([], 8.0, 1.0, 0.004)(5) == 0.004


def test_responses_count_waiting_and_computing(two_groups):
    responses = two_groups["one"].measure_responses()
    answers, replica = Answers(), FakeReplica()
    for number in range(5):
        two_groups["one"].enqueue(answers.work(replica, number, [number]))
    answers.wait(5)
    assert np.sum(responses.counts) == 5
