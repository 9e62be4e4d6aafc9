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
from loadtest.load.launch import RunningServer, free_ports
from loadtest.load.outcome import encode, merge
from loadtest.load.sides import Side, Turns, compare, ratio, values

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
        echoes = {
            workers: _side(bench, f"echo, {workers} process{'es' if workers > 1 else ''}", port)
            for workers in sorted({side.workers for side, _ in started})
            for port in [stack.enter_context(echo(nbytes, workers))]
        }
        servers = [_side(bench, side.name, server.http_port) for side, server in started]
        turns = compare([*echoes.values(), *servers], bench.rounds, bench.say)
        histograms: dict[str, list[str]] = {side.name: [] for side, _ in started}
        late: list[float] = []

        def half(name: str, server: RunningServer) -> dict[str, float]:
            # Half of what it reaches now: a shared machine's speed changes within minutes.
            rate = _side(bench, name, server.http_port).turn()["requests/s"] / 2
            found = bench.openloop(server, CANDIDATES, rate)
            histograms[name].append(found.hdr)
            late.append(found.late_ms["p99"])
            tail = {"p50 ms": found.latency_ms["p50"], "p99 ms": found.latency_ms["p99"]}
            return {"offered/s": rate, **tail, "failed": found.failed}

        halves = compare(
            [Side(side.name, functools.partial(half, side.name, server)) for side, server in started],
            bench.rounds,
            bench.say,
        )
    for side, _ in started:
        found = ratio(values(turns, side.name, "requests/s"), values(turns, echoes[side.workers].name, "requests/s"))
        result.rows.append(Row(f"{side.name} / {echoes[side.workers].name}", found, (">=", GOAL)))
    for side, _ in started:
        tail = ratio(values(halves, side.name, "p99 ms"), values(halves, side.name, "p50 ms"))
        result.rows.append(Row(f"{side.name} at half load: p99 / median", tail, ("<=", TAIL_GOAL)))
        failed = sum(values(halves, side.name, "failed"))
        offered = statistics.median(values(halves, side.name, "offered/s"))
        result.facts.append(
            (
                f"{side.name} at half load",
                f"{offered:.0f} requests/s, p50 {_ms(halves, side.name, 'p50')}, "
                f"p99 {_ms(halves, side.name, 'p99')}, {failed:.0f} failed",
            )
        )
        result.latencies[f"{side.name}, 1 candidate, half load"] = encode(merge(histograms[side.name]))
    for name in turns:
        result.facts.append((name, f"{statistics.median(values(turns, name, 'requests/s')):.0f} requests/s"))
    result.notes.append(
        f"{CONNECTIONS} connections on both sides: with 32, workers wait for the client on the cores that they "
        "share, and neither side is saturated."
    )
    result.facts.append(("the generator was late by, p99", f"{max(late):.2f} ms at most"))
    return result


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


def _ms(turns: Turns, side: str, quantile: str) -> str:
    return f"{statistics.median(values(turns, side, f'{quantile} ms')):.2f} ms"
