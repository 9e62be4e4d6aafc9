"""Write docs/reference/figures.md, the ten figures that matter most: `python -m loadtest.reports.figures_page`.

A line takes its figure, command and date from the stored report, so that it can say nothing that no report says; a line
whose report does not exist yet says so.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.reports.report import WAYS, spread, told

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
PAGE = ROOT / "docs" / "reference" / "figures.md"
INTRODUCTION = """\
# Performance figures

Ten figures, with the command that measures each again and the date of the stored run. Server, clients and trainer
share two cores. A ratio is the median over rounds in which both sides ran in turn on one machine; "from, to" are its
quartiles.

[loadtest/results/](../../loadtest/results) has the reports of all benchmarks, with the aims that are missed.
[Benchmarks](../how-to/benchmarks.md) and [load test](../how-to/loadtest.md) describe how they are measured.

This page is generated from the reports (`make -C loadtest figures`).
"""
SIGNS = {">=": "at least", "<=": "at most"}
FRESH_AIM, TRAIN_AIM, SERVED_MS = "p99 at most 250 ms", 1.5, 1000.0

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """A figure of a report. interval: its quartiles. aim: with whether it is met. run: has the figure's origin."""

    text: str
    interval: str
    aim: str
    run: Document


def of_ratio(run: Document, ratio: Document, goal: Any = None) -> ReportFigure:
    """Return a ratio's median and quartiles. goal: (">=" or "<=", bound), or nothing."""
    sign, bound = goal or (">=", float("-inf"))
    met = ratio["median"] >= bound if sign == ">=" else ratio["median"] <= bound
    aim = f"{SIGNS[sign]} {bound:g}{'' if met else ': **missed**'}" if goal else ""
    return ReportFigure(told(ratio["median"]), spread(ratio) if ratio["rounds"] > 1 else "", aim, run)


def _scenario(name: str, what: str, document: Document) -> ReportFigure:
    """Return the ratio, or else the fact, of a scenario whose name begins so."""
    run = next(result for result in document["results"] if result["name"] == name)
    for row in run["rows"]:
        if row["what"].startswith(what):
            return of_ratio(run, row["ratio"], row["goal"])
    return ReportFigure(next(text for fact, text in run["facts"] if fact.startswith(what)), "", "", run)


def _peer(name: str, candidates: int, document: Document) -> ReportFigure:
    """Return the throughput over that of a peer at its best."""
    run = next(result for result in document["results"] if result["name"] == name)
    figures = run["variants"][0]["figures"]
    figure = next(f for f in figures if (f["what"], f["candidates"]) == ("throughput", candidates))
    goal = run["goals"].get(str(candidates))
    return of_ratio(run, figure["ratio"], (">=", goal) if goal else None)


def _told(text: str, aim: str, run: Document) -> ReportFigure:
    """Return a text with figures of the run in its fields."""
    return ReportFigure(text.format_map(run), "", aim, run)


def _objects(race: str, run: Document) -> ReportFigure:
    figures = run["races"][race]
    aim = f"p99 below 1 s{'' if figures['p99_ms'] < SERVED_MS else ': **missed**'}"
    return ReportFigure(f"{figures['p50_ms']:.0f} / {figures['p99_ms']:.0f} ms", "", aim, run)


def _step(peer: str, shape: str, run: Document) -> ReportFigure:
    """Return a peer's time of a step over Freshet's."""
    turns = run["races"][shape]["turns"]
    ratios = [theirs[0] / ours[0] for theirs, ours in zip(turns[peer], turns["Freshet"])]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return of_ratio(run, {"median": median, "low": low, "high": high, "rounds": len(ratios)}, (">=", TRAIN_AIM))


LINES: tuple[tuple[str, str, Callable[[Document], ReportFigure]], ...] = (
    (
        f"Freshness: training step finished to first reply that uses it, 150 requests/s, {WAYS['admin']}, p50 / p99",
        "loadtest-150-a-second",
        partial(_told, "{freshness_ms[admin][p50]:.0f} / {freshness_ms[admin][p99]:.0f} ms", FRESH_AIM),
    ),
    (
        "Requests in one minute at saturation with a delta of 10,000 rows every second",
        "loadtest",
        partial(_told, "{requests:,}; {failed} failed, {mixed} of another generation than they name", ""),
    ),
    (
        "Latency in that minute, 64 candidates a request, p50 / p99",
        "loadtest",
        partial(_told, "{latency_ms[all][p50]:.0f} / {latency_ms[all][p99]:.0f} ms", ""),
    ),
    (
        "Server throughput / the same kernels in a bare loop, 64 candidates",
        "bench",
        partial(_scenario, "saturated", "default / bare loop alone"),
    ),
    (
        "Tail latency: p99 with a delta of 100,000 rows every second / without, at 70 % load",
        "bench",
        partial(_scenario, "deltas", "p99 with 100000 rows every second / without"),
    ),
    (
        "Delta of 1,000,000 rows: end of the upload until served",
        "bench",
        partial(_scenario, "deltas", "1000000 rows: last byte of the POST"),
    ),
    (
        "Overload: goodput at three times saturation / its peak",
        "bench",
        partial(_scenario, "overload", "freshet serve: goodput at 3x / peak goodput"),
    ),
    ("Throughput / mosec's with the same kernels, 64 candidates", "peers", partial(_peer, "mosec", 64)),
    (
        "Published to served by two replicas through an S3 server, deltas of 10,000 rows, p50 / p99",
        "objects",
        partial(_objects, "two replicas"),
    ),
    ("Training: PyTorch's time for a step / ours, 4,096 rows", "train", partial(_step, "PyTorch", "4096 20000")),
)
"""What is said, the report, its figure."""


def page(results: Path = RESULTS) -> str:
    rows = [["what", "figure", "from, to", "aim", "command and date"], ["---"] * 5]
    for title, name, figure_of in LINES:
        path = results / f"{name}.json"
        if not path.exists():
            rows.append([title, f"no {path.name} yet", "", "", ""])
            continue
        figure = figure_of(json.loads(path.read_bytes()))
        made = figure.run["origin"]
        rows.append([title, figure.text, figure.interval, figure.aim, f"`{made['command']}`, {made['date']}"])
    return "\n".join([INTRODUCTION, *(f"| {' | '.join(row)} |" for row in rows), ""])


if __name__ == "__main__":
    PAGE.write_text(page())
