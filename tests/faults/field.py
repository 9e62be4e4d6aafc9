"""A field: the servers on one repository, their clients and their publisher, and what has to hold when all is quiet.

The repository lies on a file system of its own where one can be mounted, so that it can be full or read-only; who may
not mount does without these kinds, which the report says.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.extensions.remote_rows.push import push
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.tables.row_store import open_store
from tests.e2e.servers import ALONE, LiveServer
from tests.faults.committer import Committer
from tests.faults.load import Asker, Excuses, HttpSide, Refused, RpcSide, Tally, Unsent
from tests.faults.truth import QUESTIONS, Truth
from tests.processor.extensions.remote_rows.fakes import RedisServer

DISK = "size=96m"
STEPPING = Path(__file__).with_name("stepping")
UP_S, QUIET_S = 90.0, 90.0


@dataclass(frozen=True)
class Setup:
    """What is served how. options: of each server. tiered: rows beyond the memory budget. remote: tables in Redis.
    stepping: with a wall clock of its own. before: what is done with a version's folder before it is published."""

    name: str
    options: tuple[str, ...] = ()
    servers: int = 1
    tiered: bool = False
    remote: bool = False
    stepping: bool = False
    before: Callable = lambda field, folder: None


def to_redis(field, folder):
    """Every version's rows lie in the store."""
    push(VersionReader(folder), [], open_store(field.store.url, 10.0, SystemClock()))


SETUPS = {
    setup.name: setup
    for setup in (
        Setup("default"),
        Setup("one process", ALONE),
        Setup("memory budget", ("--table-memory", "small/user=1M"), tiered=True),
        Setup("Redis", ("--remote-tables", "small/*", "--remote-on-error", "fail"), remote=True, before=to_redis),
        Setup("two servers", ALONE, servers=2),
        Setup("a clock that steps", ALONE, stepping=True),
    )
}


