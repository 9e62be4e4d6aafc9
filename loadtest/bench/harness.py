"""The harness of scenarios: the repository and payloads that they run on, servers, and the form of their results."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from freshet_serving.processor.package import undivided_name
from freshet_serving.processor.repository.version import WARMUP, VersionReader
from freshet_serving.processor.repository.version_writer import add_file
from freshet_serving.processor.repository.warmup import dump_warmup
from freshet_serving.serving.process_layout import MOST_WORKERS
from loadtest.bench.pairs import Pair
from loadtest.bench.pairs import compare as compare_pair
from loadtest.load import wrk
from loadtest.load.launch import HOST, CommandFailed, RunningServer, environment, run_freshet, serving
from loadtest.load.openloop import Job, Openloop, drive
from loadtest.load.outcome import Figures
from loadtest.load.payload import Payload, bench_count, bench_payload
from loadtest.load.sides import Ratio, Turn, Turns, compare, medians, over

CONNECTIONS = 32
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class ServerSide:
    """One way to run `freshet serve`. workers: processes that compute; 1 means that threads do. config: text of a TOML
    file for --config."""

    name: str
    options: tuple[str, ...] = ()
    workers: int = 1
    config: str = ""


# How the front end and the computing are laid out. A side that the server refuses is reported with its reason.
LAYOUTS = (
    ServerSide("default", workers=min(CORES, MOST_WORKERS)),
    ServerSide("1 process, threads", ("--workers", "1", "--compute", "threads")),
    ServerSide("1 process, inline", ("--workers", "1", "--compute", "inline")),
    ServerSide(
        f"{CORES} workers, threads", ("--workers", str(CORES), "--compute", "threads", "--sessions", "1"), CORES
    ),
    ServerSide(f"{CORES} workers, inline", ("--workers", str(CORES), "--compute", "inline"), CORES),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One ratio of a result. goal: (">=" or "<=", bound), or none."""

    what: str
    ratio: Ratio
    goal: tuple[str, float] | None = None

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        sign, bound = self.goal
        return self.ratio.median >= bound if sign == ">=" else self.ratio.median <= bound


