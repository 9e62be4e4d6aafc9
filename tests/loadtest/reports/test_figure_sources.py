"""Reports as runs of named figures."""

from loadtest.reports.figure_sources import ratio_figure


def test_missed_goal_is_stated():
    missed = ratio_figure({"median": 0.9, "low": 0.8, "high": 1.0, "rounds": 5}, (">=", 0.95))
    assert (missed.text, missed.interval, missed.aim) == ("0.90", "0.80 to 1.00", "at least 0.95: **missed**")
    met = ratio_figure({"median": 1.01, "low": 1, "high": 1.2, "rounds": 1}, ("<=", 1.02))
    assert (met.interval, met.aim) == ("", "at most 1.02")
