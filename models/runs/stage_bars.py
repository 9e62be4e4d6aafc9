"""Draw the time per stage of a step as SVG: one bar for wall-clock time and one for CPU time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from freshet_serving.models.runs.curves import COLOURS, LEFT, RIGHT, WIDTH, key_html

BAR, GAP = 22, 10
KINDS = (("wall_ms", "clock"), ("cpu_ms", "cores"))


def stage_lines(stage_times: Mapping[str, Any], cores: int, times: float) -> list[dict[str, Any]]:
    """Return a journal line for each stage, with wall-clock and CPU milliseconds a step.

    `times` is models.runs.step_profile.overlap.
    """
    steps = max(1, stage_times["step"].times)
    return [
        {
            "what": "stage",
            "stage": name,
            "wall_ms": stage.wall_s / steps * 1e3,
            "cpu_ms": stage.cpu_s / steps * 1e3,
            "cores": cores,
            "overlap": times,
        }
        for name, stage in stage_times.items()
    ]


def stages_svg(lines: Sequence[Mapping[str, Any]], ahead: Sequence[str]) -> str:
    """Draw both bars with their legend; stages `ahead`, which overlap with others, are not in the wall-clock bar."""
    shares = [
        [0.0 if key == "wall_ms" and line["stage"] in ahead else float(line[key]) for line in lines] for key, _ in KINDS
    ]
    longest = max((sum(share) for share in shares), default=0.0)
    if not longest:
        return ""
    height = len(KINDS) * (BAR + GAP) + GAP
    parts = [key_html(line["stage"] for line in lines), f'<svg viewBox="0 0 {WIDTH} {height}" role="img">']
    for row, (share, (_, name)) in enumerate(zip(shares, KINDS)):
        x, y = float(LEFT), GAP + row * (BAR + GAP)
        parts.append(f'<text class="label end" x="{LEFT - 6}" y="{y + BAR / 2 + 4:.1f}">{escape(name)}</text>')
        for number, part in enumerate(share):
            width = (WIDTH - LEFT - RIGHT) * part / longest
            label = f"{lines[number]['stage']}: {part:.2f} ms"
            parts.append(
                f'<rect class="c{number % COLOURS}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}">'
                f"<title>{escape(label)}</title></rect>"
            )
            x += width
    return "".join([*parts, "</svg>"])
