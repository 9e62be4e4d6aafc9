"""The table of what is done to a field, each kind with how often it is drawn.

A kind returns when what it did is over and the field may be whole again; it excuses what it must cost, and no more: a
process that is killed takes what it had in flight with it, one that is stopped loses nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from processor.package.delta import write_delta
from tests.faults import hostile
from tests.faults.field import end
from tests.faults.truth import Change
from tests.packages import write_package

MAX_HELD = 60


class Skipped(Exception):
    """This kind cannot be done here, and why."""


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
    known = {pid for pid, _ in field.workers(number)}
    if not known:
        raise Skipped("one process answers")
    for pid in _children(field.server(number).process.pid) - known:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if b"serving.workers" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def _children(parent):
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.add(int(entry.name))
    return found


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
            while time.monotonic() < give_up_s and pid in {one for one, _ in field.workers(number)}:
                time.sleep(0.2)
            else:
                if time.monotonic() >= give_up_s:
                    field.tally.fault("not replaced", "a worker that hangs is still there after 60 s")
            os.kill(pid, signal.SIGCONT)
        field.wait_whole(number)
        time.sleep(0.2)


def _delta(field, change, parent):
    path = field.folder / "bad.safetensors"
    write_delta(path, change.delta(parent))
    return path.read_bytes()


def bad_upload(field, draw):
    """Deltas that are damaged, stale, early, of another version: refused, and nothing changes."""
    with field.committer.held() as ledger:
        server = field.server()
        if server is None:
            return
        version, head, top = ledger.manifest.version, ledger.history.head.step, ledger.history.top
        change, parent = {
            "damaged": (Change(version, top + 1), head),
            "stale": (Change(version, max(1, head)), max(0, head - 1)),
            "early": (Change(version, top + 9), top + 8),
            "elsewhere": (Change(version + 7, top + 1), head),
        }[kind := draw.choice(("damaged", "damaged", "stale", "early", "elsewhere"))]
        data = bytearray(_delta(field, change, parent))
        if kind == "damaged" and draw.random() < 0.5:
            del data[draw.randrange(len(data)) :]
        elif kind == "damaged":
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        headers = {"content-type": "application/octet-stream"}
        status, _, reply = server.request("POST", "/admin/models/small/deltas", bytes(data), headers, admin=True)
        if not 400 <= status < 500 and status != 503:
            field.tally.fault("bad delta", f"{kind}: answered {status} {reply[:200]!r}")
        _unmoved(field, "bad delta", kind, ledger.history)


def _unmoved(field, fault, kind, before):
    now = field.committer.ledger().history
    if (now.head.step, now.top) != (before.head.step, before.top):
        field.tally.fault(fault, f"{kind}: the chain has moved from {before.head.step} to {now.head.step}")


BAD_FILES = {
    "cut": lambda path, data: path.write_bytes(data[: len(data) // 2]),
    "garbage": lambda path, data: path.write_bytes(os.urandom(500)),
    "empty": lambda path, data: path.touch(),
    "folder": lambda path, data: path.mkdir(),
    "fifo": lambda path, data: os.mkfifo(path),
    "link out": lambda path, data: path.symlink_to("/etc/passwd"),
    "huge": lambda path, data: (path.touch(), os.truncate(path, 1 << 40)),
}


def bad_file(field, draw):
    """What is no delta, under the name of the next one: passed over."""
    with field.committer.held() as ledger:
        deltas, head, top = ledger.folder / "deltas", ledger.history.head.step, ledger.history.top
        deltas.mkdir(exist_ok=True)
        kind, path = draw.choice(list(BAD_FILES)), deltas / f"{top + 1}.safetensors"
        try:
            BAD_FILES[kind](path, _delta(field, Change(ledger.manifest.version, top + 1), head))
            time.sleep(draw.uniform(0.05, 0.4))
            _unmoved(field, "bad file", kind, ledger.history)
        finally:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)


def early_file(field, draw):
    """A delta that waits for others before it, as they come out of order from a copy; then it is taken away."""
    with field.committer.held() as ledger:
        path = ledger.folder / "deltas" / f"{ledger.history.top + 9}.safetensors"
        path.parent.mkdir(exist_ok=True)
        top = ledger.history.top
        try:
            path.write_bytes(_delta(field, Change(ledger.manifest.version, top + 9), top + 8))
            time.sleep(draw.uniform(0.05, 0.4))
            _unmoved(field, "bad file", "early", ledger.history)
        finally:
            path.unlink(missing_ok=True)


def slow_file(field, draw):
    """A delta that is written in place, piece by piece: taken when it is whole, not before."""
    with field.committer.held() as ledger:
        version, head, top = ledger.manifest.version, ledger.history.head, ledger.history.top
        change = Change(version, top + 1)
        field.truth.know(f"{version}.{change.step}", change.after(field.committer.state_of(ledger, head)))
        path, data = ledger.folder / "deltas" / f"{change.step}.safetensors", _delta(field, change, head.step)
        path.parent.mkdir(exist_ok=True)
        piece = max(1, len(data) // 8)
        with open(path, "wb", buffering=0) as file:
            for at in range(0, len(data), piece):
                file.write(data[at : at + piece])
                time.sleep(0.03)


def bad_version(field, draw):
    """A version that cannot be served: refused, the one before serves on and takes its deltas."""
    with field.committer.held() as ledger:
        number = ledger.manifest.version + 50
        folder = field.repository / "small" / str(number)
        kind = draw.choice(("fifo", "no manifest", "cut table", "other name", "huge manifest", "folder", "link out"))
        aside = field.folder / "bad"
        shutil.rmtree(aside, ignore_errors=True)
        write_package(aside, number, seed=number)
        made = aside / "small" / str(number)
        manifest = made / "model.json"
        if kind == "fifo":
            manifest.unlink()
            os.mkfifo(manifest)
        elif kind == "no manifest":
            manifest.unlink()
        elif kind == "cut table":
            os.truncate(made / "tables" / "user.safetensors", 100)
        elif kind == "other name":
            manifest.write_text(manifest.read_text().replace('"small"', '"other"'))
        elif kind == "huge manifest":
            os.truncate(manifest, 1 << 32)
        elif kind == "folder":
            manifest.unlink()
            manifest.mkdir()
        else:
            table = made / "tables" / "user.safetensors"
            table.unlink()
            table.symlink_to("/etc/passwd")
        # Between file systems it arrives file by file.
        shutil.move(made, folder)
    time.sleep(draw.uniform(0.1, 1.0))
    shutil.rmtree(folder, ignore_errors=True)


def torn_file(field, draw):
    """A file that is served is deleted or replaced, and comes back."""
    with field.committer.held() as ledger:
        line = [link for link in ledger.history.line() if link.record is not None]
        if not line:
            return
        path = ledger.folder / draw.choice(line).record.file
        if not path.is_file():
            return
        kept = path.with_name(f".{path.name}.kept")
        os.rename(path, kept)
        try:
            time.sleep(draw.uniform(0.01, 0.3))
            for number in field.numbers:
                server = field.server(number)
                if server is not None and server.get("/v2/health/ready")[0] != 200:
                    field.tally.fault("torn file", "a delta's file was away and the server was not ready")
        finally:
            os.rename(kept, path)


def cut_table(field, draw):
    """A mapped table is cut short where it is served: processes may die of it, nothing wrong is answered, and the next
    version heals it."""
    with field.excuses.span("a table that was cut"):
        with field.committer.held() as ledger:
            path = ledger.folder / "tables" / "user.safetensors"
            os.truncate(path, draw.choice((0, 64, path.stat().st_size // 2)))
            time.sleep(draw.uniform(0.2, 2.0))
            field.committer.heal()
        for number in field.numbers:
            server = field.server(number)
            if server.process.poll() is not None:
                field.down(number)
                field.start(number)
            field.wait_whole(number)
        time.sleep(0.2)


def full_disk(field, draw):
    if not field.mounted:
        raise Skipped("no file system can be mounted")
    filler = field.repository / ".filler"
    with field.excuses.span("a full disk", requests=False):
        try:
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            time.sleep(draw.uniform(0.2, 1.5))
        finally:
            filler.unlink(missing_ok=True)


def read_only_disk(field, draw):
    if not field.mounted:
        raise Skipped("no file system can be mounted")
    with field.excuses.span("a read-only disk", requests=False):
        remount = ["mount", "-o", "remount"]
        with field.changing:
            done = subprocess.run([*remount, "-r", str(field.repository)], check=False, capture_output=True)
        try:
            time.sleep(draw.uniform(0.2, 1.5))
        finally:
            subprocess.run([*remount, "-w", str(field.repository)], check=True, capture_output=True)
        if done.returncode:
            raise Skipped("the file system is in use")


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
        raise Skipped("it steps in the setup that is made for it, with libfaketime")
    field.clock.write_text(f"{draw.choice((-86_400, -3600, -1, 0, 1, 3600, 86_400)):+d}s")
    time.sleep(0.3)


def store_gone(field, draw):
    """The row store is killed, or stops, and comes back: requests that need it are refused, none is answered wrong."""
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
        time.sleep(1.0)


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


INJECTIONS = (
    Injection("kill -9 of the first process", 2, kill_server),
    Injection("kill -9 of a worker", 6, kill_worker),
    Injection("kill -9 of the nursery", 2, kill_nursery),
    Injection("SIGTERM and a new start", 2, restart),
    Injection("SIGSTOP and SIGCONT", 8, stop),
    Injection("a worker that hangs", 1, stop_for_long),
    Injection("a bad delta uploaded", 12, bad_upload),
    Injection("a bad file among the deltas", 10, bad_file),
    Injection("a delta before its turn", 4, early_file),
    Injection("a delta written piece by piece", 5, slow_file),
    Injection("a bad version", 6, bad_version),
    Injection("a delta's file away for a moment", 6, torn_file),
    Injection("a served table cut short", 1, cut_table),
    Injection("a full disk", 4, full_disk),
    Injection("a read-only disk", 4, read_only_disk),
    Injection("no descriptors", 5, descriptors),
    Injection("no memory", 2, memory),
    Injection("a step of the clock", 3, clock_step),
    Injection("the row store away", 6, store_gone),
    *(Injection(f"stranger: {e.__name__.replace('_', ' ')}", 3, _stranger(e)) for e in hostile.EXCHANGES),
    *(Injection(f"stranger: {e.__name__.replace('_', ' ')}", 5, _stranger(e, holds=True)) for e in hostile.LEFT),
)
