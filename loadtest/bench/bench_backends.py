"""`make -C loadtest backends`: what `freshet compile` chooses, against each backend; loadtest/results/backends.md.

The benchmark's model is compiled once for each backend alone and once for all of them. Then, in this process and
without TensorFlow: every executable in turn with its rivals; the first request after a load and after a flip of the
dense weights against the steady ones; what a flip costs; and, in processes of their own, loading from disk.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.package.delta import Delta
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.served_version import ServedVersion
from loadtest.bench.bench_report import markdown, summary, unmet
from loadtest.bench.harness import Bench, Result, Row
from loadtest.load.launch import CommandFailed, run_freshet
from loadtest.load.payload import bench_inputs
from loadtest.load.sides import ratio
from loadtest.reports.report import machine, origin

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
SINGLE = ("onnxruntime", "openvino", "openvino:bfloat16", "xla")
ALL = "chosen"
SIZES = (1, 7, 64, 300)
REPEATS, STEADY, PAUSE_S = 7, 41, 0.005


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """One compiled version, loaded."""

    name: str
    folder: Path
    version: ServedVersion
    replica: Replica


def main() -> int:
    parser = argparse.ArgumentParser(prog="make -C loadtest backends", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="of each of the 26 tables")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--quick", action="store_true", help="shows that everything works, measures nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rounds = 5 if arguments.quick else arguments.rounds
    rows = 500 if arguments.quick else arguments.rows
    say = Console(stderr=True, highlight=False).print
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as folder:
        bench = Bench(Path(folder), say, rounds=rounds, table_rows=rows, quick=arguments.quick)
        result = run(bench)
    settings = {"rounds": rounds, "seconds": 0.0, "table_rows": rows, "quick": arguments.quick, "serve": ()}
    made = origin("-C loadtest backends", "ARGS", sys.argv[1:])
    document = {**result.document(), "machine": facts, "settings": settings, "layouts": {}, "origin": made}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "backends.json").write_text(json.dumps(document, indent=1) + "\n")
    (arguments.out / "backends.md").write_text(markdown([document], {}).replace("# Benchmarks", "# Backends", 1))
    print(summary([document]))
    if short := unmet([document]):
        print("\nshort of their goal:", *short, sep="\n- ")
    return 0


def run(bench: Bench) -> Result:
    """Everything; what cannot be compiled on this machine is told with its reason."""
    result = Result("backends", "Backends of the dense graph")
    repositories = compiled(bench, result)
    sides = [opened(name, repository) for name, repository in repositories.items()]
    chosen = next(side for side in sides if side.name == ALL)
    for bucket, entry in sorted(chosen.replica.chosen.items()):
        precision = "" if entry.precision == "float32" else f" {entry.precision}"
        result.facts.append((f"serves {bucket} rows", f"{entry.backend}{precision}, error {entry.error:.1e}"))
    costs(bench, sides, result)
    flips(bench, sides, result)
    loads(bench, repositories, result)
    firsts(bench, repositories[ALL], result)
    return result


def compiled(bench: Bench, result: Result) -> dict[str, Path]:
    """A repository for each backend alone and one for the choice among all."""
    found = {}
    for name in (*SINGLE, ALL):
        repository = bench.work / name.replace(":", "-")
        shutil.copytree(bench.repository(), repository)
        backends = ("--backends", name) if name != ALL else ()
        try:
            run_freshet("compile", "bench", "--repository", str(repository), *backends)
        except CommandFailed as error:
            result.refused[name] = str(error).splitlines()[-1]
        else:
            found[name] = repository
        bench.say(f"compiled: {name}")
    return found


def opened(name: str, repository: Path) -> LoadedVersion:
    folder = repository / "bench" / "1"
    version = ServedVersion(VersionReader(folder), 0, SystemClock())
    replica = Replica(version.files, version.control, 0, 1, SystemClock())
    version.attach_replicas(replica)
    return LoadedVersion(name, folder, version, replica)


def costs(bench: Bench, sides: Sequence[LoadedVersion], result: Result) -> None:
    """Every bucket: all sides in turn."""
    random = np.random.default_rng(0)
    for bucket in sorted(sides[0].replica.chosen):
        runs = {}
        for side in sides:
            with side.replica.pinned(0) as state:
                name = side.replica.graphs.undivided.name
                inputs, _, call = side.replica.borrow_buffers().get(state.executables[name][bucket], name)
            x = inputs["x"]
            x[...] = random.standard_normal(x.shape, np.float32) * np.float32(0.05)
            runs[side.name] = call
        times = in_turn(runs, bench.rounds)
        singles = {name: taken for name, taken in times.items() if name != ALL}
        best = min(singles, key=lambda name: statistics.median(singles[name]))
        what = f"chosen / best single backend, {bucket} rows"
        result.rows.append(Row(what, ratio(times[ALL], times[best]), ("<=", 1.05)))
        for name, taken in times.items():
            result.facts.append((f"{name}, {bucket} rows", f"{statistics.median(taken) * 1e6:.0f} us"))
        if "openvino:bfloat16" in times and bucket >= 64:
            gain = ratio(times["onnxruntime"], times["openvino:bfloat16"])
            result.rows.append(Row(f"ONNX Runtime float32 / OpenVINO bfloat16, {bucket} rows", gain, (">=", 1.5)))
    if not this_machine().bfloat16:
        result.refused["bfloat16 against float32"] = "this processor does not multiply bfloat16"


def flips(bench: Bench, sides: Sequence[LoadedVersion], result: Result) -> None:
    """Measures what new dense weights cost before their flip: all buckets, in the background."""
    for side in sides:
        took = []
        for step in range(3):
            delta = dense_delta(side.version, step)
            started_s = time.perf_counter()
            side.version.apply(delta)
            took.append(time.perf_counter() - started_s)
        text = f"{statistics.median(took) * 1e3:.1f} ms"
        result.facts.append((f"new dense weights until they are served: {side.name}", text))
        bench.say(f"flip: {side.name}: {text}")


def loads(bench: Bench, repositories: dict[str, Path], result: Result) -> None:
    """Measures loading from disk, in processes of their own, TensorFlow blocked."""
    taken: dict[str, list[float]] = {name: [] for name in repositories}
    for _ in range(2 if bench.quick else 5):
        for name, repository in repositories.items():
            command = [sys.executable, "-m", "loadtest.bench.loading", str(repository / "bench" / "1")]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            taken[name].append(found["open_s"] + found["prepare_s"])
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        result.checks.append((f"all buckets load in 1 s without TensorFlow: {name}", median < 1.0, f"{median:.2f} s"))
    what = "load of all buckets: chosen / ONNX Runtime alone"
    result.rows.append(Row(what, ratio(taken[ALL], taken["onnxruntime"])))


def firsts(bench: Bench, repository: Path, result: Result) -> None:
    """The first request after a load and after a flip of dense weights, against the steady ones."""
    for size in SIZES:
        requests = [PredictRequest("bench", i) for i in bench_inputs(size, 8, bench.table_rows)]
        loaded, flipped = [], []
        for _ in range(2 if bench.quick else REPEATS):
            with Processor.initialize(ProcessorConfig(repository=str(repository), sessions=1)) as processor:
                loaded.append(timed(processor, requests))
                # A delta that is in no repository.
                version = processor.host.catalogue["bench"].pick()
                version.apply(dense_delta(version, 0))
                flipped.append(timed(processor, requests))
        for what, series in (("a load", loaded), ("a flip of dense weights", flipped)):
            first, paced, close = zip(*series)
            found = ratio(first, paced)
            result.rows.append(Row(f"first request after {what} / steady median, {size} rows", found, ("<=", 1.5)))
            result.rows.append(Row(f"the same / requests back to back, {size} rows", ratio(first, close)))
            bench.say(f"first after {what}, {size} rows: {found.median:.2f}")
    result.notes.append(
        f"Steady requests come {PAUSE_S * 1e3:g} ms apart, as in a server that is not saturated: a request that "
        "follows another at once finds weights and code in caches that no first request can, compiled or not."
    )


def timed(processor: Processor, requests: Sequence[PredictRequest]) -> tuple[float, float, float]:
    """Seconds of the first request from now, and the medians of those that follow, with a pause before each and
    without."""
    taken: dict[float, list[float]] = {PAUSE_S: [], 0.0: []}
    for pause_s, series in taken.items():
        for number in range(STEADY):
            if pause_s:
                time.sleep(pause_s)
            started_s = time.perf_counter()
            processor.process(requests[number % len(requests)])
            series.append(time.perf_counter() - started_s)
    paced, close = taken[PAUSE_S], taken[0.0]
    return paced[0], statistics.median(paced[1:]), statistics.median(close)


def dense_delta(version: ServedVersion, step: int) -> Delta:
    """A delta of every dense weight, a little off, on top of the served one."""
    random = np.random.default_rng(step)
    dense = {n: (w * random.uniform(0.99, 1.01, w.shape)).astype(np.float32) for n, w in version.dense.items()}
    manifest, parent = version.manifest, version.position.step
    return Delta(manifest.model, manifest.version, parent + 1, parent, {}, dense, published_at=time.time())


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
