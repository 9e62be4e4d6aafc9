"""The page of a load test: one HTML file that needs no other, light or dark as its reader has it.

It shows whatever there is: of a run that ended half-way, the seconds until then, and why it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from statistics import median
from typing import Any

from loadtest.load.measurements import WINDOW_S
from loadtest.reports.report import GOAL_MS, OTHERS, PROTOCOLS, WAYS, passed
from loadtest.reports.svg_chart import Series, chart, legend, thinned

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1d2329; --faint: #66707a; --grid: #dfe3e7; --mark: #c3cad1;
  --goal: #c62828; --c0: #1f6fb4; --c1: #d9700f; }
@media (prefers-color-scheme: dark) { :root { --back: #15191d; --text: #dfe4e8; --faint: #98a3ad; --grid: #2c343b;
  --mark: #46515b; --goal: #ff7b72; --c0: #6cb6ff; --c1: #ffa657; } }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .3rem; } p { margin: .4rem 0; }
code { font-family: ui-monospace, monospace; font-size: .92em; }
.passed { color: var(--c0); font-weight: 600; } .failed { color: var(--goal); font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .5rem; border-bottom: 1px solid var(--grid); text-align: left; font-weight: normal; }
td + td.n, th.n { text-align: right; } th { color: var(--faint); }
svg { display: block; width: 100%; height: auto; }
.line { fill: none; stroke-width: 1.6; } .grid { stroke: var(--grid); } .mark { stroke: var(--mark); stroke-width: .7; }
.goal { stroke: var(--goal); stroke-dasharray: 5 4; } .label { fill: var(--faint); font-size: 11px; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
circle.c0 { fill: var(--c0); } .line.c0 { stroke: var(--c0); } i.c0 { background: var(--c0); }
circle.c1 { fill: var(--c1); } .line.c1 { stroke: var(--c1); } i.c1 { background: var(--c1); }
.key { color: var(--faint); margin-right: 1rem; } .key i { display: inline-block; width: .8em; height: .8em;
  margin-right: .3em; }
"""
NOT_MEASURED = "<p>Not measured.</p>"
Row = Sequence[Any]


def page(summary: dict[str, Any], name: str) -> str:
    """The page of a run. summary: as summarize() gives it."""
    parts = [
        f"<h1>Load test {escape(name)}</h1>",
        *_outcome(summary),
        *_over_time(summary),
        *_figures(summary),
        *_correctness(summary),
        *_conditions(summary),
    ]
    head = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>Load test {escape(name)}</title><style>{STYLE}</style></head>\n<body>",
    ]
    return "\n".join([*head, *parts, "</body></html>\n"])


def _outcome(summary: dict[str, Any]) -> list[str]:
    good = passed(summary)
    word = f'<span class="{"passed" if good else "failed"}">{"Passed" if good else "FAILED"}</span>'
    counts = (
        f"{summary['requests']} predict requests in {summary['seconds']:g} s, {summary['requests_per_s']:g} a second; "
        f"{summary['failed']} failed, {summary['mixed']} mixed generations; {summary['deltas']} deltas, "
        f"{len(summary['deltas_never_served'])} of them never served."
    )
    made, started = summary["origin"], f"Server: {summary['layout']}." if summary["layout"] else ""
    ended = [f'<p class="failed">It ended before its time: {escape(summary["error"])}</p>'] if summary["error"] else []
    return [
        f"<p>{word}: {counts}</p>",
        *ended,
        f"<p><code>{escape(made['command'])}</code>, {made['date']}. {escape(started)}</p>",
    ]


def _over_time(summary: dict[str, Any]) -> list[str]:
    """The charts, one below the other, with one axis of time."""
    usage, published, seconds = summary["usage"], summary["published"], summary["seconds"]
    # The last second is seldom a whole one.
    windows = [w for w in summary["windows"] if w["at_s"] + WINDOW_S <= seconds] or summary["windows"]
    marks = [delta["at_s"] for delta in published]
    at = [window["at_s"] + WINDOW_S / 2 for window in windows]

    def of(key: str) -> list[tuple[float, float]]:
        return [(at_s, window[key]) for at_s, window in zip(at, windows)]

    answered = [(at_s, (w["requests"] - w["failed"]) / WINDOW_S) for at_s, w in zip(at, windows)]
    rates = [Series("answered", thinned(answered, median))]
    if any(window["failed"] for window in windows):
        rates.append(Series("failed", thinned(of("failed"))))
    latency = [Series("p50", thinned(of("p50_ms"), median)), Series("p99", thinned(of("p99_ms")))]
    fresh = [
        Series(
            WAYS[way],
            thinned([(d["at_s"], d["ms"]) for d in published if d["way"] == way and d["ms"] is not None]),
            True,
        )
        for way in dict.fromkeys(d["way"] for d in published)
    ]
    cores = [Series("cores", thinned([(u["at_s"], u["cores"]) for u in usage], median))]
    memory = [Series("memory", thinned([(u["at_s"], u["nbytes"] / 2**20) for u in usage]))]
    lines = f"{len(marks)} deltas, a line at each" if marks else "no delta"
    count = max((u["processes"] for u in usage), default=0)
    processes = f"{count} process{'es' if count != 1 else ''}"
    return [
        *_chart(f"Throughput, requests a second: higher is better; {lines}", rates, seconds, "/s", marks),
        *_chart(f"Latency, ms: lower is better; {lines}", latency, seconds, "ms", marks),
        *_chart("Freshness, ms from published to served: lower is better", fresh, seconds, "ms", goal=GOAL_MS),
        *_chart(f"The server's processor time, cores of its {processes}", cores, seconds, "", marks),
        *_chart(f"The server's memory, MiB of its {processes}", memory, seconds, "MiB", marks),
    ]


