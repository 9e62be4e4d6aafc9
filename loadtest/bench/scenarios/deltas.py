"""Deltas while requests come: what they do to the tail, and how soon they are served."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from freshet_serving.models.bench import bench_delta
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.version import VersionReader
from loadtest.bench.harness import Bench, Result, ServerSide, beside_load
from loadtest.load.admin_calls import post_delta
from loadtest.load.launch import RunningServer
from loadtest.load.openloop import Openloop
from loadtest.load.sides import Ratio, ratio

CANDIDATES = 64
LOAD = 0.7
ROWS, EVERY_S = 100_000, 1.0
GOAL = 1.15
SMALL, SMALL_COUNT, SMALL_GOAL_MS, SMALL_EVERY_S = 1_000, 20, 20.0, 0.25
LARGE, LARGE_COUNT, LARGE_GOAL_MS, LARGE_EVERY_S = 1_000_000, 3, 1000.0, 2.0


def run(bench: Bench) -> Result:
    """p99 at 70 % load with a delta of 100,000 rows every second against without; then single deltas, timed."""
    result = Result("deltas", f"Deltas at {LOAD:.0%} load, {CANDIDATES} candidates a request")
    repository = bench.copied("deltas-repository")
    with bench.server(bench.main, repository) as server, chain(bench, repository) as write:

        def prepare() -> list[tuple[float, Callable[[], object]]]:
            files = [write(ROWS) for _ in range(int(3 * bench.seconds / EVERY_S))]
            post = functools.partial(post_delta, server.admin_port, "bench")
            return [(n * EVERY_S, functools.partial(post, file)) for n, file in enumerate(files)]

        tail = beside_load(bench, server, result, CANDIDATES, LOAD, "with deltas", prepare)
        result.row(f"p99 with {ROWS} rows every second / without", tail, ("<=", GOAL))
        singles = [
            (SMALL, SMALL_GOAL_MS, SMALL_COUNT, SMALL_EVERY_S),
            (min(LARGE, 26 * bench.table_rows), LARGE_GOAL_MS, LARGE_COUNT, LARGE_EVERY_S),
        ]
        for count, goal_ms, number, every_s in singles:
            rate = LOAD * bench.saturate(server, CANDIDATES).per_s
            taken = _posted(bench, server, rate, [write(count) for _ in range(number)], every_s)
            result.row(f"{count} rows served, of {goal_ms:g} ms", ratio(taken, [goal_ms] * len(taken)), ("<=", 1.0))
            text = f"median {statistics.median(taken):.1f} ms, slowest {max(taken):.1f} ms of {len(taken)}"
            result.fact(f"{count} rows: last byte of the POST to served", text)
    result.row(f"{SMALL} rows served, the guard on / off", _guarded(bench))
    return result


def _guarded(bench: Bench) -> Ratio:
    """Small deltas one by one under load, by a server that looks at them and by one that does not, in turn."""
    taken: dict[str, list[float]] = {"on": [], "off": []}
    with contextlib.ExitStack() as stack:
        sides = {}
        for mode in taken:
            repository = bench.copied(f"guard-{mode}-repository")
            side = ServerSide(f"guard {mode}", (*bench.serve, "--delta-guard", mode))
            sides[mode] = stack.enter_context(bench.server(side, repository)), chain(bench, repository)
        writes = {mode: stack.enter_context(write) for mode, (_, write) in sides.items()}
        for number in range(bench.rounds):
            for mode in taken if number % 2 else reversed(taken):
                server = sides[mode][0]
                rate = LOAD * bench.saturate(server, CANDIDATES).per_s
                files = [writes[mode](SMALL) for _ in range(SMALL_COUNT // 2)]
                taken[mode].append(statistics.median(_posted(bench, server, rate, files, SMALL_EVERY_S)))
    return ratio(taken["on"], taken["off"])


@contextlib.contextmanager
def chain(bench: Bench, repository: Path, version: int = 1) -> Iterator[Callable[[int], bytes]]:
    """write(rows): the next delta of a chain, as the bytes of its file."""
    manifest = VersionReader(repository / "bench" / str(version)).manifest
    path, step = bench.work / f"{repository.name}.safetensors", 0

    def write(rows: int) -> bytes:
        nonlocal step
        step += 1
        write_delta(path, bench_delta(manifest, step, rows))
        return path.read_bytes()

    try:
        yield write
    finally:
        path.unlink(missing_ok=True)


def _posted(bench: Bench, server: RunningServer, rate: float, files: list[bytes], every_s: float) -> list[float]:
    """Deltas one by one under load; milliseconds of each, from the last byte of its POST until it is served."""
    job, taken = bench.job(server.http_port, CANDIDATES, rate, seconds=len(files) * every_s), []
    with Openloop(job) as generator:
        start_s = generator.started() + job.warm_s
        for n, file in enumerate(files):
            time.sleep(max(0.0, start_s + n * every_s - time.monotonic()))
            taken.append(post_delta(server.admin_port, "bench", file) * 1e3)
        generator.result()
    bench.say(f"deltas of {len(files[0])} bytes served after {', '.join(f'{ms:.1f}' for ms in taken)} ms")
    return taken
