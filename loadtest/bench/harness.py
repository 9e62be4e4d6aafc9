"""The harness of scenarios: the repository and payloads that they run on, servers, and the form of their results."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from freshet_serving.serving.process_layout import MOST_WORKERS
from loadtest.load import wrk
from loadtest.load.launch import HOST, CommandFailed, RunningServer, run_freshet, serving
from loadtest.load.openloop import Job, drive
from loadtest.load.outcome import Figures
from loadtest.load.payload import Payload, bench_count, bench_payload
from loadtest.load.sides import Ratio

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

    def document(self) -> dict[str, Any]:
        """The result as JSON holds it."""
        rows = [{**asdict(row), "met": row.met} for row in self.rows]
        return {**asdict(self), "rows": rows}


@dataclass(slots=True)
class Bench:
    """One run of `make bench`. seconds: of a turn. serve: options of the server in
    scenarios that need one; without, its own defaults count. minutes: of the soak. before: another checkout. laid_out:
    side -> the layout in its server's ready line, of the servers that the scenario has had."""

    work: Path
    say: Callable[[str], Any]
    rounds: int = 5
    seconds: float = 3.0
    micro_rounds: int = 101
    table_rows: int = 100_000
    quick: bool = False
    minutes: float = 10.0
    serve: tuple[str, ...] = ()
    only_layouts: tuple[str, ...] = ()
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
        """A saved payload, written once."""
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

    def layouts(self) -> list[ServerSide]:
        """The layouts that are wanted."""
        chosen = [side for side in LAYOUTS if not self.only_layouts or side.name in self.only_layouts]
        if not chosen:
            raise ValueError(f"layouts: one of {', '.join(side.name for side in LAYOUTS)} wanted")
        return chosen

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
        """Runs one turn of wrk at a server."""
        return wrk.saturate(server.http_port, self.payload(candidates, model), self.seconds, CONNECTIONS)

    def openloop(self, server: RunningServer, candidates: int, rate: float, **options: Any) -> Figures:
        """Runs one turn of the open-loop generator at a server."""
        return drive(self.job(server.http_port, candidates, rate, **options))

    def job(self, port: int, candidates: int, rate: float, model: str = "bench", **options: Any) -> Job:
        options = {"seconds": self.seconds, **options}
        return Job(HOST, port, str(self.payload(candidates, model)), rate, **options)


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
