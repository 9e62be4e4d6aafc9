"""Bars: what a terminal shows, and what a file gets."""

from __future__ import annotations

import io

from rich.console import Console

from freshet_serving.compiler.progress import progress_bars


def shown(terminal: bool) -> str:
    file = io.StringIO()
    with progress_bars(Console(file=file, force_terminal=terminal, width=100)) as reporter:
        reporter.begin("rows read", 40)
        reporter.advance(40)
        reporter.note("version 1 is published")
        reporter.begin("deltas", None)
        reporter.advance(3)
    return file.getvalue()


def test_terminal_shows_a_bar_per_part_below_the_notes():
    text = shown(terminal=True)
    assert "40/40" in text
    assert "3/?" in text
    assert text.index("version 1 is published") < text.rindex("rows read")


def test_only_notes_are_written_without_a_terminal():
    assert shown(terminal=False) == "version 1 is published\n"
