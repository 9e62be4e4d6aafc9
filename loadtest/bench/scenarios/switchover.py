"""A full version while requests come: what the switch-over does to the tail, with the loading of the new one."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from freshet_serving.processor.repository.model_repository import Repository
from loadtest.bench.harness import Bench, Result, beside_load, copied_version
from loadtest.load.launch import RunningServer

CANDIDATES = 64
LOAD = 0.5
SWITCHES = 2
GOAL = 1.15
LOOK_S, GIVE_UP_S = 0.02, 60.0


def run(bench: Bench) -> Result:
    """p99 at half load with full versions published against without; each is loaded, warmed and answers."""
    result = Result("switchover", f"New full versions at {LOAD:.0%} load, {CANDIDATES} candidates a request")
    repository = bench.copied("switchover-repository")
    seconds, switched = 3 * bench.seconds, list[float]()
    with bench.server(bench.main, repository) as server:

        def prepare() -> list[tuple[float, Callable[[], object]]]:
            folders = [_prepared(repository, n) for n in range(SWITCHES)]
            due_s = (seconds * (n + 0.25) / SWITCHES for n in range(SWITCHES))
            return [(at_s, partial(_publish, server, folder, switched)) for at_s, folder in zip(due_s, folders)]

        tail = beside_load(bench, server, result, CANDIDATES, LOAD, "with new versions", prepare)
    result.row(f"p99 with {SWITCHES} versions in {seconds:g} s / without", tail, ("<=", GOAL))
    text = f"median {statistics.median(switched):.2f} s, slowest {max(switched):.2f} s of {len(switched)}"
    result.fact("a version appears until it answers", text)
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


def _publish(server: RunningServer, hidden: Path, switched: list[float]) -> None:
    """Gives a prepared version its name; adds the seconds until it answers."""
    import httpx

    number = hidden.name.split(".")[1]
    began_s = time.monotonic()
    hidden.rename(hidden.with_name(number))
    while time.monotonic() - began_s < GIVE_UP_S:
        model = httpx.get(f"{server.admin}/admin/models").json()["models"]["bench"]
        if model["generation"].split(".")[0] == number:
            switched.append(time.monotonic() - began_s)
            return
        time.sleep(LOOK_S)
    raise RuntimeError(f"version {number} does not answer within {GIVE_UP_S:g} s")
