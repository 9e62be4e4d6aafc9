"""The table of what is done to a field, each kind with how often it is drawn; and what is done to processes.

A kind returns when what it did is over and the field may be whole again; it excuses what it must cost, and no more: a
process that is killed takes what it had in flight with it, one that is stopped loses nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtest.load.processes import tree
from tests.faults import damage, hostile
from tests.faults.damage import Skipped
from tests.faults.field import end

MAX_HELD = 60


@dataclass(frozen=True)
class Injection:
    """A kind. weight: how often it is drawn. run(field, draw): does it."""

    name: str
    weight: int
    run: Callable


def kill_server(field, draw):
    number = draw.choice(field.numbers)
    with field.excuses.span("kill -9 of the first process"):
        end(field.down(number))
        field.start(number)


def restart(field, draw):
    """An orderly end: whatever was sent is answered."""
    number = draw.choice(field.numbers)
    server = field.down(number)
    with field.excuses.span("a restart", requests=False):
        if not end(server, signal.SIGTERM):
            field.tally.fault("no end", "SIGTERM did not end a server within 60 s")
        field.start(number)


def _worker(field, draw):
    number = draw.choice(field.numbers)
    workers = field.workers(number)
    if not workers:
        raise Skipped("one process answers")
    return number, draw.choice(workers)[0]


def kill_worker(field, draw):
    number, pid = _worker(field, draw)
    if pid is None:
        return
    with field.excuses.span("kill -9 of a worker"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
        field.wait_whole(number)
        time.sleep(0.2)


def kill_nursery(field, draw):
    number = draw.choice(field.numbers)
    workers = {pid for pid, _ in field.workers(number)}
    if not workers:
        raise Skipped("one process answers")
    for pid in set(tree(field.server(number).process.pid)) - workers:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if Path(f"/proc/{pid}/comm").read_text() == "freshet-forks\n":
                os.kill(pid, signal.SIGKILL)


def stop(field, draw):
    """SIGSTOP of any process, and on again: everybody waits, nobody loses anything."""
    number = draw.choice(field.numbers)
    pids = [field.server(number).process.pid, *(pid for pid, _ in field.workers(number) if pid)]
    pid = draw.choice(pids)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(draw.uniform(0.02, 1.2))
        finally:
            os.kill(pid, signal.SIGCONT)


def stop_for_long(field, draw):
    """A worker that hangs is replaced; its connections are lost."""
    number, pid = _worker(field, draw)
    if pid is None:
        return
    with field.excuses.span("a hang of a worker"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            give_up_s = time.monotonic() + 60
            while time.monotonic() < give_up_s and pid in {worker for worker, _ in field.workers(number)}:
                time.sleep(0.2)
            else:
                if time.monotonic() >= give_up_s:
                    field.tally.fault("not replaced", "a worker that hangs is still there after 60 s")
            os.kill(pid, signal.SIGCONT)
        field.wait_whole(number)
        time.sleep(0.2)


def descriptors(field, draw):
    """A process may open hardly any file more, and clients come all the same."""
    number = draw.choice(field.numbers)
    server = field.server(number)
    pid = draw.choice([server.process.pid, *(pid for pid, _ in field.workers(number) if pid)])
    with field.excuses.span("no descriptors", requests=False):
        try:
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            used = len(os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + draw.randrange(4), before[1]))
        except (OSError, ProcessLookupError):
            return
        connections = []
        try:
            for _ in range(30):
                with contextlib.suppress(OSError):
                    connections.append(socket.create_connection(("127.0.0.1", server.http_port), timeout=1))
            time.sleep(draw.uniform(0.1, 1.0))
        finally:
            for connection in connections:
                connection.close()
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        time.sleep(0.1)
    field.wait_whole(number)


def memory(field, draw):
    """A process may take hardly any memory more."""
    number = draw.choice(field.numbers)
    workers = [pid for pid, _ in field.workers(number) if pid]
    pid = draw.choice(workers or [field.server(number).process.pid])
    with field.excuses.span("no memory"):
        try:
            before = resource.prlimit(pid, resource.RLIMIT_AS)
            used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
            resource.prlimit(pid, resource.RLIMIT_AS, (used + (draw.randrange(1, 8) << 20), before[1]))
        except (OSError, ProcessLookupError):
            return
        try:
            time.sleep(draw.uniform(0.1, 0.6))
        finally:
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_AS, before)
        if field.server(number).process.poll() is not None:
            field.tally.note("ended without memory")
            field.down(number)
            field.start(number)
        field.wait_whole(number)
        time.sleep(0.2)


def clock_step(field, draw):
    """The system's clock jumps, for the servers alone."""
    if field.clock is None:
        raise Skipped("it steps in the setup that is made for it")
    field.clock.write_text(str(draw.choice((-86_400, -3600, -1, 0, 1, 3600, 86_400))))
    time.sleep(0.3)


def store_gone(field, draw):
    """The row store is killed, or stops, and comes back: requests that need it are refused until it answers again."""
    if field.store is None:
        raise Skipped("no row store")
    with field.excuses.span("a row store that is away"):
        if draw.random() < 0.5:
            field.store.kill()
            time.sleep(draw.uniform(0.1, 1.0))
            field.store.start()
        else:
            os.kill(field.store.pid, signal.SIGSTOP)
            time.sleep(draw.uniform(0.1, 1.0))
            os.kill(field.store.pid, signal.SIGCONT)
        for number in field.numbers:
            field.wait_answered(number)


def _stranger(exchange, holds=False):
    def run(field, draw):
        server = field.server()
        if server is None:
            return
        while len(field.held) > MAX_HELD:
            field.held.pop(0).close()
        began_s = time.monotonic()
        try:
            exchange(server, draw, *([field.held] if holds else []))
        except hostile.Bad as error:
            field.tally.fault("hostile", f"{exchange.__name__}: {error}")
        except (OSError, http.client.HTTPException) as error:
            if not field.excuses.excused(began_s, time.monotonic()):
                field.tally.fault("hostile", f"{exchange.__name__}: {type(error).__name__} {error}")

    return run


def _words(name):
    return name.replace("_", " ")


INJECTIONS = (
    Injection("kill -9 of the first process", 2, kill_server),
    Injection("kill -9 of a worker", 6, kill_worker),
    Injection("kill -9 of the nursery", 2, kill_nursery),
    Injection("SIGTERM and a new start", 2, restart),
    Injection("SIGSTOP and SIGCONT", 8, stop),
    Injection("a worker that hangs", 1, stop_for_long),
    Injection("a bad delta uploaded", 12, damage.bad_upload),
    Injection("a bad file among the deltas", 10, damage.bad_file),
    Injection("a delta before its turn", 4, damage.early_file),
    Injection("a delta written piece by piece", 5, damage.slow_file),
    Injection("a bad version", 6, damage.bad_version),
    Injection("a delta's file away for a moment", 6, damage.torn_file),
    Injection("a served table cut short", 1, damage.cut_table),
    Injection("a full disk", 4, damage.full_disk),
    Injection("a read-only disk", 4, damage.read_only_disk),
    Injection("no descriptors", 5, descriptors),
    Injection("no memory", 2, memory),
    Injection("a step of the clock", 3, clock_step),
    Injection("the row store away", 6, store_gone),
    *(Injection(f"stranger: {_words(name)}", 3, _stranger(hostile.sent(name))) for name in hostile.REQUESTS),
    *(Injection(f"stranger: {_words(e.__name__)}", 3, _stranger(e)) for e in hostile.EXCHANGES),
    *(Injection(f"stranger: {_words(e.__name__)}", 5, _stranger(e, holds=True)) for e in hostile.LEFT),
)
