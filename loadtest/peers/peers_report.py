"""The page of `make bench-peers`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loadtest.peers.measure import CANDIDATES, GOALS, LIGHT
from loadtest.reports.report import table

BEGIN, END = "<!-- summary -->", "<!-- end of summary -->"
Document = Mapping[str, Any]


def markdown(results: Iterable[Document], plot: str) -> str:
    """results: as in peers.json."""
    results = list(results)
    parts = [
        "# Freshet and other servers",
        "The same network, and for all but `fastapi_tf` the very same kernels and ONNX Runtime executables, behind "
        "other servers. Each peer is up beside Freshet, and wrk asks them in turn: the median over rounds of the ratio "
        "within a round. Above 1 Freshet is better: its throughput over the peer's, or the peer's latency over its.",
        f"{BEGIN}\n{summary(results)}\n{END}",
        f"![throughput]({plot})",
    ]
    for result in results:
        parts.append(f"## {result['name']}")
        if result["refused"]:
            parts.append(f"Could not be run here: {' '.join(result['refused'].split())}")
            continue
        m, s = result["machine"], result["settings"]
        serve = f"; Freshet with `{' '.join(s['serve'])}`" if s["serve"] else ""
        parts.append(
            f"{m['cores']} cores of {m['cpu']}, load average before {m['load_average']}; turns of {s['seconds']:g} s, "
            f"{s['connections']} connections{serve}." + (" Quick run: too short to rely on." if s["quick"] else "")
        )
        for variant in result["variants"]:
            parts += [f"{variant['name'].capitalize()}: {_options(variant['options'])}", _figures(variant["figures"])]
    return "\n\n".join(parts) + "\n"


def summary(results: Iterable[Document]) -> str:
    """One line a peer: ratios when tuned, in parentheses untuned."""
    header = [
        "Freshet / peer, tuned (untuned)",
        *(f"throughput, {n} candidate{'s' if n > 1 else ''}" for n in CANDIDATES),
        *(f"light load, {n}" for n in LIGHT),
    ]
    rows = []
    for result in results:
        if result["refused"]:
            rows.append([result["name"], *["could not be run"] * (len(header) - 1)])
            continue
        tuned, untuned = (_by_what(v["figures"]) for v in result["variants"])
        keys = [*(("throughput", n) for n in CANDIDATES), *(("light", n) for n in LIGHT)]
        rows.append([result["name"], *(f"{tuned[k]:.2f} ({untuned[k]:.2f})" for k in keys)])
    return table(header, rows)


def unmet(results: Iterable[Document]) -> list[str]:
    """Goals not met: a tuned peer comes closer than they allow, or has the better tail or light load."""
    found = []
    for result in results:
        for variant in result["variants"][:1]:
            for (what, n), value in _by_what(variant["figures"]).items():
                goal = GOALS[n] if what == "throughput" else 1.0
                if value < goal:
                    found.append(f"{result['name']}, {what}, {n} candidates: {value:.2f}, {goal:g} wanted")
    return found


def _options(chosen: Mapping[str, str]) -> str:
    if len(set(chosen.values())) == 1:
        return f"`{next(iter(chosen.values()))}`"
    return ", ".join(f"{n} candidates `{options}`" for n, options in chosen.items())


def _by_what(figures: Iterable[Document]) -> dict[tuple[str, int], float]:
    return {(f["what"], f["candidates"]): f["ratio"]["median"] for f in figures}


def _figures(figures: Iterable[Document]) -> str:
    names = {"throughput": "requests/s", "p99": "p99 at saturation, ms", "light": "median with 1 connection, ms"}
    rows = [
        [
            f"{names[f['what']]}, {f['candidates']} candidate{'s' if f['candidates'] > 1 else ''}",
            f"{f['freshet']:.5g}",
            f"{f['peer']:.5g}",
            f"{f['ratio']['median']:.2f}",
            f"{f['ratio']['low']:.2f} to {f['ratio']['high']:.2f}",
        ]
        for f in figures
    ]
    return table(["", "Freshet", "peer", "ratio", "quartiles"], rows)
