"""Derive the features that are made of the events of a history (models.config.history_features)."""

from __future__ import annotations

from collections.abc import Collection

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.history_features import AGE, age_times
from freshet_serving.processor.package import MAX_EVENTS

Step = tuple[str, list[int], list[float], list[str]]
"""A transform's op, integers, floats and texts."""


def events_read(f: FeatureConfig) -> list[str]:
    """Return the columns that a feature other than a cross reads: its own, and those that `where` tests."""
    sequence = f.column.partition(".")[0]
    return [f.column, *(f"{sequence}.{key}" for key in f.where)]


def event_steps(f: FeatureConfig) -> list[Step]:
    """Return the steps that derive a feature from a history's events; [] if it takes them all."""
    steps: list[Step] = []
    if tested := list(f.where.values()):
        integers = [value for value in tested if isinstance(value, int)]
        steps.append(("where", integers, [], [value for value in tested if isinstance(value, str)]))
    if f.window[1] < MAX_EVENTS:
        steps.append(("newest", list(f.window), [], []))
    return steps


def window_step(
    f: FeatureConfig, events: str, histories: Collection[str], units_a_s: int
) -> tuple[str, list[str], list[int]]:
    """Return op, inputs and integers of the transform that takes the events of a cross with decay."""
    if f.decay == AGE:
        return "aged", [events, age_times(f, histories)], [age * units_a_s for age in f.window]
    return "newest", [events], [*f.window]
