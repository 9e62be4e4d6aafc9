"""A SessionGroup of 2 against one session: throughput, and what a further session costs in memory."""

from __future__ import annotations

import contextlib
import functools

from loadtest.bench.compute import ComputeProcesses
from loadtest.bench.harness import Bench, Result, ServerSide
from loadtest.load.launch import RunningServer
from loadtest.load.processes import pss_nbytes, tree
from loadtest.load.sides import Ratio, Turn, medians, over, ratio

CANDIDATES = 64
GOAL = 1.8
MEMORY_GOAL = 0.02
MANY = 5
SIZES = (1, 2)


def run(bench: Bench) -> Result:
    """The engine as a library, where nothing but sessions computes; and servers, which share the cores with wrk."""
    result = Result("group", "SessionGroup of 2 / one session")

    def computed(engine: ComputeProcesses) -> dict[str, float]:
        return {"requests/s": engine.measure(bench.seconds)}

    def served(server: RunningServer) -> dict[str, float]:
        return {"requests/s": bench.saturate(server, CANDIDATES).per_s}

    with contextlib.ExitStack() as stack:
        sides: dict[str, Turn] = {}
        for n in SIZES:
            engine = ComputeProcesses("engine", bench.repository(), CANDIDATES, bench.table_rows, n)
            sides[f"engine, {n}"] = functools.partial(computed, stack.enter_context(engine))
        servers = bench.start_all(stack, [_server("server,", n) for n in SIZES], result)
        sides |= {side.name: functools.partial(served, server) for side, server in servers}
        turns = bench.turns(sides)
        memory = _memory(bench)
    for kind, goal in (("engine", (">=", GOAL)), ("server", None)):
        found = over(turns, f"{kind}, {SIZES[1]}", f"{kind}, {SIZES[0]}", "requests/s")
        result.row(f"{kind}: requests/s with 2 sessions / with 1", found, goal)
    result.row("memory of a further session / model", memory, ("<=", MEMORY_GOAL))
    for name in turns:
        result.fact(name, f"{medians(turns, name, 'requests/s')[0]:.0f} requests/s")
    result.notes.append(f"Memory: proportional set size after load of a server with {MANY} sessions, less one with 1.")
    return result


def _server(name: str, sessions: int) -> ServerSide:
    return ServerSide(f"{name} {sessions}", ("--workers", "1", "--sessions", str(sessions)))


def _memory(bench: Bench) -> Ratio:
    """What one more session adds, as a share of the model's files."""
    version = bench.repository() / "bench" / "1"
    model = sum(p.stat().st_size for p in (*version.glob("tables/*"), version / "dense.safetensors"))
    found = []
    for _ in range(min(bench.rounds, 3)):
        used = []
        for n in (1, MANY):
            with bench.server(_server("memory", n)) as server:
                bench.saturate(server, CANDIDATES)
                used.append(pss_nbytes(tree(server.pid)))
        found.append(max(0, used[1] - used[0]) / (MANY - 1))
        bench.say(f"memory of a further session: {found[-1] / 2**20:.1f} MiB of a model of {model / 2**20:.0f} MiB")
    return ratio(found, [model] * len(found))
