"""`make -C loadtest choices`: what is chosen by cost, against each candidate afterwards; loadtest/results/choices.md.

Six networks with half of their features on the user's side. Of each, in this process: the executable that a
calibration chooses for a bucket against those of every backend, and the way that requests of a size take (whole or
divided into user and candidates) against both ways, in turn. The way is looked at as the load chose it, and after
requests that followed a load which timed divided requests right, 1.5 times too dear or too cheap.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.running import runner as running
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.running.graph_run import DividedRun
from freshet_serving.processor.running.runner import Runner, RunningBatch
from freshet_serving.processor.running.split_choice import EVIDENCE, RECENT
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import SessionStats
from loadtest.bench.bench_report import markdown, summary, unmet
from loadtest.bench.bench_useronce import manifest, requests
from loadtest.bench.harness import Result, Row
from loadtest.load.sides import ratio
from loadtest.reports.report import machine, origin, store

if TYPE_CHECKING:
    from freshet_serving.compiler.dense.dense_graph import DenseGraph

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
NETWORKS = ("deepfm", "dlrm", "dcn", "wide_deep", "two_tower", "mmoe")
BACKENDS = ("onnxruntime", "openvino", "xla")
BUCKETS, SIZES = (8, 64, 256), (16, 64, 128, 256)
BATCH_ROWS, DIM, LIMIT, GOAL = 256, 16, 0.05, ("<=", 1.05)
LOADS = {"right": 1.0, "too dear": 1.5, "too cheap": 1 / 1.5}
"""How the load times divided requests: the last two as if a neighbour disturbed it."""
EXPLORE_EVERY = 8
"""Batches of which two try the other way: more than in a server, so that seconds are enough."""


@dataclass(slots=True, eq=False)
class OneRequest:
    """All rows of a request, as a runner reads them."""

    bound: BoundRequest
    first: int
    rows: int
    ids: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="make -C loadtest choices", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="of each table")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--quick", action="store_true", help="shows that everything works, measures nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows, rounds = (100, 3) if arguments.quick else (arguments.rows, arguments.rounds)
    networks = NETWORKS[:1] if arguments.quick else NETWORKS
    say = Console(stderr=True, highlight=False).print
    facts, result = machine(), Result("choices", "What is chosen by cost, against each candidate")
    for network in networks:
        with tempfile.TemporaryDirectory(prefix="freshet-bench-") as folder:
            graph, version = published(Path(folder), network, rows)
            executables(network, graph, Path(folder) / "alone", rounds, result)
            ways(network, version, rows, rounds, result)
        say(f"measured: {network}")
    settings = {"rounds": rounds, "seconds": 0.0, "table_rows": rows, "quick": arguments.quick, "serve": ()}
    made = origin("-C loadtest choices", "ARGS", sys.argv[1:])
    document = {**result.document(), "machine": facts, "settings": settings, "layouts": {}, "origin": made}
    store(arguments.out, "choices", document, markdown([document]).replace("# Benchmarks", "# Choices", 1))
    print(summary([document]))
    if short := unmet([document]):
        print("\nshort of their goal:", *short, sep="\n- ")
    return 0


def published(folder: Path, network: str, rows: int) -> tuple[DenseGraph, VersionReader]:
    """A version of a network with its default settings, and its graph."""
    from freshet_serving.compiler.dense.dense_graph import DenseGraph
    from freshet_serving.models.training.publication import publish_version
    from freshet_serving.models.zoo.dense_input import DenseInput

    draft = replace(manifest(network, "user", rows, DIM), arch=network)
    tables = {}
    for number, table in enumerate(draft.tables):
        keys, vectors = np.arange(rows, dtype=np.int64), np.empty((rows, table.dim), np.float32)
        init_rows(keys, np.uint64(number), np.float32(LIMIT), vectors)
        tables[table.name] = keys, vectors
    build = import_module(f"freshet_serving.models.zoo.{network}").build
    graph = DenseGraph.from_keras(build(DenseInput.from_features(draft.features), seed=0).scores)
    return graph, publish_version(folder, draft, tables, graph)


def executables(network: str, graph: DenseGraph, folder: Path, rounds: int, result: Result) -> None:
    """The executable that a calibration chooses for each bucket, against those of every backend."""
    from freshet_serving.compiler.building.calibrate import by_variant, calibrate
    from freshet_serving.compiler.building.compile import build, load, lower, parse_variant
    from freshet_serving.processor.errors import FreshetError

    entries, folder_inputs = [], graph.sample(max(BUCKETS))
    for backend in BACKENDS:
        try:
            lowered = lower(graph, parse_variant(backend))
            entries += [build(lowered, bucket, folder) for bucket in BUCKETS]
        except FreshetError as error:
            result.refused[f"{network}, {backend}"] = str(error)
    calibration = calibrate(graph, folder, entries, folder_inputs)
    chosen = {entry.bucket: entry.variant for entry in calibration.chosen("float32") if entry.cost_us}
    runs: dict[int, dict[str, Callable[[], None]]] = {bucket: {} for bucket in BUCKETS}
    for variant, ours in by_variant(calibration.measured).items():
        for program in load(graph, folder, ours).programs:
            for bucket, executable in program.with_weights(graph.weights).items():
                inputs, outputs = graph.spec.allocate_inputs(bucket), graph.spec.allocate_outputs(bucket)
                for name, rows in graph.resized(folder_inputs, bucket).items():
                    inputs[name][...] = rows
                runs[bucket][variant] = executable.bind_buffers(inputs, outputs)
    for bucket, candidates in runs.items():
        times = in_turn(candidates, rounds)
        best = min(times, key=lambda name: statistics.median(times[name]))
        what = f"{network}, executable of {bucket} rows: chosen / best"
        result.rows.append(Row(what, ratio(times[chosen[bucket]], times[best]), GOAL))
        costs = ", ".join(f"{name} {statistics.median(taken) * 1e6:.0f} us" for name, taken in times.items())
        result.facts.append((f"{network}, {bucket} rows", f"{chosen[bucket]} of {costs}"))


def ways(network: str, reader: VersionReader, rows: int, rounds: int, result: Result) -> None:
    """The way of requests of each size, by the load and by requests after a wrong one, against both."""
    version = ServedVersion(reader, 0, SystemClock())
    replica = Replica(version.files, version.control, 0, 1, SystemClock())
    version.attach_replicas(replica)
    if replica.graphs.split is None:
        result.refused[f"{network}, whole or divided"] = "this network is not divided"
        return
    for size in SIZES:
        inputs = requests(size, BATCH_ROWS // size, rows)
        works = [OneRequest(bound, 0, size, 0) for bound in map(replica.plan.bind_inputs, inputs)]
        chosen = {"at load": way(replica, works[0])}
        for name, factor in LOADS.items():
            with load_that_is_off(replica, factor):
                before = way(replica, works[0])
                compute = scorer(replica, works)
                for _ in range(3 * (EVIDENCE + RECENT) * EXPLORE_EVERY):
                    compute()
                after = way(replica, works[0])
            chosen[f"after a load that timed divided {name} ({told(before)})"] = after
        times = in_turn({told(divided): forced(replica, works, divided) for divided in (False, True)}, rounds)
        best = min(times, key=lambda name: statistics.median(times[name]))
        for name, divided in chosen.items():
            what = f"{network}, requests of {size}, {name}: chosen / best"
            result.rows.append(Row(what, ratio(times[told(divided)], times[best]), GOAL))
        whole_over_divided = ratio(times[told(False)], times[told(True)])
        result.rows.append(Row(f"{network}, requests of {size}: whole / divided", whole_over_divided))


def way(replica: Replica, work: OneRequest) -> bool:
    return replica.graphs.divided_now(work.bound, work.rows, explore=False) is not None


def told(divided: bool) -> str:
    return "divided" if divided else "whole"


@contextmanager
def load_that_is_off(replica: Replica, factor: float) -> Iterator[None]:
    """As if the load had measured divided requests so many times too dear; ends with what it has measured."""
    graphs, split = replica.graphs, replica.graphs.split
    assert graphs.user is not None
    assert graphs.score is not None
    assert split is not None
    whole, longest = CostTable(graphs.undivided.costs.cost), DividedRun(graphs.user, graphs.score, 0)
    divided_s = {0: [longest.dense_s(rows) for rows in range(BATCH_ROWS + 1)]}
    usual = running.EXPLORE_SPLIT_EVERY, running.EXPLORE_SPLIT_AT
    running.EXPLORE_SPLIT_EVERY, running.EXPLORE_SPLIT_AT = EXPLORE_EVERY, (4, 5)
    split.decide(whole, {0: [factor * seconds for seconds in divided_s[0]]})
    try:
        yield
    finally:
        split.decide(whole, divided_s)
        running.EXPLORE_SPLIT_EVERY, running.EXPLORE_SPLIT_AT = usual


def scorer(replica: Replica, works: Sequence[OneRequest]) -> Callable[[], None]:
    """Computes the requests as one batch, as a session would."""
    stats, rows = SessionStats(), sum(work.rows for work in works)
    compute = Runner(SystemClock(), SimpleNamespace(crowded=False, beat=lambda: None), stats)
    buffers = replica.borrow_buffers()
    with replica.pinned(0) as state:
        results = {name: np.empty((rows, columns), np.float32) for name, columns in replica.outputs.items()}
        batch = RunningBatch(replica.graphs, state.executables, state.tables, state.epoch, buffers, results)

    def run() -> None:
        compute.score(batch, works, rows)
        stats.batches += 1

    return run


def forced(replica: Replica, works: Sequence[OneRequest], divided: bool) -> Callable[[], None]:
    """Computes the requests as one batch, all of them one way."""
    run, graphs, split = scorer(replica, works), replica.graphs, replica.graphs.split
    assert split is not None

    def run_forced() -> None:
        split.reviewed = False
        graphs.worth_dividing = lambda rows: divided  # type: ignore[method-assign]
        run()
        del graphs.worth_dividing

    return run_forced


def in_turn(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, round by round, in random order: who runs before leaves its code and weights in the caches."""
    names, random = list(runs), np.random.default_rng(0)
    for name in names:
        runs[name](), runs[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in random.permutation(names):
            started_s = time.perf_counter()
            runs[name]()
            times[name].append(time.perf_counter() - started_s)
    return times


if __name__ == "__main__":
    sys.exit(main())
