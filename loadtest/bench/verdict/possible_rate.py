"""The rate that is possible: what queries cost on these cores without a server, and a simulation of a perfect one.

`python -m loadtest.bench.verdict.possible_rate --repository R --most-rows N` prints the seconds of a core that a query
of each size takes, as JSON, while all cores compute such queries: lookups, pooling and the version's own executables in
pieces of its largest bucket.

The simulated server loses nothing: queries come as a Poisson process, are taken in order of arrival, and each is
computed on all cores at once, with perfect division. possible() is the highest rate at which it keeps the percentile
within the latency.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.bench.harness import CORES

ROOT = Path(__file__).parents[3]
ROUNDS, FEWEST_S = 5, 0.4
QUERIES, STEPS = 100_000, 24

Floats = NDArray[np.float64]


def possible(
    service_s: Mapping[int, float], shares: Mapping[int, int], cores: int, latency_s: float, percentile: float
) -> float:
    """Queries a second. service_s: of one core, by pairs. shares: of queries, by pairs."""
    random = np.random.default_rng(0)
    sizes = list(shares)
    weights = np.array([shares[size] for size in sizes], float)
    taken_s = np.array([service_s[size] for size in sizes]) / cores
    services = taken_s[random.choice(len(sizes), QUERIES, p=weights / weights.sum())]
    gaps = random.exponential(1.0, QUERIES)
    low, high = 0.0, 1.0 / float(services.mean())
    for _ in range(STEPS):
        rate = (low + high) / 2
        if np.quantile(sojourns(gaps / rate, services), percentile) <= latency_s:
            low = rate
        else:
            high = rate
    return low


def sojourns(gaps: Floats, services: Floats) -> Floats:
    """Seconds from the arrival of each query until it is done, one after another (Lindley's recursion)."""
    # W_n = S_n - min(S_0 .. S_n) of the random walk of service less gap.
    walk = np.concatenate([[0.0], np.cumsum(services[:-1] - gaps[1:])])
    waits: Floats = walk - np.minimum.accumulate(walk)
    total: Floats = waits + services
    return total


def measured(repository: Path, most_rows: int) -> dict[int, float]:
    """Seconds of a core a query, by pairs; in a process of its own."""
    command = [sys.executable, "-m", "loadtest.bench.verdict.possible_rate", "--repository", str(repository)]
    said = subprocess.run(
        [*command, "--most-rows", str(most_rows)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {int(pairs): seconds for pairs, seconds in json.loads(said.stdout).items()}


def main() -> None:
    from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
    from loadtest.bench.bare import BareLoop
    from loadtest.bench.verdict.dcnv2_shape import MODEL, PAIRS, columns, ragged

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--most-rows", type=int, required=True)
    arguments = parser.parse_args()
    found = {}

    def request(pairs: int, seed: int) -> PredictRequest:
        return PredictRequest(MODEL, ragged(columns(pairs, arguments.most_rows, np.random.default_rng(seed))))

    config = ProcessorConfig(arguments.repository, sessions=CORES)
    with Processor.initialize(config) as processor:
        for pairs in PAIRS:
            loops = [BareLoop(processor, [request(pairs, seed)]) for seed in range(CORES)]
            found[pairs] = statistics.median(_turn(loops) for _ in range(ROUNDS))
    print(json.dumps(found))


def _turn(loops: list) -> float:  # type: ignore[type-arg]
    """Seconds of one loop's run while all of them run."""
    made = [0] * len(loops)
    end_s = time.perf_counter() + FEWEST_S

    def work(number: int) -> None:
        while time.perf_counter() < end_s:
            loops[number].run()
            made[number] += 1

    started_s = time.perf_counter()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(loops))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - started_s) * len(loops) / sum(made)


if __name__ == "__main__":
    main()
