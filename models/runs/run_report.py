"""Write the report of a run: one self-contained HTML file without scripts, light or dark by the reader's preference.

Everything in it that came from data or configuration is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from freshet_serving.models.runs.curves import COLOURS, Curve, curves_svg, key_html
from freshet_serving.models.runs.stage_bars import stages_svg
from freshet_serving.models.runs.step_profile import AHEAD

Line = Mapping[str, Any]
STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1d2329; --faint: #66707a; --grid: #dfe3e7;
  --c0: #1f6fb4; --c1: #d9700f; --c2: #2e8b57; --c3: #b5338a; --c4: #6b5bd2; --c5: #8a6d3b; }
@media (prefers-color-scheme: dark) { :root { --back: #15191d; --text: #dfe4e8; --faint: #98a3ad; --grid: #2c343b;
  --c0: #6cb6ff; --c1: #ffa657; --c2: #7ee2a8; --c3: #f28cd0; --c4: #b3a7ff; --c5: #d8be8f; } }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .3rem; } p { margin: .4rem 0; }
pre { overflow-x: auto; font: .9em/1.4 ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .5rem; border-bottom: 1px solid var(--grid); text-align: right; font-weight: normal; }
td:first-child, th:first-child { text-align: left; overflow-wrap: anywhere; } th { color: var(--faint); }
svg { display: block; width: 100%; height: auto; }
.line { fill: none; stroke-width: 1.6; } .grid { stroke: var(--grid); }
.label { fill: var(--faint); font-size: 11px; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.key { color: var(--faint); margin-right: 1rem; } .key i { display: inline-block; width: .8em; height: .8em;
  margin-right: .3em; }
""" + "".join(
    f"circle.c{n}, rect.c{n} {{ fill: var(--c{n}); }} .line.c{n} {{ stroke: var(--c{n}); }}"
    f" i.c{n} {{ background: var(--c{n}); }}\n"
    for n in range(COLOURS)
)
FIGURE_NAMES = {"auc": "AUC", "log_loss": "log-loss"}
FIGURES = ("rows", "auc", "log_loss", "predicted", "observed")


def report_html(title: str, lines: Sequence[Line], published: str, config: Mapping[str, Any]) -> str:
    """Return the report, of a journal's lines and the published generations in words, as HTML."""
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>",
        f"<h1>{escape(title)}</h1>",
        *_summary(lines, published),
        *_over_rows(lines),
        *_epochs(lines),
        *_measured(lines),
        *_stages(lines),
        "<h2>Configuration, with defaults filled in</h2>",
        f"<pre>{escape(json.dumps(config, indent=1, ensure_ascii=False))}</pre>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _summary(lines: Sequence[Line], published: str) -> Iterator[str]:
    progress = [line for line in lines if line["what"] == "progress"]
    if progress:
        last = progress[-1]
        yield (
            f"<p>{last['rows']:,} rows learned in {_span(last['seconds'])}, {last['rows'] / last['seconds']:,.0f} a"
            f" second; {last['step']:,} steps.</p>"
        )
    if published:
        yield f"<p>Published: {escape(published)}.</p>"
    for line in (line for line in lines if line["what"] == "all"):
        about = f"AUC {_shown(line['auc'])}, log-loss {_shown(line['log_loss'])} over {line['rows']:,} rows"
        if line.get("grouped_auc") is not None:
            about += f"; grouped by {line['group']}: AUC {_shown(line['grouped_auc'])}"
        yield f"<p>Held out, {escape(str(line['label']))}: {escape(about)}.</p>"
    for line in (line for line in lines if line["what"] == "retrieval"):
        about = ", ".join(f"{key} {_shown(line[key])}" for key in line if "@" in key)
        yield f"<p>Held out: {about} over {line['events']:,} events, among {line['items']:,} items.</p>"
    for line in (line for line in lines if line["what"] == "baseline"):
        yield f"<p>Baseline, {escape(line['name'])}: AUC {_shown(line['auc'])} over {line['rows']:,} rows.</p>"


