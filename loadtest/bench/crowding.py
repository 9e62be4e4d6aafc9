"""Measures what a saturated neighbour does to a baseline's latency: alone, sharing all cores, with
cores of its own, and with a budget.

`python -m loadtest.bench.crowding`: two models in one process. The baseline gets a steady trickle of single requests;
the neighbour is kept saturated with large ones by threads that send as soon as they are answered. The three
arrangements take turns, round after round; the figures are the median over rounds of the baseline's p50 and p99, each
as a ratio to the baseline alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from freshet_serving.models.bench import FLOATS, TABLES, write_model
from freshet_serving.processor.cores import available
from freshet_serving.processor.engine import GroupConfig, PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import FreshetError

ROWS = 20_000
CANDIDATES, NEIGHBOUR_CANDIDATES, NEIGHBOURS = 8, 256, 4
REQUESTS = 300
PAUSE_S = 0.004
BUDGET_MS = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.crowding", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    cores = sorted(available())
    if len(cores) < 2:
        raise SystemExit("at least two cores are needed")
    half = len(cores) // 2
    plan = {
        "baseline": GroupConfig(["baseline"], cpus=",".join(map(str, cores[:half]))),
        "rest": GroupConfig(["*"]),
    }
    budget = {"baseline": GroupConfig(["baseline"], p99_ms=BUDGET_MS), "rest": GroupConfig(["*"])}
    with tempfile.TemporaryDirectory(prefix="freshet-noisy-") as folder:
        write_models(Path(folder), "baseline", "neighbour")
        sharing = Processor.initialize(ProcessorConfig(folder))
        apart = Processor.initialize(ProcessorConfig(folder, groups=plan))
        planned = Processor.initialize(ProcessorConfig(folder, groups=budget))
        with sharing, apart, planned:
            sides: dict[str, Callable[[], list[float]]] = {
                "alone": lambda: trickle(sharing),
                "neighbour, sharing": lambda: under_noise(sharing),
                "neighbour, fixed cores": lambda: under_noise(apart),
                "neighbour, planned cores": lambda: under_noise(planned),
            }
            seen: dict[str, list[np.ndarray]] = {name: [] for name in sides}
            for number in range(rounds):
                for name in list(sides)[:: 1 if number % 2 else -1]:
                    seen[name].append(np.percentile(sides[name](), [50, 99]))
    for name, values in seen.items():
        ratios = [v / a for v, a in zip(values, seen["alone"])]
        p50, p99 = (statistics.median(r[i] for r in ratios) for i in range(2))
        print(f"{name}: p50 {p50:.2f}, p99 {p99:.2f} of alone")


def write_models(repository: Path, *names: str) -> None:
    """The benchmark's model under each of the names."""
    with tempfile.TemporaryDirectory(prefix="freshet-noisy-") as folder:
        generation = write_model(Path(folder), ROWS)
        for name in names:
            version = repository / name / str(generation.version)
            shutil.copytree(Path(folder) / "bench" / str(generation.version), version)
            manifest = json.loads((version / "model.json").read_text())
            (version / "model.json").write_text(json.dumps(manifest | {"model": name}))


def inputs(candidates: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(candidates)
    return {
        "ids": random.integers(0, ROWS, (candidates, TABLES)),
        "floats": random.random((candidates, FLOATS), np.float32),
    }


def trickle(processor: Processor) -> list[float]:
    """Latencies of the baseline's requests, in seconds."""
    request, latencies_s = PredictRequest("baseline", inputs(CANDIDATES)), []
    for _ in range(REQUESTS):
        started_s = time.perf_counter()
        processor.process(request)
        latencies_s.append(time.perf_counter() - started_s)
        time.sleep(PAUSE_S)
    return latencies_s


def under_noise(processor: Processor) -> list[float]:
    """trickle(), while the neighbour is saturated."""
    stop = threading.Event()
    request = PredictRequest("neighbour", inputs(NEIGHBOUR_CANDIDATES))

    def shout() -> None:
        while not stop.is_set():
            try:
                processor.process(request)
            except FreshetError:
                time.sleep(PAUSE_S)

    shouting = [threading.Thread(target=shout) for _ in range(NEIGHBOURS)]
    for thread in shouting:
        thread.start()
    try:
        return trickle(processor)
    finally:
        stop.set()
        for thread in shouting:
            thread.join()


if __name__ == "__main__":
    main()
