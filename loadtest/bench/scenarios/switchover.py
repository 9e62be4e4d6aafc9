"""A full version while requests come: what the switch-over does to the tail, with the loading of the new one."""

from __future__ import annotations

import functools
import json
import shutil
import statistics
import time
from pathlib import Path

from freshet_serving.processor.repository.model_repository import Repository
from loadtest.bench.harness import Bench, Result, Row
from loadtest.load.launch import RunningServer
from loadtest.load.openloop import Openloop
from loadtest.load.sides import Side, compare, ratio, values

CANDIDATES = 64
LOAD = 0.5
SWITCHES = 2
GOAL = 1.15
LOOK_S, GIVE_UP_S = 0.02, 60.0


def run(bench: Bench) -> Result:
    """p99 at half load with full versions published against without; each is loaded, warmed and answers."""
    result = Result("switchover", f"New full versions at {LOAD:.0%} load, {CANDIDATES} candidates a request")
    repository = bench.copied("switchover-repository")
    seconds = 3 * bench.seconds
    rounds_of = {"with new versions": 0, "without": 0}
    failed: list[str] = []
    switched: list[float] = []
    with bench.server(bench.main, repository) as server:
        bench.saturate(server, CANDIDATES)
        rates: list[float] = []

        def turn(label: str) -> dict[str, float]:
            number = rounds_of[label]
            rounds_of[label] += 1
            if number == len(rates):
                rates.append(LOAD * bench.saturate(server, CANDIDATES).per_s)
            job = bench.job(server.http_port, CANDIDATES, rates[number], seconds=seconds)
            prepared = [_prepared(repository, n) for n in range(SWITCHES)] if label == "with new versions" else []
            with Openloop(job) as generator:
                start_s = generator.started() + job.warm_s
                for n, folder in enumerate(prepared):
                    time.sleep(max(0.0, start_s + seconds * (n + 0.25) / SWITCHES - time.monotonic()))
                    switched.append(_publish(server, folder))
                found = generator.result()
            failed.extend([*found.faults, *(code for code in found.statuses if code != "200")])
            return {"rate/s": rates[number], "p50 ms": found.latency_ms["p50"], "p99 ms": found.latency_ms["p99"]}

        turns = compare([Side(label, functools.partial(turn, label)) for label in rounds_of], bench.rounds, bench.say)
    tail = ratio(values(turns, "with new versions", "p99 ms"), values(turns, "without", "p99 ms"))
    result.rows.append(Row(f"p99 with {SWITCHES} versions in {seconds:g} s / without", tail, ("<=", GOAL)))
    result.checks.append(("no request failed", not failed, ", ".join(sorted(set(failed))) or "none did"))
    text = f"median {statistics.median(switched):.2f} s, slowest {max(switched):.2f} s of {len(switched)}"
    result.facts.append(("a version appears until it answers", text))
    for name, figures in turns.items():
        rate, p50, p99 = (statistics.median(f[key] for f in figures) for key in ("rate/s", "p50 ms", "p99 ms"))
        result.facts.append((name, f"{rate:.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms"))
    return result


def _prepared(repository: Path, ahead: int) -> Path:
    """The newest version once more under a later number, hidden until it is published."""
    numbers = Repository(str(repository)).versions("bench")
    newest, number = numbers[-1], numbers[-1] + 1 + ahead
    hidden = repository / "bench" / f".{number}.prepared"
    shutil.copytree(repository / "bench" / str(newest), hidden)
    manifest = hidden / "model.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": number}))
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
