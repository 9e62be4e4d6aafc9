"""When a delta is due: by rows, by time."""

from freshet_serving.models.config.publish_section import PublishConfig
from freshet_serving.models.training.delta_rules import DeltaRules
from freshet_serving.processor.clock import FakeClock


class Run:
    def __init__(self, **publish):
        self.clock = FakeClock()
        self.rules = DeltaRules(PublishConfig(**publish), self.clock.now_s)

    def learn(self, rows, seconds=0.0):
        self.clock.advance(seconds)
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
        PublishConfig(delta_seconds=10.0), clock.now_s, lambda: asked.append(clock.now_s()) or changed[0]
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
    rules = DeltaRules(PublishConfig(delta_rows=10), clock.now_s, lambda: True)
    clock.advance(1e6)
    assert not rules.due()
    rules.learned(10)
    assert rules.due()
