"""A full version while requests come: what the switch-over does to the tail, with the loading of the new one."""

from __future__ import annotations

import functools
import shutil
import statistics
import time
from pathlib import Path

from freshet_serving.processor.repository.model_repository import Repository
from loadtest.bench.harness import Bench, Result, RoundRates, copied_version, failures, quantiles
from loadtest.load.launch import RunningServer
from loadtest.load.openloop import Openloop
from loadtest.load.sides import medians, over

CANDIDATES = 64
LOAD = 0.5
SWITCHES = 2
GOAL = 1.15
WITH = "with new versions"
LOOK_S, GIVE_UP_S = 0.02, 60.0


def run(bench: Bench) -> Result:
    """p99 at half load with full versions published against without; each is loaded, warmed and answers."""
    result = Result("switchover", f"New full versions at {LOAD:.0%} load, {CANDIDATES} candidates a request")
    repository = bench.copied("switchover-repository")
    seconds = 3 * bench.seconds
    failed: list[str] = []
    switched: list[float] = []
    with bench.server(bench.main, repository) as server:
        bench.saturate(server, CANDIDATES)
        rates = RoundRates(lambda: LOAD * bench.saturate(server, CANDIDATES).per_s)

        def turn(label: str) -> dict[str, float]:
            rate = rates.of(label)
            job = bench.job(server.http_port, CANDIDATES, rate, seconds=seconds)
            prepared = [_prepared(repository, n) for n in range(SWITCHES)] if label == WITH else []
            with Openloop(job) as generator:
                start_s = generator.started() + job.warm_s
                for n, folder in enumerate(prepared):
                    time.sleep(max(0.0, start_s + seconds * (n + 0.25) / SWITCHES - time.monotonic()))
                    switched.append(_publish(server, folder))
                found = generator.result()
            failed.extend(failures(found))
            return {"rate/s": rate, **quantiles(found)}

        turns = bench.turns({label: functools.partial(turn, label) for label in (WITH, "without")})
    tail = over(turns, WITH, "without", "p99 ms")
    result.row(f"p99 with {SWITCHES} versions in {seconds:g} s / without", tail, ("<=", GOAL))
    result.failures(failed)
    text = f"median {statistics.median(switched):.2f} s, slowest {max(switched):.2f} s of {len(switched)}"
    result.fact("a version appears until it answers", text)
    for name in turns:
        rate, p50, p99 = medians(turns, name, "rate/s", "p50 ms", "p99 ms")
        result.fact(name, f"{rate:.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    return result


def _prepared(repository: Path, ahead: int) -> Path:
    """The newest version once more under a later number, hidden until it is published."""
    numbers = Repository(str(repository)).versions("bench")
    newest, number = numbers[-1], numbers[-1] + 1 + ahead
    hidden = repository / "bench" / f".{number}.prepared"
    copied_version(repository / "bench" / str(newest), hidden, version=number)
    for later in ("chain", "deltas"):
        shutil.rmtree(hidden / later, ignore_errors=True)
    return hidden


def _publish(server: RunningServer, hidden: Path) -> float:
    """Gives a prepared version its name; seconds until it answers."""
    import httpx

    number = hidden.name.split(".")[1]
    began_s = time.monotonic()
    hidden.rename(hidden.with_name(number))
    while time.monotonic() - began_s < GIVE_UP_S:
        model = httpx.get(f"{server.admin}/admin/models").json()["models"]["bench"]
        if model["generation"].split(".")[0] == number:
            return time.monotonic() - began_s
        time.sleep(LOOK_S)
    raise RuntimeError(f"version {number} does not answer within {GIVE_UP_S:g} s")
