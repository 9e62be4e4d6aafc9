"""The page of the ten figures: from stored reports alone."""

from loadtest.reports.figures_page import LINES, PAGE, of_ratio, page


def test_page_matches_the_reports():
    assert PAGE.read_text() == page(), "make -C loadtest figures"


def test_there_are_ten_figures_each_with_command_and_date():
    rows = [line for line in page().splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(LINES) == 10
    for row in rows:
        command = row.rstrip(" |").rpartition("|")[2]
        assert "`make " in command
        assert ", 2026-" in command


def test_missing_report_is_named(tmp_path):
    assert page(tmp_path).count(".json yet") == len(LINES)


def test_missed_goal_is_stated():
    missed = of_ratio({}, {"median": 0.9, "low": 0.8, "high": 1.0, "rounds": 5}, (">=", 0.95))
    assert (missed.text, missed.interval, missed.aim) == ("0.90", "0.80 to 1.00", "at least 0.95: **missed**")
    met = of_ratio({}, {"median": 1.01, "low": 1, "high": 1.2, "rounds": 1}, ("<=", 1.02))
    assert (met.interval, met.aim) == ("", "at most 1.02")
    assert of_ratio({}, {"median": 1.01, "low": 1, "high": 1.2, "rounds": 1}).aim == ""
