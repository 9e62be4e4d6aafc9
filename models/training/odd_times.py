"""Detect times that cannot be right: seconds of another unit, a default among times, the future.

The order of rows needs no unit, and a counter gives one as well as a clock. So if all times are before 1980, that is
reported only for features that read the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from freshet_serving.models.config.feature_sections import CLOCK_TRANSFORMS, FeatureConfig
from freshet_serving.models.config.history_features import AGE
from freshet_serving.models.data.source import Source
from freshet_serving.models.training.spec import first_rows

YEAR_1980_S = 315_532_800
AHEAD_S = 86_400
"""Clocks of different places differ by less than a day."""


def odd_time_lines(source: Source, features: Sequence[FeatureConfig], column: str, now_s: float) -> list[str]:
    """Return a line for each oddity of the times of the stream's first rows, whose `column` is "" for none."""
    batch = first_rows(source) if column else None
    if batch is None or batch.time is None:
        return []
    # Their order is checked later.
    times = np.sort(batch.time)
    early = int(np.searchsorted(times, YEAR_1980_S))
    lines = []
    if 0 < early < len(times):
        lines.append(
            f"data.time: {early:,} of the first {len(times):,} rows are before 1980, others until {_day(times[-1])}:"
            f" a missing time, or two units in {column!r}? Leave these rows out, or store all times in seconds"
        )
    elif early and any(f.transform in CLOCK_TRANSFORMS or f.decay == AGE for f in features):
        lines.append(
            f"data.time: the first {len(times):,} rows are before 1980, but features read the clock: {column!r} is read"
            " as seconds since 1970; store seconds, or timestamps"
        )
    if times[-1] > now_s + AHEAD_S:
        ahead = len(times) - int(np.searchsorted(times, now_s + AHEAD_S, side="right"))
        lines.append(
            f"data.time: {ahead:,} of the first {len(times):,} rows are in the future, until {_day(times[-1])}:"
            f" {column!r} is read as seconds since 1970; correct the times, which deltas report as their events'"
        )
    sequences = [f.sequence for f in features if f.sequence is not None]
    excluding = sorted({s.name for s in sequences if s.from_events and s.ties == "exclude"})
    if len(times) > 1 and times[0] == times[-1] and excluding:
        lines.append(
            f"data.time: the first {len(times):,} rows have one time, so none of them has a history: name a finer"
            f' column, or set sequences.{excluding[0]}.ties = "file" if the rows are in order'
        )
    return lines


def _day(time_s: float) -> str:
    """Return a time's day, or the number if no calendar has it."""
    try:
        return datetime.fromtimestamp(float(time_s), UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return f"{time_s:.0f}"
