"""1 candidate a request: the front end decides. Requests a second against an ASGI echo; p99 at half load."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator

from loadtest.bench.harness import LAYOUTS, Bench, Result, quantiles, reply_nbytes
from loadtest.load import wrk
from loadtest.load.launch import LineProcess, free_ports
from loadtest.load.openloop import drive
from loadtest.load.sides import medians, over, ratio, values

CANDIDATES = 1
CONNECTIONS = 128
GOAL = 0.45
TAIL_GOAL = 3.0


def run(bench: Bench) -> Result:
    """Every layout against an echo of as many processes; then each at half of what it reached."""
    result = Result("single", "1 candidate a request: server / raw ASGI echo, and the tail at half load")
    with contextlib.ExitStack() as stack:
        started = bench.start_all(stack, LAYOUTS, result)
        nbytes = reply_nbytes(started[0][1], bench.payload(CANDIDATES))
        counts = sorted({side.workers for side, _ in started})
        echoes = {workers: f"echo, {workers} process{'es' if workers > 1 else ''}" for workers in counts}
        ports = {name: stack.enter_context(echo(nbytes, workers)) for workers, name in echoes.items()}
        ports |= {side.name: server.http_port for side, server in started}

        def saturated(port: int) -> dict[str, float]:
            return {"requests/s": wrk.saturate(port, bench.payload(CANDIDATES), bench.seconds, CONNECTIONS).per_s}

        def half(port: int) -> dict[str, float]:
            # Half of what it reaches now: a shared machine's speed changes within minutes.
            rate = saturated(port)["requests/s"] / 2
            found = drive(bench.job(port, CANDIDATES, rate))
            return {"offered/s": rate, "failed": found.failed, **quantiles(found)}

        turns, halves = (
            bench.turns({name: functools.partial(turn, port) for name, port in ports.items()})
            for turn in (saturated, half)
        )
    for side, _ in started:
        beside = echoes[side.workers]
        result.row(f"{side.name} / {beside}", over(turns, side.name, beside, "requests/s"), (">=", GOAL))
    for name in [*(side.name for side, _ in started), *echoes.values()]:
        tail = ratio(values(halves, name, "p99 ms"), values(halves, name, "p50 ms"))
        goal = None if name in echoes.values() else ("<=", TAIL_GOAL)
        result.row(f"{name} at half load: p99 / median", tail, goal)
    for name in halves:
        offered, p50, p99, answered, cores, waited = medians(
            halves, name, "offered/s", "p50 ms", "p99 ms", "answered p99 ms", "generator cores", "generator waited"
        )
        result.fact(
            f"{name} at half load",
            f"{offered:.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {answered:.2f} ms without the "
            f"generator's waiting, {sum(values(halves, name, 'failed')):.0f} failed; the generator took {cores:.2f} "
            f"cores and waited for one {waited:.0%} of the time",
        )
    for name in turns:
        result.fact(name, f"{medians(turns, name, 'requests/s')[0]:.0f} requests/s")
    result.notes.append(
        f"{CONNECTIONS} connections on both sides: with 32, workers wait for the client on the cores that they "
        "share, and neither side is saturated."
    )
    result.notes.append(
        "Half of what wrk reaches is far more than half of the cores: batches are smaller, and the generator takes its "
        "part. An echo has nothing to compute, and its tail is what this machine and this client leave of any server's."
    )
    return result


@contextlib.contextmanager
def echo(nbytes: int, workers: int) -> Iterator[int]:
    """An ASGI echo in processes of its own; yields its port."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "loadtest.bench.echo", str(port), str(nbytes), str(workers)]
    with LineProcess(command, "the echo") as process:
        process.read()
        yield port
