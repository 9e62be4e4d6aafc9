"""Ten minutes that stand for an hour: half load, a delta a second, versions that come and go, workers that are killed.

Memory is read at the same moment of every cycle, before a version is loaded, and the first cycles are left out: rows
are touched for the first time there, and the undo log fills. Where workers are killed, the requests that were in
flight on the killed one are lost with it; they are told from failures by their time.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from loadtest.bench.harness import Bench, Result, copied_version, workers_of
from loadtest.bench.scenarios.deltas import chain
from loadtest.load.admin_calls import change_version, post_delta
from loadtest.load.launch import RunningServer
from loadtest.load.openloop import Openloop
from loadtest.load.outcome import merge, quantiles_ms
from loadtest.load.processes import pss_nbytes, tree
from loadtest.load.sides import ratio

CANDIDATES = 64
LOAD = 0.5
DELTA_ROWS, DELTA_EVERY_S = 10_000, 1.0
CYCLES = 20
SETTLED = 4
LOADED_SHARE = 0.3
KILL_EVERY, KILL_SHARE = 4, 0.8
MEMORY_GOAL, TAIL_GOAL = 1.03, 1.10
OLD, NEW = 1, 2
CONNECTIONS = 64
ROWS = 20_000
"""Of a table: deltas have changed most of them by the time that memory is called settled."""


@dataclass(slots=True)
class SoakActions:
    """The chores of a soak, done to the server each at its moment; what went wrong is kept as text."""

    server: RunningServer
    pss: list[int] = field(default_factory=list)
    kills_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    deltas: int = 0

    def run(self, start_s: float, seconds: float, write: Any) -> None:
        """Everything of the run, in the calling thread."""
        plan: list[tuple[float, Any]] = [
            (n * DELTA_EVERY_S, lambda: self._delta(write(DELTA_ROWS))) for n in range(int(seconds / DELTA_EVERY_S))
        ]
        cycle_s = seconds / CYCLES
        for n in range(CYCLES):
            plan.append((n * cycle_s, self.remember))
            plan.append((n * cycle_s + 0.1, lambda: change_version(self.server.admin_port, "bench", OLD, "load")))
            unload_s = (n + LOADED_SHARE) * cycle_s
            plan.append((unload_s, lambda: change_version(self.server.admin_port, "bench", OLD, "unload")))
            if n % KILL_EVERY == 1 and workers_of(self.server):
                plan.append(((n + KILL_SHARE) * cycle_s, lambda: self._kill(start_s)))
        for at_s, chore in sorted(plan, key=lambda entry: entry[0]):
            threading.Event().wait(max(0.0, start_s + at_s - time.monotonic()))
            try:
                chore()
            except Exception as error:
                self.errors.append(f"{at_s:.0f} s: {error}")

    def _delta(self, file: bytes) -> None:
        post_delta(self.server.admin_port, "bench", file)
        self.deltas += 1

    def remember(self) -> None:
        self.pss.append(pss_nbytes(tree(self.server.pid)))

    def _kill(self, start_s: float) -> None:
        workers = workers_of(self.server)
        os.kill(workers[len(self.kills_s) % len(workers)], signal.SIGKILL)
        self.kills_s.append(time.monotonic() - start_s)


def run(bench: Bench) -> Result:
    """`make -C loadtest soak`: memory at the end over settled, p99 of the last tenth over the first, no error."""
    bench = replace(bench, work=bench.work / "soak", table_rows=min(ROWS, bench.table_rows))
    bench.work.mkdir()
    result = Result("soak", f"Soak of {bench.minutes:g} minutes at {LOAD:.0%} load")
    seconds = bench.minutes * 60
    repository = bench.copied("soak-repository")
    model = repository / "bench"
    # The same model once more, as the one that is served, while the old one comes and goes.
    copied_version(model / str(OLD), model / str(NEW), version=NEW)
    with bench.server(bench.main, repository) as server, chain(bench, repository, NEW) as write:
        rate = LOAD * statistics.median(bench.saturate(server, CANDIDATES).per_s for _ in range(3))
        window_s = seconds / 10
        chores, workers = SoakActions(server), len(workers_of(server))
        job = bench.job(server.http_port, CANDIDATES, rate, seconds=seconds, window_s=window_s, connections=CONNECTIONS)
        with Openloop(job) as load:
            chores.run(load.started() + job.warm_s, seconds, write)
            found = load.result()
        chores.remember()
    memory = ratio([chores.pss[-1]], [chores.pss[SETTLED]])
    result.row("memory at the end / once settled", memory, ("<=", MEMORY_GOAL))
    p99 = [quantiles_ms(merge([w["hdr"]]))["p99"] for w in found.windows]
    result.row("p99 of the last tenth / of the first", ratio([p99[-1]], [p99[0]]), ("<=", TAIL_GOAL))
    lost = sum(found.faults.values())
    in_flight = len(chores.kills_s) * -(-CONNECTIONS // max(1, workers))
    result.checks += [
        (
            "every request answered 200, but for those in flight on a killed worker",
            found.failed == lost <= in_flight,
            f"{found.failed} failed, {lost} of them by lost connections",
        ),
        ("every delta, load and unload done", not chores.errors, "; ".join(chores.errors[:5]) or "all"),
    ]
    result.facts += [
        ("load", f"{rate:.0f} requests/s, {found.requests} requests, statuses {found.statuses}"),
        ("workers killed", str(len(chores.kills_s))),
        ("deltas", f"{chores.deltas} of {DELTA_ROWS} rows"),
        ("memory, MiB, cycle by cycle", " ".join(f"{n / 2**20:.0f}" for n in chores.pss)),
        ("p99, ms, tenth by tenth", " ".join(f"{ms:.1f}" for ms in p99)),
    ]
    return result
