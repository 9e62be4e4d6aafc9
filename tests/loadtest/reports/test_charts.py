import numpy as np

from loadtest.load.outcome import encode, of_microseconds
from loadtest.reports.charts import FURTHEST, Bar, against_goal, bars, percentiles


def test_ratios_become_shares_of_their_goals():
    at_least = against_goal("a", 0.9, 0.8, 1.0, (">=", 0.5))
    assert (at_least.median, at_least.low, at_least.high) == (1.8, 1.6, 2.0)
    assert at_least.text == "0.90, aim ≥ 0.5"

    at_most = against_goal("a", 4.0, 2.0, 5.0, ("<=", 3.0))
    assert (at_most.median, at_most.low, at_most.high) == (0.75, 0.6, 1.5)
    assert at_most.text == "4.00, aim ≤ 3"


def test_zero_of_a_figure_to_minimise_is_the_best_share():
    assert against_goal("memory", 0.0, 0.0, 0.01, ("<=", 0.02)).median == FURTHEST


def test_charts_can_have_one_bar_or_any_panels(tmp_path):
    bars([Bar("x", 0.5, 0.4, 5000.0, "0.50")], "t", "ratio", tmp_path / "bars.png")
    latencies = {
        "half load": encode(of_microseconds(np.array([500, 900, 90_000]))),
        "none": encode(of_microseconds(np.array([], np.int64))),
    }
    percentiles({str(n): latencies for n in range(3)}, "t", tmp_path / "percentiles.png")

    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("bars.png", "percentiles.png"))
