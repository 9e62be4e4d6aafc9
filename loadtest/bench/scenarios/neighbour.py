"""A noisy neighbour: what a saturated model B does to the tail of model A on the same server."""

from __future__ import annotations

import functools
from pathlib import Path

from loadtest.bench.harness import (
    Bench,
    Result,
    ServerSide,
    copied_version,
    quantiles,
    reason,
    reply_nbytes,
)
from loadtest.bench.scenarios.single import echo
from loadtest.load import wrk
from loadtest.load.launch import CommandFailed, RunningServer
from loadtest.load.openloop import Openloop
from loadtest.load.outcome import Figures
from loadtest.load.sides import medians, over

A, B = "bench", "bench-b"
A_CANDIDATES, B_CANDIDATES = 8, 64
A_LOAD = 0.15
B_CONNECTIONS = 16

# One row a server: how its cores are given to the models, as the text of a --config file.
DEDICATED = f"""
[groups.baseline]
models = ["{A}"]
cpus = "0"
[groups.rest]
models = ["*"]
"""
SIDES = (
    ServerSide("default"),
    ServerSide("shared cores", ("--workers", "1")),
    ServerSide("core 0 is A's own", config=DEDICATED),
)


def run(bench: Bench) -> Result:
    """p99 of A at a fixed rate, alone and with B saturated, for every way of giving out the cores.

    An echo in A's place, which computes nothing and has a process of its own, shows what the client and the cores that
    B takes cost any server.
    """
    result = Result("neighbour", "p99 of model A with model B saturated / alone")
    repository = two_models(bench)
    for side in SIDES:
        try:
            with bench.server(side, repository) as server:
                _measure(bench, side, server, result)
        except CommandFailed as error:
            result.refused[side.name] = reason(error)
    return result


def _measure(bench: Bench, side: ServerSide, server: RunningServer, result: Result) -> None:
    rate = A_LOAD * bench.saturate(server, A_CANDIDATES, A).per_s
    labels = ("alone", "with B", "an echo alone", "an echo with B")
    with echo(reply_nbytes(server, bench.payload(A_CANDIDATES, A)), 1) as echo_port:

        def turn(label: str) -> dict[str, float]:
            port = echo_port if "echo" in label else server.http_port
            return quantiles(beside(bench, server, rate, saturated="with B" in label, port=port))

        turns = bench.turns({label: functools.partial(turn, label) for label in labels})
    for what, alone, crowded in (("A", *labels[:2]), ("an echo", *labels[2:])):
        result.row(f"{side.name}: p99 of {what} with B saturated / alone", over(turns, crowded, alone, "p99 ms"))
        tail = over(turns, crowded, alone, "answered p99 ms")
        result.row(f"{side.name}: the same without the generator's waiting, {what}", tail)
    for label in labels:
        p50, p99 = medians(turns, label, "p50 ms", "p99 ms")
        result.fact(f"{side.name}, A {label}, {rate:.0f} requests/s", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms")


def beside(bench: Bench, server: RunningServer, rate: float, saturated: bool, port: int = 0) -> Figures:
    """One turn of A at a fixed rate, with B saturated or alone; raises CommandFailed when a request to A fails.

    port: where A's requests go, if not to the server.
    """
    job = bench.job(port or server.http_port, A_CANDIDATES, rate, A)
    payload = bench.payload(B_CANDIDATES, B)
    with Openloop(job) as generator:
        generator.started()
        if saturated:
            wrk.saturate(server.http_port, payload, job.warm_s + job.seconds, B_CONNECTIONS)
        found = generator.result()
    if found.failed:
        raise CommandFailed(f"{found.failed} requests to A failed: {found.statuses}")
    return found


def two_models(bench: Bench) -> Path:
    """A repository with the benchmark's model under two names."""
    path = bench.copied("two-models")
    copied_version(path / A / "1", path / B / "1", model=B)
    return path
