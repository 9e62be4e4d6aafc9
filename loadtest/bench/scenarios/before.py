"""Measures this checkout against another one of the same project: processor time a request, starts and memory.

`make bench BENCH_ARGS="--only before --before ../old"`. Both checkouts run under this interpreter, each on packages
that it wrote itself, and take turns while both are up: the server in every chosen layout, at 1 and 64
candidates, and the engine as a library without a server, with the benchmark's model and with one that is divided by its
user features; then starts of one process, from the command until it is ready, and what it holds then. Processor time,
and not throughput: what neighbours on a shared machine take is not in it. `--layouts none` leaves the servers out.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from loadtest.bench.harness import CORES, Bench, Result, Row, ServerSide
from loadtest.load import wrk
from loadtest.load.launch import CommandFailed, RunningServer, environment, serving
from loadtest.load.processes import cpu_s, pss_nbytes, tree
from loadtest.load.sides import Side, Turns, compare, interval, ratio, values

HERE = Path(__file__).parents[3]
PROGRAM = Path(__file__).parents[1] / "engine_time.py"
LAYOUTS = (
    ServerSide("1 process, threads", ("--workers", "1", "--compute", "threads")),
    ServerSide("1 process, inline", ("--workers", "1", "--compute", "inline")),
    ServerSide(f"{CORES} workers, inline", ("--workers", str(CORES), "--compute", "inline"), CORES),
)
CONNECTIONS = {1: 128, 64: 32}
ENGINES = (("micro", "bench", 1), ("micro", "bench", 64), ("useronce", "once_32", 256))
NAMES = {1: "single", 64: "saturated"}
# The engine takes short turns, many of them: a shared machine changes its speed within seconds.
ENGINE_SECONDS, ENGINE_ROUNDS = 0.2, 8
GOAL = 1.02
FIGURE = "us of processor time a request"
START, MEMORY = "s of processor time until ready", "MB when ready"


def run(bench: Bench) -> Result:
    """Every layout and the engine, now over before; raises ValueError without another checkout."""
    if bench.before is None or not (bench.before / "serving").is_dir():
        raise ValueError("before: expected another checkout, as in --before ../old")
    result = Result("before", "This checkout / another one: processor time a request, starts and memory")
    trees = {"now": HERE, "before": bench.before.resolve()}
    written = {name: _written(bench, name, tree) for name, tree in trees.items()}
    for layout in LAYOUTS:
        if bench.only_layouts and layout.name not in bench.only_layouts:
            continue
        with contextlib.ExitStack() as stack:
            servers = {
                name: stack.enter_context(_server(bench, layout, tree, written[name])) for name, tree in trees.items()
            }
            for candidates in CONNECTIONS:
                sides = [Side(n, partial(_turn, bench, s, candidates)) for n, s in servers.items()]
                what = f"{NAMES[candidates]}: {layout.name}, {candidates} candidates"
                bench.say(what)
                _add(result, what, compare(sides, bench.rounds, bench.say), FIGURE)
    for scenario, model, candidates in ENGINES:
        with contextlib.ExitStack() as stack:
            engines = {
                name: stack.enter_context(_engine(bench, tree, written[name], model, candidates))
                for name, tree in trees.items()
            }
            sides = [Side(n, partial(_asked, e)) for n, e in engines.items()]
            rounds = bench.rounds * ENGINE_ROUNDS
            what = f"{scenario}: engine inline, {candidates} candidates"
            bench.say(what)
            _add(result, what, compare(sides, rounds, bench.say), FIGURE)
    bench.say("starts")
    sides = [Side(n, partial(_started, bench, tree, written[n])) for n, tree in trees.items()]
    starts = compare(sides, bench.rounds, bench.say)
    for figure in (START, MEMORY):
        _add(result, f"start of one process: {figure}", starts, figure)
    result.notes.append("From, to: the 95 % interval of the median over rounds, by order statistics.")
    return result


def _add(result: Result, what: str, turns: Turns, figure: str) -> None:
    now, before = values(turns, "now", figure), values(turns, "before", figure)
    result.rows.append(Row(what, interval(now, before), ("<=", GOAL)))
    medians = f"{statistics.median(now):.4g} / {statistics.median(before):.4g} {figure.split()[0]}"
    result.facts.append((what, f"{medians}; upper quartile of the ratio {ratio(now, before).high:.3f}"))


def _started(bench: Bench, checkout: Path, repository: Path) -> dict[str, float]:
    """A start of one process, and its memory before the first request."""
    with _server(bench, LAYOUTS[1], checkout, repository) as server:
        processes = tree(server.pid)
        return {START: cpu_s(processes), MEMORY: pss_nbytes(processes) / 1e6}


def _written(bench: Bench, name: str, checkout: Path) -> Path:
    """The benchmark's model and those of useronce, written by a checkout."""
    path = bench.work / f"repository-{name}"
    if not path.exists():
        bench.say(f"{name}: writing models of {bench.table_rows} rows a table")
        rows = str(bench.table_rows)
        for command in (
            ["freshet_serving", "bench", "model", "--rows", rows, "--repository", str(path)],
            ["loadtest.bench.bench_useronce", str(path), "--table-rows", rows],
        ):
            done = subprocess.run(
                [sys.executable, "-m", *command],
                cwd=checkout,
                env=environment(checkout),
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise CommandFailed(f"{name}: models could not be written: {done.stderr.strip()[-300:]}")
    return path


@contextlib.contextmanager
def _server(bench: Bench, layout: ServerSide, checkout: Path, repository: Path) -> Iterator[RunningServer]:
    log = bench.work / f"{checkout.name}.log"
    with serving(repository, log, list(layout.options), checkout) as server:
        yield server


def _turn(bench: Bench, server: RunningServer, candidates: int) -> dict[str, float]:
    before_s = cpu_s(tree(server.pid))
    found = wrk.saturate(server.http_port, bench.payload(candidates), bench.seconds, CONNECTIONS[candidates])
    return {FIGURE: (cpu_s(tree(server.pid)) - before_s) / found.requests * 1e6}


@contextlib.contextmanager
def _engine(
    bench: Bench, checkout: Path, repository: Path, model: str, candidates: int
) -> Iterator[subprocess.Popen[str]]:
    """engine_time.py in a process of the checkout's own, ready."""
    arguments = (repository, model, candidates, bench.table_rows, ENGINE_SECONDS)
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=checkout, env=environment(checkout)
    )
    try:
        _asked(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def _asked(process: subprocess.Popen[str]) -> dict[str, float]:
    """One more turn of an engine."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise CommandFailed("the engine of a checkout ended")
    return {FIGURE: float(line)}
