"""Times that cannot be what they are read as are told of before training."""

import numpy as np
import pytest

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.data.sequence_columns import SequenceConfig
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.odd_times import odd_time_lines

NOW = 1_800_000_000.0
DAY = 86_400
HOUR = FeatureConfig("hour", "id", "hour", 4, transform="hour")


class Rows:
    """Rows with times alone."""

    def __init__(self, times):
        self._batch = Batch({}, np.zeros(len(times), np.float32), np.array(times, np.float64), 0)

    def batches(self, rows, start=0):
        yield self._batch


def lines(times, *features, column="ts"):
    return odd_time_lines(Rows(times), features, column, NOW)


@pytest.mark.parametrize("times", [[NOW - 5, NOW], [0.0, 1.0, 2.0], [NOW, NOW + DAY]])
def test_clocks_and_counters_need_no_line(times):
    assert lines(times) == []


def test_time_of_no_column_needs_no_line():
    assert lines([0.0, NOW + 9 * DAY], column="") == []


def test_early_times_among_others_are_told():
    (line,) = lines([0.0, NOW - 1, NOW])
    assert line.startswith("data.time: 1 of the first 3 rows are before 1980, others until 2027-01-15: a missing")


def test_features_of_the_clock_need_seconds():
    (line,) = lines([19_700.0, 19_701.0], HOUR)
    assert "the first 2 rows are before 1980, but features read the clock: 'ts' is read as seconds" in line


@pytest.mark.parametrize("last", [NOW + 2 * DAY, 9e11])
def test_future_is_told_however_far(last):
    (line,) = lines([NOW, last])
    assert line.startswith("data.time: 1 of the first 2 rows are in the future, until ")


@pytest.mark.parametrize(("ties", "told"), [("exclude", 1), ("file", 0)])
def test_rows_of_one_time_have_no_history(ties, told):
    sequence = SequenceConfig("history", {"item": "item"}, from_events="user", ties=ties)
    column = FeatureConfig("history.item", "ids", "item", 4, sequence=sequence)
    found = lines([NOW, NOW], column)
    assert len(found) == told
    assert all('sequences.history.ties = "file"' in line for line in found)
