"""A memory budget of a tenth of a table's rows against all of them in memory, under Zipf-1.05 traffic.

python -m loadtest.bench.memory_budget [--rows N]      also the tail of batch times and what the tiers did
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.package.manifest_entries import TableEntry
from freshet_serving.processor.package.tensors import map_file, parse_tensors, write_tensors
from freshet_serving.processor.tables.table import ServedTable, packed
from freshet_serving.processor.tables.tier import TierStats
from loadtest.bench.lookup import kernel_call
from loadtest.bench.pairs import Pair, compare

ROWS, DIM, BATCH, BATCHES = 1_000_000, 16, 1664, 512
SHARE = 0.1
EXPONENT = 1.05
WARM_ROUNDS = 40


def zipf_ranks(rows: int, size: int, seed: int) -> np.ndarray:
    """`size` ranks below `rows`, rank r drawn in proportion to 1 / (r + 1) ** EXPONENT."""
    weights = np.cumsum(1 / np.arange(1, rows + 1) ** EXPONENT)
    ranks: np.ndarray = np.searchsorted(weights, np.random.default_rng(seed).random(size) * weights[-1])
    return ranks


class ZipfReads:
    """Batches of keys as readers send them; the most read keys lie anywhere in the file."""

    def __init__(self, keys: np.ndarray) -> None:
        self._popular = np.random.default_rng(7).permutation(keys)

    def batches(self, seed: int) -> list[np.ndarray]:
        ids = self._popular[zipf_ranks(len(self._popular), BATCH * BATCHES, seed)]
        return list(np.ascontiguousarray(ids).reshape(-1, BATCH))


def open_tables(folder: Path, rows: int) -> tuple[ServedTable, ServedTable, ZipfReads]:
    """(all in memory, a tenth in memory) over one mapped file, the second one warm from traffic."""
    keys = np.random.default_rng(0).permutation(4 * rows)[:rows].astype(np.int64)
    values = np.empty((rows, DIM), np.float32)
    init_rows(keys, np.uint64(1), np.float32(0.1), values)
    path = folder / "table.safetensors"
    with open(path, "wb") as file:
        write_tensors(file, packed(keys, values), {})
    spec = TableEntry("t", DIM, rows)
    whole = ServedTable(spec, parse_tensors(map_file(path), "table").arrays)
    arrays = parse_tensors(map_file(path), "table").arrays
    bounded = ServedTable(spec, arrays, budget_nbytes=int(values.nbytes * SHARE), scratch=folder)
    traffic = ZipfReads(keys)
    out, publish_seq = np.empty((BATCH, DIM), np.float32), 1
    for seed in range(WARM_ROUNDS):
        for n, ids in enumerate(traffic.batches(1000 + seed)):
            kernel_call(bounded, 0, ids)(out)
            if n % 8 == 0:
                bounded.maintain(publish_seq, publish_seq + 1, 0.0)
                publish_seq += 1
    return whole, bounded, traffic


def runner(table: ServedTable, traffic: ZipfReads) -> Callable[[], list[float]]:
    """Looks all batches up; returns the seconds of each."""
    calls = [kernel_call(table, 0, ids) for ids in traffic.batches(1)]
    out = np.empty((BATCH, DIM), np.float32)

    def run() -> list[float]:
        times = []
        for call in calls:
            started_s = time.perf_counter()
            call(out)
            times.append(time.perf_counter() - started_s)
        return times

    return run


def tally(table: ServedTable) -> TierStats:
    """The tally of a table with a memory budget: what its tiers hold and have done."""
    found = table.tier
    assert found is not None
    return found


def pairs() -> list[Pair]:
    folder = tempfile.TemporaryDirectory(prefix="freshet-tiers-")
    whole, bounded, traffic = open_tables(Path(folder.name), ROWS)
    name = f"lookup: a tenth of the rows in memory / all of them, Zipf {EXPONENT}"
    a, b = runner(bounded, traffic), runner(whole, traffic)
    return [Pair(name, lambda: a() and folder, b, BATCH * BATCHES, "row")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.memory_budget", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    for what, figure in measure(arguments.rows, arguments.rounds).items():
        print(f"{what}: {figure}")


def measure(rows: int, rounds: int) -> dict[str, str]:
    """Measures tables with and without a memory budget; returns figures by name."""
    with tempfile.TemporaryDirectory(prefix="freshet-tiers-") as folder:
        whole, bounded, traffic = open_tables(Path(folder), rows)
        runs = {"a tenth": runner(bounded, traffic), "all": runner(whole, traffic)}
        before = tally(bounded)
        found = compare(Pair("", runs["a tenth"], runs["all"], BATCH * BATCHES, "row"), rounds)
        quartiles = f"quartiles {1 / found.high:.2f} to {1 / found.low:.2f}"
        throughput = f"{1 / found.median:.2f}, {quartiles} ({found.a_ns:.0f} / {found.b_ns:.0f} ns a row)"
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                times[name] += run()
        tails = {name: np.percentile(np.array(seconds) * 1e6, [50, 99, 99.9]) for name, seconds in times.items()}
        after = tally(bounded)
        cold, hot = after.cold_lookups - before.cold_lookups, after.hot_lookups - before.hot_lookups
    return {
        "throughput, a tenth in memory / all": throughput,
        "p99 of a batch, a tenth in memory / all": f"{tails['a tenth'][1] / tails['all'][1]:.2f}",
        **{
            f"a batch of {BATCH}, {name} in memory: p50, p99, p99.9": ", ".join(f"{us:.0f}" for us in tail) + " us"
            for name, tail in tails.items()
        },
        "share of the lookups found in memory": f"{hot / (hot + cold):.3f}; {after.hot_rows} rows of {rows} are hot",
    }


if __name__ == "__main__":
    main()
