"""64 candidates a request, saturated: the server against the bare loop.

The bare loop has the same kernels, executables and number of computing threads or processes, perfect batches, and
no server, no client, no bytes on a socket: nothing that serves can be faster. That is the headline, and it is harsh,
for wrk runs on the same cores as the server. So the processor time that wrk took is measured, and a second ratio is
given against the bare loop scaled to the cores that wrk left.
"""

from __future__ import annotations

import contextlib
import functools
import resource

from loadtest.bench.compute import ComputeProcesses
from loadtest.bench.harness import CORES, LAYOUTS, Bench, Result
from loadtest.load.launch import RunningServer
from loadtest.load.sides import Turn, Turns, medians, ratio, values

CANDIDATES = 64
GOAL = 0.95


def run(bench: Bench) -> Result:
    """Every layout of the server against the bare loop laid out alike."""
    result = Result("saturated", f"{CANDIDATES} candidates a request, saturated: server / bare loop")
    with contextlib.ExitStack() as stack:
        started = bench.start_all(stack, LAYOUTS, result)
        sides: dict[str, Turn] = {}

        def bare(threads: int, processes: int) -> str:
            name = f"bare loop, {threads} threads" if processes == 1 else f"bare loop, {processes} processes"
            sides[name] = bare_loop(bench, stack, threads, processes)
            return name

        loops = {1: bare(CORES, 1)}
        for workers in {side.workers for side, _ in started} - {1}:
            loops[workers] = bare(max(1, CORES // workers), workers)
        turns = bench.turns(sides | {s.name: functools.partial(_turn, bench, server) for s, server in started})
    for side, _ in started:
        made, possible = (values(turns, name, "requests/s") for name in (side.name, loops[side.workers]))
        left = [p * (1 - c / CORES) for p, c in zip(possible, values(turns, side.name, "wrk cores"))]
        result.row(f"{side.name} / bare loop alone", ratio(made, possible), (">=", GOAL))
        result.row(f"{side.name} / bare loop on the cores that wrk left", ratio(made, left))
    add_rates(result, turns)
    result.notes.append(
        "The bare loop computes perfect batches with nothing around it; wrk shares the cores with the servers only."
    )
    return result


def bare_loop(bench: Bench, stack: contextlib.ExitStack, threads: int, processes: int) -> Turn:
    """Starts bare loops; returns their turn."""
    words = ("bare", bench.repository(), CANDIDATES, bench.table_rows, threads, processes)
    loop = stack.enter_context(ComputeProcesses(*words))
    return lambda: {"requests/s": loop.measure(bench.seconds)}


def add_rates(result: Result, turns: Turns) -> None:
    for name in turns:
        (rate,) = medians(turns, name, "requests/s")
        result.fact(name, f"{rate:.0f} requests/s, {rate * CANDIDATES:.0f} candidates/s")


def _turn(bench: Bench, server: RunningServer) -> dict[str, float]:
    before = _children_s()
    run = bench.saturate(server, CANDIDATES)
    cores = (_children_s() - before) / run.seconds
    return {"requests/s": run.per_s, "p99 ms": run.latency_ms["p99"], "wrk cores": cores}


def _children_s() -> float:
    """Processor time of the children that have ended, wrk's among them; servers have not."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
