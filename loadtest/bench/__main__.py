"""`make bench`: the scenarios, measured; loadtest/results/bench.json, bench.md and two pictures.

A scenario's result replaces its last one in bench.json; those that were not run now stay as they are, each with the
machine and the settings of its own run.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from loadtest.bench.bench_report import markdown, summary, unmet
from loadtest.bench.harness import Bench
from loadtest.load import wrk
from loadtest.load.launch import CommandFailed
from loadtest.reports.report import RESULTS, keep, machine, origin, stored

SCENARIOS = (
    "saturated", "single", "protocols", "overload", "group", "deltas", "switchover", "neighbour", "observe", "useronce",
    "micro",
)  # fmt: skip
ON_DEMAND = ("precision", "layouts", "soak", "before", "chain")
SHOWN = ("rounds", "seconds", "micro_rounds", "table_rows", "quick", "minutes", "serve")
QUICK = {"rounds": 1, "seconds": 1.0, "micro_rounds": 11, "table_rows": 20_000}


def arguments() -> argparse.ArgumentParser:
    d = Bench(Path(), print)
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    add = parser.add_argument
    add("--only", default="", help=f"scenarios, separated by commas: {', '.join((*SCENARIOS, *ON_DEMAND))}")
    add("--rounds", type=int, help=f"turns of each side [{d.rounds}]")
    add("--seconds", type=float, help=f"length of a turn [{d.seconds:g}]")
    add("--table-rows", type=int, help=f"rows of each of the 26 tables [{d.table_rows}]")
    add("--minutes", type=float, default=d.minutes, help=f"length of the soak [{d.minutes:g}]")
    add("--serve", default="", metavar="OPTIONS", help='of the server in scenarios that need one, as "--workers 2"')
    add("--before", type=Path, metavar="CHECKOUT", help="scenario before: what this checkout is compared with")
    add("--quick", action="store_true", help="one short turn each: shows that everything works, measures nothing")
    add("--out", type=Path, default=RESULTS, help="folder of the reports")
    return parser


def main() -> int:
    """Returns 0; 1 when a scenario could not be run; 2 when none could. A goal that was not met is reported, and
    is no error."""
    options = vars(arguments().parse_args())
    out, only = options.pop("out"), [n.strip() for n in options.pop("only").split(",") if n.strip()]
    if stray := set(only) - {*SCENARIOS, *ON_DEMAND}:
        print(f"--only: unknown scenario {sorted(stray)[0]!r}", file=sys.stderr)
        return 2
    try:
        wrk.available()
    except CommandFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    options["serve"] = tuple(shlex.split(options["serve"]))
    given = {name: value for name, value in options.items() if value is not None}
    given = {**(QUICK if given["quick"] else {}), **given}
    console, made = Console(stderr=True, highlight=False), origin("bench", "BENCH_ARGS", sys.argv[1:])
    failed, began_s = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as folder:
        bench = Bench(Path(folder), lambda line: console.print(f"  {line}", markup=False), **given)
        for name in only or SCENARIOS:
            console.print(f"[bold]{name}[/bold] ({time.monotonic() - began_s:.0f} s)")
            facts = machine()
            bench.laid_out = {}
            try:
                result = importlib.import_module(f"loadtest.bench.scenarios.{name}").run(bench)
            except (CommandFailed, ValueError) as error:
                failed.append(name)
                console.print(f"{name}: {error}", style="red", markup=False)
                continue
            about = {
                "machine": facts,
                "settings": {name: getattr(bench, name) for name in SHOWN},
                "layouts": bench.laid_out,
                "origin": made,
            }
            keep(out, "bench", {**result.document(), **about}, (*SCENARIOS, *ON_DEMAND), markdown)
    results = stored(out, "bench").get("results", [])
    print(summary(results))
    if short := unmet(results):
        print("\nshort of their goal:", *short, sep="\n- ")
    print(f"\n{time.monotonic() - began_s:.0f} s" + (f"; could not be run: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
