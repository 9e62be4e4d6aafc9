"""Plans: who has how many cores, as loads change."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.extensions.core_planner.planner import RELEASE_S, Demand, Planner
from freshet_serving.processor.extensions.core_planner.queueing import Load


def load(cores, service_s=0.001):
    """A load that keeps so many cores busy."""
    return Load(cores / service_s, lambda requests: service_s * requests)


def test_budget_gets_the_least_cores_that_keep_it():
    plan = Planner(16).plan(0.0, [Demand("a", load(3.0), 0.005)])
    held = plan.groups["a"].cores
    planner = Planner(16)
    for now_s in range(0, 600, 5):
        held = planner.plan(float(now_s), [Demand("a", load(3.0), 0.005)]).groups["a"].cores
    assert load(3.0).response_p99_s(held) <= 0.005 < load(3.0).response_p99_s(held - 1)
    assert plan.groups["a"].cores == 16


def test_cores_are_given_at_once_and_taken_back_one_by_one():
    planner = Planner(16)
    quiet, busy = [Demand("a", load(0.1), 0.005)], [Demand("a", load(9.0), 0.005)]
    for now_s in range(0, 600, 5):
        planner.plan(float(now_s), quiet)
    assert planner.plan(600.0, quiet).groups["a"].cores == 1
    most = planner.plan(605.0, busy).groups["a"].cores
    assert most >= 10
    assert planner.plan(610.0, quiet).groups["a"].cores == most
    assert planner.plan(609.0 + RELEASE_S, quiet).groups["a"].cores == most
    assert planner.plan(611.0 + RELEASE_S, quiet).groups["a"].cores == most - 1


def test_short_pause_keeps_the_cores():
    planner = Planner(16)
    busy, quiet = [Demand("a", load(9.0), 0.005)], [Demand("a", load(0.1), 0.005)]
    for now_s in range(0, 600, 5):
        most = planner.plan(float(now_s), busy).groups["a"].cores
    planner.plan(600.0, quiet)
    planner.plan(605.0, busy)
    assert planner.plan(605.0 + RELEASE_S, quiet).groups["a"].cores == most


def test_another_group_takes_cores_that_are_only_held():
    planner = Planner(8)
    planner.plan(0.0, [Demand("a", load(5.0), 0.01), Demand("b", load(0.1), 0.01)])
    plan = planner.plan(5.0, [Demand("a", load(0.1), 0.01), Demand("b", load(5.0), 0.01)])
    assert load(5.0).response_p99_s(plan.groups["b"].cores) <= 0.01


def test_cores_that_are_held_and_not_needed_elsewhere_stay():
    plan = Planner(8).plan(0.0, [Demand("a", load(4.0), 0.003), Demand("b", load(0.1), 0.01)])
    needed = plan.groups["a"].cores
    assert 4 < needed < 7, "b holds four, and a needs some of them"
    assert plan.groups["b"].cores == 8 - needed


def test_too_few_cores_go_where_budgets_are_missed_by_most():
    plan = Planner(8).plan(0.0, [Demand("a", load(2.0), 0.0021), Demand("b", load(20.0), 0.0021)])
    assert (plan.groups["a"].cores + plan.groups["b"].cores, plan.groups["b"].cores > 4) == (8, True)


def test_chance_moves_no_core_between_groups_that_have_too_few():
    planner, held = Planner(16), []
    for turn in range(6):
        small, large = (5.6, 10.9) if turn % 2 else (5.35, 11.2)
        plan = planner.plan(5.0 * turn, [Demand("a", load(small), 0.005), Demand("b", load(large), 0.005)])
        held.append((plan.groups["a"].cores, plan.groups["b"].cores))
    assert held == [(5, 11)] * 6


def test_clear_change_moves_cores_between_groups_that_have_too_few():
    planner = Planner(8)
    planner.plan(0.0, [Demand("a", load(4.1), 0.005), Demand("b", load(4.1), 0.005)])
    plan = planner.plan(5.0, [Demand("a", load(5.2), 0.005), Demand("b", load(3.0), 0.005)])
    assert plan.groups["a"].cores >= 5


def test_too_few_cores_move_for_the_least_cores_of_a_group():
    planner = Planner(8)
    for now_s, least in ((0.0, 1), (5.0, 5)):
        plan = planner.plan(now_s, [Demand("a", load(4.5), 0.005, min_cores=least), Demand("b", load(4.5), 0.005)])
    assert plan.groups["a"].cores == 5


def test_groups_without_a_budget_share_by_weight_what_is_left():
    demands = [Demand("a", load(1.0), 0.01), Demand("b", load(0.5), share=3.0), Demand("c", load(0.5))]
    plan = Planner(8).plan(0.0, demands)
    assert plan.shared == 8 - plan.groups["a"].cores
    assert (plan.groups["b"].weight, plan.groups["c"].weight) == (0.75, 0.25)
    assert plan.groups["b"].why == f"75% of {plan.shared} shared cores"


def test_shared_cores_that_nobody_needs_are_lent():
    assert Planner(8).plan(0.0, [Demand("b", load(0.1))]).lent == 7
    assert Planner(8).plan(0.0, [Demand("b", load(0.1), min_cores=3)]).lent == 5
    assert Planner(8).plan(0.0, [Demand("b", load(6.0))]).lent == 0


def test_fewer_cores_than_groups_are_shared_by_all():
    demands = [Demand(name, load(0.1), 0.01) for name in "abc"]
    plan = Planner(2).plan(0.0, demands)
    assert plan.shared == 2
    assert "2 cores are too few" in plan.groups["a"].why


def test_budget_that_computing_alone_takes_says_so():
    plan = Planner(4).plan(0.0, [Demand("a", load(1.0), 0.0005)])
    assert "which computing one takes" in plan.groups["a"].why


demands = st.lists(
    st.tuples(st.floats(0, 40), st.one_of(st.none(), st.floats(0.0001, 1.0)), st.integers(1, 6), st.floats(0.1, 10)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=50)
@given(cores=st.integers(1, 64), turns=st.lists(demands, min_size=1, max_size=6))
def test_every_core_has_one_place(cores, turns):
    planner = Planner(cores)
    for number, turn in enumerate(turns):
        asked = [Demand(f"g{n}", load(busy), p99_s, share, least) for n, (busy, p99_s, least, share) in enumerate(turn)]
        plan = planner.plan(20.0 * number, asked)
        own = [plan.groups[demand.name].cores for demand in asked]
        sharing = [plan.groups[demand.name].weight for demand in asked if not plan.groups[demand.name].cores]
        assert sum(own) + plan.shared == cores
        assert 0 <= plan.lent <= plan.shared
        assert not sharing or (plan.shared >= 1 and math.isclose(sum(sharing), 1))
        if sum(demand.min_cores for demand in asked if demand.p99_s) + 1 <= cores:
            assert all(
                plan.groups[demand.name].cores >= demand.min_cores for demand in asked if demand.p99_s is not None
            )