class Field:
    """See the module. A context manager; everything that it began ends with it."""

    def __init__(self, folder: Path, setup: Setup, seed: int):
        self.folder, self.setup = folder, setup
        self.repository = folder / "repository"
        self.repository.mkdir(parents=True)
        self.mounted = _mounted(self.repository)
        self.truth, self.excuses, self.tally = Truth(), Excuses(), Tally()
        self.changing = threading.Lock()
        self.committer = Committer(self, seed)
        self.store = None
        # By how many seconds a server's wall clock is off.
        self.clock = folder / "clock" if setup.stepping else None
        # Connections that strangers have left open.
        self.held = []
        self._draw = random.Random(seed)
        self._servers: list[LiveServer | None] = [None] * setup.servers
        self._askers: list[Asker] = []

    def __enter__(self):
        if self.setup.remote:
            self.store = RedisServer().start()
        self.committer.first()
        for n in range(len(self._servers)):
            self.start(n)
        sides = [HttpSide("kserve"), HttpSide("tfs"), HttpSide("kserve"), RpcSide()]
        for n, side in enumerate(sides):
            asked = n % len(self._servers)
            asker = Asker(side, lambda asked=asked: self._servers[asked], self.truth, self.excuses, self.tally, n)
            self._askers.append(asker)
            asker.start()
        self.committer.start()
        return self

    def __exit__(self, *_):
        self.committer.stopped.set()
        for asker in self._askers:
            asker.stopped.set()
        for thread in (self.committer, *self._askers):
            thread.join(60)
        for held in self.held:
            held.close()
        for server in self._servers:
            if server is not None:
                server.__exit__()
        if self.store is not None:
            self.store.close()
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.repository)], check=False)

    @property
    def numbers(self):
        return range(len(self._servers))

    def server(self, number=None):
        """The server of that number, or any; None while it is down."""
        if number is None:
            number = self._draw.randrange(len(self._servers))
        return self._servers[number]

    def serves(self, server):
        """Whether it is one of those that run now: what it did alone goes with it."""
        return server in self._servers

    def start(self, number):
        """Starts a server, and returns when it is ready."""
        options = [*self.setup.options]
        if self.store is not None:
            options += ["--remote-url", self.store.url]
        log = self.folder / f"serve-{number}.log"
        server = LiveServer(self.repository, *options, "--scratch", str(self.folder), log=log, env=self._environment())
        server.wait_ready()
        self._servers[number] = server

    def _environment(self):
        if self.clock is None:
            return None
        self.clock.write_text("0")
        path = os.pathsep.join(filter(None, (str(STEPPING), os.environ.get("PYTHONPATH"))))
        return os.environ | {"PYTHONPATH": path, "FRESHET_FAULTS_CLOCK": str(self.clock)}

    def down(self, number):
        """Takes a server away from its clients; the caller ends it."""
        server, self._servers[number] = self._servers[number], None
        return server

    def workers(self, number):
        """[(pid, whether it is up)] of a server's workers; none where one process answers."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            status, _, body = self._servers[number].get("/admin/models", admin=True)
            if status == 200:
                return [(w["pid"], w["up"]) for w in json.loads(body).get("workers", [])]
        return []

    def wait_whole(self, number):
        """Returns when a server and all of its workers answer; a fault if that takes too long."""
        server, give_up_s = self._servers[number], time.monotonic() + UP_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if server.get("/v2/health/ready")[0] == 200 and all(up for _, up in self.workers(number)):
                    return
            time.sleep(0.05)
        self.tally.fault("not whole again", self._tail(number))

    def wait_answered(self, number):
        """Returns when a server answers one request after another, each on a connection of its own, so that all of its
        workers are asked; a fault if that takes too long."""
        side, answered, give_up_s = HttpSide("kserve"), 0, time.monotonic() + UP_S
        while answered < len(QUESTIONS) and time.monotonic() < give_up_s:
            answered += 1
            try:
                side.ask(self._servers[number], answered % len(QUESTIONS))
            except (OSError, http.client.HTTPException, Refused, Unsent):
                answered = 0
                time.sleep(0.05)
            side.close()
        if answered < len(QUESTIONS):
            self.tally.fault("not answered again", self._tail(number))

    def wait_on_course(self, number):
        """Returns when no version of a server is DIVERGED; a fault if that takes too long."""
        server, give_up_s = self._servers[number], time.monotonic() + QUIET_S
        while server is not None and time.monotonic() < give_up_s:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
                served = json.loads(server.get("/admin/models", admin=True)[2])["models"]["small"]["served"]
                if all(version["chain"]["state"] != "DIVERGED" for version in served.values()):
                    return
            time.sleep(0.02)
        if server is not None:
            self.tally.fault("behind", f"a file is back, and the server is DIVERGED still; {self._tail(number)}")

    def quiet(self):
        """Nothing is done to anybody: everybody has to serve the newest generation, and nothing acknowledged may be
        gone."""
        for held in self.held:
            held.close()
        self.held.clear()
        for number in self.numbers:
            self.wait_whole(number)
        with self.committer.held() as change_log:
            generation = f"{change_log.manifest.version}.{change_log.history.head.step}"
            for number in self.numbers:
                self._check_serves(number, generation)
            for lost in self.committer.lost():
                self.tally.fault("lost", f"generation {lost[0]}.{lost[1]} was acknowledged and is gone")
        self.tally.note("quiet")

    def _check_serves(self, number, generation):
        server, give_up_s, served = self._servers[number], time.monotonic() + QUIET_S, ""
        while served != generation and time.monotonic() < give_up_s:
            with contextlib.suppress(OSError, http.client.HTTPException, AssertionError, KeyError):
                served = server.generation("small")
            time.sleep(0.02)
        if served != generation:
            self.tally.fault("behind", f"{generation} is the newest, {served} is served; {self._tail(number)}")
            return
        side = HttpSide("tfs")
        for n in range(len(QUESTIONS)):
            answered, scores = side.ask(server, n)
            wrong = self.truth.fault(answered, n, scores)
            if wrong:
                self.tally.fault("wrong", f"when all is quiet: {wrong}")
        side.close()

    def _tail(self, number):
        log = self.folder / f"serve-{number}.log"
        return " | ".join(log.read_text(errors="replace").splitlines()[-5:])[-1500:]


def end(server, number=signal.SIGKILL):
    """Sends a signal to a server's first process and waits for its end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.process.pid, number)
    try:
        server.process.wait(60)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
        return False
    return True


def _mounted(folder):
    if shutil.which("mount") is None:
        return False
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(folder)], check=False, capture_output=True
    )  # fmt: skip
    return done.returncode == 0
