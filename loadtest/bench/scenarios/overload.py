"""Two and three times what the server can do, with deadlines: how much of what it answers is still of use."""

from __future__ import annotations

import functools
from typing import Any

from loadtest.bench.harness import CORES, Bench, Result, ServerSide
from loadtest.load.sides import medians, ratio, values

CANDIDATES = 64
DEADLINE_S = 0.1
FACTORS = (0.8, 0.9, 1.0, 1.1)
GOALS = {2.0: 0.8, 3.0: 0.9}
CONNECTIONS = 384
# Small requests on many connections: reading and refusing is most of the work, and most of the wait is the kernel's.
SMALL_GOALS, SMALL_CONNECTIONS = {1.2: 0.8, 2.0: 0.8}, 3000
ONE_PROCESS = ServerSide("freshet serve --workers 1", ("--workers", "1"))


def run(bench: Bench) -> Result:
    """Goodput (replies within the deadline, from when the request was due) at 2x and 3x saturation over the peak."""
    result = Result("overload", f"Goodput at twice and three times saturation, deadline {DEADLINE_S * 1e3:g} ms")
    for side in (bench.main,) if bench.serve else (bench.main, ONE_PROCESS):
        _measure(bench, side, result)
    if not bench.serve:
        _measure(bench, ONE_PROCESS, result, 1, SMALL_CONNECTIONS, SMALL_GOALS)
    result.notes.append(
        "The peak: of 0.8, 0.9, 1.0 and 1.1 of saturation the one with the best median over all rounds; turns of one "
        "round are compared, each by its share of the saturation (wrk) measured just before it. The best turn of each "
        "round would take the machine's noise for a peak."
    )
    return result


def _measure(
    bench: Bench,
    side: ServerSide,
    result: Result,
    candidates: int = CANDIDATES,
    connections: int = CONNECTIONS,
    goals: dict[float, float] = GOALS,
) -> None:
    """Adds the rows of one server."""
    of = side.name if candidates == CANDIDATES else f"{side.name}, {candidates} candidate, {connections} connections"
    with bench.server(side) as server:
        bench.saturate(server, candidates)
        statuses: dict[float, dict[str, int]] = {factor: {} for factor in goals}

        def turn(factor: float) -> dict[str, float]:
            # Anew before every turn: a shared machine's speed changes within minutes, and what was three times its
            # saturation would become five times.
            rate = bench.saturate(server, candidates).per_s
            deadline: dict[str, Any] = {"deadline_s": DEADLINE_S, "send_deadline": True}
            found = bench.openloop(server, candidates, rate * factor, connections=connections, **deadline)
            for code, count in found.statuses.items() if factor in goals else ():
                statuses[factor][code] = statuses[factor].get(code, 0) + count
            return {
                "saturation/s": rate,
                "goodput/s": found.goodput,
                "of saturation": found.goodput / rate,
                "p99 ms": found.latency_ms["p99"],
                "generator cores": found.cores,
            }

        turns = bench.turns({f"{f:g}x": functools.partial(turn, f) for f in (*FACTORS, *goals)})
    best = max(FACTORS, key=lambda f: medians(turns, f"{f:g}x", "of saturation"))
    peak = values(turns, f"{best:g}x", "of saturation")
    left = {f: [CORES - cores for cores in values(turns, f"{f:g}x", "generator cores")] for f in (best, *goals)}
    for factor, goal in goals.items():
        good = values(turns, f"{factor:g}x", "of saturation")
        name = f"{of}: goodput at {factor:g}x / peak goodput"
        result.row(name, ratio(good, peak), (">=", goal))
        each = ([a / b for a, b in zip(found, left[f])] for found, f in ((good, factor), (peak, best)))
        result.row(f"{name}, each of the cores that the generator left", ratio(*each))
        counted = ", ".join(f"{count} x {code}" for code, count in sorted(statuses[factor].items()))
        result.fact(f"{of}: answers at {factor:g}x", counted)
    for name in turns:
        figures = ("saturation/s", "goodput/s", "of saturation", "generator cores")
        rate, useful, share, cores = medians(turns, name, *figures)
        told = f"goodput {useful:.0f}/s, {share:.2f} of {rate:.0f}/s; the generator took {cores:.2f} cores"
        result.fact(f"{of}: offered {name}", told)
