import re
from pathlib import Path

from loadtest.reports import figure_sources
from loadtest.reports.figures_page import PAGE, PRINTED, SECTIONS, page

MAKEFILE = (Path(__file__).parents[3] / "Makefile").read_text()


def test_the_page_is_what_the_reports_say():
    assert PAGE.read_text() == page(), "python -m loadtest.reports.figures_page"


def test_every_line_is_a_figure_of_its_report_under_that_name():
    runs = [(section, section.source().get(section.key)) for section in SECTIONS]
    stray = [(s.key, name) for s, run in runs if run for name in s.lines.values() if run.find(name) is None]
    assert stray == []
    assert sum(run is not None for _, run in runs) > len(SECTIONS) / 2


def test_every_command_is_one_that_there_is():
    commands = [section.command for section in SECTIONS] + [command for _, _, command in PRINTED]
    for command in (*commands, *re.findall("`(make [^`]+)`", page())):
        assert re.search(f"^{command.split()[1]}:", MAKEFILE, re.M), command
        for variable in re.findall(r"\b([A-Z_]+)=", command):
            assert f"$({variable})" in MAKEFILE, command


def test_a_report_that_is_not_there_is_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_sources, "RESULTS", tmp_path)
    text = page()
    assert text.count("Not in the reports yet: `make ") == len(SECTIONS)
