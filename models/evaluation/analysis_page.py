"""Write an analysis of tables as one self-contained HTML page, without scripts, fonts or pictures from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.evaluation.changed_rows import ChangedRows
from freshet_serving.models.evaluation.table_summary import NORMS_A_DOUBLING, SavingEstimate, TableSummary, norm_edge

SUMMARY_HEADS = ("table", "rows", "dim", "type", "read by", "file", "memory", "optimizer", "lookups", "median norm")
SAVING_HEADS = ("key", "value", "rows saved", "of all", "bytes saved", "lookups lost")
_BAR_WIDTH, _BAR_HEIGHT, _CHART_HEIGHT = 22, 90, 130
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem } th, td { padding: 0.15rem 0.8rem; text-align: right }
th { border-bottom: 1px solid #999 } td:first-child, th:first-child { text-align: left }
figure { display: inline-block; margin: 0 2rem 1rem 0 } figcaption { color: #555 }
svg text { font-size: 10px; fill: #555 }
rect { fill: #4878a8 } h2 { border-top: 1px solid #ccc; padding-top: 1rem } .note { color: #555 }
@media (prefers-color-scheme: dark) { body { background: #1b1b1b; color: #ddd } .note, figcaption { color: #aaa }
  svg text { fill: #aaa } }
"""


def page(title: str, notes: Sequence[str], summaries: Sequence[TableSummary], changes: Sequence[ChangedRows]) -> str:
    """Return the page, with notes below the title, and changes of the tables between two generations."""
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"]
    parts += [f"<h1>{escape(title)}</h1>", *(f"<p class=note>{escape(note)}</p>" for note in notes)]
    parts.append(_table(SUMMARY_HEADS, [summary_cells(s) for s in summaries]))
    moved = {c.name: c for c in changes}
    for s in summaries:
        parts.append(f"<h2>{escape(s.name)}</h2>")
        for caption, labels, rows in histograms(s):
            parts.append(_chart(caption, labels, rows))
        if savings := s.savings():
            parts.append(_table(SAVING_HEADS, [saving_cells(s, saving) for saving in savings]))
        if change := moved.get(s.name):
            parts.append(f"<p>{change.born:,} rows were added, {change.gone:,} removed, {change.moved:,} changed.</p>")
            if change.furthest:
                cells = [(str(key), f"{d:.4g}", f"{a:.4g}", f"{b:.4g}") for key, d, a, b in change.furthest]
                parts.append(_table(("id", "moved by", "norm before", "norm after"), cells))
    return "\n".join(parts) + "</html>\n"


def summary_cells(summary: TableSummary) -> tuple[str, ...]:
    s = summary
    sizes = (format_nbytes(nbytes) for nbytes in (s.file_nbytes, s.memory_nbytes, s.slots_nbytes))
    lookups = f"{s.lookups:,}" if s.counted else ""
    return s.name, f"{s.rows:,}", str(s.dim), s.dtype, s.read_by, *sizes, lookups, f"{s.median_norm():.3g}"


def saving_cells(summary: TableSummary, saving: SavingEstimate) -> tuple[str, ...]:
    """Return a saving as cells under SAVING_HEADS; bytes are those of a server and of the optimizer together."""
    nbytes = saving.rows * (summary.memory_nbytes + summary.slots_nbytes) / max(1, summary.rows)
    value = f"{saving.value:.3g}" if saving.key == "evict_below_norm" else f"{saving.value:,.0f}"
    lost = "" if math.isnan(saving.lookups) else f"{saving.lookups:.2%}"
    share = f"{saving.rows / max(1, summary.rows):.1%}"
    return saving.key, value, f"{saving.rows:,}", share, format_nbytes(round(nbytes)), lost


def histograms(summary: TableSummary) -> list[tuple[str, list[str], list[int]]]:
    """Return (caption, label of each bin, rows in each bin) for what is known of a table; norms in doublings."""
    charts = []
    if summary.counted:
        charts.append(("rows by number of reads in training", *_doublings(summary.rows_by_frequency)))
    if summary.aged:
        charts.append(("rows by steps since their last update", *_doublings(summary.rows_by_age)))
    wide = summary.rows_by_norm[1:]
    by_doubling = wide[: len(wide) // NORMS_A_DOUBLING * NORMS_A_DOUBLING].reshape(-1, NORMS_A_DOUBLING).sum(axis=1)
    filled = np.flatnonzero(by_doubling)
    if len(filled):
        span = range(int(filled[0]), int(filled[-1]) + 1)
        labels = [f"{norm_edge(1 + i * NORMS_A_DOUBLING):.2g}" for i in span]
        charts.append(("rows by norm", labels, [int(by_doubling[i]) for i in span]))
    return charts


def format_nbytes(nbytes: int) -> str:
    """Format a number of bytes, such as "3.1 MB"; "" for 0."""
    if not nbytes:
        return ""
    power = min(4, int(math.log(nbytes, 1000)))
    return f"{nbytes / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _doublings(rows: NDArray[np.int64]) -> tuple[list[str], list[int]]:
    filled = np.flatnonzero(rows)
    span = range(int(filled[0]), int(filled[-1]) + 1)
    return [f"{2 ** (i - 1) if i else 0:,}" for i in span], [int(rows[i]) for i in span]


def _table(heads: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(h)}" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in line) for line in lines)
    return f"<table><tr>{head}{body}</table>"


def _chart(caption: str, labels: Sequence[str], rows: Sequence[int]) -> str:
    most, width = max(rows), len(rows) * _BAR_WIDTH
    every = -(-max(len(label) for label in labels) * 6 // _BAR_WIDTH) or 1
    bars = []
    for i, (label, count) in enumerate(zip(labels, rows)):
        x, height = i * _BAR_WIDTH, _BAR_HEIGHT * count / most
        bars.append(
            f'<rect x="{x + 1}" y="{_BAR_HEIGHT - height:.1f}" width="{_BAR_WIDTH - 2}" height="{height:.1f}">'
            f"<title>{escape(label)}: {count:,} rows</title></rect>"
        )
        if i % every == 0:
            bars.append(f'<text x="{x}" y="{_BAR_HEIGHT + 14}">{escape(label)}</text>')
    drawing = f'<svg width="{width + 40}" height="{_CHART_HEIGHT}" role="img">{"".join(bars)}</svg>'
    return f"<figure>{drawing}<figcaption>{escape(caption)}; the highest bar is {most:,}</figcaption></figure>"
