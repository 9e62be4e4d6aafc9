"""The choice between whole and divided requests: at load by costs, later by what requests take."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.running import split_choice
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.running.split_choice import EVIDENCE, MARGIN, RECENT, SplitChoice, SplitCost

WORTH = 0.97


def choice(divided_s, whole=10.0, most=8):
    """A choice for requests of up to `most` rows: whole costs `whole` seconds for each size, divided `divided_s`."""
    made = SplitChoice("m version 1", WORTH)
    made.decide(CostTable({most: whole}), {0: [0.0] + [divided_s * rows / most for rows in range(1, most + 1)]})
    return made


def told(made, rows, whole, divided, count):
    """Requests of so many rows, each way, with their ratios to what load predicts; the usual way first."""
    for _ in range(count):
        for way, ratio in ((False, whole), (True, divided)):
            made.record(0, rows, way, ratio)


def divides(made, rows, explore=False):
    return made.pays(0, rows) != made.reverses(0, rows, explore)


def test_new_choice_divides_nothing():
    made = SplitChoice("m", WORTH)
    assert not made.reviewed
    assert not divides(made, 4)
    assert made.divided_now(0) == []
    assert made.costs() == []


@pytest.mark.parametrize(("divided_s", "divided"), [(9.0, True), (9.8, False), (10.0, False)])
def test_load_divides_where_that_saves_a_run(divided_s, divided):
    assert divides(choice(divided_s), 8) == divided


@pytest.mark.parametrize(
    ("divided_s", "reviewed"), [(4.9, False), (5.1, True), (10.0, True), (19.9, True), (20.1, False)]
)
def test_only_close_ways_are_compared(divided_s, reviewed):
    made = choice(divided_s)
    assert made.reviewed == reviewed
    assert made.reverses(0, 8, explore=True) == reviewed
    told(made, 8, 10.0 if divided_s < 10 else 0.1, 1.0, 3 * (EVIDENCE + RECENT))
    assert divides(made, 8) == (divided_s < 10)


def test_exploring_takes_the_other_way():
    made = choice(9.0)
    assert (divides(made, 8), divides(made, 8, explore=True)) == (True, False)


@pytest.mark.parametrize("start", [9.0, 11.0])
def test_requests_that_contradict_the_load_change_the_choice(start):
    made = choice(start)
    usual = start < 10
    for _ in range(RECENT):
        made.record(0, 8, usual, 1.5)
    for _ in range(EVIDENCE - 1):
        made.record(0, 8, not usual, 1.0)
    assert divides(made, 8) == usual, "one comparison is missing"
    made.record(0, 8, not usual, 1.0)
    assert divides(made, 8) != usual
    assert divides(made, 4) == usual, "requests of another size"
    assert divides(made, 7) == usual
    assert made.pays(0, 8) == usual, "chunks go on as at load"


def test_one_size_class_changes_together():
    made = choice(9.0)
    told(made, 4, 1.0, 1.5, EVIDENCE + RECENT)
    assert [divides(made, rows) for rows in range(1, 9)] == [True] * 3 + [False] * 4 + [True]
    assert made.divided_now(0) == [False] + [divides(made, rows) for rows in range(1, 9)]


@pytest.mark.parametrize("divided", [1.0 + MARGIN, 1.0, 0.9])
def test_small_contradictions_change_nothing(divided):
    made = choice(9.8 * WORTH)
    told(made, 8, 1.0, divided, 4 * EVIDENCE)
    assert divides(made, 8)


def test_change_back_needs_as_much_evidence():
    made = choice(9.0)
    told(made, 8, 1.0, 1.5, EVIDENCE + RECENT)
    assert not divides(made, 8)
    told(made, 8, 1.0, 1.07, EVIDENCE + RECENT)
    assert not divides(made, 8), "cheaper, but not by the margin"
    told(made, 8, 1.0, 0.8, EVIDENCE + RECENT)
    assert divides(made, 8)


def test_one_slow_run_changes_nothing():
    made = choice(9.0)
    told(made, 8, 1.0, 1.0, RECENT)
    made.record(0, 8, False, 1e-6)
    made.record(0, 8, True, 1e6)
    told(made, 8, 1.0, 1.0, 3 * EVIDENCE)
    assert divides(made, 8)


@pytest.mark.parametrize(("length", "rows", "ratio"), [(5, 8, 1.0), (0, 9, 1.0), (0, 8, 0.0), (0, 0, 1.0)])
def test_what_cannot_be_compared_is_ignored(length, rows, ratio):
    made = choice(9.0)
    for _ in range(4 * EVIDENCE):
        made.record(length, rows, True, ratio)
        made.record(length, rows, False, ratio / 9)
    assert divides(made, 8)
    assert made.costs() == choice(9.0).costs()


def test_seconds_are_told_relative_to_what_load_predicts():
    made, ratios = choice(9.0), []
    made.record = lambda *given: ratios.append(given)
    made.record_divided(0, 4, 9.0)
    made.record_whole(0, 4, 16, 10.0)
    made.record_divided(0, 9, 1.0)
    made.record_divided(5, 4, 1.0)
    assert ratios == [(0, 4, True, 2.0), (0, 4, False, 0.5)]


def test_new_costs_forget_what_requests_took():
    made = choice(9.0)
    told(made, 8, 1.0, 1.5, EVIDENCE + RECENT)
    made.decide(CostTable({8: 10.0}), {0: [0.0, *[9.0] * 8]})
    assert divides(made, 8)
    assert {cost.reviews for cost in made.costs()} == {0}


def test_costs_are_those_of_requests_where_there_are_some():
    made = choice(8.0)
    assert made.costs()[-1] == SplitCost(0, 8, True, 10e6, 8e6, 0)
    told(made, 8, 1.1, 2.0, EVIDENCE + RECENT)
    assert [cost.rows for cost in made.costs()] == [1, 2, 4, 8]
    last = made.costs()[-1]
    assert (last.divided, last.whole_us, last.divided_us) == (False, pytest.approx(11e6), pytest.approx(16e6))
    assert last.reviews >= 1
    assert made.costs()[0].reviews == 0


@settings(max_examples=40, deadline=None)
@given(
    predicted=st.floats(5.5, 18.0),
    off=st.floats(0.6, 1.6),
    noise=st.lists(st.floats(0.9, 1.1), min_size=100, max_size=100),
)
def test_requests_settle_on_a_way_within_the_margin_of_the_best(predicted, off, noise):
    made = choice(predicted)
    for n, factor in enumerate(noise * 8):
        explore = n % 4 == 0
        divided = divides(made, 8, explore)
        made.record(0, 8, divided, (off if divided else 1.0) * factor)
    true = {True: predicted * off, False: 10.0}
    # The median of noise stays within it, on both sides of each quotient.
    slack = (1 + MARGIN) / WORTH / (1 - MARGIN) * (1.1 / 0.9) ** 2
    assert true[divides(made, 8)] <= slack * min(true.values())


def test_two_ways_that_cost_the_same_do_not_take_turns(monkeypatch):
    made = choice(9.7)
    changes = []
    for n in range(4000):
        divided = divides(made, 8, explore=n % 8 == 0)
        made.record(0, 8, divided, (1.0 + 0.04 * ((n * 7919) % 11 - 5) / 5))
        changes.append(divides(made, 8))
    assert len(set(changes)) == 1


def test_change_is_logged(caplog):
    made = choice(9.0)
    with caplog.at_level("INFO", split_choice.log.name):
        told(made, 8, 1.0, 1.5, EVIDENCE + RECENT)
    assert "m version 1: requests of 8 to 15 candidates change over" in caplog.text


def test_choice_taken_over_begins_with_the_ways_of_the_other_and_goes_on_alone():
    before = choice(9.0)
    told(before, 8, 1.0, 1.5, RECENT + EVIDENCE)
    assert not divides(before, 8)
    after = SplitChoice("m version 2", WORTH)
    after.take_over(before, {5: 0})
    assert after.reviewed
    assert after.divided_now(5) == before.divided_now(0)
    for _ in range(RECENT + EVIDENCE):
        after.record(5, 8, False, 1.5)
        after.record(5, 8, True, 1.0)
    assert after.divided_now(5) != before.divided_now(0)
