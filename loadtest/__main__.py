"""python -m loadtest: a server of its own under load and deltas, every score checked, and a report."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from loadtest.live.run import PUBLISH, RunSettings, name_of, run, write_report
from loadtest.load.launch import CommandFailed
from loadtest.reports.report import freshness_lines, passed


def arguments() -> argparse.ArgumentParser:
    d = RunSettings()
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="Serves the benchmark's model on loopback, sends predict requests from many users while "
        "deltas arrive, checks every score against the generation that its reply names, and writes a report.",
    )
    add = parser.add_argument
    add("--seconds", type=int, default=d.seconds, help=f"how long the load lasts [{d.seconds}]")
    add("--users", type=int, default=d.users, help=f"users that predict [{d.users}]")
    add("--rows", type=int, default=d.rows, help=f"candidates a request [{d.rows}]")
    add("--table-rows", type=int, default=d.table_rows, help=f"rows of each table [{d.table_rows}]")
    add("--delta-rows", type=int, default=d.delta_rows, help=f"changed rows a delta [{d.delta_rows}]")
    add("--delta-every-s", type=float, default=d.delta_every_s, help=f"pace of deltas [{d.delta_every_s:g}]")
    add("--publish", choices=PUBLISH, default=d.publish, help="admin API, folder, or half and half [both]")
    add("--json-share", type=float, default=d.json_share, help=f"TFS JSON's share [{d.json_share:g}]")
    add("--rate", type=float, default=d.rate, help="requests/s of all users; 0: as fast as replies come [0]")
    add("--serve", default="", metavar="OPTIONS", help='more options for freshet serve, as "--sessions 4"')
    add("--out", type=Path, default=Path("loadtest/results"), help="folder of reports [loadtest/results]")
    add("--name", default="", help="the report's name [loadtest, with the rate where there is one]")
    return parser


def main() -> int:
    """Returns 0; 1 when requests failed, replies were mixed, deltas were lost or it ended before its time; 2 when the
    test could not run."""
    options = vars(arguments().parse_args())
    out, name = options.pop("out"), options.pop("name")
    options["serve"] = tuple(shlex.split(options["serve"]))
    try:
        settings = RunSettings(**options)
        summary = run(settings, lambda line: print(line, file=sys.stderr, flush=True), sys.argv[1:])
    except (CommandFailed, ValueError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    page = write_report(summary, out, name or name_of(settings))
    latency = summary["latency_ms"]["all"]
    print(
        f"{summary['requests']} requests, {summary['requests_per_s']:g}/s, {summary['failed']} failed, "
        f"{summary['mixed']} mixed; p50 {latency['p50']:.2f} ms, p99 {latency['p99']:.2f} ms"
    )
    print(*freshness_lines(summary["freshness_ms"], summary["deltas_never_served"]), f"report: {page}", sep="\n")
    return 0 if passed(summary) else 1


if __name__ == "__main__":
    sys.exit(main())
