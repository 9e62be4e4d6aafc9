"""Seconds go where they were spent, and to one stage each."""

import itertools
import math

import pytest

from freshet_serving.models.runs.step_profile import StageTime, StepProfile, overlap


@pytest.fixture
def ticks(monkeypatch):
    """Clocks that go on by one with each look at any of them."""
    counter = itertools.count()
    for clock in ("perf_counter", "thread_time", "process_time"):
        monkeypatch.setattr(f"freshet_serving.models.runs.step_profile.time.{clock}", lambda: float(next(counter)))


def test_stage_time_is_wall_time_and_thread_time(ticks):
    helped = iter([10.0, 17.0])
    profile = StepProfile(lambda: next(helped))
    with profile.timed("look up"):
        pass
    # perf 0, thread 1, thread 2, perf 3.
    assert profile.measured()["look up"] == StageTime(3.0, 1.0 + 7.0, 1)


def test_concurrent_prefetch_time_is_not_charged_to_the_step(ticks):
    profile = StepProfile(lambda: 0.0)
    with profile.timed_process("step"), profile.timed("transform"):
        pass
    # perf 0, process 1; of the transform perf 2, thread 3, thread 4, perf 5; process 6, perf 7.
    stage_times = profile.measured()
    assert stage_times["transform"] == StageTime(3.0, 1.0, 1)
    assert stage_times["step"] == StageTime(7.0, 5.0 - 1.0, 1)


def test_waiting_is_counted_for_every_item_and_the_end(ticks):
    profile = StepProfile(lambda: 0.0)
    assert list(profile.waited(iter("ab"))) == ["a", "b"]
    assert profile.measured()["wait"] == StageTime(3.0, 0.0, 3)


def test_overlap_is_1_when_every_core_is_busy_throughout():
    stage_times = {name: StageTime(1.0, 2.0, 1) for name in ("wait", "look up", "step", "update")}
    stage_times |= {"read": StageTime(9.0, 0.0, 1), "transform": StageTime(9.0, 0.0, 1)}
    assert overlap(stage_times, 2) == 1.0
    assert overlap(stage_times, 4) == 2.0
    assert math.isnan(overlap({name: StageTime() for name in stage_times}, 2))
