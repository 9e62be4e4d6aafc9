"""Milliseconds a step by stage, and bars as long as they are."""

import re

import pytest

from freshet_serving.models.runs.stage_bars import stage_lines, stages_svg
from freshet_serving.models.runs.step_profile import AHEAD, StageTime

SPENT = {
    "read": StageTime(1.0, 0.5, 10),
    "transform": StageTime(1.0, 0.5, 10),
    "wait": StageTime(0.0, 0.0, 11),
    "look up": StageTime(1.0, 2.0, 10),
    "step": StageTime(2.0, 4.0, 10),
    "update": StageTime(1.0, 1.0, 10),
}


def test_lines_are_milliseconds_per_step():
    lines = stage_lines(SPENT, 2, 1.05)
    assert [(line["stage"], line["wall_ms"], line["cpu_ms"]) for line in lines] == [
        (name, 100 * one.wall_s, 100 * one.cpu_s) for name, one in SPENT.items()
    ]
    assert {(line["what"], line["cores"], line["overlap"]) for line in lines} == {("stage", 2, 1.05)}


def test_bar_lengths_match_their_times_without_prefetch_stages():
    svg = stages_svg(stage_lines(SPENT, 2, 1.05), AHEAD)
    widths = [float(width) for width in re.findall(r'<rect [^>]* width="([\d.]+)"', svg)]
    clock, cores = widths[:6], widths[6:]
    assert clock[:3] == [0.0, 0.0, 0.0]
    assert [width / cores[4] for width in (*clock[3:], *cores)] == pytest.approx(
        [0.25, 0.5, 0.25, 0.125, 0.125, 0, 0.5, 1, 0.25], abs=0.001
    )
    assert "<title>look up: 100.00 ms</title>" in svg


def test_names_are_escaped_and_no_time_gives_no_picture():
    lines = stage_lines({"<b>": StageTime(), "step": StageTime(1.0, 1.0, 1)}, 1, float("nan"))
    assert "<b>" not in stages_svg(lines, ())
    assert stages_svg([], ()) == ""
