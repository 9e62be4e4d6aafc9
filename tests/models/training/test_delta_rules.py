"""When a delta is due: by rows, by time, by movement of the weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.config.publish_section import PublishConfig
from freshet_serving.models.training.delta_rules import LOOK_S, DeltaRules, movement
from freshet_serving.processor.clock import FakeClock


class Run:
    def __init__(self, **publish):
        self.clock, self.weights = FakeClock(), {"w": np.ones(4, np.float32)}
        self.rules = DeltaRules(PublishConfig(**publish), lambda: dict(self.weights), self.clock.now_s)

    def learn(self, rows, seconds=0.0, moved=0.0):
        self.clock.advance(seconds)
        self.weights = {"w": self.weights["w"] + np.float32(moved)}
        self.rules.learned(rows)
        return self.rules.due()


def test_row_count_makes_a_delta_due():
    run = Run(delta_rows=100)
    assert [run.learn(40), run.learn(59), run.learn(1)] == [False, False, True]
    run.rules.published()
    assert [run.learn(99, 1e6), run.learn(50)] == [False, True]


def test_time_makes_a_nonempty_delta_due():
    run = Run(delta_seconds=10.0)
    assert not run.learn(0, 20.0)
    assert run.learn(1)
    run.rules.published()
    assert [run.learn(1, 9.0), run.learn(0, 0.9), run.learn(0, 0.1)] == [False, False, True]


def test_change_without_rows_is_due_after_a_while_alone():
    clock, changed, asked = FakeClock(), [False], []
    rules = DeltaRules(
        PublishConfig(delta_seconds=10.0), dict, clock.now_s, lambda: asked.append(clock.now_s()) or changed[0]
    )
    for _ in range(25):
        clock.advance(1.0)
        assert not rules.due()
    # Asked as often as deltas are due, not all the time.
    assert len(asked) == 2
    changed[0] = True
    assert rules.left()
    clock.advance(4.0)
    assert not rules.due()
    clock.advance(1.0)
    assert rules.due()
    rules.published()
    assert not rules.due()


def test_change_without_rows_waits_for_the_next_rows_where_no_time_is_set():
    clock = FakeClock()
    rules = DeltaRules(PublishConfig(delta_rows=10), dict, clock.now_s, lambda: True)
    clock.advance(1e6)
    assert not rules.due()
    rules.learned(10)
    assert rules.due()


def test_weight_movement_makes_a_delta_due_and_is_checked_periodically():
    run = Run(delta_movement=0.1)
    assert not run.learn(1, LOOK_S, moved=0.05)
    assert not run.learn(1, LOOK_S / 2, moved=0.1), "it was looked at a moment ago"
    assert run.learn(1, LOOK_S / 2)
    run.rules.published()
    assert not run.learn(1, LOOK_S, moved=0.05)


def test_weights_are_not_copied_without_a_movement_rule():
    rules = DeltaRules(PublishConfig(delta_rows=5), lambda: pytest.fail("copied"), FakeClock().now_s)
    rules.learned(5)
    assert rules.due()


@given(st.floats(0.01, 100), st.floats(-5, 5))
def test_movement_is_relative_to_the_norm(scale, share):
    before = {"a": np.full(3, scale, np.float32), "b": np.full((2, 2), -scale, np.float32)}
    now = {name: array * np.float32(1 + share) for name, array in before.items()}
    assert movement(before, now) == pytest.approx(abs(share), rel=1e-3, abs=1e-6)
    assert movement({"a": np.zeros(2, np.float32)}, {"a": np.ones(2, np.float32)}) == 0.0
