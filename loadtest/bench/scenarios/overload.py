"""Three times what the server can do, with deadlines: how much of what it answers is still of use."""

from __future__ import annotations

import functools
import statistics

from loadtest.bench.harness import CORES, Bench, Result, Row
from loadtest.load.outcome import encode, merge
from loadtest.load.sides import Side, compare, ratio, values

CANDIDATES = 64
DEADLINE_S = 0.1
FACTORS = (0.8, 0.9, 1.0, 1.1)
OVERLOAD = 3.0
GOAL = 0.9
CONNECTIONS = 384


def run(bench: Bench) -> Result:
    """Goodput (replies within the deadline, from when the request was due) at 3x saturation over the peak goodput."""
    result = Result("overload", f"Goodput at {OVERLOAD:g}x saturation, deadline {DEADLINE_S * 1e3:g} ms")
    with bench.server(bench.main) as server:
        bench.saturate(server, CANDIDATES)
        histograms: dict[float, list[str]] = {factor: [] for factor in (*FACTORS, OVERLOAD)}
        statuses: dict[str, int] = {}

        def turn(factor: float) -> dict[str, float]:
            # Anew before every turn: a shared machine's speed changes within minutes, and what was three times its
            # saturation would become five times.
            rate = bench.saturate(server, CANDIDATES).per_s
            found = bench.openloop(
                server,
                CANDIDATES,
                rate * factor,
                connections=CONNECTIONS,
                deadline_s=DEADLINE_S,
                send_deadline=True,
            )
            histograms[factor].append(found.hdr)
            if factor == OVERLOAD:
                for code, count in found.statuses.items():
                    statuses[code] = statuses.get(code, 0) + count
            return {
                "saturation/s": rate,
                "goodput/s": found.goodput,
                "of saturation": found.goodput / rate,
                "p99 ms": found.latency_ms["p99"],
                "generator cores": found.cores,
            }

        sides = [Side(f"{f:g}x", functools.partial(turn, f)) for f in histograms]
        turns = compare(sides, bench.rounds, bench.say)
    over = values(turns, f"{OVERLOAD:g}x", "of saturation")
    best = max(FACTORS, key=lambda f: statistics.median(values(turns, f"{f:g}x", "of saturation")))
    peak = values(turns, f"{best:g}x", "of saturation")
    result.rows.append(Row(f"goodput at {OVERLOAD:g}x / peak goodput", ratio(over, peak), (">=", GOAL)))
    left = {f: [CORES - cores for cores in values(turns, f"{f:g}x", "generator cores")] for f in (best, OVERLOAD)}
    over, peak = ([a / b for a, b in zip(each, left[f])] for each, f in ((over, OVERLOAD), (peak, best)))
    result.rows.append(Row("the same, each of the cores that the generator left", ratio(over, peak)))
    for name, figures in turns.items():
        rate, good, share, cores = (
            statistics.median(f[key] for f in figures)
            for key in ("saturation/s", "goodput/s", "of saturation", "generator cores")
        )
        result.facts.append(
            (
                f"offered {name}",
                f"goodput {good:.0f}/s, {share:.2f} of {rate:.0f}/s; the generator took {cores:.2f} cores",
            )
        )
    counted = ", ".join(f"{count} x {code}" for code, count in sorted(statuses.items()))
    result.facts.append((f"answers at {OVERLOAD:g}x", counted))
    for factor in (FACTORS[0], OVERLOAD):
        result.latencies[f"64 candidates, {factor:g}x saturation, answered"] = encode(merge(histograms[factor]))
    result.notes.append(
        f"The peak: {best:g}x, of 0.8, 0.9, 1.0 and 1.1 of saturation the one with the best median over all rounds; "
        "turns of one round are compared, each by its share of the saturation (wrk) measured just before it. The best "
        "turn of each round would take the machine's noise for a peak."
    )
    return result