def _chart(
    title: str,
    series: list[Series],
    seconds: float,
    unit: str,
    marks: Sequence[float] = (),
    goal: float | None = None,
) -> list[str]:
    heading = f"<h2>{escape(title)}</h2>"
    if not any(each.points for each in series):
        return [heading, NOT_MEASURED]
    names = legend(each.name for each in series) if len(series) > 1 else ""
    return [heading, names, chart(series, seconds, unit, marks, goal)]


def _figures(summary: dict[str, Any]) -> list[str]:
    rows = [["All predict requests", summary["requests"], *_values(summary["latency_ms"]["all"])]]
    for kind, title in (PROTOCOLS | OTHERS).items():
        if kind in summary["counts"]:
            rows.append([title, summary["counts"][kind], *_values(summary["latency_ms"][kind])])
    fresh = summary["freshness_ms"]
    goal = "met" if fresh and all(way["p99"] <= GOAL_MS for way in fresh.values()) else "not met"
    apart = summary["probe_interval_ms"]
    ways = [[WAYS[way], f["deltas"], *_values(f, ("p50", "p99", "max"))] for way, f in fresh.items()]
    return [
        "<h2>Latency, ms</h2>",
        table(["", "requests", "p50", "p90", "p99", "p99.9", "max"], rows),
        "<h2>Freshness, ms</h2>",
        f"<p>From the moment before a delta is published to the first reply that carries it. The goal is a p99 under "
        f"{GOAL_MS:g} ms: {goal}. Replies of the prober came {apart['p50']:g} ms apart (p99 {apart['p99']:g} ms).</p>",
        table(["published by", "deltas", "p50", "p99", "max"], ways),
    ]


def _correctness(summary: dict[str, Any]) -> list[str]:
    s = summary["settings"]
    parts = [
        "<h2>Correctness</h2>",
        f"<p>{summary['checked']} replies were checked, every score against what the generation named by the reply's "
        f"header must give, within {s['tolerance']:g}; {summary['mixed']} did not match. A delta moves "
        f"{s['moved_share']:.0%} of the requests by more than {s['clear']:g}, so a reply of the wrong generation, or "
        "of two, shows.</p>",
    ]
    if summary["faults"]:
        parts += ["<h2>Failures</h2>", table(["what", "times"], summary["faults"].items())]
    return parts


def _conditions(summary: dict[str, Any]) -> list[str]:
    s, m = summary["settings"], summary["machine"]
    paced = f"{s['rate']:g} requests/s in all" if s["rate"] else "each sends its next request at once"
    return [
        "<h2>What was run</h2>",
        table(
            ["", ""],
            [
                [
                    "machine",
                    f"{m['cores']} cores of {m['cpu']}, {m['memory_gib']} GiB, {m['system']}, Python {m['python']}",
                ],
                ["", f"load average before the run {m['load_average']}; server and load generator share the cores"],
                ["model", f"bench, DeepFM, 26 tables of {s['table_rows']} rows of 16 floats"],
                ["users", f"{s['users']}, {paced}; {s['rows']} candidates a request"],
                [
                    "protocols",
                    f"{1 - s['json_share']:.0%} KServe v2 binary, {s['json_share']:.0%} TensorFlow Serving JSON",
                ],
                ["deltas", f"{s['delta_rows']} rows, one every {s['delta_every_s']:g} s"],
                ["start", f"ready {summary['ready_s']:g} s after its start"],
            ],
        ),
    ]


def table(header: Row, rows: Iterable[Row]) -> str:
    """An HTML table; with more than two columns, or where it is a number, a cell is a figure and set to the right."""
    head = "".join(f"<th{_right(n, text, header)}>{escape(str(text))}</th>" for n, text in enumerate(header))
    body = "".join(
        "<tr>"
        + "".join(f"<td{_right(n, cell, header)}>{escape(str(cell))}</td>" for n, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{head}</tr>' if any(header) else ''}{body}</table>"


def _right(column: int, cell: Any, header: Row) -> str:
    return ' class="n"' if column and (len(header) > 2 or isinstance(cell, int)) else ""


def _values(values: dict[str, Any], names: Iterable[str] = ("p50", "p90", "p99", "p99.9", "max")) -> list[str]:
    return [f"{values[name]:.2f}" for name in names]
