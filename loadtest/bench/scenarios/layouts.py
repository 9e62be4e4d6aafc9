"""The default layout against the best of all: saturated at 1, 64 and 512 candidates, and at light load.

Every layout is up the whole time and they take turns, so each meets the same minutes of the machine. The best layout is
the one with the best median, and may be another for each load. What the default costs is told beside one process, which
was the default before: memory, start-up, and what a saturated neighbour does to another model's tail.
"""

from __future__ import annotations

import contextlib
from functools import partial

from loadtest.bench.harness import LAYOUTS, Bench, Result, ServerSide, quantiles
from loadtest.bench.scenarios.neighbour import A_CANDIDATES, A_LOAD, A, beside, two_models
from loadtest.load import wrk
from loadtest.load.launch import RunningServer
from loadtest.load.processes import pss_nbytes, tree
from loadtest.load.sides import Turns, medians, over

CANDIDATES = (1, 64, 512)
CONNECTIONS = 16
LIGHT = 0.1
GOAL = 0.95
# As long again as what the default may lose: nothing is measured closer.
NEIGHBOUR_GOAL = 1.05
BOTH = (ServerSide("default"), ServerSide("one process", ("--workers", "1")))
STARTS = 5


def run(bench: Bench) -> Result:
    """The default over the best of all, at every load; then its costs over those of one process."""
    result = Result("layouts", "The default layout / the best of all layouts")
    with contextlib.ExitStack() as stack:
        started = {s.name: server for s, server in bench.start_all(stack, LAYOUTS, result)}
        for candidates in CANDIDATES:

            def saturated(server: RunningServer, candidates: int = candidates) -> dict[str, float]:
                found = wrk.saturate(server.http_port, bench.payload(candidates), bench.seconds, CONNECTIONS)
                return {"requests/s": found.per_s, "p99 ms": found.latency_ms["p99"]}

            turns = bench.turns({name: partial(saturated, server) for name, server in started.items()})
            _against_best(result, turns, "requests/s", f"{candidates} candidates, saturated")
            rate = LIGHT * max(medians(turns, name, "requests/s")[0] for name in started)

            def light(server: RunningServer, candidates: int = candidates, rate: float = rate) -> dict[str, float]:
                return quantiles(bench.openloop(server, candidates, rate))

            turns = bench.turns({name: partial(light, server) for name, server in started.items()})
            _against_best(result, turns, "p50 ms", f"{candidates} candidates, light load")
    _costs(bench, result)
    _neighbour(bench, result)
    result.notes.append(
        f"Saturated: {CONNECTIONS} connections of wrk, requests a second. Light: {LIGHT:.0%} of the best of that, open "
        "loop, by the median latency, its inverse."
    )
    return result


def _against_best(result: Result, turns: Turns, figure: str, what: str) -> None:
    """The default, which comes first, over the best by the median of a figure: more requests, or fewer milliseconds."""
    default, more = next(iter(turns)), figure == "requests/s"
    found = {name: medians(turns, name, figure)[0] for name in turns}
    best = max(found, key=lambda name: found[name] if more else -found[name])
    sides = (default, best) if more else (best, default)
    result.row(f"{what}: {default} / {best}", over(turns, *sides, figure), (">=", GOAL))
    for name, median in found.items():
        p99 = medians(turns, name, "p99 ms")[0]
        result.fact(f"{what}: {name}", f"{figure} {median:.4g}, p99 {p99:.2f} ms")


def _costs(bench: Bench, result: Result) -> None:
    """Seconds until ready, and memory once every worker has computed."""

    def turn(side: ServerSide) -> dict[str, float]:
        with bench.server(side) as server:
            wrk.saturate(server.http_port, bench.payload(64), 1.0, CONNECTIONS)
            return {"ready s": server.ready_s, "MiB": pss_nbytes(tree(server.pid)) / 2**20}

    turns = bench.turns({side.name: partial(turn, side) for side in BOTH}, min(bench.rounds, STARTS))
    for figure, what in (("ready s", "start-up"), ("MiB", "memory (proportional set size)")):
        result.row(f"{what}: default / one process", over(turns, "default", "one process", figure))
        for name in turns:
            result.fact(f"{what}: {name}", f"{medians(turns, name, figure)[0]:.4g} {figure.split()[-1]}")


def _neighbour(bench: Bench, result: Result) -> None:
    """The tail of a model with a saturated one beside it: the default over one process."""
    repository = two_models(bench)
    with contextlib.ExitStack() as stack:
        servers = {side.name: stack.enter_context(bench.server(side, repository)) for side in BOTH}
        rate = A_LOAD * min(bench.saturate(server, A_CANDIDATES, A).per_s for server in servers.values())

        def turn(server: RunningServer) -> dict[str, float]:
            return quantiles(beside(bench, server, rate, saturated=True))

        turns = bench.turns({name: partial(turn, server) for name, server in servers.items()})
    for figure in ("p50", "p99"):
        row = f"{figure} beside a saturated model"
        result.row(
            f"{row}: default / one process",
            over(turns, "default", "one process", f"{figure} ms"),
            ("<=", NEIGHBOUR_GOAL),
        )
        for name in turns:
            result.fact(f"{row}: {name}", f"{medians(turns, name, f'{figure} ms')[0]:.2f} ms")
