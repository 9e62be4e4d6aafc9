"""Charts over the time of a run as inline SVG: nothing but text, in the colours of the page that holds them.

Classes that the page's style gives colours to: c0, c1, ... of series, grid, mark, goal, label. A chart has one point a
second; a longer run has one for several, so that a page stays small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 190
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 10, 30
TICKS = 4
MOST_POINTS = 240
STEPS = (1, 2, 3, 4, 5, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class Series:
    """points: (seconds, value), ascending. dots: points stand for themselves and are not joined."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


def chart(
    series: Sequence[Series], seconds: float, unit: str, marks: Sequence[float] = (), goal: float | None = None
) -> str:
    """An <svg>: values from 0 up, over [0, seconds]. marks: moments with a line from top to bottom. goal: a value with
    a line from side to side. A point tells its value to a pointer."""
    top = _nice(max([goal or 0.0, *(value for s in series for _, value in s.points)]))

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(at_s / max(seconds, 1e-9), 0.0), 1.0)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    parts += [f'<path class="mark" d="M{x(at):.1f} {TOP}V{HEIGHT - BOTTOM}"/>' for at in _few(marks)]
    for n in range(TICKS + 1):
        value = top * n / TICKS
        parts.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="label end" x="{LEFT - 6}" y="{y(value) + 4:.1f}">{value:g}</text>')
    step_s = _nice(seconds / TICKS)
    for n in range(math.floor(seconds / step_s) + 1):
        anchor = "end" if x(n * step_s) > WIDTH - 3 * RIGHT else "middle"
        parts.append(f'<text class="label {anchor}" x="{x(n * step_s):.1f}" y="{HEIGHT - 12}">{n * step_s:g} s</text>')
    if goal is not None:
        parts.append(f'<path class="goal" d="M{LEFT} {y(goal):.1f}H{WIDTH - RIGHT}"/>')
    for number, each in enumerate(series):
        if not each.dots and each.points:
            line = "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in each.points)
            parts.append(f'<path class="line c{number}" d="M{line}"/>')
        for at, value in each.points:
            about = f"{at:.3g} s: {each.name} {value:.4g} {unit}".strip()
            radius = 3 if each.dots else 2
            parts.append(
                f'<circle class="c{number}" cx="{x(at):.1f}" cy="{y(value):.1f}" r="{radius}">'
                f"<title>{escape(about)}</title></circle>"
            )
    return "".join([*parts, "</svg>"])


def legend(names: Iterable[str]) -> str:
    """The names of series in the colours of their lines."""
    return " ".join(f'<span class="key"><i class="c{n}"></i>{escape(name)}</span>' for n, name in enumerate(names))


def thinned(
    points: Sequence[tuple[float, float]], join: Callable[[Sequence[float]], float] = max
) -> list[tuple[float, float]]:
    """At most MOST_POINTS points: neighbours become one, at the first of them, of what `join` makes of their values."""
    size = math.ceil(len(points) / MOST_POINTS) or 1
    groups = [points[n : n + size] for n in range(0, len(points), size)]
    return [(group[0][0], join([value for _, value in group])) for group in groups]


def _few(marks: Sequence[float]) -> Sequence[float]:
    """No marks rather than a wall of them."""
    return marks if len(marks) <= MOST_POINTS else ()


def _nice(highest: float) -> float:
    """The end of an axis: the least round number that holds everything."""
    if not highest > 0 or not math.isfinite(highest):
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(step * power for step in STEPS if step * power >= highest * (1 - 1e-9))
