"""Small steps that add up, and those that do not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.extensions.guard.drift import DAY_S, GENERATIONS, HOUR_S, SLOT_S, Drift
from freshet_serving.processor.watching import Figure

TEN_S = 10.0


class Served:
    """A stream that is judged and served; drift() moves on by the logarithm of so many times."""

    def __init__(self, kind="shift"):
        self.drift, self.now_s, self.at, self.kind, self.served = Drift(), 0.0, 0.0, kind, 0
        self.digest = "0"

    def step(self, log, seconds=TEN_S, hour=2.0, day=4.0):
        """Whether it was served."""
        self.now_s += seconds
        figures = [Figure(self.kind, "score", log), Figure("bias", "score", abs(log))]
        if self.drift.judge(figures, self.digest, self.now_s, hour, day) is not None:
            return False
        self.served += 1
        self.drift.serve(figures, self.digest, str(self.served), self.now_s, False)
        self.digest, self.at = str(self.served), self.at + log
        return True


def test_fifty_small_deltas_are_held_at_double_the_mean():
    """What A5 found: the mean score ten times as high, and none held."""
    stream = Served()
    served = [stream.step(math.log(1.049)) for _ in range(50)]
    assert served.index(False) == 14
    assert stream.at <= math.log(2)


def test_hourly_steps_are_held_at_four_times_the_daily_mean():
    stream = Served()
    served = [stream.step(math.log(1.049), seconds=1500) for _ in range(57)]
    assert False in served
    assert math.log(3.5) < stream.at <= math.log(4)


@pytest.mark.parametrize("times", [1.5, 2.0])
def test_daily_cycle_is_never_held(times):
    stream, deltas = Served(), int(DAY_S / 60)
    level = [math.log(times) / 2 * math.sin(2 * math.pi * n / deltas) for n in range(3 * deltas)]
    assert all(stream.step(b - a, seconds=60) for a, b in zip(level, level[1:]))


@given(
    st.lists(st.tuples(st.floats(-0.8, 0.8), st.floats(0, 3000)), max_size=120), st.sampled_from(("shift", "stretch"))
)
def test_served_steps_never_exceed_the_daily_limit(steps, kind):
    stream = Served(kind)
    places = [(0.0, 0.0)]
    for log, seconds in steps:
        if stream.step(log, seconds):
            # What was served until now has a place now.
            places += [(stream.now_s, places[-1][1]), (stream.now_s, stream.at)]
    for at_s, there in places:
        for other_s, place in places:
            if abs(at_s - other_s) <= DAY_S:
                assert abs(there - place) <= math.log(4.0 if kind == "shift" else 10.0) + 1e-9
            if kind == "shift" and abs(at_s - other_s) <= HOUR_S:
                assert abs(there - place) <= math.log(2.0) + 1e-9


def test_limit_has_room_again_after_an_hour():
    stream = Served()
    while stream.step(0.1):
        pass
    assert not stream.step(0.1)
    assert stream.step(0.1, seconds=HOUR_S + 2 * SLOT_S)


def test_step_back_is_served_at_the_limit():
    stream = Served()
    while stream.step(0.1):
        pass
    assert stream.step(-0.05)


PLACE_OF = {"shift": "level", "stretch": "width"}
MOST_TIMES = {"shift": 3.0, "stretch": 10.0}


def moved(kind, steps, step, place):
    """Number of the first of so many deltas that is held, None where none is. place: of the scores after each."""
    drift = Drift()
    for n in range(steps):
        figures = [Figure(kind, "score", step), Figure(PLACE_OF[kind], "score", place(n))]
        if drift.judge(figures, str(n), n * TEN_S, 3.0, 6.0) is not None:
            return n
        drift.serve(figures, str(n), str(n + 1), n * TEN_S, False)
    return None


@pytest.mark.parametrize("kind", PLACE_OF)
def test_steps_starting_where_the_last_ended_are_no_drift(kind):
    """Rows that are asked for before they are learned from: each sample begins where the last one did."""
    assert moved(kind, 2000, 0.01, lambda n: -3.0) is None
    assert moved(kind, 2000, 0.01, lambda n: -3 + 0.5 * math.sin(n)) is None


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("kind", PLACE_OF)
def test_scores_that_drift_step_by_step_are_held(kind, sign):
    most = int(math.log(MOST_TIMES[kind]) / 0.1)
    assert moved(kind, 100, sign * 0.1, lambda n: -3 + sign * 0.1 * (n + 1)) in (most, most + 1)


@pytest.mark.parametrize("kind", PLACE_OF)
def test_scores_of_different_rows_are_no_drift(kind):
    assert moved(kind, 200, 0.0, lambda n: -3 + 0.1 * n) is None


def test_undone_steps_do_not_count_after_a_rollback():
    stream = Served()
    for _ in range(6):
        assert stream.step(0.1)
    # Back, and up again from there: no further than before.
    stream.digest = "1"
    assert all(stream.step(0.1) for _ in range(5))


def test_release_beyond_the_limit_restarts_the_record():
    stream = Served()
    assert stream.step(0.1)
    far = [Figure("shift", "score", 2.0)]
    stream.drift.serve(far, stream.digest, "far", stream.now_s, True)
    stream.digest = "far"
    assert stream.step(0.3)


@pytest.mark.parametrize(
    ("kind", "log", "reason"),
    [
        ("shift", 0.9, "the mean score of 'score' would be 2.46 times what it was within the last hour, limit 2 times"),
        ("shift", -0.9, "the mean score of 'score' would be 0.407 times what it was within the last hour, limit 0.5"),
        ("stretch", 3.0, "the width of the scores of 'score' would be 20.1 times what it was within the last day, lim"),
    ],
)
def test_reason_states_the_distance_and_the_limit(kind, log, reason):
    verdict = Drift().judge([Figure(kind, "score", log)], "", 0.0, 2.0, 4.0)
    assert verdict.kind == "drift"
    assert verdict.reason.startswith(reason)


def test_drift_record_is_bounded():
    stream = Served()
    for _ in range(2 * GENERATIONS):
        stream.step(0.0, seconds=SLOT_S)
    assert len(stream.drift._places) == GENERATIONS
    assert len(stream.drift._slots["shift", "score"]) <= DAY_S / SLOT_S + 2
