"""Read the reports in loadtest/results as runs of named figures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.reports.report import WAYS, spread, told
from loadtest.reports.training_figures import lookups, quality, steps

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
SIGNS = {">=": "at least", "<=": "at most"}


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """A figure of a report. interval: its quartiles, or another one. aim: with whether it is met."""

    text: str
    interval: str = ""
    aim: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: the command that made its figures, when, of what; figures by their names in the report."""

    made: str
    figures: dict[str, ReportFigure]

    def find(self, name: str) -> ReportFigure | None:
        """The figure whose name is or begins with this one."""
        return self.figures.get(name) or next((f for full, f in self.figures.items() if full.startswith(name)), None)


def bench_runs() -> dict[str, Run]:
    """bench.json and backends.json, by scenario."""
    results = [*read_report("bench.json", {"results": []})["results"], read_report("backends.json", {})]
    return {result["name"]: Run(made(result), _bench_figures(result)) for result in results if result}


def peer_runs() -> dict[str, Run]:
    """peers.json, by peer; what could not be run has no figures."""
    found = {}
    for result in read_report("peers.json", {"results": []})["results"]:
        figures = {}
        for figure in (result["variants"] or [{"figures": []}])[0]["figures"]:
            goal = result["goals"].get(str(figure["candidates"])) if figure["what"] == "throughput" else None
            name = f"{figure['what']}, {figure['candidates']}"
            figures[name] = ratio_figure(figure["ratio"], (">=", goal) if goal else None)
        for variant in result["variants"][2:]:
            for figure in variant["figures"]:
                name = f"compiled, {figure['what']}, {figure['candidates']}"
                figures[name] = ratio_figure(figure["ratio"], None)
        found[result["name"]] = Run(made(result), figures)
    return found


def load_runs() -> dict[str, Run]:
    """The load tests, by name."""
    found = {}
    for path in sorted(RESULTS.glob("loadtest*.json")):
        s = json.loads(path.read_bytes())
        latency = s["latency_ms"]["all"]
        figures = {
            "requests": ReportFigure(
                f"{s['requests']:,}; {s['failed']} failed, {s['mixed']} of another generation than they name"
            ),
            "latency": ReportFigure(f"{latency['p50']:.0f} / {latency['p99']:.0f} ms"),
            "ready": ReportFigure(f"{s['ready_s']:.1f} s"),
        }
        for way, fresh in s["freshness_ms"].items():
            figures[WAYS[way]] = ReportFigure(f"{fresh['p50']:.0f} / {fresh['p99']:.0f} ms", aim="p99 at most 250 ms")
        found[path.stem] = Run(made(s), figures)
    return found


def table_runs() -> dict[str, Run]:
    """tables.json, as one run."""
    document = read_report("tables.json", {})
    if not document:
        return {}
    figures = {what: ReportFigure(text) for part in document["sections"].values() for what, text in part.items()}
    return {"tables": Run(made(document), figures)}


def judged_runs() -> dict[str, Run]:
    """What LoadGen said, as one run."""
    document = read_report("verdict-loadgen.json", {})
    if not document:
        return {}
    figures = {}
    for name, run in document["runs"].items():
        offline = run["scenario"] == "Offline"
        rate, most = run["rate" if offline else "due"], document["most" if offline else "possible"]
        said = "VALID" if run["valid"] else "INVALID"
        text = f"{said}, {rate:.1f} a second, {rate / most:.2f} of the possible"
        figures[name] = ReportFigure(text if offline else f"{text}, p99 {run['p99_ms']:.0f} ms")
    return {"verdict-loadgen": Run(made(document), figures)}


def training_runs() -> dict[str, Run]:
    """The reports of training and of lookups, by name."""
    reports = {"train": steps, "train-quality": quality, "verdict-lookup": lookups}
    found = {}
    for name, figures in reports.items():
        if document := read_report(f"{name}.json", {}):
            named = figures(document).items()
            form = _difference if name == "train-quality" else ratio_figure
            found[name] = Run(made(document), {what: form(quartiles(values), aim) for what, (values, aim) in named})
    return found


def _difference(values: Mapping[str, float], goal: tuple[str, float]) -> ReportFigure:
    interval = f"{values['low']:+.4f} to {values['high']:+.4f}"
    return ReportFigure(f"{values['median']:+.4f}", interval, ratio_figure(values, goal).aim)


def quartiles(values: Sequence[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high, "rounds": len(values)}


def _bench_figures(result: Mapping[str, Any]) -> dict[str, ReportFigure]:
    """Ratios first: a name that begins alike means the ratio."""
    figures = {row["what"]: ratio_figure(row["ratio"], row["goal"]) for row in result["rows"]}
    figures |= {what: ReportFigure(seen, aim="held" if held else "NOT held") for what, held, seen in result["checks"]}
    return figures | {what: ReportFigure(text) for what, text in result["facts"] if what not in figures}


def ratio_figure(ratio: Mapping[str, Any], goal: Any) -> ReportFigure:
    interval = spread(ratio) if ratio["rounds"] > 1 else ""
    if goal is None:
        return ReportFigure(told(ratio["median"]), interval)
    sign, bound = goal
    met = ratio["median"] >= bound if sign == ">=" else ratio["median"] <= bound
    return ReportFigure(told(ratio["median"]), interval, f"{SIGNS[sign]} {bound:g}{'' if met else ': **missed**'}")


def aimed(text: str, met: bool) -> str:
    """An aim, with whether it was met."""
    return text if met else f"{text}: **missed**"


def made(result: Mapping[str, Any]) -> str:
    """By which command, when, on what, and how the servers were laid out."""
    m, origin = result["machine"], result["origin"]
    layouts = result.get("layouts") or {"": result.get("layout", "")}
    servers = "; ".join(f"{name}: {layout}" if name else layout for name, layout in layouts.items() if layout)
    quick = " A quick run: too short to rely on." if result.get("settings", {}).get("quick") else ""
    said = f"`{origin['command']}`, {origin['date']}, {m['cores']} cores of {m['cpu']}."
    return f"{said}{f' Servers: {servers}.' if servers else ''}{quick}"


def read_report(name: str, missing: dict[str, Any]) -> dict[str, Any]:
    path = RESULTS / name
    document: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else missing
    return document
