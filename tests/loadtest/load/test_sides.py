import pytest

from loadtest.load.sides import Ratio, Side, compare, order, ratio, values


def test_every_side_has_a_turn_in_every_round_and_none_is_always_first():
    turns = []

    def side(name):
        return Side(name, lambda: turns.append(name) or {"rate": float(len(turns))})

    sides = [side(name) for name in "abc"]
    found = compare(sides, 6)
    rounds = [turns[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert {r[0] for r in rounds} == {"a", "b", "c"}
    assert {r[-1] for r in rounds} == {"a", "b", "c"}
    assert [len(found[name]) for name in "abc"] == [6, 6, 6]
    assert values(found, "a", "rate")[0] == 1.0


def test_two_sides_take_turns_in_going_first():
    sides = [Side("a", dict), Side("b", dict)]
    assert ["".join(s.name for s in order(sides, n)) for n in range(4)] == ["ab", "ba", "ba", "ab"]


def test_the_ratio_is_the_median_of_ratios_within_rounds():
    # The machine halves its speed in the second round: the ratio does not notice.
    assert ratio([100, 50, 100], [200, 100, 200]) == Ratio(0.5, 0.5, 0.5, 3)
    found = ratio([1, 2, 3, 4, 5], [1, 1, 1, 1, 1])
    assert (found.median, found.low, found.high) == (3, 2, 4)
    assert ratio([3], [2]) == Ratio(1.5, 1.5, 1.5, 1)


@pytest.mark.parametrize(("above", "below"), [([1], []), ([], []), ([1, 2], [1, 0]), ([1], [float("nan")])])
def test_a_ratio_to_nothing_is_refused(above, below):
    with pytest.raises(ValueError, match="side"):
        ratio(above, below)
