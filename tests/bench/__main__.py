"""`make bench`: runs every pair, prints ratios, writes loadtest/results/bench.json and bench.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path

from tests.bench import engine, hashing, lookup, tiers
from tests.bench.pairs import compare

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=101, help="how often each side of a pair runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    ratios = []
    for pair in (*lookup.pairs(), *tiers.pairs(), *hashing.pairs(), *engine.pairs()):
        ratio = compare(pair, arguments.rounds)
        ratios.append(ratio)
        print(f"{ratio.name}: {ratio.median:.2f} (quartiles {ratio.low:.2f} to {ratio.high:.2f})", flush=True)
    machine = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "rounds": arguments.rounds}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "bench.json").write_text(
        json.dumps({"machine": machine, "ratios": [asdict(r) for r in ratios]}, indent=1)
    )
    lines = [
        f"# Paired benchmarks ({machine['cores']} cores, Python {machine['python']}, {arguments.rounds} rounds)",
        "",
        "Each line compares two things run in turn in one process: the median of time A / time B, its quartiles, and",
        "both medians in nanoseconds a unit. Absolute figures are of a shared machine; the ratio is the result.",
        "",
        "| A / B | ratio | quartiles | A ns | B ns | unit |",
        "|---|---|---|---|---|---|",
    ]
    for r in ratios:
        lines.append(
            f"| {r.name} | {r.median:.2f} | {r.low:.2f} to {r.high:.2f} | {r.a_ns:.0f} | {r.b_ns:.0f} | {r.unit} |"
        )
    (arguments.out / "bench.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
