"""Draw line charts as inline SVG: text only, in the colours of the page that embeds them.

CSS classes that the page's style gives colours to: c0 to c5 for series, grid, label, middle, end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 30
TICKS, COLOURS, MOST_POINTS = 4, 6, 300
ROUND = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart: (x, y) by ascending x; points that are not finite are left out."""

    name: str
    points: Sequence[tuple[float, float]]


def curves_svg(curves: Sequence[Curve], unit: str, diagonal: bool = False) -> str:
    """Draw curves over one x axis of a unit as an <svg> element; "" if there are no points.

    `diagonal` uses the same range for both axes and draws the line y = x.
    """
    shown = [Curve(c.name, _thinned([p for p in c.points if all(map(math.isfinite, p))])) for c in curves]
    points = [point for curve in shown for point in curve.points]
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if diagonal:
        xs = ys = [*xs, *ys, 0.0]
    (x_low, x_high, x_step), (y_low, y_high, y_step) = _axis(xs), _axis(ys)

    def at_x(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - x_low) / (x_high - x_low)

    def at_y(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - y_low) / (y_high - y_low)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for value in _ticks(y_low, y_high, y_step):
        parts.append(f'<path class="grid" d="M{LEFT} {at_y(value):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="label end" x="{LEFT - 6}" y="{at_y(value) + 4:.1f}">{_label(value)}</text>')
    for value in _ticks(x_low, x_high, x_step):
        anchor = "end" if at_x(value) > WIDTH - 3 * RIGHT else "middle"
        label = f"{_label(value)} {escape(unit)}"
        parts.append(f'<text class="label {anchor}" x="{at_x(value):.1f}" y="{HEIGHT - 10}">{label}</text>')
    if diagonal:
        low, high = max(x_low, y_low), min(x_high, y_high)
        parts.append(f'<path class="grid" d="M{at_x(low):.1f} {at_y(low):.1f}L{at_x(high):.1f} {at_y(high):.1f}"/>')
    for number, curve in enumerate(shown):
        line = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in curve.points)
        if line:
            parts.append(f'<path class="line c{number % COLOURS}" d="M{line}"/>')
        for x, y in curve.points:
            about = escape(f"{x:,.6g} {unit}: {curve.name} {y:.5g}")
            parts.append(
                f'<circle class="c{number % COLOURS}" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="2">'
                f"<title>{about}</title></circle>"
            )
    return "".join([*parts, "</svg>"])


def key_html(names: Iterable[str]) -> str:
    """Return a legend: the names of curves in the colours of their lines."""
    keys = (f'<span class="key"><i class="c{n % COLOURS}"></i>{escape(name)}</span>' for n, name in enumerate(names))
    return " ".join(keys)


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Reduce to at most MOST_POINTS points by averaging neighbours."""
    size = math.ceil(len(points) / MOST_POINTS) or 1
    groups = (points[n : n + size] for n in range(0, len(points), size))
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _axis(values: Sequence[float]) -> tuple[float, float, float]:
    """Return (low, high, step): round numbers that enclose all values."""
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(abs(high), 1e-12):
        low, high = low - max(abs(low) / 10, 1e-6), high + max(abs(high) / 10, 1e-6)
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(r * power for r in ROUND if r * power >= rough * (1 - 1e-9))
    return math.floor(low / step) * step, math.ceil(high / step) * step, step


def _ticks(low: float, high: float, step: float) -> list[float]:
    return [low + n * step for n in range(round((high - low) / step) + 1)]


def _label(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{0.0 if abs(value) < 1e-12 else value:.6g}"
