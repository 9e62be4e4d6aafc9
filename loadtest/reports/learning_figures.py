"""Figures of streams, guards, joins and several processes, out of their reports."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from loadtest.reports.figure_sources import ReportFigure, Run, aimed, made, quartiles, ratio_figure, read_report

Document = Mapping[str, Any]
Figures = dict[str, ReportFigure]
LATE_AUC = 0.002


def learning_runs() -> dict[str, Run]:
    """follow.json, guard.json, join.json and train-processes.json, by name."""
    reports: dict[str, Callable[[Document], Figures]] = {
        "follow": follow,
        "guard": guard,
        "join": join,
        "train-processes": processes,
    }
    documents = {name: read_report(f"{name}.json", {}) for name in reports}
    return {name: Run(made(found), reports[name](found)) for name, found in documents.items() if found}


def follow(document: Document) -> Figures:
    """AUC of what was served, by where the events came from."""
    found = {}
    for name, sender in document["senders"].items():
        auc = sender["auc"]
        aim = "more" if auc["fresh"] > auc["daily"] else "more: **missed**"
        found[name] = ReportFigure(f"{auc['fresh']:.4f} / {auc['daily']:.4f}", aim=aim)
    return found


def guard(document: Document) -> Figures:
    """Good deltas that were held, faults that were not, and what it costs."""
    streams = document["streams"].values()
    held, deltas = sum(len(stream["held"]) for stream in streams), sum(stream["deltas"] for stream in streams)
    found = {"good": ReportFigure(f"{held} of {deltas:,}", aim=aimed("none", held == 0))}
    tried = deltas // len(streams) // 20
    for fault in next(iter(streams))["faults"]:
        caught = [sum(stream["faults"][fault].values()) for stream in streams]
        text = " and ".join(f"{n} of {tried}" for n in caught)
        found[fault] = ReportFigure(text, aim=aimed("all", min(caught) == tried))
    for cost, (on, off) in {
        "request_cpu_us": ("looked at", "not"),
        "delta_cpu_ms": ("on", "off"),
        "delta_ms": ("on", "off"),
    }.items():
        sides = document["costs"][cost]
        found[cost] = ratio_figure(quartiles([a / b for a, b in zip(sides[on], sides[off])]), None)
    return found


def join(document: Document) -> Figures:
    """AUC of what was joined less that of true labels, and its calibration, by pace and delays."""
    found = {}
    seeds = document["seeds"]
    for pace in sorted({seed["pace"] for seed in seeds}):
        ones = [seed for seed in seeds if seed["pace"] == pace]
        for shape in ones[0]["shapes"]:
            lost = [seed["shapes"][shape]["corrected"]["auc"] - seed["auc"] for seed in ones]
            mean = statistics.fmean(lost)
            aim = aimed(f"at least -{LATE_AUC:g}", mean >= -LATE_AUC)
            found[f"{pace:g} {shape}"] = ReportFigure(f"{mean:+.4f}", f"{min(lost):+.4f} to {max(lost):+.4f}", aim)
    return found


def processes(document: Document) -> Figures:
    """Rows a second of two processes over those of one, by shape."""
    found = {}
    for shape in document["shapes"]:
        turns = shape["turns"]
        ratios = [one["step_s"] / two["step_s"] for one, two in zip(turns["one"], turns["two"])]
        found[shape["shape"]] = ratio_figure(quartiles(ratios), (">=", 1.6) if shape["shape"] == "histories" else None)
    return found
