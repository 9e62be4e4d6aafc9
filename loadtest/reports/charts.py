"""Pictures of comparisons: ratios as bars, latency by percentile. matplotlib without a display; imported only when a
report is written.

In a picture of ratios every bar that is longer to the right is better, whatever was measured, on a logarithmic axis
with a line at 1: twice as good and half as good are equally far from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from loadtest.load.outcome import merge
from loadtest.reports.report import told

DPI, WIDTH_IN = 120, 9.0
BAR_IN, FRAME_IN, PANEL_IN = 0.3, 1.5, 3.4
BETTER, WORSE = "tab:blue", "tab:orange"
NINES = {1: "0", 2: "50", 10: "90", 100: "99", 1000: "99.9", 10000: "99.99"}
STEPS = 200
SIGNS = {">=": "\N{GREATER-THAN OR EQUAL TO}", "<=": "\N{LESS-THAN OR EQUAL TO}"}
# Further from 1 than this nothing can be told any more; a ratio to nothing would be infinite.
FURTHEST = 1000.0
# Of an axis, for each letter behind a bar.
TEXT_SHARE = 0.018


@dataclass(frozen=True, slots=True)
class Bar:
    """One ratio, above 1 where it is better. low, high: its quartiles. text: the figure as it is told."""

    label: str
    median: float
    low: float
    high: float
    text: str


def against_goal(label: str, median: float, low: float, high: float, goal: tuple[str, float]) -> Bar:
    """A ratio of either direction as a share of its goal: 1 just meets it, above 1 is better than it. goal: (">=" or
    "<=", bound)."""
    sign, bound = goal
    text = f"{told(median)}, aim {SIGNS[sign]} {bound:g}"
    if sign == ">=":
        return Bar(label, median / bound, low / bound, high / bound, text)
    inverse = [bound / value if value > 0 else FURTHEST for value in (median, high, low)]
    return Bar(label, inverse[0], inverse[1], inverse[2], text)


def bars(rows: Sequence[Bar], title: str, axis: str, path: Path) -> None:
    """Ratios from top to bottom, each a bar from 1 to its median with its quartiles."""
    drawing = Figure(figsize=(WIDTH_IN, BAR_IN * len(rows) + FRAME_IN), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.subplots()
    for y, row in enumerate(rows):
        median, low, high = (min(max(v, 1 / FURTHEST), FURTHEST) for v in (row.median, row.low, row.high))
        errors = [[max(0.0, median - low)], [max(0.0, high - median)]]
        color = BETTER if median >= 1 else WORSE
        axes.barh(y, median - 1, left=1, xerr=errors, height=0.62, color=color, ecolor="0.3", capsize=2)
        axes.annotate(f" {row.text}", (max(high, 1), y), va="center", fontsize="small")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize="small")
    axes.invert_yaxis()
    axes.set_xscale("log")
    _plain(axes.xaxis)
    # Room for the text behind the longest bar, on an axis whose ends are powers.
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * (right / left) ** (TEXT_SHARE * max(len(row.text) for row in rows)))
    axes.grid(axis="x", alpha=0.3)
    axes.margins(y=0.02)
    axes.set_xlabel(axis)
    drawing.suptitle(title)
    _save(drawing, path)


def percentiles(panels: Mapping[str, Mapping[str, str]], title: str, path: Path) -> None:
    """panels: title -> label -> encoded histogram of microseconds. Both axes logarithmic, so that the tail can be
    seen."""
    lines = -(-len(panels) // 2)
    drawing = Figure(figsize=(1.25 * WIDTH_IN, PANEL_IN * lines + 0.4), layout="constrained")
    FigureCanvasAgg(drawing)
    grid = drawing.subplots(lines, min(2, len(panels)), squeeze=False).ravel()
    for axes, (name, latencies) in zip(grid, panels.items()):
        for label, encoded in latencies.items():
            _curve(axes, label, encoded)
        axes.set(xscale="log", yscale="log", xlabel="percentile of requests", ylabel="latency, ms")
        _plain(axes.yaxis)
        axes.set_title(name, fontsize="small")
        axes.set_xticks(list(NINES), list(NINES.values()))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    for axes in grid[len(panels) :]:
        axes.remove()
    drawing.suptitle(title)
    _save(drawing, path)


def _curve(axes: Any, label: str, encoded: str) -> None:
    hdr = merge([encoded])
    if not hdr.total_count:
        return
    # No further out than what the count of requests can show.
    furthest = min(hdr.total_count, 10_000)
    odds = [furthest ** (n / STEPS) for n in range(STEPS + 1)]
    ms = [hdr.get_value_at_percentile(100 * (1 - 1 / x)) / 1000 for x in odds]
    axes.plot(odds, ms, label=label, linewidth=1.4)


def _plain(axis: Any) -> None:
    """Numbers as they are, and not as powers of ten, along a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _save(drawing: Figure, path: Path) -> None:
    # No metadata: it would name the software that drew the picture, differently from machine to machine.
    drawing.savefig(path, dpi=DPI, metadata={"Software": None})
