"""Kernels and engine against the plainest code that does the same, in one process."""

from __future__ import annotations

from loadtest.bench import bench_engine as engine
from loadtest.bench import bench_hashing as hashing
from loadtest.bench import lookup
from loadtest.bench.harness import Bench, Result, Row
from loadtest.bench.pairs import compare
from loadtest.load.sides import Ratio


def run(bench: Bench) -> Result:
    """Every pair of loadtest/bench, each a ratio of times; smaller is better."""
    result = Result("micro", "Kernels and engine, ratios of time")
    with engine.pairs(bench.repository(), bench.table_rows) as engines:
        for pair in (*lookup.pairs(), *hashing.pairs(), *engines):
            found = compare(pair, bench.micro_rounds)
            bench.say(f"{found.name}: {found.median:.2f}")
            result.rows.append(Row(found.name, Ratio(found.median, found.low, found.high, bench.micro_rounds)))
            result.facts.append((found.name, f"{found.a_ns:.0f} / {found.b_ns:.0f} ns a {found.unit}"))
    return result