@dataclass(slots=True)
class Result:
    """The result of a scenario. checks: (what must hold, whether it did, what was seen). facts: (what, figure),
    for orientation. refused: what could not be run, and why."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    checks: list[tuple[str, bool, str]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def row(self, what: str, ratio: Ratio, goal: tuple[str, float] | None = None) -> None:
        self.rows.append(Row(what, ratio, goal))

    def fact(self, what: str, figure: str) -> None:
        self.facts.append((what, figure))

    def failures(self, failed: Sequence[str]) -> None:
        self.checks.append(("no request failed", not failed, ", ".join(sorted(set(failed))) or "none did"))

    def document(self) -> dict[str, Any]:
        rows = [{**asdict(row), "met": row.met} for row in self.rows]
        return {**asdict(self), "rows": rows}


@dataclass(slots=True)
class Bench:
    """One run of `make bench`.

    Attributes:
        seconds: Of a turn.
        serve: Options of the server in scenarios that need one; without, its own defaults count.
        minutes: Of the soak.
        before: Another checkout.
        laid_out: Side -> the layout in its server's ready line, of the servers that the scenario has had.
    """

    work: Path
    say: Callable[[str], Any]
    rounds: int = 5
    seconds: float = 3.0
    micro_rounds: int = 101
    table_rows: int = 100_000
    quick: bool = False
    minutes: float = 10.0
    serve: tuple[str, ...] = ()
    before: Path | None = None
    laid_out: dict[str, str] = field(default_factory=dict)

    def repository(self) -> Path:
        """A repository with version 1 of the benchmark's model; written once, never changed."""
        path = self.work / "repository"
        if not path.exists():
            self.say(f"writing a model of 26 tables of {self.table_rows} rows")
            run_freshet("bench", "model", "--rows", str(self.table_rows), "--repository", str(path))
        return path

    def copied(self, name: str) -> Path:
        """A copy of the repository, for a scenario that changes it; made anew each time."""
        path = self.work / name
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.repository(), path)
        return path

    def payload(self, candidates: int, model: str = "bench") -> Path:
        folder = self.work / f"payload-{model}-{candidates}"
        if not folder.exists():
            bench_payload(candidates, bench_count(candidates), self.table_rows, model=model).save(folder)
        return folder

    @contextlib.contextmanager
    def server(self, side: ServerSide, repository: Path | None = None) -> Iterator[RunningServer]:
        """A server of its own on the repository (shared read-only by several, unless deltas are posted)."""
        options = list(side.options)
        if side.config:
            file = self.work / f"{_slug(side.name)}.toml"
            file.write_text(side.config)
            options += ["--config", str(file)]
        log = self.work / f"{_slug(side.name)}.log"
        with serving(repository or self.repository(), log, options) as server:
            self.laid_out[side.name] = ""
            yield server
            self.laid_out[side.name] = server.layout

    @property
    def main(self) -> ServerSide:
        """The server of scenarios that need one."""
        return ServerSide("freshet serve" + "".join(f" {option}" for option in self.serve), self.serve)

    def turns(self, sides: Mapping[str, Turn], rounds: int = 0) -> Turns:
        """Each side's turns, so many rounds, or those of this run."""
        return compare(sides, rounds or self.rounds, self.say)

    def pair(self, found: Result, pair: Pair, goal: tuple[str, float] | None = None, **options: Any) -> None:
        """Compares a pair in this process, and adds it to a result; options: of pairs.compare."""
        both = compare_pair(pair, **{"rounds": self.micro_rounds, **options})
        self.say(f"{pair.name}: {both.ratio.median:.3f}")
        found.row(pair.name, both.ratio, goal)
        found.fact(pair.name, f"{both.a_ns / 1e3:.4g} / {both.b_ns / 1e3:.4g} us a {pair.unit}")

    def run_python(self, checkout: Path, *words: object) -> None:
        """Runs a module of a checkout to its end, as for models that it writes; raises CommandFailed."""
        command = [sys.executable, "-m", *map(str, words)]
        done = subprocess.run(command, cwd=checkout, env=environment(checkout), capture_output=True, text=True)
        if done.returncode:
            raise CommandFailed(f"{words[0]} in {checkout.name}: {done.stderr.strip()[-300:]}")

    def start_all(
        self, stack: contextlib.ExitStack, sides: Sequence[ServerSide], result: Result
    ) -> list[tuple[ServerSide, RunningServer]]:
        """Every side's server, up together; those that the server refuses go to result.refused."""
        started = []
        for side in sides:
            try:
                started.append((side, stack.enter_context(self.server(side))))
            except CommandFailed as error:
                result.refused[side.name] = reason(error)
                self.say(f"{side.name}: not run: {result.refused[side.name]}")
        if not started:
            raise CommandFailed("no server could be started")
        return started

    def saturate(self, server: RunningServer, candidates: int, model: str = "bench") -> wrk.WrkRun:
        return wrk.saturate(server.http_port, self.payload(candidates, model), self.seconds, CONNECTIONS)

    def openloop(self, server: RunningServer, candidates: int, rate: float, **options: Any) -> Figures:
        return drive(self.job(server.http_port, candidates, rate, **options))

    def job(self, port: int, candidates: int, rate: float, model: str = "bench", **options: Any) -> Job:
        options = {"seconds": self.seconds, **options}
        return Job(HOST, port, str(self.payload(candidates, model)), rate, **options)


