"""Session groups that a plan moves while they serve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.cores import available
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.core_planner.core_planning import (
    MOST_SESSIONS,
    SHARED,
    CorePlanning,
    batch_costs,
    check_groups,
    cores_of,
    p99_s,
    placements,
)
from freshet_serving.processor.extensions.core_planner.group_counts import COUNTED, SIZES, CountedGroups
from freshet_serving.processor.extensions.core_planner.planner import Allotment, Plan
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


def planning(groups, configs, clock=None, start=False):
    own, config = CountedGroups(groups), SessionConfig(groups=configs)
    measure = lambda: (own.counts(), own.costs())  # noqa: E731
    return CorePlanning(list(groups), config, available(), 1, clock or TurnClock(), measure, own.place, start)


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
    plan = planning(two_groups, {"one": GroupConfig(share=1.0)}, SystemClock(), start=True)
    plan.close()
    assert not plan._thread.is_alive()


def test_percentile_is_the_bound_above_it():
    responses = Histogram(SHORT_S)
    for _ in range(99):
        responses.observe(0.003)
    responses.observe(1.0)
    assert 0.003 <= p99_s(SHORT_S, responses.counts) <= 0.0045


def test_costs_of_batches_grow_as_tables_say_and_are_as_large_as_measured():
    by_size = [0.001 * rows**0.5 for rows in SIZES]
    costs = batch_costs(by_size, 8.0, 1.0, 0.004)
    assert costs(1) == pytest.approx(0.004)
    assert costs(8) == pytest.approx(0.004 * 8**0.5)
    assert costs(64) == pytest.approx(2 * costs(32)), "beyond the largest batch they grow with rows"
    assert batch_costs([], 8.0, 1.0, 0.004)(5) == 0.004


def test_responses_count_waiting_and_computing(two_groups):
    responses = two_groups["one"].measure_responses()
    answers, replica = Answers(), FakeReplica()
    for number in range(5):
        two_groups["one"].enqueue(answers.work(replica, number, [number]))
    answers.wait(5)
    assert np.sum(responses.counts) == 5


class Fleet:
    """Workers that count what a test says, and keep where they are told to compute."""

    def __init__(self, count):
        self.placed, self.plans = [{} for _ in range(count)], []
        self.counts, self.costs = {}, {}

    def place(self, placed):
        self.plans.append(placed)
        for worker in range(len(self.placed)):
            self.placed[worker] = placed

    def work(self, group, requests, seconds):
        """Let a group have answered so many more requests, each a batch of that many seconds."""
        counts = self.counts.setdefault(
            group, {"work": dict.fromkeys(COUNTED, 0), "responses": [0] * (len(SHORT_S) + 1)}
        )
        for name in ("requests", "batches", "rows"):
            counts["work"][name] += requests
        counts["work"]["busy_s"] += requests * seconds
        self.costs[group] = [rows * seconds for rows in SIZES]


def over_workers(fleet, configs, cores, clock, names=("one", "other")):
    workers = len(fleet.placed)
    measure = lambda: (fleet.counts, fleet.costs)  # noqa: E731
    config = SessionConfig(groups=configs)
    return CorePlanning(names, config, frozenset(range(cores)), workers, clock, measure, fleet.place, start=False)


def test_workers_share_a_groups_sessions_and_have_all_its_cores():
    fleet = Fleet(2)
    planning = over_workers(fleet, {"one": GroupConfig(p99_ms=50.0, min_cores=5)}, 8, TurnClock())
    sessions, cores = fleet.placed[0]["one"]
    assert (sessions, len(cores)) == (3, 5)
    assert frozenset(cores) == planning.cores["one"]
    assert fleet.placed[0]["other"] == (2, sorted(set(range(8)) - set(cores)))


def test_plan_of_workers_grows_with_what_all_of_them_measured():
    fleet, clock = Fleet(2), TurnClock()
    planning = over_workers(fleet, {"one": GroupConfig(p99_ms=50.0), "other": GroupConfig(share=1.0)}, 8, clock)
    for _ in range(20):
        clock.planned_s += 5.0
        fleet.work("one", 5 * 450, 0.01)
        planning.turn()
    assert 5 <= len(planning.cores["one"]) <= 7
    assert "requests/s" in planning.describe("one")["planned"]["why"]
    # The workers that counted all of it have died: the counts stay, and so does the plan.
    before = planning.cores
    clock.planned_s += 5.0
    planning.turn()
    assert planning.cores == before


def test_every_turn_tells_the_whole_plan():
    fleet, clock = Fleet(1), TurnClock()
    planning = over_workers(fleet, {"one": GroupConfig(p99_ms=50.0)}, 4, clock)
    planning.turn()
    assert len(fleet.plans) == 2
    assert fleet.plans[0] == fleet.plans[1]


@given(data=st.data())
def test_each_group_has_a_core_and_a_session_in_every_worker(data):
    cores, workers = data.draw(st.integers(2, 32)), data.draw(st.integers(1, 8))
    sizes = data.draw(st.lists(st.integers(1, 8), max_size=4).filter(lambda sizes: sum(sizes) < cores))
    weights = data.draw(st.lists(st.floats(0.01, 100), min_size=1, max_size=4))
    own = {f"own {n}": Allotment(size, 0.0, "") for n, size in enumerate(sizes)}
    sharing = {f"sharing {n}": Allotment(0, weight / sum(weights), "") for n, weight in enumerate(weights)}
    sets = cores_of({name: a.cores for name, a in own.items()}, {}, frozenset(range(cores)))
    placed = placements(Plan({**own, **sharing}, cores - sum(sizes), 0), sets, workers)
    for name, (sessions, cpus) in placed.items():
        assert cpus
        assert 1 <= sessions <= MOST_SESSIONS * len(cpus)
        assert set(cpus) == (sets[name] if name in own else sets[SHARED])
        if name in own:
            assert len(cpus) <= sessions * workers < len(cpus) + workers


@pytest.mark.parametrize(
    ("group", "error"),
    [
        ({"p99_ms": 0.0}, "groups.a.p99_ms: expected more than 0"),
        ({"p99_ms": float("nan")}, "groups.a.p99_ms: expected more than 0"),
        ({"share": -1.0}, "groups.a.share: expected more than 0"),
        ({"min_cores": 0}, "groups.a.min_cores: expected 1 to"),
        ({"p99_ms": 5.0, "share": 1.0}, "groups.a.share: expected p99_ms or share"),
        ({"p99_ms": 5.0, "cpus": "0"}, "groups.a.cpus: cores are planned"),
        ({"p99_ms": 5.0, "sessions": 2}, "groups.a.sessions: cores are planned"),
    ],
)
def test_planned_groups_leave_cores_to_the_plan(group, error):
    with pytest.raises(BadInput, match=error):
        check_groups(SessionConfig(groups={"a": GroupConfig(["a"], **group)}))


def test_cores_of_another_group_are_not_planned_beside_a_budget():
    with pytest.raises(BadInput, match=r"groups.b.cpus: cores are planned .*remove cpus"):
        check_groups(SessionConfig(groups={"a": GroupConfig(["a"], p99_ms=5.0), "b": GroupConfig(["b"], cpus="0")}))


CORES = frozenset(range(16))


def test_groups_take_the_highest_shared_cores():
    assert cores_of({"a": 2}, {}, frozenset(range(4))) == {"a": {2, 3}, SHARED: {0, 1}}


def test_group_keeps_its_cores_when_another_grows():
    before = cores_of({"a": 2, "b": 2}, {}, CORES)
    after = cores_of({"a": 5, "b": 2}, before, CORES)
    assert after["b"] == before["b"]
    assert after["a"] > before["a"]


def test_core_that_is_gone_is_replaced():
    assert cores_of({"a": 2}, {"a": frozenset({2, 9})}, frozenset(range(4)))["a"] == {2, 3}


@given(turns=st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=8))
def test_every_core_is_in_one_set(turns):
    sets = {}
    for counts in turns:
        before, sets = sets, cores_of(dict(zip("abc", counts, strict=True)), sets, CORES)
        assert [len(sets[name]) for name in "abc"] == counts
        assert sorted(cpu for cpus in sets.values() for cpu in cpus) == sorted(CORES)
        for name in before.keys() - {SHARED}:
            assert len(sets[name] & before[name]) == min(len(sets[name]), len(before[name]))
