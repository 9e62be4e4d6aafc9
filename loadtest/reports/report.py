"""The figures of a run, and the page that shows them; without hosts and paths, as reports are to be shared."""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hdrh.histogram import HdrHistogram

from loadtest.load.measurements import freshness, histogram

GOAL_MS = 250.0
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
PROTOCOLS = {"kserve": "KServe v2, binary", "tfs": "TensorFlow Serving, JSON"}
OTHERS = {"probe": "Prober, one row", "delta": "Delta by the admin API"}
WAYS = {"admin": "POST to the admin API", "folder": "file renamed into the version's folder"}


def machine() -> dict[str, Any]:
    """The machine that the run runs on: cores that this process may use, the CPU's name, memory, system, Python; and
    the load average, which before a run tells whether the machine is its own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "cores": cores,
        "cpu": _cpu_name(),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def origin(target: str, variable: str, arguments: Sequence[str]) -> dict[str, str]:
    """When figures are made and by which command, as someone else would give it: without the folder of the report."""
    kept, drop = [], False
    for argument in arguments:
        if not drop and argument != "--out" and not argument.startswith("--out="):
            kept.append(argument)
        drop = argument == "--out"
    command = f"make {target}" + (f' {variable}="{shlex.join(kept)}"' if kept else "")
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "command": command}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def summarize(
    record: dict[str, Any], probes: dict[str, Any], ready_s: float, settings: dict[str, Any], facts: dict[str, Any]
) -> dict[str, Any]:
    """All figures of a run. record: what the load generator wrote; probes: loadtest.live.prober.summary(); facts:
    machine(), taken before the run."""
    kinds = record["kinds"] | probes["kinds"]
    predicts = {name: kinds[name] for name in PROTOCOLS if name in kinds}
    seconds = max(record["end_s"] - record["start_s"], 1e-9)
    count = sum(k["requests"] for k in predicts.values())
    taken, missing = freshness(record["deltas"], [record["first_seen_s"], probes["first_seen_s"]])
    faults: dict[str, int] = dict(record["faults"])
    for text, times in probes["faults"].items():
        faults[text] = faults.get(text, 0) + times
    return {
        "machine": facts,
        "settings": settings,
        "seconds": round(seconds, 2),
        "ready_s": round(ready_s, 2),
        "requests": count,
        "requests_per_s": round(count / seconds, 1),
        "failed": sum(k["failed"] - k["mixed"] for k in kinds.values()),
        "mixed": sum(k["mixed"] for k in kinds.values()),
        "checked": sum(k["requests"] - k["failed"] + k["mixed"] for name, k in kinds.items() if name != "delta"),
        "faults": faults,
        "latency_ms": {
            "all": latency_ms(k["latency"] for k in predicts.values()),
            **{name: latency_ms([k["latency"]]) for name, k in kinds.items()},
        },
        "counts": {name: k["requests"] for name, k in kinds.items()},
        "deltas": len(record["deltas"]),
        "deltas_never_served": missing,
        "freshness_ms": {way: freshness_ms(values) for way, values in taken.items()},
        "probe_interval_ms": probes["interval_ms"],
        "freshness_all_ms": {way: [round(v * 1e3, 3) for v in values] for way, values in taken.items()},
        "windows": record["windows"],
        "delta_at_s": [round(d["published_s"] - record["start_s"], 3) for d in record["deltas"]],
    }


def passed(summary: dict[str, Any]) -> bool:
    """Whether there were requests and deltas, no request failed, none was mixed, and every delta was served."""
    wrong = summary["failed"] + summary["mixed"] + len(summary["deltas_never_served"])
    return summary["requests"] > 0 and summary["deltas"] > 0 and not wrong


def latency_ms(encoded: Iterable[str]) -> dict[str, float]:
    """p50, p90, p99, p99.9 and max of HDR histograms added up; in milliseconds."""
    total = histogram()
    for text in encoded:
        total.add(HdrHistogram.decode(text))
    found = {f"p{p:g}": total.get_value_at_percentile(p) / 1000 for p in PERCENTILES}
    return {**found, "max": total.get_max_value() / 1000 if total.total_count else 0.0}


def freshness_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Count, and p50, p99 and max by nearest rank: with fewer than 100 deltas p99 is the largest."""
    ms = np.asarray(seconds) * 1e3
    p50, p99 = np.percentile(ms, [50, 99], method="inverted_cdf")
    figures = {"p50": p50, "p99": p99, "max": ms.max()}
    return {"deltas": len(ms), **{name: round(float(value), 2) for name, value in figures.items()}}