def beside_load(
    bench: Bench,
    server: RunningServer,
    result: Result,
    candidates: int,
    load: float,
    label: str,
    prepare: Callable[[], list[tuple[float, Callable[[], object]]]],
) -> Ratio:
    """p99 of a part of what the server can do with chores, over without; adds the check that no request failed.

    Args:
        label: The side with chores.
        prepare: Returns the chores of one turn, each with the second of the load at which it is due.
    """
    bench.saturate(server, candidates)
    rates, rounds, failed = dict[int, float](), Counter[str](), list[str]()

    def turn(side: str) -> dict[str, float]:
        number = rounds[side]
        rounds[side] += 1
        if number not in rates:
            # Anew each round, for both sides: a shared machine changes its speed within minutes, and 70 % of before may
            # be all of now.
            rates[number] = load * bench.saturate(server, candidates).per_s
        job = bench.job(server.http_port, candidates, rates[number], seconds=3 * bench.seconds)
        plan = prepare() if side == label else []
        with Openloop(job) as generator:
            start_s = generator.started() + job.warm_s
            for at_s, chore in plan:
                time.sleep(max(0.0, start_s + at_s - time.monotonic()))
                chore()
            found = generator.result()
        failed.extend([*found.faults, *(code for code in found.statuses if code != "200")])
        return {"rate/s": job.rate, **quantiles(found)}

    turns = bench.turns({side: partial(turn, side) for side in (label, "without")})
    result.failures(failed)
    for name in turns:
        names = ("rate/s", "p50 ms", "p99 ms", "answered p99 ms", "generator cores")
        rate, p50, p99, answered, cores = medians(turns, name, *names)
        result.fact(
            name,
            f"{rate:.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {answered:.2f} ms without the generator's "
            f"waiting; the generator took {cores:.2f} cores",
        )
    return over(turns, label, "without", "p99 ms")


def quantiles(found: Figures) -> dict[str, float]:
    """Return latencies of a turn of the open-loop generator, and the generator's own time and waits."""
    latency, answered = found.latency_ms, found.answered_ms["p99"]
    figures = {"p50 ms": latency["p50"], "p99 ms": latency["p99"], "answered p99 ms": answered}
    return {**figures, "generator cores": found.cores, "generator waited": found.waited}


def copied_version(source: Path, target: Path, **changes: Any) -> None:
    """Copies the folder of a version, with other entries in its manifest."""
    shutil.copytree(source, target)
    manifest = target / "model.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_bytes()), **changes}))


def compile_with_practice(folder: Path, requests: Sequence[Mapping[str, Any]], precision: str = "auto") -> str:
    """Puts requests into a version as recorded ones are, and compiles it; what it runs then, by bucket."""
    add_file(VersionReader(folder), WARMUP, dump_warmup([dict(request) for request in requests]))
    run_freshet("compile", str(folder), "--precision", precision)
    manifest = VersionReader(folder).manifest
    # Of what is listed the first serves.
    listed = [e for e in reversed(manifest.executables) if e.subgraph == undivided_name(manifest)]
    first = {e.bucket: f"{e.backend} {e.precision}" for e in listed}
    return ", ".join(f"{bucket}: {first[bucket]}" for bucket in sorted(first))


def workers_of(server: RunningServer) -> list[int]:
    """The processes that answer, where others do than the one that was started; none where that one does."""
    import httpx

    return [worker["pid"] for worker in httpx.get(f"{server.admin}/admin/models").json().get("workers", [])]


def reply_nbytes(server: RunningServer, payload: Path) -> int:
    """Length of the body of one reply, in bytes: what an echo has to send to be compared."""
    import httpx

    about = Payload.load(payload)
    reply = httpx.post(f"{server.host}{about.path}", content=about.bodies[0], headers=dict(about.headers))
    if reply.status_code != 200:
        raise CommandFailed(f"a predict request was answered {reply.status_code}")
    return len(reply.content)


def reason(error: Exception) -> str:
    """The reason that a failed command gave: what it said last, without the box that some draw around it."""
    lines = [line.strip(" │╭╮╰╯─") for line in str(error).splitlines()]
    return next((line for line in reversed(lines) if line), type(error).__name__)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)
