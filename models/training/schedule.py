"""Schedule the learning rates of rows and network over the steps of a run: one factor for all of them.

It depends on the step alone, so a resumed run has the same rates. After schedule_steps it stays at schedule_end.
"""

from __future__ import annotations

import math

from freshet_serving.models.config.train_section import TrainSettings


def rate_factor(settings: TrainSettings, step: int) -> float:
    """Return the factor of every rate at a step, counted from 0.

    First the warm-up, (step + 1) / warmup_steps; then from 1 down to schedule_end (e) over schedule_steps, with t from
    0 to 1:

    constant     1
    linear       1 - (1 - e) t
    cosine       e + (1 - e) (1 + cos(pi t)) / 2        (Loshchilov and Hutter 2017, without restarts)
    exponential  e ** t
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.schedule == "constant" or not settings.schedule_steps:
        return 1.0
    t, end = min(1.0, (step - settings.warmup_steps) / settings.schedule_steps), settings.schedule_end
    if settings.schedule == "linear":
        return 1 - (1 - end) * t
    if settings.schedule == "cosine":
        return end + (1 - end) * (1 + math.cos(math.pi * t)) / 2
    return float(end**t)
