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
from loadtest.bench.harness import Bench, Result, Row, ServerSide
from loadtest.load.admin_calls import post_delta
from loadtest.load.launch import RunningServer
from loadtest.load.openloop import Openloop
from loadtest.load.sides import Ratio, Side, compare, ratio, values

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
    seconds = 3 * bench.seconds
    with bench.server(bench.main, repository) as server, chain(bench, repository) as write:
        bench.saturate(server, CANDIDATES)
        rounds_of = {"with deltas": 0, "without": 0}
        failed: list[str] = []

        def load() -> float:
            # Anew each time: a shared machine changes its speed within minutes, and 70 % of before may be all of now.
            return LOAD * bench.saturate(server, CANDIDATES).per_s

        rates: list[float] = []  # of each round, for both its sides

        def turn(label: str) -> dict[str, float]:
            number = rounds_of[label]
            rounds_of[label] += 1
            if number == len(rates):
                rates.append(load())
            rate = rates[number]
            files = [write(ROWS) for _ in range(int(seconds / EVERY_S))] if label == "with deltas" else []
            job = bench.job(server.http_port, CANDIDATES, rate, seconds=seconds)
            with Openloop(job) as generator:
                start_s = generator.started() + job.warm_s
                taken = [_post_at(start_s + n * EVERY_S, server, file) for n, file in enumerate(files)]
                found = generator.result()
            failed.extend([*found.faults, *(code for code in found.statuses if code != "200")])
            served = {"served after ms": statistics.median(taken)} if taken else {}
            return {
                "rate/s": rate,
                "p99 ms": found.latency_ms["p99"],
                "p50 ms": found.latency_ms["p50"],
                "answered p99 ms": found.answered_ms["p99"],
                "generator cores": found.cores,
                **served,
            }

        sides = [Side(label, functools.partial(turn, label)) for label in rounds_of]
        turns = compare(sides, bench.rounds, bench.say)
        small = _single(bench, server, load(), [write(SMALL) for _ in range(SMALL_COUNT)], SMALL_EVERY_S)
        largest = min(LARGE, 26 * bench.table_rows)
        large = _single(bench, server, load(), [write(largest) for _ in range(LARGE_COUNT)], LARGE_EVERY_S)
    guard = _guarded(bench)
    tail = ratio(values(turns, "with deltas", "p99 ms"), values(turns, "without", "p99 ms"))
    result.rows.append(Row(f"p99 with {ROWS} rows every second / without", tail, ("<=", GOAL)))
    for count, taken, goal_ms in ((SMALL, small, SMALL_GOAL_MS), (largest, large, LARGE_GOAL_MS)):
        found = [ms / goal_ms for ms in taken]
        result.rows.append(
            Row(f"{count} rows served, of {goal_ms:g} ms", ratio(found, [1.0] * len(found)), ("<=", 1.0))
        )
        text = f"median {statistics.median(taken):.1f} ms, slowest {max(taken):.1f} ms of {len(taken)}"
        result.facts.append((f"{count} rows: last byte of the POST to served", text))
    result.rows.append(Row(f"{SMALL} rows served, the guard on / off", guard))
    result.checks.append(("no request failed", not failed, ", ".join(sorted(set(failed))) or "none did"))
    for name, figures in turns.items():
        rate, p50, p99, answered, cores = (
            statistics.median(f[key] for f in figures)
            for key in ("rate/s", "p50 ms", "p99 ms", "answered p99 ms", "generator cores")
        )
        result.facts.append(
            (
                name,
                f"{rate:.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {answered:.2f} ms without the generator's "
                f"waiting; the generator took {cores:.2f} cores",
            )
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
                taken[mode].append(statistics.median(_single(bench, server, rate, files, SMALL_EVERY_S)))
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


def _single(bench: Bench, server: RunningServer, rate: float, files: list[bytes], every_s: float) -> list[float]:
    """Deltas one by one under load; milliseconds of each."""
    job = bench.job(server.http_port, CANDIDATES, rate, seconds=len(files) * every_s)
    with Openloop(job) as generator:
        start_s = generator.started() + job.warm_s
        taken = [_post_at(start_s + n * every_s, server, file) for n, file in enumerate(files)]
        generator.result()
    bench.say(f"deltas of {len(files[0])} bytes served after {', '.join(f'{ms:.1f}' for ms in taken)} ms")
    return taken