def _over_rows(lines: Sequence[Line]) -> Iterator[str]:
    progress = [line for line in lines if line["what"] == "progress"]

    def of(key: str, name: str) -> Curve:
        return Curve(name, [(line["rows"], line[key]) for line in progress if line.get(key) is not None])

    def by_table(key: str) -> list[Curve]:
        tables = dict.fromkeys(name for line in progress for name in line[key])
        curves = [Curve(t, [(line["rows"], line[key][t]) for line in progress if t in line[key]]) for t in tables]
        # With many tables, show the largest only.
        return sorted(curves, key=lambda curve: -curve.points[-1][1])[:COLOURS]

    rates = [*by_table("learning_rates")[: COLOURS - 1], of("dense_learning_rate", "network")]
    yield from _chart("Loss of each batch, before its update", [of("loss", "loss")])
    yield from _chart("AUC of streamed rows, scored before training on them", [of("auc", "AUC")])
    yield from _chart("Learning rates", rates)
    yield from _chart("Table rows", by_table("table_rows"))
    yield from _chart("Rows trained on per second", [of("rows_per_s", "rows per second")])


def _epochs(lines: Sequence[Line]) -> Iterator[str]:
    epochs = [line for line in lines if line["what"] == "epoch"]
    figures = dict.fromkeys(key for line in epochs for key in line if key not in ("what", "epoch"))
    for key in figures:
        points = [(line["epoch"], line[key]) for line in epochs if line.get(key) is not None]
        name = FIGURE_NAMES.get(key, key)
        yield from _chart(f"{name} of the held-out rows after each epoch", [Curve(name, points)], "epochs")


def _measured(lines: Sequence[Line]) -> Iterator[str]:
    for label in dict.fromkeys(line["label"] for line in lines if line["what"] == "all"):
        of_label = [line for line in lines if line.get("label") == label]
        deciles = [line for line in of_label if line["what"] == "decile"]
        yield f"<h2>Calibration of {escape(label)} on the held-out rows</h2>"
        yield curves_svg(
            [Curve("observed", [(line["predicted"], line["observed"]) for line in deciles])], "predicted", diagonal=True
        )
        yield _table(
            ("scores", "rows", "predicted", "observed"),
            [
                (f"{_shown(d['low'])} to {_shown(d['high'])}", d["rows"], _shown(d["predicted"]), _shown(d["observed"]))
                for d in deciles
            ],
        )
        slices = [line for line in of_label if line["what"] == "slice"]
        for column in dict.fromkeys(line["by"] for line in slices):
            yield f"<h2>{escape(label)} by {escape(column)}</h2>"
            rows = [
                (_value(s), s["rows"], *(_shown(s[key]) for key in FIGURES[1:])) for s in slices if s["by"] == column
            ]
            yield _table((column, *(key.replace("_", "-") for key in FIGURES)), rows)


def _stages(lines: Sequence[Line]) -> Iterator[str]:
    stages = [line for line in lines if line["what"] == "stage"]
    if not stages:
        return
    cores, times = stages[0]["cores"], stages[0]["overlap"]
    yield "<h2>Time of a step by stage</h2>"
    yield stages_svg(stages, AHEAD)
    rows = [(line["stage"], f"{line['wall_ms']:.3f}", f"{line['cpu_ms']:.3f}") for line in stages]
    yield _table(("stage", "ms per step", "CPU ms per step"), rows)
    if times is not None:
        yield f"<p>{times:.2f} times as long as with all {cores} cores fully used.</p>"


def _chart(title: str, curves: Sequence[Curve], unit: str = "rows") -> Iterator[str]:
    if any(len(curve.points) > 1 for curve in curves):
        yield f"<h2>{escape(title)}</h2>"
        if len(curves) > 1:
            yield key_html(curve.name for curve in curves)
        yield curves_svg(curves, unit)


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_cell(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(cell: Any) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _value(line: Line) -> str:
    return f"{line['others']:,} others" if line["others"] else line["value"] or "(empty)"


def _shown(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4f}"


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:,.1f} min"
