from loadtest.reports import figure_sources
from loadtest.reports.summary_page import LINES, PAGE, page


def test_the_page_matches_the_reports():
    assert PAGE.read_text() == page(), "python -m loadtest.reports.summary_page"


def test_there_are_ten_figures_each_with_command_and_date():
    rows = [line for line in page().splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(LINES) == 10
    for row in rows:
        command = row.rstrip(" |").rpartition("|")[2]
        assert "`make " in command
        assert ", 2026-" in command


def test_a_missing_report_shows_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_sources, "RESULTS", tmp_path)
    assert page().count("not in the reports yet") == len(LINES)
