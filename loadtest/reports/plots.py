"""A load test's two pictures. matplotlib without a display; imported only when a report is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from loadtest.load.measurements import WINDOW_S
from loadtest.reports.report import GOAL_MS, WAYS

DPI = 120
WIDTH_IN, HEIGHT_IN = 9.0, 4.0
BINS = 50
COLORS = {"admin": "tab:blue", "folder": "tab:orange"}


def plot_latency(summary: dict[str, Any], path: Path) -> None:
    """Percentiles of each second, with a mark at each delta."""
    drawing, axes = figure()
    at = [w["at_s"] + WINDOW_S / 2 for w in summary["windows"]]
    for key, label in (("p50_ms", "p50"), ("p90_ms", "p90"), ("p99_ms", "p99"), ("max_ms", "max")):
        axes.plot(at, [w[key] for w in summary["windows"]], label=label, linewidth=1.4)
    for number, moment in enumerate(summary["delta_at_s"]):
        axes.axvline(moment, color="0.8", linewidth=0.7, zorder=0, label="delta" if number == 0 else None)
    axes.set(xlabel="seconds", ylabel="latency, ms", title="Predict latency, second by second")
    axes.set_ylim(bottom=0)
    drawing.legend(loc="outside lower center", ncols=5, fontsize="small")
    save(drawing, path)


def plot_freshness(summary: dict[str, Any], path: Path) -> None:
    """Plots how long deltas took from being published to being served."""
    drawing, axes = figure()
    taken = summary["freshness_all_ms"]
    longest = max((max(values) for values in taken.values()), default=0.0)
    if taken:
        axes.hist(
            list(taken.values()),
            bins=BINS,
            range=(0.0, max(longest, GOAL_MS)),
            label=[WAYS[way] for way in taken],
            color=[COLORS[way] for way in taken],
            stacked=True,
        )
    axes.axvline(GOAL_MS, color="tab:red", linestyle="--", linewidth=1, label=f"goal for p99: {GOAL_MS:g} ms")
    axes.set(xlabel="ms from published to served", ylabel="deltas", title="Freshness")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(left=0)
    drawing.legend(loc="outside lower center", ncols=3, fontsize="small")
    save(drawing, path)


def figure(height_in: float = HEIGHT_IN) -> tuple[Figure, Any]:
    """A drawing of the reports' width, and its axes."""
    drawing = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing, drawing.subplots()


def save(drawing: Figure, path: Path) -> None:
    """Writes a drawing as PNG."""
    # No metadata: it would name the software that drew the picture, differently from machine to machine.
    drawing.savefig(path, dpi=DPI, metadata={"Software": None})
