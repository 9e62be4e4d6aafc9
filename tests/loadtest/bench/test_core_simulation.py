"""Divisions and plans on simulated days."""

import numpy as np
import pytest

from loadtest.bench.core_simulation import (
    MOST_ROWS,
    GroupTraffic,
    Pool,
    best_division,
    late,
    most_load,
    planned,
    requests,
    tide,
)

CURVE = 0.0005 + 0.00001 * np.arange(MOST_ROWS + 1)
CURVE[0] = 0.0


def day(rate, budget_s=0.01, seconds=120.0):
    return requests(GroupTraffic("a", 8, 1.0, rate, budget_s), CURVE, seconds, 0)


def test_day_swings_by_a_factor_of_ten():
    times = day(5000.0).times
    quiet, busy = (np.count_nonzero((times >= first) & (times < first + 6)) for first in (0, 57))
    assert 6 < busy / quiet < 14


def test_core_that_moves_takes_the_time_of_its_batch_along():
    pool = Pool.of([day(10.0)], 3, [0.01])
    pool.free_at = np.array([5.0, 9.0, 7.0])
    spare = pool.move(1, np.empty(0), 6.0)
    assert (sorted(spare), pool.free_at.tolist()) == ([5.0, 7.0], [9.0])
    assert pool.move(2, spare, 6.0).tolist() == [7.0]
    assert sorted(pool.free_at) == [6.0, 9.0]


def test_best_division_gives_more_to_who_has_more():
    division, misses = best_division([day(1000.0), day(30_000.0, seconds=20.0)], 6, 20.0)
    assert sum(division) <= 6
    assert division[0] < division[1]
    assert misses < 100


@pytest.mark.long
def test_plan_keeps_budgets_with_fewer_cores():
    days = [day(6000.0, seconds=600.0)]
    pool = Pool.of(days, 8, [0.01])
    pool.serve(0, 600.0)
    misses, used_s, by_turn = planned(days, 8, 600.0)
    misses = sum(misses)
    assert misses <= late(pool) + 0.005 * len(days[0].times)
    assert used_s < 0.8 * 8 * 600.0
    assert all(sum(turn) == 8 for turn in by_turn)


def test_traffic_is_what_a_fixed_division_keeps_up_with():
    groups = tide(4, 2, CURVE, False, 60.0)
    assert [group.name for group in groups] == ["group 1", "group 2"]
    assert all(group.rate > 0 for group in groups)


def test_most_load_is_found_to_a_percent():
    assert most_load(lambda load: load < 1.234) == pytest.approx(1.234, abs=0.01)
