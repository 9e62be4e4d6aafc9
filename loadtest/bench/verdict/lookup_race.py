"""`make -C loadtest verdict-lookup`: lookups, pooling beside FBGEMM's CPU kernel; loadtest/results/verdict-lookup.md.

8 tables of 200,000 rows of 128, lists of 1 to 39 ids a row drawn from a power law, 512 rows a call, sums in float32,
one thread each; each side in a process of its own, all alive at once, in turn. Freshet finds each id in its table's
index and reads the row as of a generation. FBGEMM reads rows by their numbers, or finds them by the hash that it has
for pruned tables, at its default load. A ratio is FBGEMM's time over Freshet's in one round: above 1 Freshet is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.bench.training.race import TrainerVariant, race, ratios
from loadtest.bench.verdict.lookup_shape import lists
from loadtest.reports.report import machine, opening, origin

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"
TYPES = ("float32", "float16", "int8")
OURS, OURS_HASH = "Freshet", "Freshet, by hash"
NUMBER, HASH = "FBGEMM, by row number", "FBGEMM, by its hash"


def contestants(kind: str, python: str) -> list[TrainerVariant]:
    side = str(HERE / "fbgemm_side.py")
    return [
        TrainerVariant(OURS, kind, [sys.executable, str(HERE / "pooling_side.py"), kind, "number"]),
        TrainerVariant(OURS_HASH, kind, [sys.executable, str(HERE / "pooling_side.py"), kind, "hash"]),
        TrainerVariant(NUMBER, kind, [python, side, kind, "number"]),
        TrainerVariant(HASH, kind, [python, side, kind, "hash"]),
    ]


def page(results: dict[str, Any]) -> str:
    """verdict-lookup.md."""
    ids = sum(map(len, lists()[0]))
    lines = opening("Lookups beside FBGEMM", __doc__, results)
    lines += ["| rows as | side | ns an id | its time over Freshet's |", "|---|---|---:|---:|"]
    for kind, result in results["races"].items():
        for name, turns in result["turns"].items():
            found = sorted(ratios(result, name))
            told = "1" if name == OURS else f"**{statistics.median(found):.2f}** ({found[0]:.2f} to {found[-1]:.2f})"
            lines.append(
                f"| {kind} | {name} | {statistics.median(wall for wall, _ in turns) / ids * 1e9:.1f} | {told} |"
            )
    return "\n".join(lines) + "\n"


def verdicts(results: dict[str, Any]) -> list[str]:
    """A sentence for each row type."""
    return [
        f"{kind}: its time over Freshet's is {statistics.median(ratios(result, HASH)):.2f} by its hash and "
        f"{statistics.median(ratios(result, NUMBER)):.2f} by row number; at least 1 was aimed at."
        for kind, result in results["races"].items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest verdict-lookup", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=11)
    add("--seconds", type=float, default=0.5, help="length of a turn")
    add(
        "--fbgemm",
        default=os.environ.get("FRESHET_FBGEMM_PYTHON", ""),
        help="a Python that has torch and fbgemm-gpu-cpu",
    )
    add("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if not arguments.fbgemm:
        parser.error("--fbgemm or FRESHET_FBGEMM_PYTHON is to name a Python that has torch and fbgemm-gpu-cpu")
    console = Console(stderr=True, highlight=False)
    results = {"machine": machine(), "origin": origin("-C loadtest verdict-lookup", "ARGS", sys.argv[1:]), "races": {}}
    for kind in TYPES:
        console.print(f"[bold]rows as {kind}[/bold]")
        sides = contestants(kind, arguments.fbgemm)
        results["races"][kind] = race(sides, arguments.rounds, arguments.seconds, console)
    (arguments.out / "verdict-lookup.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "verdict-lookup.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
