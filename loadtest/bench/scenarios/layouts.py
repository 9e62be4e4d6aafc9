"""The default layout against the best of all: saturated at 1, 64 and 512 candidates, and at light load.

Every layout is up the whole time and they take turns, so each meets the same minutes of the machine. The best layout is
the one with the best median, and may be another for each load. What the default costs is told beside one process, which
was the default before: memory, start-up, and what a saturated neighbour does to another model's tail.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Sequence

from loadtest.bench.harness import Bench, Result, Row, ServerSide
from loadtest.bench.scenarios.neighbour import A_CANDIDATES, A_LOAD, A, beside, two_models
from loadtest.load import wrk
from loadtest.load.launch import RunningServer
from loadtest.load.processes import pss_nbytes, tree
from loadtest.load.sides import Ratio, Side, Turns, compare, ratio, values

CANDIDATES = (1, 64, 512)
CONNECTIONS = 16
LIGHT = 0.1
GOAL = 0.95
# As long again as what the default may lose: nothing is measured closer.
NEIGHBOUR_GOAL = 1.05
BEFORE = ServerSide("one process", ("--workers", "1"))
STARTS = 5

Started = Sequence[tuple[ServerSide, RunningServer]]


def run(bench: Bench) -> Result:
    """The default over the best of all, at every load; then its costs over those of one process."""
    result = Result("layouts", "The default layout / the best of all layouts")
    with contextlib.ExitStack() as stack:
        started = bench.start_all(stack, bench.layouts(), result)
        default = started[0][0].name
        for candidates in CANDIDATES:
            turns = _turns(bench, started, functools.partial(_saturated, bench, candidates))
            _against_best(result, turns, default, "requests/s", f"{candidates} candidates, saturated", more=True)
            most = max(statistics.median(values(turns, side.name, "requests/s")) for side, _ in started)
            turns = _turns(bench, started, functools.partial(_light, bench, candidates, LIGHT * most))
            _against_best(result, turns, default, "p50 ms", f"{candidates} candidates, light load", more=False)
    _costs(bench, result)
    _neighbour(bench, result)
    result.notes.append(
        f"Saturated: {CONNECTIONS} connections of wrk, requests a second. Light: {LIGHT:.0%} of the best of that, open "
        "loop, by the median latency, its inverse."
    )
    return result


def _turns(bench: Bench, started: Started, turn: Callable[[RunningServer], dict[str, float]]) -> Turns:
    return compare(
        [Side(side.name, functools.partial(turn, server)) for side, server in started], bench.rounds, bench.say
    )


def _saturated(bench: Bench, candidates: int, server: RunningServer) -> dict[str, float]:
    found = wrk.saturate(server.http_port, bench.payload(candidates), bench.seconds, CONNECTIONS)
    return {"requests/s": found.per_s, "p99 ms": found.latency_ms["p99"]}


def _light(bench: Bench, candidates: int, rate: float, server: RunningServer) -> dict[str, float]:
    found = bench.openloop(server, candidates, rate)
    return {"p50 ms": found.latency_ms["p50"], "p99 ms": found.latency_ms["p99"], "requests/s": rate}


def _against_best(result: Result, turns: Turns, default: str, figure: str, what: str, more: bool) -> None:
    medians = {name: statistics.median(values(turns, name, figure)) for name in turns}
    best = max(medians, key=lambda name: medians[name] if more else -medians[name])
    sides = (default, best) if more else (best, default)
    found = ratio(*(values(turns, name, figure) for name in sides))
    result.rows.append(Row(f"{what}: {default} / {best}", found, (">=", GOAL)))
    for name, median in medians.items():
        p99 = statistics.median(values(turns, name, "p99 ms"))
        result.facts.append((f"{what}: {name}", f"{figure} {median:.4g}, p99 {p99:.2f} ms"))


def _costs(bench: Bench, result: Result) -> None:
    """Seconds until ready, and memory once every worker has computed."""

    def turn(side: ServerSide) -> dict[str, float]:
        with bench.server(side) as server:
            wrk.saturate(server.http_port, bench.payload(64), 1.0, CONNECTIONS)
            return {"ready s": server.ready_s, "MiB": pss_nbytes(tree(server.pid)) / 2**20}

    sides = (ServerSide("default"), BEFORE)
    turns = compare([Side(s.name, functools.partial(turn, s)) for s in sides], min(bench.rounds, STARTS), bench.say)
    for figure, what in (("ready s", "start-up"), ("MiB", "memory (proportional set size)")):
        found = {side.name: values(turns, side.name, figure) for side in sides}
        result.rows.append(Row(f"{what}: default / one process", ratio(found["default"], found[BEFORE.name])))
        for name, each in found.items():
            result.facts.append((f"{what}: {name}", f"{statistics.median(each):.4g} {figure.split()[-1]}"))


def _neighbour(bench: Bench, result: Result) -> None:
    """The tail of a model with a saturated one beside it: the default over one process."""
    repository = two_models(bench)
    with contextlib.ExitStack() as stack:
        servers = {s.name: stack.enter_context(bench.server(s, repository)) for s in (ServerSide("default"), BEFORE)}
        rate = A_LOAD * min(bench.saturate(server, A_CANDIDATES, A).per_s for server in servers.values())

        def turn(server: RunningServer) -> dict[str, float]:
            found = beside(bench, server, rate, saturated=True)
            return {"p50 ms": found.latency_ms["p50"], "p99 ms": found.latency_ms["p99"]}

        sides = [Side(name, functools.partial(turn, server)) for name, server in servers.items()]
        turns = compare(sides, bench.rounds, bench.say)
    for figure in ("p50 ms", "p99 ms"):
        found: Ratio = ratio(values(turns, "default", figure), values(turns, BEFORE.name, figure))
        row = f"{figure.split()[0]} beside a saturated model: default / one process"
        result.rows.append(Row(row, found, ("<=", NEIGHBOUR_GOAL)))
        for name in turns:
            result.facts.append(
                (f"{row.partition(':')[0]}: {name}", f"{statistics.median(values(turns, name, figure)):.2f} ms")
            )
