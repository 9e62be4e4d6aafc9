"""The campaign's report: what must be stopped, and what was."""

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.training.nights import GOOD, SERVED, SERVER, TRAINER, least_caught, page

pytestmark = pytest.mark.tensorflow


def trial(by, why="", reported=""):
    return {"by": by, "why": why, "reported": reported}


@pytest.mark.parametrize(
    ("fault", "nights", "least"),
    [
        ("labels inverted", 30, 29),
        ("labels inverted", 33, 32),
        ("labels inverted", 10, 10),
        ("a feature lost", 30, 27),
        ("score x 1.1", 30, 0),
    ],
)
def test_least_caught_is_a_share_of_the_nights_that_ran(fault, nights, least):
    assert least_caught(fault, nights) == least


def test_page_counts_by_gate_and_names_each_false_alarm():
    nights = {
        "1": {"labels inverted": trial(TRAINER, "the order | is opposite"), GOOD: trial(SERVED)},
        "2": {"labels inverted": trial(SERVER, "held"), GOOD: trial(SERVER, "the mean moved")},
        "3": {"labels inverted": trial(SERVED, reported="calibration"), GOOD: trial(SERVED)},
    }
    text = page(
        {
            "machine": {"cores": 2, "cpu": "x"},
            "origin": {"date": "2026-01-01", "command": "make -C loadtest nights"},
            "streams": {"a shop": nights},
            "skipped": {"Criteo": "its rows are not there"},
        }
    )
    assert "| labels inverted | 2 of 3 | 1 | 1 | 1 | at least 3, missed |" in text
    assert "| good nights | 1 of 3 | 0 | 1 | 0 | see below | the mean moved |" in text
    assert "Good nights in all: 1 of 3 were stopped, at most 0 may be." in text
    assert "- a shop, night 2: server's gate: the mean moved" in text
    assert "Criteo was not tried: its rows are not there." in text
