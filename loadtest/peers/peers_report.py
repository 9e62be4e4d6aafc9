"""The page of `make -C loadtest peers`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loadtest.peers.measure import CANDIDATES, LIGHT
from loadtest.reports.report import spread, table, told

Document = Mapping[str, Any]


def markdown(results: Iterable[Document]) -> str:
    results = list(results)
    parts = [
        "# Freshet and other servers",
        "The same network, and for all but `fastapi_tf` the very same kernels and ONNX Runtime executables, behind "
        "other servers. Each peer is up beside Freshet, and wrk asks them in turn: the median over rounds of the ratio "
        "within a round. Above 1 Freshet is better: its throughput over the peer's, or the peer's latency over its. "
        "For each line all settings of a peer are tried, those without a wait for batches among them, and the best for "
        "that line is taken.",
        summary(results),
    ]
    for result in results:
        parts.append(f"## {result['name']}")
        if result["refused"]:
            parts.append(f"Could not be run here: {' '.join(result['refused'].split())}")
            continue
        m, s, made = result["machine"], result["settings"], result["origin"]
        started = " ".join(["freshet serve", *s["serve"]])
        parts.append(
            f"`{made['command']}`, {made['date']}. {m['cores']} cores of {m['cpu']}, load average before "
            f"{m['load_average']}; {s['rounds']} rounds, turns of {s['seconds']:g} s, {s['connections']} connections. "
            f"Freshet: {', '.join(filter(None, (f'`{started}`', result['layout'])))}."
            + (" Quick run: too short to rely on." if s["quick"] else "")
        )
        if result.get("compiled"):
            parts.append(f"Freshet compiled, by bucket: {result['compiled']}.")
        for variant in result["variants"]:
            parts += [f"### {result['name']}, {variant['name']}", _figures(variant["figures"])]
    return "\n\n".join(parts) + "\n"


def summary(results: Iterable[Document]) -> str:
    """One line a peer: ratios when tuned, in parentheses untuned."""
    header = [
        "Freshet / peer, tuned (untuned)",
        *(f"throughput, {n} candidate{'s' if n > 1 else ''}" for n in CANDIDATES),
        *(f"median latency at light load, {n}" for n in LIGHT),
    ]
    rows = []
    for result in results:
        if result["refused"]:
            rows.append([result["name"], *["could not be run"] * (len(header) - 1)])
            continue
        tuned, untuned = (_by_what(v["figures"]) for v in result["variants"][:2])
        keys = [*(("throughput", n) for n in CANDIDATES), *(("light", n) for n in LIGHT)]
        rows.append([result["name"], *(f"{told(tuned[k])} ({told(untuned[k])})" for k in keys)])
    return table(header, rows)


def unmet(results: Iterable[Document]) -> list[str]:
    """Goals not met: a tuned peer comes closer than they allow, or has the better tail or light load."""
    found = []
    for result in results:
        for variant in result["variants"][:1]:
            for (what, n), value in _by_what(variant["figures"]).items():
                goal = result["goals"][str(n)] if what == "throughput" else 1.0
                if value < goal:
                    found.append(f"{result['name']}, {what}, {n} candidates: {told(value)}, {goal:g} wanted")
    return found


def _by_what(figures: Iterable[Document]) -> dict[tuple[str, int], float]:
    return {(f["what"], f["candidates"]): f["ratio"]["median"] for f in figures}


def _figures(figures: Iterable[Document]) -> str:
    names = {
        "throughput": "throughput, requests/s",
        "p99": "p99 at saturation, ms",
        "light": "median latency at light load, ms",
    }
    rows = [
        [
            f"{names[f['what']]}, {f['candidates']} candidate{'s' if f['candidates'] > 1 else ''}",
            f"{f['freshet']:.5g}",
            f"{f['peer']:.5g}",
            told(f["ratio"]["median"]),
            spread(f["ratio"]),
            f"`{f['options']}`",
        ]
        for f in figures
    ]
    return table(["", "Freshet", "peer", "ratio", "quartiles", "the peer's settings"], rows)
