"""`make -C loadtest verdict-perf-analyzer`: Triton's perf_analyzer; loadtest/results/verdict-perf-analyzer.md.

perf_analyzer, Triton's own load generator in C++, asks `freshet serve` as it starts without options, over HTTP and over
gRPC, as it would ask Triton: it reads the model's metadata and configuration, keeps so many requests under way, and
repeats its windows until three of them agree within 30 percent. Beside it wrk sends binary KServe requests of the same
rows over as many connections: a judge of ours beside one of theirs, in turn. Each client takes its part of the same
cores.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from loadtest.bench import needs
from loadtest.bench.harness import Bench
from loadtest.load import wrk
from loadtest.load.launch import HOST, CommandFailed, RunningServer
from loadtest.load.payload import FLOATS, IDS, bench_inputs
from loadtest.load.sides import Side, compare, ratio, values
from loadtest.reports.report import machine, opening, origin

RESULTS = Path(__file__).parents[2] / "results"
CONNECTIONS = 32
CANDIDATES = (1, 64)
ROWS = 1024
PROTOCOLS = {"http": "HTTP", "grpc": "gRPC"}


@dataclass(frozen=True, slots=True)
class PerfAnalyzer:
    """perf_analyzer's program. libraries: folders of what it is linked with, in the form of LD_LIBRARY_PATH."""

    program: str
    libraries: str
    seconds: float

    def measure(self, port: int, protocol: str, candidates: int, connections: int, rows: Path) -> dict[str, float]:
        """Requests a second, and the median and 99th percentile that it reports; raises CommandFailed."""
        with TemporaryDirectory() as name:
            report = Path(name) / "report.csv"
            command = [self.program, "-m", "bench", "-u", f"{HOST}:{port}", "-i", protocol, "-b", str(candidates)]
            command += ["--concurrency-range", str(connections), "--input-data", str(rows), "-f", str(report)]
            # A shared machine is never as stable as the ten percent that it asks for by itself.
            command += ["--stability-percentage", "30", "--max-trials", "20"]
            command += ["--measurement-interval", str(round(self.seconds * 1000)), "--percentile", "99"]
            said = self._run(command)
            if said.returncode or not report.exists():
                lines = (said.stderr or said.stdout).strip().splitlines()
                raise CommandFailed(f"perf_analyzer: exit code {said.returncode}: {' '.join(lines[-2:])[:300]}")
            return read_report(report.read_text(), candidates)

    def version(self) -> str:
        """What it calls itself; raises CommandFailed."""
        said = self._run([self.program, "--version"])
        if said.returncode:
            raise CommandFailed(f"perf_analyzer: {said.stderr.strip() or said.stdout.strip()}")
        return said.stdout.strip().removeprefix("Perf Analyzer Version ").split(" ")[0]

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LD_LIBRARY_PATH": self.libraries}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def read_report(text: str, candidates: int) -> dict[str, float]:
    """The one line of perf_analyzer's CSV. It counts rows as inferences."""
    (line,) = csv.DictReader(text.splitlines())
    return {
        "requests/s": float(line["Inferences/Second"]) / candidates,
        "p50 ms": float(line["p50 latency"]) / 1e3,
        "p99 ms": float(line["p99 latency"]) / 1e3,
    }


def write_rows(path: Path, table_rows: int) -> Path:
    """Rows in perf_analyzer's own form; it takes as many of them for a request as the batch has."""
    (inputs,) = bench_inputs(ROWS, 1, table_rows)
    rows = [
        {"ids": {"content": ids, "shape": [IDS]}, "floats": {"content": floats, "shape": [FLOATS]}}
        for ids, floats in zip(inputs["ids"].tolist(), inputs["floats"].tolist())
    ]
    path.write_text(json.dumps({"data": rows}))
    return path


def page(results: dict[str, Any]) -> str:
    """verdict-perf-analyzer.md."""
    lines = opening("perf_analyzer as the judge", __doc__, results)
    lines += [
        f"perf_analyzer {results['version']}; layout: {results['layout']}; {CONNECTIONS} requests under way.",
        "",
        "| candidates | client | requests a second | p50 ms | p99 ms | over wrk's |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for candidates, turns in results["turns"].items():
        base = values(turns, "wrk", "requests/s")
        for name in turns:
            rate, p50, p99 = (statistics.median(values(turns, name, key)) for key in ("requests/s", "p50 ms", "p99 ms"))
            found = ratio(values(turns, name, "requests/s"), base)
            told = "1" if name == "wrk" else f"**{found.median:.2f}** ({found.low:.2f} to {found.high:.2f})"
            lines.append(f"| {candidates} | {name} | {rate:.0f} | {p50:.2f} | {p99:.2f} | {told} |")
    return "\n".join(lines) + "\n"


def verdicts(results: dict[str, Any]) -> list[str]:
    """A sentence for each number of candidates."""
    said = []
    for candidates, turns in results["turns"].items():
        rates = {name: statistics.median(values(turns, name, "requests/s")) for name in turns}
        told = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
        said.append(f"{candidates} candidates, requests a second: {told}.")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest verdict-perf-analyzer", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=2.0, help="of one of perf_analyzer's windows, and of wrk's turns")
    add("--program", default=os.environ.get("FRESHET_PERF_ANALYZER", ""), help="perf_analyzer")
    add(
        "--libraries",
        default=os.environ.get("FRESHET_PERF_ANALYZER_LIBRARIES", ""),
        help="folders of its libraries, separated by colons",
    )
    add("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if not arguments.program:
        needs.refuse("--program or FRESHET_PERF_ANALYZER is to name perf_analyzer's program")
    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        console.print(f"  {line}", markup=False)

    analyzer = PerfAnalyzer(arguments.program, arguments.libraries, arguments.seconds)
    results: dict[str, Any] = {
        "machine": machine(),
        "origin": origin("-C loadtest verdict-perf-analyzer", "ARGS", sys.argv[1:]),
        "version": analyzer.version(),
        "turns": {},
    }
    with TemporaryDirectory(prefix="freshet-verdict-") as name:
        bench = Bench(Path(name), say, seconds=arguments.seconds)
        rows = write_rows(Path(name) / "rows.json", bench.table_rows)
        with bench.server(bench.main) as server:
            results["layout"] = server.layout
            for candidates in CANDIDATES:
                say(f"{candidates} candidates a request")
                sides = _sides(bench, server, analyzer, candidates, rows)
                results["turns"][str(candidates)] = compare(sides, arguments.rounds, say)
    (arguments.out / "verdict-perf-analyzer.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "verdict-perf-analyzer.md").write_text(page(results))
    print(page(results))


def _sides(bench: Bench, server: RunningServer, analyzer: PerfAnalyzer, candidates: int, rows: Path) -> list[Side]:
    def ours() -> dict[str, float]:
        run = wrk.saturate(server.http_port, bench.payload(candidates), bench.seconds, CONNECTIONS)
        return {"requests/s": run.per_s, "p50 ms": run.latency_ms["p50"], "p99 ms": run.latency_ms["p99"]}

    def theirs(protocol: str) -> Side:
        port = server.http_port if protocol == "http" else server.grpc_port
        return Side(
            f"perf_analyzer, {PROTOCOLS[protocol]}",
            lambda: analyzer.measure(port, protocol, candidates, CONNECTIONS, rows),
        )

    return [Side("wrk", ours), *(theirs(protocol) for protocol in PROTOCOLS)]


if __name__ == "__main__":
    main()
