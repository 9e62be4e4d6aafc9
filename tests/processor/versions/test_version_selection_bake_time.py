"""How long a version stays after it was replaced."""

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.versions.version_selection import LOOK_S, BakeTime


@pytest.fixture
def clock():
    return FakeClock()


def test_version_stays_for_the_bake_time_and_ends_once(clock):
    bake = BakeTime(clock, lambda: 0.5)
    bake.begin(3)
    assert not bake.end_if_due(60.0)
    clock.advance(59.9)
    assert not bake.end_if_due(60.0)
    assert bake.number == 3
    clock.advance(0.1)
    assert bake.end_if_due(60.0)
    assert bake.number == 0
    assert not bake.end_if_due(60.0)


def test_lack_of_memory_ends_it_early(clock):
    free = [0.5, 0.19]
    bake = BakeTime(clock, lambda: free.pop(0))
    bake.begin(3)
    assert not bake.end_if_due(60.0)
    # Memory is read once a second at most.
    assert not bake.end_if_due(60.0)
    clock.advance(LOOK_S)
    assert bake.end_if_due(60.0)


def test_next_replaced_version_takes_the_place_of_the_last(clock):
    bake = BakeTime(clock, lambda: 0.5)
    bake.begin(3)
    clock.advance(50.0)
    bake.begin(4)
    clock.advance(50.0)
    assert not bake.end_if_due(60.0)
    assert bake.number == 4


def test_bake_time_of_zero_keeps_nothing(clock):
    bake = BakeTime(clock, lambda: 1.0)
    bake.begin(3)
    assert bake.end_if_due(0.0)
