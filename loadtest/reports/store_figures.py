"""Figures of repositories in object stores, out of their reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from loadtest.reports.figure_sources import ReportFigure, Run, aimed, made, read_report

Document = Mapping[str, Any]
Figures = dict[str, ReportFigure]
SERVED_MS, FRESH_S = 1000.0, 2.0


def store_runs() -> dict[str, Run]:
    """objects.json and outage.json, by name."""
    reports: dict[str, Callable[[Document], Figures]] = {"objects": objects, "outage": outage}
    documents = {name: read_report(f"{name}.json", {}) for name in reports}
    return {name: Run(made(found), reports[name](found)) for name, found in documents.items() if found}


def objects(document: Document) -> Figures:
    """From published to served, by how many replicas follow."""
    found = {}
    for name, race in document["races"].items():
        aim = aimed("p99 below 1 s", race["p99_ms"] < SERVED_MS)
        found[name] = ReportFigure(f"{race['p50_ms']:.0f} / {race['p99_ms']:.0f} ms", aim=aim)
    return found


def outage(document: Document) -> Figures:
    """Requests that failed, and how soon what is new is served, by how the store was away."""
    found = {}
    for name, each in document["rounds"].items():
        asked = each["answered"] + each["failed"]
        found[f"failed, {name}"] = ReportFigure(f"{each['failed']} of {asked:,}", aim=aimed("none", not each["failed"]))
        found[f"fresh, {name}"] = ReportFigure(
            f"{each['fresh_s']:.2f} s", aim=aimed("within 2 s", each["fresh_s"] <= FRESH_S)
        )
    return found
