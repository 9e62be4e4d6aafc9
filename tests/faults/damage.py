"""What is done to the repository: bad deltas and versions, files that are cut, away or slow, disks full or read-only.

What touches the chain of the newest version does so while nobody publishes (Committer.held).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time

from freshet_serving.processor.package.delta import write_delta
from tests.faults.truth import Change
from tests.support.packages import write_package


class Skipped(Exception):
    """This kind cannot be done here, and why."""


def _delta(field, change, parent):
    path = field.folder / "bad.safetensors"
    write_delta(path, change.delta(parent))
    return path.read_bytes()


def bad_upload(field, draw):
    """Deltas that are damaged, stale, early, of another version: refused, and nothing changes."""
    with field.committer.held() as change_log:
        server = field.server()
        if server is None:
            return
        version, head, top = change_log.manifest.version, change_log.history.head.step, change_log.history.top
        # On a version as it was published none is stale yet.
        kinds = ("damaged", "damaged", "early", "elsewhere", *["stale"] * (head > 0))
        change, parent = {
            "damaged": (Change(version, top + 1), head),
            "stale": (Change(version, max(1, head)), head - 1),
            "early": (Change(version, top + 9), top + 8),
            "elsewhere": (Change(version + 7, top + 1), head),
        }[kind := draw.choice(kinds)]
        data = bytearray(_delta(field, change, parent))
        if kind == "damaged" and draw.random() < 0.5:
            del data[draw.randrange(len(data)) :]
        elif kind == "damaged":
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        headers = {"content-type": "application/octet-stream"}
        status, _, reply = server.request("POST", "/admin/models/small/deltas", bytes(data), headers, admin=True)
        if not 400 <= status < 500 and status != 503:
            field.tally.fault("bad delta", f"{kind}: answered {status} {reply[:200]!r}")
        _unmoved(field, "bad delta", kind, change_log.history)


def _unmoved(field, fault, kind, before):
    now = field.committer.change_log().history
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
    with field.committer.held() as change_log:
        deltas, head, top = change_log.folder / "deltas", change_log.history.head.step, change_log.history.top
        deltas.mkdir(exist_ok=True)
        kind, path = draw.choice(list(BAD_FILES)), deltas / f"{top + 1}.safetensors"
        try:
            BAD_FILES[kind](path, _delta(field, Change(change_log.manifest.version, top + 1), head))
            time.sleep(draw.uniform(0.05, 0.4))
            _unmoved(field, "bad file", kind, change_log.history)
        finally:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)


def early_file(field, draw):
    """A delta that waits for others before it, as they come out of order from a copy; then it is taken away."""
    with field.committer.held() as change_log:
        path = change_log.folder / "deltas" / f"{change_log.history.top + 9}.safetensors"
        path.parent.mkdir(exist_ok=True)
        top = change_log.history.top
        try:
            path.write_bytes(_delta(field, Change(change_log.manifest.version, top + 9), top + 8))
            time.sleep(draw.uniform(0.05, 0.4))
            _unmoved(field, "bad file", "early", change_log.history)
        finally:
            path.unlink(missing_ok=True)


def slow_file(field, draw):
    """A delta that is written in place, piece by piece: taken when it is whole, not before."""
    with field.committer.held() as change_log:
        version, head, top = change_log.manifest.version, change_log.history.head, change_log.history.top
        change = Change(version, top + 1)
        field.truth.know(f"{version}.{change.step}", change.after(field.committer.state_of(change_log, head)))
        path, data = change_log.folder / "deltas" / f"{change.step}.safetensors", _delta(field, change, head.step)
        path.parent.mkdir(exist_ok=True)
        piece = max(1, len(data) // 8)
        with open(path, "wb", buffering=0) as file:
            for at in range(0, len(data), piece):
                file.write(data[at : at + piece])
                time.sleep(0.03)


def bad_version(field, draw):
    """A version that cannot be served: refused, the one before serves on and takes its deltas."""
    with field.committer.held() as change_log:
        number = change_log.manifest.version + 50
        folder = field.repository / "small" / str(number)
        kind = draw.choice(("fifo", "no manifest", "cut table", "other name", "huge manifest", "folder", "link out"))
        aside = field.repository / ".bad"
        shutil.rmtree(aside, ignore_errors=True)
        write_package(aside, number, seed=number)
        written = aside / "small" / str(number)
        manifest = written / "model.json"
        if kind == "fifo":
            manifest.unlink()
            os.mkfifo(manifest)
        elif kind == "no manifest":
            manifest.unlink()
        elif kind == "cut table":
            os.truncate(written / "tables" / "user.safetensors", 100)
        elif kind == "other name":
            manifest.write_text(manifest.read_text().replace('"small"', '"other"'))
        elif kind == "huge manifest":
            os.truncate(manifest, 1 << 32)
        elif kind == "folder":
            manifest.unlink()
            manifest.mkdir()
        else:
            table = written / "tables" / "user.safetensors"
            table.unlink()
            table.symlink_to("/etc/passwd")
        os.rename(written, folder)
    time.sleep(draw.uniform(0.1, 1.0))
    shutil.rmtree(folder, ignore_errors=True)


def torn_file(field, draw):
    """A file that is served is deleted or replaced, and comes back."""
    with field.committer.held() as change_log:
        line = [link for link in change_log.history.line() if link.record is not None]
        if not line:
            return
        path = change_log.folder / draw.choice(line).record.file
        if not path.is_file():
            return
        hidden = path.with_name(f".{path.name}.kept")
        os.rename(path, hidden)
        try:
            time.sleep(draw.uniform(0.01, 0.3))
            for number in field.numbers:
                server = field.server(number)
                if server is not None and server.get("/v2/health/ready")[0] != 200:
                    field.tally.fault("torn file", "a delta's file was away and the server was not ready")
        finally:
            os.rename(hidden, path)
        # Who has seen that it was away takes nothing until it sees that it is back.
        for number in field.numbers:
            field.wait_on_course(number)


def cut_table(field, draw):
    """A mapped table is cut short where it is served: processes may die of it, nothing wrong is answered, and the next
    version heals it."""
    with field.excuses.span("a table that was cut"):
        with field.committer.held() as change_log:
            path = change_log.folder / "tables" / "user.safetensors"
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
