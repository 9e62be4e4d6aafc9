import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.config.train_section import SCHEDULES, TrainSettings
from freshet_serving.models.training.schedule import rate_factor


@pytest.mark.parametrize(
    ("schedule", "half"), [("constant", 1), ("linear", 0.6), ("cosine", 0.6), ("exponential", math.sqrt(0.2))]
)
def test_rates_decay_after_the_warmup_to_their_end(schedule, half):
    settings = TrainSettings(schedule=schedule, warmup_steps=4, schedule_steps=100, schedule_end=0.2)
    assert [rate_factor(settings, step) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    assert rate_factor(settings, 54) == pytest.approx(half)
    end = 1 if schedule == "constant" else 0.2
    assert [rate_factor(settings, step) for step in (104, 105, 10**9)] == [pytest.approx(end)] * 3


@given(st.sampled_from(SCHEDULES), st.integers(0, 50), st.integers(0, 200), st.floats(1e-6, 1), st.integers(0, 1000))
def test_rate_stays_positive_and_at_most_the_configured_one(schedule, warmup, steps, end, step):
    settings = TrainSettings(schedule=schedule, warmup_steps=warmup, schedule_steps=steps, schedule_end=end)
    now, later = rate_factor(settings, step), rate_factor(settings, step + 1)
    assert 0 < now <= 1 + 1e-12
    assert later >= now if step + 1 < warmup else (step < warmup or later <= now + 1e-12)


def test_cosine_schedule_starts_and_ends_slowly():
    settings = TrainSettings(schedule="cosine", schedule_steps=100, schedule_end=1e-6)
    factors = [rate_factor(settings, step) for step in range(101)]
    assert factors[0] - factors[10] < 0.03
    assert factors[45] - factors[55] > 0.15
