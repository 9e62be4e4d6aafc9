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


def test_a_terminal_has_a_bar_for_each_part_and_notes_above_them():
    text = shown(terminal=True)
    assert "40/40" in text
    assert "3/?" in text
    assert text.index("version 1 is published") < text.rindex("rows read")


def test_where_there_is_no_terminal_only_the_notes_are_written():
    assert shown(terminal=False) == "version 1 is published\n"
