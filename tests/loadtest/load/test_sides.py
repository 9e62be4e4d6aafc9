import numpy as np
import pytest

from loadtest.load.sides import Ratio, compare, interval, order, ratio, values


def test_every_side_runs_each_round_and_the_order_rotates():
    turns = []

    def side(name):
        return lambda: turns.append(name) or {"rate": float(len(turns))}

    found = compare({name: side(name) for name in "abc"}, 6)
    rounds = [turns[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert {r[0] for r in rounds} == {"a", "b", "c"}
    assert {r[-1] for r in rounds} == {"a", "b", "c"}
    assert [len(found[name]) for name in "abc"] == [6, 6, 6]
    assert values(found, "a", "rate")[0] == 1.0


def test_two_sides_alternate_in_going_first():
    assert ["".join(order("ab", n)) for n in range(4)] == ["ab", "ba", "ba", "ab"]


def test_ratio_is_the_median_of_ratios_within_rounds():
    # The machine halves its speed in the second round: the ratio does not notice.
    assert ratio([100, 50, 100], [200, 100, 200]) == Ratio(0.5, 0.5, 0.5, 3)
    found = ratio([1, 2, 3, 4, 5], [1, 1, 1, 1, 1])
    assert (found.median, found.low, found.high) == (3, 2, 4)
    assert ratio([3], [2]) == Ratio(1.5, 1.5, 1.5, 1)


@pytest.mark.parametrize(("above", "below"), [([1], []), ([], []), ([1, 2], [1, 0]), ([1], [float("nan")])])
def test_ratio_to_zero_is_refused(above, below):
    with pytest.raises(ValueError, match="side"):
        ratio(above, below)


def test_median_interval_drops_as_many_extremes_as_chance_allows():
    ones = [1.0] * 20
    found = interval([float(n) for n in range(20)], ones)
    # 2 * P(at most 5 of 20 coins) = 0.041, of at most 6 it is 0.115.
    assert (found.median, found.low, found.high, found.rounds) == (9.5, 5.0, 14.0, 20)
    assert interval([3.0, 1.0, 2.0], ones[:3]) == Ratio(2.0, 1.0, 3.0, 3)


def test_median_interval_has_its_stated_coverage():
    random = np.random.default_rng(0)
    runs = [interval(random.lognormal(0, 1, 15).tolist(), [1.0] * 15) for _ in range(2000)]
    assert sum(r.low <= 1.0 <= r.high for r in runs) >= 0.95 * 2000 - 40
