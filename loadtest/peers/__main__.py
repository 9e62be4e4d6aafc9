"""`make -C loadtest peers`: every peer installed, tuned, checked and measured against Freshet.

A peer's result replaces its last one in loadtest/results/peers.json. A peer that cannot be run here is reported with
its reason.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from loadtest.load import wrk
from loadtest.load.launch import CommandFailed, serving
from loadtest.peers.measure import GOALS, PeerBench, PeerSettings, write_compiled, write_model
from loadtest.peers.peers_report import markdown, summary, unmet
from loadtest.peers.roster import PEERS, chosen
from loadtest.reports.report import RESULTS, begun, keep, stored

VENVS = Path(".peers")
QUICK = {"rounds": 1, "seconds": 2.0, "table_rows": 20_000}


def arguments() -> argparse.ArgumentParser:
    d = PeerSettings()
    parser = argparse.ArgumentParser(prog="python -m loadtest.peers", description=__doc__)
    add = parser.add_argument
    add("--only", default="", help=f"peers, separated by spaces: {' '.join(peer.name for peer in PEERS)}")
    add("--rounds", type=int, help=f"turns of each side [{d.rounds}]")
    add("--seconds", type=float, help=f"length of a turn [{d.seconds:g}]")
    add("--table-rows", type=int, help=f"rows of each of the 26 tables [{d.table_rows}]")
    add("--serve", default="", metavar="OPTIONS", help='more options for freshet serve, as "--workers 2"')
    add(
        "--compiled",
        action="store_true",
        help="also Freshet on what `freshet compile` chooses, the peer in float32: each as its users have it",
    )
    add("--quick", action="store_true", help="one short turn each: shows that everything works, measures nothing")
    add("--venvs", type=Path, default=VENVS, help=f"folder of the environments [{VENVS}]")
    add("--python", default=sys.executable, help="the interpreter that environments are made with [this one]")
    add("--out", type=Path, default=RESULTS, help="folder of the report")
    return parser


def main() -> int:
    """Returns 0; 1 when a peer could not be run; 2 when nothing could."""
    options = vars(arguments().parse_args())
    out, only, venvs = options.pop("out"), options.pop("only"), options.pop("venvs").resolve()
    interpreter = options.pop("python")
    options["serve"] = tuple(shlex.split(options["serve"]))
    given = {name: value for name, value in options.items() if value is not None}
    settings = PeerSettings(**{**(QUICK if given["quick"] else {}), **given})
    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        console.print(f"  {line}", markup=False)

    try:
        wrk.available()
        peers = chosen(only)
        with tempfile.TemporaryDirectory(prefix="freshet-peers-") as folder:
            work = Path(folder)
            say(f"writing a model of 26 tables of {settings.table_rows} rows")
            write_model(work / "repository", settings.table_rows)
            chosen_by_bucket = ""
            if settings.compiled:
                say("compiling it")
                chosen_by_bucket = write_compiled(work / "repository", work / "compiled", settings.table_rows)
            for peer in peers:
                console.print(f"[bold]{peer.name}[/bold]")
                about, refused, variants, layout = begun("peers"), "", [], ""
                with contextlib.ExitStack() as stack:
                    kinds = ("repository", "compiled") if settings.compiled else ("repository",)
                    servers = [
                        stack.enter_context(serving(work / kind, work / f"{kind}.log", list(settings.serve)))
                        for kind in kinds
                    ]
                    server, compiled = servers[0], servers[1] if settings.compiled else None
                    arena = PeerBench(work, work / "repository", server, settings, say, compiled)
                    try:
                        variants = arena.measure(peer, venvs, interpreter)
                    except (CommandFailed, subprocess.TimeoutExpired) as error:
                        refused = str(error)
                        say(f"could not be run: {refused}")
                    layout = server.layout
                result = {
                    "name": peer.name,
                    "refused": refused,
                    "variants": variants,
                    "layout": layout,
                    "compiled": chosen_by_bucket,
                    "settings": asdict(settings),
                    "goals": {str(n): goal for n, goal in GOALS.items()},
                }
                keep(out, "peers", about | result, [each.name for each in PEERS], markdown)
    except (CommandFailed, ValueError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    results = stored(out, "peers").get("results", [])
    print(summary(results))
    if short := unmet(results):
        print("\nshort of their goal:", *short, sep="\n- ")
    return 1 if any(r["refused"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
