"""The figures of a run; without hosts and paths, as reports are to be shared."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.load.measurements import freshness, until_served
from loadtest.load.outcome import merge, quantiles_ms

RESULTS = Path(__file__).parents[1] / "results"
GOAL_MS = 250.0
FINE = 0.05
FOLDERS = ("--out", "--venvs", "--data", "--scratch")
"""Options of our commands that name folders of the machine they run on, and change no figure."""
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
    """When figures are made and by which command, as someone else would give it: without this machine's folders."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in FOLDERS:
        parser.add_argument(name)
    _, kept = parser.parse_known_args(arguments)
    command = f"make {target}" + (f' {variable}="{shlex.join(kept)}"' if kept else "")
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "command": command}


def begun(target: str) -> dict[str, Any]:
    """Return what a report says of its run: the machine, before it, and the command, of `make -C loadtest TARGET`."""
    return {"machine": machine(), "origin": origin(f"-C loadtest {target}", "ARGS", sys.argv[1:])}


def stored(out: Path, name: str) -> dict[str, Any]:
    """Return the figures that a folder has of a report; nothing where it has none."""
    path = out / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return found


def keep(out: Path, name: str, result: dict[str, Any], order: Sequence[str], page: Callable[[Any], str]) -> list[Any]:
    """Put one result into a report of several, in the place of the last of its name; return all."""
    results = {each["name"]: each for each in stored(out, name).get("results", [])} | {result["name"]: result}
    ordered = [results[each] for each in order if each in results]
    store(out, name, {"results": ordered}, page(ordered))
    return ordered


def store(out: Path, name: str, results: Any, page: str, kind: str = "md") -> None:
    """Write a report into a folder: NAME.json with its figures, and its page NAME.md, or of another kind."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / f"{name}.{kind}").write_text(page)


def opening(title: str, doc: str, results: Mapping[str, Any]) -> list[str]:
    """A page's first lines: its title, how it was measured (a module's doc without its first paragraph), and by which
    command on what. results: with machine() and origin()."""
    about, made = results["machine"], results["origin"]
    measured = f"{about['cores']} cores ({about['cpu']}), {made['date']}, `{made['command']}`."
    return [f"# {title}", "", doc.split("\n\n", 1)[1].strip(), "", measured, ""]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def summarize(
    record: dict[str, Any], probes: dict[str, Any], usage: list[dict[str, Any]], about: dict[str, Any]
) -> dict[str, Any]:
    """All figures of a run. record: what the load generator wrote; probes: summary() of loadtest.live.prober; usage:
    samples of loadtest.live.usage. about: machine(), taken before the run; settings; origin(); layout; ready_s;
    error, why the run ended before its time, or empty."""
    kinds = record["kinds"] | probes["kinds"]
    predicts = {name: kinds[name] for name in PROTOCOLS if name in kinds}
    seconds = max(record["end_s"] - record["start_s"], 1e-9)
    count = sum(k["requests"] for k in predicts.values())
    seen = [record["first_seen_s"], probes["first_seen_s"]]
    taken, missing = freshness(record["deltas"], seen)
    faults: dict[str, int] = dict(record["faults"])
    for text, times in probes["faults"].items():
        faults[text] = faults.get(text, 0) + times
    return {
        **about,
        "seconds": round(seconds, 2),
        "requests": count,
        "requests_per_s": round(count / seconds, 1),
        "failed": sum(k["failed"] - k["mixed"] for k in kinds.values()),
        "mixed": sum(k["mixed"] for k in kinds.values()),
        "checked": sum(k["requests"] - k["failed"] + k["mixed"] for name, k in kinds.items() if name != "delta"),
        "faults": faults,
        "latency_ms": {
            "all": quantiles_ms(merge(k["latency"] for k in predicts.values())),
            **{name: quantiles_ms(merge([k["latency"]])) for name, k in kinds.items()},
        },
        "counts": {name: k["requests"] for name, k in kinds.items()},
        "deltas": len(record["deltas"]),
        "deltas_never_served": missing,
        "freshness_ms": {way: freshness_ms(values) for way, values in taken.items()},
        "probe_interval_ms": probes["interval_ms"],
        "windows": record["windows"],
        "published": [
            {
                "at_s": round(delta["published_s"] - record["start_s"], 3),
                "way": delta["way"],
                "ms": None if taken_s is None else round(taken_s * 1e3, 3),
            }
            for delta, taken_s in zip(record["deltas"], until_served(record["deltas"], seen))
        ],
        "usage": [
            {**sample, "at_s": round(sample["at_s"] - record["start_s"], 3)}
            for sample in usage
            if sample["at_s"] >= record["start_s"]
        ],
    }


def passed(summary: dict[str, Any]) -> bool:
    """Whether the run came to its end with requests and deltas, no request failed, none was mixed, and every delta was
    served."""
    wrong = summary["failed"] + summary["mixed"] + len(summary["deltas_never_served"])
    return summary["requests"] > 0 and summary["deltas"] > 0 and not wrong and not summary["error"]


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


def told(ratio: float, beside: float | None = None) -> str:
    """A ratio in figures: two decimals, and a third where a percent counts. beside: the one whose decimals it takes."""
    return f"{ratio:.{3 if abs((ratio if beside is None else beside) - 1) < FINE else 2}f}"


def spread(ratio: Mapping[str, Any]) -> str:
    """The interval of a Ratio, as JSON holds it, in the decimals of its median."""
    return f"{told(ratio['low'], ratio['median'])} to {told(ratio['high'], ratio['median'])}"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; with more than two columns all but the first are figures, set to the right."""
    lines = [header, ["---", *["---:" if len(header) > 2 else "---"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
