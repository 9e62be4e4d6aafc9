from loadtest.reports import figure_sources
from loadtest.reports.figures_page import PAGE, SECTIONS, page


def test_page_matches_the_reports():
    assert PAGE.read_text() == page(), "python -m loadtest.reports.figures_page"


def test_every_line_names_an_existing_report_figure():
    runs = [(section, section.source().get(section.key)) for section in SECTIONS]
    stray = [(s.key, name) for s, run in runs if run for name in s.lines.values() if run.find(name) is None]
    assert stray == []
    assert sum(run is not None for _, run in runs) > len(SECTIONS) / 2


def test_missing_report_is_stated_as_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_sources, "RESULTS", tmp_path)
    text = page()
    assert text.count("Not in the reports yet: `make ") == len(SECTIONS)
