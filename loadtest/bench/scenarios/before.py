"""Measures this checkout against another one of the same project: processor time a request, starts and memory.

`make bench BENCH_ARGS="--only before --before ../old"`. Both checkouts run under this interpreter, each on packages
that it wrote itself, and take turns while both are up: the server in every chosen layout, at 1 and 64
candidates, and the engine as a library without a server, with the benchmark's model and with one that is divided by its
user features; then starts of one process, from the command until it is ready, and what it holds then. Processor time,
and not throughput: what neighbours on a shared machine take is not in it.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from functools import partial
from pathlib import Path

from loadtest.bench.harness import CORES, Bench, Result, ServerSide
from loadtest.load import wrk
from loadtest.load.launch import LineProcess, RunningServer, environment, serving
from loadtest.load.processes import cpu_s, pss_nbytes, tree
from loadtest.load.sides import Turn, interval, ratio, values

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

    def compared(what: str, sides: dict[str, Turn], figures: tuple[str, ...] = (FIGURE,), rounds: int = 0) -> None:
        bench.say(what)
        turns = bench.turns(sides, rounds)
        for figure in figures:
            named = what if figure == FIGURE else f"{what}: {figure}"
            now, before = values(turns, "now", figure), values(turns, "before", figure)
            result.row(named, interval(now, before), ("<=", GOAL))
            middle = f"{statistics.median(now):.4g} / {statistics.median(before):.4g} {figure.split()[0]}"
            result.fact(named, f"{middle}; upper quartile of the ratio {ratio(now, before).high:.3f}")

    for layout in LAYOUTS:
        with contextlib.ExitStack() as stack:
            servers = {n: stack.enter_context(_server(bench, layout, trees[n], written[n])) for n in trees}
            for candidates in CONNECTIONS:
                sides: dict[str, Turn] = {n: partial(_turn, bench, s, candidates) for n, s in servers.items()}
                compared(f"{NAMES[candidates]}: {layout.name}, {candidates} candidates", sides)
    for scenario, model, candidates in ENGINES:
        with contextlib.ExitStack() as stack:
            sides = {}
            for name, tree in trees.items():
                words = map(str, (written[name], model, candidates, bench.table_rows, ENGINE_SECONDS))
                engine = LineProcess(
                    [sys.executable, str(PROGRAM), *words], "a checkout's engine", cwd=tree, env=environment(tree)
                )
                sides[name] = partial(_asked, stack.enter_context(engine))
                sides[name]()
            what = f"{scenario}: engine inline, {candidates} candidates"
            compared(what, sides, rounds=bench.rounds * ENGINE_ROUNDS)
    sides = {name: partial(_started, bench, tree, written[name]) for name, tree in trees.items()}
    compared("start of one process", sides, (START, MEMORY))
    result.notes.append("From, to: the 95 % interval of the median over rounds, by order statistics.")
    return result


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
        sized = ("--rows", bench.table_rows, "--repository", path)
        bench.run_python(checkout, "freshet_serving", "bench", "model", *sized)
        bench.run_python(checkout, "loadtest.bench.bench_useronce", path, "--table-rows", bench.table_rows)
    return path


def _server(
    bench: Bench, layout: ServerSide, checkout: Path, repository: Path
) -> contextlib.AbstractContextManager[RunningServer]:
    return serving(repository, bench.work / f"{checkout.name}.log", list(layout.options), checkout)


def _turn(bench: Bench, server: RunningServer, candidates: int) -> dict[str, float]:
    before_s = cpu_s(tree(server.pid))
    found = wrk.saturate(server.http_port, bench.payload(candidates), bench.seconds, CONNECTIONS[candidates])
    return {FIGURE: (cpu_s(tree(server.pid)) - before_s) / found.requests * 1e6}


def _asked(engine: LineProcess) -> dict[str, float]:
    """One more turn of an engine (engine_time.py), in a process of the checkout's own."""
    return {FIGURE: float(engine.ask(""))}
