"""Figures of streams, guards, joins and several processes, out of their reports."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from loadtest.reports.figure_sources import ReportFigure, Run, aimed, made, quartiles, ratio_figure, read_report

Document = Mapping[str, Any]
Figures = dict[str, ReportFigure]
LATE_AUC = 0.002
MOST_WAITED = 3
"""Deltas after which a good one that was held is to be served by itself."""


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
    """Good deltas that were held or rolled back, poison that was neither, and what the guard costs."""
    streams = document["streams"].values()
    good = [stream["good"] for stream in streams]
    deltas = sum(one["deltas"] for one in good)
    held = sum(len(one["held"]) + len(one["taken_back"]) for one in good)
    waited = [deltas for one in good for deltas in one["waited"]]
    late = sum(one is None or one > MOST_WAITED for one in waited)
    found = {
        "good": ReportFigure(f"{held} of {deltas:,}", aim=aimed("at most 1 in 1,000", held * 1000 <= deltas)),
        "late": ReportFigure(f"{late} of {len(waited)}", aim=aimed("none", not late)),
    }
    for poison in next(iter(streams))["poisons"]:
        tried = [o for o in (stream["poisons"][poison]["outcome"] for stream in streams) if o != "not tried"]
        caught = sum(outcome in ("held", "rolled back") for outcome in tried)
        found[poison] = ReportFigure(f"{caught} of {len(tried)}", aim=aimed("all", caught == len(tried)))
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
