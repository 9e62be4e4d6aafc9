"""64 candidates a request, saturated: what `freshet compile` chooses, by precision, against the bare loop in float32.

Rows of practice are requests of the benchmark, put into the version as recorded ones are. The bare loop is
`saturated`'s: float32 as published, as many processes as the server has, perfect batches and nothing around them.
"""

from __future__ import annotations

import contextlib
import functools

from freshet_serving.processor.machine import this_machine
from loadtest.bench.harness import CORES, LAYOUTS, Bench, Result, ServerSide, compile_with_practice
from loadtest.bench.scenarios.saturated import CANDIDATES, add_rates, bare_loop
from loadtest.load.launch import RunningServer
from loadtest.load.payload import bench_inputs
from loadtest.load.sides import over

GOAL = 2.0
PRACTICE_REQUESTS = 32
PRECISIONS = ("float32", "bfloat16", "int8", "auto")
BARE = "bare float32 loop"


def run(bench: Bench) -> Result:
    """The default layout's server on a version of each precision, and the bare loop."""
    title = f"{CANDIDATES} candidates a request, saturated, by precision: server / bare float32 loop"
    result, workers = Result("precision", title), LAYOUTS[0].workers

    def turn(server: RunningServer) -> dict[str, float]:
        return {"requests/s": bench.saturate(server, CANDIDATES).per_s}

    with contextlib.ExitStack() as stack:
        sides = {BARE: bare_loop(bench, stack, max(1, CORES // workers), workers)}
        for precision in PRECISIONS:
            repository = bench.copied(f"repository-{precision}")
            bench.say(f"compiling in {precision}")
            practice = bench_inputs(CANDIDATES, PRACTICE_REQUESTS, bench.table_rows)
            chosen = compile_with_practice(repository / "bench" / "1", practice, precision)
            result.fact(f"{precision}: executables", chosen)
            server = stack.enter_context(bench.server(ServerSide(precision, workers=workers), repository))
            sides[precision] = functools.partial(turn, server)
        turns = bench.turns(sides)
    for precision in PRECISIONS:
        goal = (">=", GOAL) if precision == "auto" and this_machine().int8 else None
        result.row(f"{precision} / {BARE}", over(turns, precision, BARE, "requests/s"), goal)
    add_rates(result, turns)
    result.notes.append(f"This processor multiplies int8 by {this_machine().int8 or 'nothing of its own'}.")
    return result
