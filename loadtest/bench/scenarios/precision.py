"""64 candidates a request, saturated: what `freshet compile` chooses, by precision, against the bare loop in float32.

Rows of practice are requests of the benchmark, put into the version as recorded ones are. The bare loop is
`saturated`'s: float32 as published, as many processes as the server has, perfect batches and nothing around them.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from pathlib import Path

from freshet_serving.processor.machine import this_machine
from loadtest.bench.calibration_rows import compile_with_practice
from loadtest.bench.compute import computing
from loadtest.bench.harness import CORES, LAYOUTS, Bench, Result, Row, ServerSide
from loadtest.load.launch import RunningServer
from loadtest.load.payload import bench_inputs
from loadtest.load.sides import Side, compare, ratio, values

CANDIDATES = 64
GOAL = 2.0
PRACTICE_REQUESTS = 32
PRECISIONS = ("float32", "bfloat16", "int8", "auto")


def run(bench: Bench) -> Result:
    """The default layout's server on a version of each precision, and the bare loop."""
    title = f"{CANDIDATES} candidates a request, saturated, by precision: server / bare float32 loop"
    result, workers = Result("precision", title), LAYOUTS[0].workers
    threads = max(1, CORES // workers)
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(
            computing("bare", bench.repository(), CANDIDATES, bench.table_rows, threads, workers)
        )
        sides = [Side("bare float32 loop", lambda: {"requests/s": loop.measure(bench.seconds)})]
        for precision in PRECISIONS:
            repository, chosen = _compiled(bench, precision)
            result.facts.append((f"{precision}: executables", chosen))
            server = stack.enter_context(bench.server(ServerSide(precision, workers=workers), repository))
            sides.append(Side(precision, functools.partial(_turn, bench, server)))
        turns = compare(sides, bench.rounds, bench.say)
    possible = values(turns, sides[0].name, "requests/s")
    for precision in PRECISIONS:
        goal = (">=", GOAL) if precision == "auto" and this_machine().int8 else None
        made = ratio(values(turns, precision, "requests/s"), possible)
        result.rows.append(Row(f"{precision} / bare float32 loop", made, goal))
    for name, figures in turns.items():
        rate = statistics.median(f["requests/s"] for f in figures)
        result.facts.append((name, f"{rate:.0f} requests/s, {rate * CANDIDATES:.0f} candidates/s"))
    result.notes.append(f"This processor multiplies int8 by {this_machine().int8 or 'nothing of its own'}.")
    return result


def _turn(bench: Bench, server: RunningServer) -> dict[str, float]:
    run = bench.saturate(server, CANDIDATES)
    return {"requests/s": run.per_s, "p99 ms": run.latency_ms["p99"]}


def _compiled(bench: Bench, precision: str) -> tuple[Path, str]:
    """A copy of the repository, compiled; and what was chosen, as the command says it."""
    repository = bench.copied(f"repository-{precision}")
    bench.say(f"compiling in {precision}")
    practice = bench_inputs(CANDIDATES, PRACTICE_REQUESTS, bench.table_rows)
    return repository, compile_with_practice(repository / "bench" / "1", practice, precision)
