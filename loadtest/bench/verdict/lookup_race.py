"""`make -C loadtest verdict-lookup`: lookups, pooling beside FBGEMM's CPU kernel; loadtest/results/verdict-lookup.md.

8 tables of 200,000 rows of 128, lists of 1 to 39 ids a row drawn from a power law, 512 rows a call, sums in float32,
one thread each; each side in a process of its own, all alive at once, in turn. Freshet maps the tables' files as a
server does; deltas have changed a tenth of the rows, and the newest delta can still be undone. Its keys are row
numbers, which it recognises, or spread over all int64 and found by its hash. FBGEMM reads rows by their numbers, or
finds them by the hash that it has for pruned tables, at its default load. A ratio is FBGEMM's time over that of Freshet
finding rows in the same way, in one round: above 1 Freshet is faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.bench import needs
from loadtest.bench.training.race import TrainerVariant, race
from loadtest.bench.verdict.lookup_shape import lists
from loadtest.reports.report import machine, opening, origin, store

HERE = Path(__file__).parent
LEAST_BY_NUMBER = {"float32": 0.9, "float16": 0.9, "int8": 0.8}
RESULTS = HERE.parents[1] / "results"
TYPES = ("float32", "float16", "int8")
OURS, OURS_HASH = "Freshet", "Freshet, by its hash"
NUMBER, HASH = "FBGEMM, by row number", "FBGEMM, by its hash"
LOOKUP_PAIRS = {NUMBER: OURS, HASH: OURS_HASH}


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
    lines += ["| rows as | side | ns an id | its time over Freshet's, found alike |", "|---|---|---:|---:|"]
    for kind, result in results["races"].items():
        for name, turns in result["turns"].items():
            told = ""
            if name in LOOKUP_PAIRS:
                found = sorted(over(result, name))
                aim = LEAST_BY_NUMBER[kind] if name == NUMBER else 1.0
                told = f"**{statistics.median(found):.2f}** ({found[0]:.2f} to {found[-1]:.2f}), aim {aim:g}"
            lines.append(
                f"| {kind} | {name} | {statistics.median(wall for wall, _ in turns) / ids * 1e9:.1f} | {told} |"
            )
    return "\n".join(lines) + "\n"


def over(result: dict[str, Any], peer: str) -> list[float]:
    """By round, a peer's time over that of Freshet that finds rows in the same way."""
    turns = result["turns"]
    return [theirs[0] / ours[0] for theirs, ours in zip(turns[peer], turns[LOOKUP_PAIRS[peer]])]


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
        needs.refuse("--fbgemm or FRESHET_FBGEMM_PYTHON is to name a Python that has torch and fbgemm-gpu-cpu")
    console = Console(stderr=True, highlight=False)
    results = {"machine": machine(), "origin": origin("-C loadtest verdict-lookup", "ARGS", sys.argv[1:]), "races": {}}
    for kind in TYPES:
        console.print(f"[bold]rows as {kind}[/bold]")
        sides = contestants(kind, arguments.fbgemm)
        results["races"][kind] = race(sides, arguments.rounds, arguments.seconds, console)
    store(arguments.out, "verdict-lookup", results, page(results))
    print(page(results))


if __name__ == "__main__":
    main()
