"""Pictures of comparisons: ratios as bars, latency by percentile. matplotlib without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.load.outcome import merge
from loadtest.reports.plots import figure, save

NINES = {1: "0", 2: "50", 10: "90", 100: "99", 1000: "99.9", 10000: "99.99"}
STEPS = 200


def bars(rows: Sequence[tuple[str, float, float, float, float | None]], title: str, axis: str, path: Path) -> None:
    """rows: (label, median, low quartile, high quartile, goal or None), drawn from top to bottom."""
    drawing, axes = figure(height_in=max(2.5, 0.32 * len(rows) + 1.3))
    at = range(len(rows))[::-1]
    medians = [r[1] for r in rows]
    errors = [[max(0.0, m - r[2]) for m, r in zip(medians, rows)], [max(0.0, r[3] - m) for m, r in zip(medians, rows)]]
    axes.barh(list(at), medians, xerr=errors, height=0.6, color="tab:blue", ecolor="0.3", capsize=2)
    for y, (_, median, _, high, goal) in zip(at, rows):
        if goal is not None:
            axes.plot([goal, goal], [y - 0.4, y + 0.4], color="tab:red", linewidth=2)
        axes.annotate(f" {median:.2f}", (max(median, high), y), va="center", fontsize="small")
    axes.set_yticks(list(at), [r[0] for r in rows], fontsize="small")
    axes.margins(x=0.12, y=0.02)
    axes.set(xlabel=axis, title=title)
    save(drawing, path)


def percentiles(latencies: Mapping[str, str], title: str, path: Path) -> None:
    """latencies: label -> encoded histogram of microseconds. Both axes logarithmic, so that the tail can be seen."""
    drawing, axes = figure(height_in=5.5)
    for label, encoded in latencies.items():
        hdr = merge([encoded])
        if not hdr.total_count:
            continue
        # No further out than what the count of requests can show.
        furthest = min(hdr.total_count, 10_000)
        odds = [furthest ** (n / STEPS) for n in range(STEPS + 1)]
        ms = [hdr.get_value_at_percentile(100 * (1 - 1 / x)) / 1000 for x in odds]
        axes.plot(odds, ms, label=label, linewidth=1.4)
    axes.set(xscale="log", yscale="log", xlabel="percentile of requests", ylabel="latency, ms", title=title)
    axes.set_xticks(list(NINES), list(NINES.values()))
    axes.grid(alpha=0.3)
    drawing.legend(loc="outside lower center", ncols=2, fontsize="x-small")
    save(drawing, path)