def freshness_lines(figures: dict[str, dict[str, float]], missing: Sequence[str]) -> list[str]:
    """Freshness in plain text, one line a way of publishing. figures: way -> freshness_ms()."""
    lines = [
        f"freshness, {WAYS[way]}: {f['deltas']} deltas, "
        f"p50 {f['p50']:.1f} ms, p99 {f['p99']:.1f} ms, max {f['max']:.1f} ms"
        for way, f in figures.items()
    ]
    return lines + ([f"deltas never seen served: {', '.join(missing)}"] if missing else [])


def markdown(summary: dict[str, Any], name: str) -> str:
    """The report's page; its plots lie beside it as <name>-latency.png and <name>-freshness.png."""
    s, m, f = summary["settings"], summary["machine"], summary["freshness_ms"]
    paced = f"{s['rate']:g} requests/s in all" if s["rate"] else "each sends its next request at once"
    ways = [[WAYS[way], *_figures(v, ("deltas", "p50", "p99", "max"))] for way, v in f.items()]
    goal = all(v["p99"] <= GOAL_MS for v in f.values()) if f else False
    rows = [["All predict requests", summary["requests"], *_figures(summary["latency_ms"]["all"])]]
    for kind, title in (PROTOCOLS | OTHERS).items():
        if kind in summary["counts"]:
            rows.append([title, summary["counts"][kind], *_figures(summary["latency_ms"][kind])])
    parts = [
        f"# Load test {name}",
        f"{'Passed' if passed(summary) else 'FAILED'}: {summary['requests']} predict requests, "
        f"{summary['failed']} failed, {summary['mixed']} mixed generations, {summary['deltas']} deltas, "
        f"{len(summary['deltas_never_served'])} of them never served.",
        table(
            ["", ""],
            [
                ["machine", f"{m['cores']} cores of {m['cpu']}, {m['memory_gib']} GiB, {m['system']}"],
                ["", f"Python {m['python']}; load average before the run {m['load_average']}"],
                ["", "server, load generator and prober share the cores"],
                ["model", f"`bench`, DeepFM, 26 tables of {s['table_rows']} rows of 16 floats"],
                ["users", f"{s['users']}, {paced}; {s['rows']} candidates a request"],
                ["protocols", f"{1 - s['json_share']:.0%} KServe v2 binary, {s['json_share']:.0%} TFS JSON"],
                ["deltas", f"{s['delta_rows']} rows, one every {s['delta_every_s']:g} s"],
                ["time", f"{summary['seconds']:g} s; ready {summary['ready_s']:g} s after its start"],
                ["throughput", f"{summary['requests_per_s']:g} requests/s"],
            ],
        ),
        "## Latency, milliseconds",
        table(["", "requests", "p50", "p90", "p99", "p99.9", "max"], rows),
        f"![latency over time]({name}-latency.png)",
        "## Freshness, milliseconds",
        "From the moment before a delta is published to the first reply that carries it. "
        f"The goal is a p99 under {GOAL_MS:g} ms: {'met' if goal else 'not met'}. "
        f"Replies of the prober came {summary['probe_interval_ms']['p50']:g} ms apart "
        f"(p99 {summary['probe_interval_ms']['p99']:g} ms).",
        table(["published by", "deltas", "p50", "p99", "max"], ways),
        f"![freshness]({name}-freshness.png)",
        "## Correctness",
        f"{summary['checked']} replies were checked, every score against what the generation named by the "
        f"reply's header must give, within {s['tolerance']:g}; {summary['mixed']} did not match. "
        f"A delta moves {s['moved_share']:.0%} of the requests by more than {s['clear']:g}, so a reply of the "
        "wrong generation, or of two, shows.",
    ]
    if summary["faults"]:
        faults = [[text.replace("|", "\\|"), count] for text, count in summary["faults"].items()]
        parts += ["## Failures", table(["what", "times"], faults)]
    return "\n\n".join(parts) + "\n"


def _figures(values: dict[str, Any], names: Iterable[str] = ("p50", "p90", "p99", "p99.9", "max")) -> list[str]:
    return [str(values[n]) if n == "deltas" else f"{values[n]:.2f}" for n in names]


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; with more than two columns all but the first are figures, set to the right."""
    lines = [header, ["---", *["---:" if len(header) > 2 else "---"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
