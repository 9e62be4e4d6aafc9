"""The load of a group, turn by turn."""

import pytest

from freshet_serving.processor.extensions.core_planner.load import FIRST_CORRECTION, LARGEST_CORRECTION, LoadMeter
from freshet_serving.processor.watching import SessionStats

TURN_S = 5.0


def alone(requests):
    return 0.001 * requests


def turned(meter, counts):
    load = None
    for requests in counts:
        load = meter.turn(SessionStats(requests=requests), TURN_S, alone, 1.0)
    return load


def test_first_turn_knows_no_load():
    assert turned(LoadMeter(), [100]).rate == 0


def test_steady_rate_has_a_margin_of_three_deviations_of_chance():
    load = turned(LoadMeter(), range(0, 100_000, 500))
    assert load.rate == pytest.approx(100 + 3 * (100 / TURN_S) ** 0.5, rel=0.02)


def test_sudden_rate_counts_at_once():
    assert turned(LoadMeter(), [0, 500, 1000, 11_000]).rate >= 2000


def test_refused_requests_count():
    meter = LoadMeter()
    meter.turn(SessionStats(), TURN_S, alone, 1.0)
    load = meter.turn(SessionStats(requests=10, refused_full=20, refused_late=30, expired=40), TURN_S, alone, 1.0)
    assert load.rate >= 100 / TURN_S


def test_slower_answers_than_predicted_correct_at_once_and_faster_ones_slowly():
    meter = LoadMeter()
    load = turned(meter, range(0, 5000, 500))
    meter.compare(load, 4, 2 * load.response_p99_s(4))
    assert meter.correction == pytest.approx(2 * FIRST_CORRECTION)
    load = turned(meter, [5000])
    meter.compare(load, 4, 0.5 * load.response_p99_s(4))
    assert FIRST_CORRECTION < meter.correction < 2 * FIRST_CORRECTION


def test_correction_is_bounded():
    meter = LoadMeter()
    load = turned(meter, range(0, 5000, 500))
    meter.compare(load, 4, 1e6)
    assert meter.correction == LARGEST_CORRECTION


def test_overloaded_turn_corrects_nothing():
    meter = LoadMeter()
    load = turned(meter, [0, 1_000_000])
    meter.compare(load, 1, 1.0)
    assert meter.correction == FIRST_CORRECTION
