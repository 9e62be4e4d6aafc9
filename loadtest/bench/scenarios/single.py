"""1 candidate a request: the front end decides. Requests a second against an ASGI echo; p99 at half load."""

from __future__ import annotations

import contextlib
import functools
import statistics
import subprocess
import sys
from collections.abc import Iterator

from loadtest.bench.harness import Bench, Result, Row, reply_nbytes
from loadtest.load import wrk
from loadtest.load.launch import free_ports
from loadtest.load.openloop import drive
from loadtest.load.outcome import Figures
from loadtest.load.sides import Side, compare, ratio, values

CANDIDATES = 1
CONNECTIONS = 128
GOAL = 0.45
TAIL_GOAL = 3.0


def run(bench: Bench) -> Result:
    """Every layout against an echo of as many processes; then each at half of what it reached."""
    result = Result("single", "1 candidate a request: server / raw ASGI echo, and the tail at half load")
    with contextlib.ExitStack() as stack:
        started = bench.start_all(stack, bench.layouts(), result)
        nbytes = reply_nbytes(started[0][1], bench.payload(CANDIDATES))
        counts = sorted({side.workers for side, _ in started})
        echo_ports = {workers: stack.enter_context(echo(nbytes, workers)) for workers in counts}
        echoes = {
            workers: _side(bench, f"echo, {workers} process{'es' if workers > 1 else ''}", port)
            for workers, port in echo_ports.items()
        }
        servers = [_side(bench, side.name, server.http_port) for side, server in started]
        turns = compare([*echoes.values(), *servers], bench.rounds, bench.say)

        def half(side: Side, port: int) -> dict[str, float]:
            # Half of what it reaches now: a shared machine's speed changes within minutes.
            rate = side.turn()["requests/s"] / 2
            found = drive(bench.job(port, CANDIDATES, rate))
            return {"offered/s": rate, "failed": found.failed, **_tail(found)}

        ports = {side.name: server.http_port for side, server in started}
        ports |= {side.name: echo_ports[workers] for workers, side in echoes.items()}
        halves = compare(
            [Side(side.name, functools.partial(half, side, ports[side.name])) for side in (*echoes.values(), *servers)],
            bench.rounds,
            bench.say,
        )
    for side, _ in started:
        found = ratio(values(turns, side.name, "requests/s"), values(turns, echoes[side.workers].name, "requests/s"))
        result.rows.append(Row(f"{side.name} / {echoes[side.workers].name}", found, (">=", GOAL)))
    for side, _ in started:
        tail = ratio(values(halves, side.name, "p99 ms"), values(halves, side.name, "p50 ms"))
        result.rows.append(Row(f"{side.name} at half load: p99 / median", tail, ("<=", TAIL_GOAL)))
    for each in echoes.values():
        tail = ratio(values(halves, each.name, "p99 ms"), values(halves, each.name, "p50 ms"))
        result.rows.append(Row(f"{each.name} at half load: p99 / median", tail))
    for name in halves:
        offered, p50, p99, answered, cores, waited = (
            statistics.median(values(halves, name, key))
            for key in ("offered/s", "p50 ms", "p99 ms", "answered p99 ms", "generator cores", "generator waited")
        )
        failed = sum(values(halves, name, "failed"))
        result.facts.append(
            (
                f"{name} at half load",
                f"{offered:.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {answered:.2f} ms without the "
                f"generator's waiting, {failed:.0f} failed; the generator took {cores:.2f} cores and waited for one "
                f"{waited:.0%} of the time",
            )
        )
    for name in turns:
        result.facts.append((name, f"{statistics.median(values(turns, name, 'requests/s')):.0f} requests/s"))
    result.notes.append(
        f"{CONNECTIONS} connections on both sides: with 32, workers wait for the client on the cores that they "
        "share, and neither side is saturated."
    )
    result.notes.append(
        "Half of what wrk reaches is far more than half of the cores: batches are smaller, and the generator takes its "
        "part. An echo has nothing to compute, and its tail is what this machine and this client leave of any server's."
    )
    return result


def _tail(found: Figures) -> dict[str, float]:
    return {
        "p50 ms": found.latency_ms["p50"],
        "p99 ms": found.latency_ms["p99"],
        "answered p99 ms": found.answered_ms["p99"],
        "generator cores": found.cores,
        "generator waited": found.waited,
    }


@contextlib.contextmanager
def echo(nbytes: int, workers: int) -> Iterator[int]:
    """An ASGI echo in processes of its own; yields its port."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "loadtest.bench.echo", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--nbytes", str(nbytes), "--workers", str(workers)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield port
    finally:
        process.terminate()
        process.communicate()


def _side(bench: Bench, name: str, port: int) -> Side:
    def turn() -> dict[str, float]:
        return {"requests/s": wrk.saturate(port, bench.payload(CANDIDATES), bench.seconds, CONNECTIONS).per_s}

    return Side(name, turn)
