"""Deltas while requests come: what they do to the tail, and how soon they are served."""

from __future__ import annotations

import contextlib
import functools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from freshet_serving.models.bench import bench_delta
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.version import VersionReader
from loadtest.bench.harness import Bench, Result, RoundRates, Row, ServerSide, failures, quantiles
from loadtest.load.admin_calls import post_delta
from loadtest.load.launch import RunningServer
from loadtest.load.openloop import Openloop
from loadtest.load.outcome import Figures
from loadtest.load.sides import Ratio, medians, over, ratio

CANDIDATES = 64
LOAD = 0.7
ROWS, EVERY_S = 100_000, 1.0
GOAL = 1.15
WITH = "with deltas"
SMALL, SMALL_COUNT, SMALL_GOAL_MS, SMALL_EVERY_S = 1_000, 20, 20.0, 0.25
LARGE, LARGE_COUNT, LARGE_GOAL_MS, LARGE_EVERY_S = 1_000_000, 3, 1000.0, 2.0


def run(bench: Bench) -> Result:
    """p99 at 70 % load with a delta of 100,000 rows every second against without; then single deltas, timed."""
    result = Result("deltas", f"Deltas at {LOAD:.0%} load, {CANDIDATES} candidates a request")
    repository = bench.copied("deltas-repository")
    seconds = 3 * bench.seconds
    with bench.server(bench.main, repository) as server, chain(bench, repository) as write:
        bench.saturate(server, CANDIDATES)
        rates = RoundRates(lambda: LOAD * bench.saturate(server, CANDIDATES).per_s)
        failed: list[str] = []

        def turn(label: str) -> dict[str, float]:
            rate = rates.of(label)
            files = [write(ROWS) for _ in range(int(seconds / EVERY_S))] if label == WITH else []
            taken, found = _posted(bench, server, rate, files, EVERY_S, seconds)
            failed.extend(failures(found))
            served = {"served after ms": statistics.median(taken)} if taken else {}
            return {"rate/s": rate, **quantiles(found), **served}

        turns = bench.turns({label: functools.partial(turn, label) for label in (WITH, "without")})
        singles = [
            (SMALL, SMALL_GOAL_MS, SMALL_COUNT, SMALL_EVERY_S),
            (min(LARGE, 26 * bench.table_rows), LARGE_GOAL_MS, LARGE_COUNT, LARGE_EVERY_S),
        ]
        for count, goal_ms, number, every_s in singles:
            rate = LOAD * bench.saturate(server, CANDIDATES).per_s
            taken, _ = _posted(bench, server, rate, [write(count) for _ in range(number)], every_s)
            result.row(f"{count} rows served, of {goal_ms:g} ms", ratio(taken, [goal_ms] * len(taken)), ("<=", 1.0))
            text = f"median {statistics.median(taken):.1f} ms, slowest {max(taken):.1f} ms of {len(taken)}"
            result.fact(f"{count} rows: last byte of the POST to served", text)
    tail = over(turns, WITH, "without", "p99 ms")
    result.rows.insert(0, Row(f"p99 with {ROWS} rows every second / without", tail, ("<=", GOAL)))
    result.row(f"{SMALL} rows served, the guard on / off", _guarded(bench))
    result.failures(failed)
    for name in turns:
        rate, p50, p99, answered, cores = medians(
            turns, name, "rate/s", "p50 ms", "p99 ms", "answered p99 ms", "generator cores"
        )
        result.fact(
            name,
            f"{rate:.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {answered:.2f} ms without the generator's "
            f"waiting; the generator took {cores:.2f} cores",
        )
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
                taken[mode].append(statistics.median(_posted(bench, server, rate, files, SMALL_EVERY_S)[0]))
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


def _post_at(at_s: float, server: RunningServer, file: bytes) -> float:
    """Milliseconds from the last byte of the POST, sent at an instant of the monotonic clock, until it is served."""
    threading.Event().wait(max(0.0, at_s - time.monotonic()))
    return post_delta(server.admin_port, "bench", file) * 1e3


def _posted(
    bench: Bench, server: RunningServer, rate: float, files: list[bytes], every_s: float, seconds: float = 0.0
) -> tuple[list[float], Figures]:
    """Deltas one by one under load; milliseconds of each, and of the load. seconds: 0 for as long as they take."""
    job = bench.job(server.http_port, CANDIDATES, rate, seconds=seconds or len(files) * every_s)
    with Openloop(job) as generator:
        start_s = generator.started() + job.warm_s
        taken = [_post_at(start_s + n * every_s, server, file) for n, file in enumerate(files)]
        found = generator.result()
    if files:
        bench.say(f"deltas of {len(files[0])} bytes served after {', '.join(f'{ms:.1f}' for ms in taken)} ms")
    return taken, found
