"""Plain SavedModels, Keras and ONNX files in a repository: found, and imported by a process of their own.

One at a time, beside the server and never in it: importing needs TensorFlow, takes seconds and reads what somebody
else wrote. What it makes is an ordinary package in the same folder, its manifest last, which the next look at the
repository finds; here is only said how far it is.

Invariants: a source is left alone until nothing of it has changed for SETTLED_S, so that one that is still being copied
is not taken for a broken one. One that failed is not tried again before it changes. poll() never waits.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from processor.package.repository import FolderWatch, Repository
from processor.versions.routes import END, LOADING, VersionStatus

log = logging.getLogger("freshet.importer")

SETTLED_S = 2.0
LOOK_EVERY_S = 0.5
MAX_FILES = 1000
STOP_WAIT_S = 10.0
PREFIX = "freshet: "
UNKNOWN = "the import failed; the server's log says why"

State = tuple[tuple[str, int, int], ...]
"""Path, modification time and size of every file of a source."""


class Host(Protocol):
    """A model host, the part of processor.versions.host.ModelHost that is told."""

    def tell(self, model: str, status: VersionStatus) -> None: ...


class Process(Protocol):
    """A process, the part of subprocess.Popen that is used."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def wait(self, timeout: float) -> int: ...


Start = Callable[[Sequence[str], IO[bytes]], Process]


@dataclass(frozen=True, slots=True)
class RunningImport:
    """An import at work. said: what it writes to stderr."""

    model: str
    version: int
    state: State
    process: Process
    said: IO[bytes]


def start(arguments: Sequence[str], said: IO[bytes]) -> Process:
    """`freshet` with these arguments, in a process of its own."""
    command = [sys.executable, "-P", "-m", "freshet_serving", *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)


class AutoImporter:
    """Looks at the newest version of each model. Used by one thread, but for close()."""

    def __init__(
        self,
        repository: str,
        models: Sequence[str],
        host: Host,
        start: Start = start,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """models: the only ones to look at; none for all."""
        self._folder, self._wanted, self._host = Path(repository), frozenset(models), host
        self._start, self._now_s = start, now_s
        self._next_s = 0.0
        self._root = FolderWatch(self._folder)
        self._folders: dict[str, FolderWatch] = {}
        self._waiting: dict[str, dict[Path, FolderWatch]] = {}
        self._sources: dict[str, tuple[int, Path]] = {}
        self._seen: dict[Path, tuple[State, float]] = {}
        self._done: dict[Path, State] = {}
        self._running: RunningImport | None = None

    def poll(self) -> list[str]:
        """Looks once; returns what has begun or ended since the last look."""
        now_s = self._now_s()
        if now_s < self._next_s:
            return []
        self._next_s = now_s + LOOK_EVERY_S
        events = self._collect()
        self._look()
        for model, (version, path) in sorted(self._sources.items()):
            if self._running is None and (state := self._settled(path, now_s)) is not None:
                events += self._begin(model, version, path, state)
        return events

    def close(self) -> None:
        """Ends an import that is at work; what it had written stays hidden."""
        if self._running is not None:
            self._running.process.terminate()
            try:
                self._running.process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                log.warning("an import does not end")
            self._running.said.close()
            self._running = None

    def _look(self) -> None:
        if not self._folder.is_dir():
            return
        repository = Repository(self._folder)
        if self._root.changed():
            names = [n for n in repository.models() if not self._wanted or n in self._wanted]
            self._folders = {n: self._folders.get(n) or FolderWatch(self._folder / n) for n in names}
        for name, folder in self._folders.items():
            waiting = self._waiting.get(name, {})
            # What is put into a version's folder later does not change the model's.
            filled = [watch.changed() for watch in waiting.values()]
            if folder.changed() or any(filled) or name in self._sources:
                committed = max(repository.versions(name), default=0)
                empty = [path for version, path in repository.uncommitted(name).items() if version > committed]
                self._waiting[name] = {path: waiting.get(path) or FolderWatch(path) for path in empty}
                newer = {v: p for v, p in repository.sources(name).items() if v > committed}
                self._sources.pop(name, None)
                if newer:
                    self._sources[name] = max(newer.items())

    def _settled(self, path: Path, now_s: float) -> State | None:
        """The state of a source that has been the same for a while and was not tried as it is."""
        state = _state(path)
        seen, since_s = self._seen.get(path, ((), now_s))
        if seen != state:
            self._seen[path] = (state, now_s)
            return None
        return state if now_s - since_s >= SETTLED_S and self._done.get(path) != state else None

    def _begin(self, model: str, version: int, path: Path, state: State) -> list[str]:
        self._done[path] = state
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it outlives the call, with the process that writes to it
        arguments = ["import", str(path), "--repository", str(self._folder.absolute()), "--name", model]
        process = self._start([*arguments, "--version", str(version)], said)
        self._running = RunningImport(model, version, state, process, said)
        self._host.tell(model, VersionStatus(version, LOADING))
        return [f"{model} version {version} is being imported"]

    def _collect(self) -> list[str]:
        """What became of the import that was at work."""
        running = self._running
        if running is None or (code := running.process.poll()) is None:
            return []
        self._running = None
        with running.said as said:
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines()
        if code == 0:
            return [f"{running.model} version {running.version} imported"]
        told = next((line.removeprefix(PREFIX) for line in reversed(lines) if line.startswith(PREFIX)), "")
        if not told:
            log.error("importing %s version %d failed: %s", running.model, running.version, " | ".join(lines[-20:]))
        error = told or UNKNOWN
        self._host.tell(running.model, VersionStatus(running.version, END, error))
        return [f"{running.model} version {running.version} refused: {error}"]


def _state(path: Path) -> State:
    """What is looked at of a source; of an ONNX file what lies beside it too, which may be the weights."""
    if path.suffix == ".onnx":
        files = sorted(p for p in path.parent.glob("[!.]*") if p.is_file())
    elif path.is_file():
        files = [path]
    else:
        files = [path / "saved_model.pb", *sorted((path / "variables").glob("*"))]
    found = []
    for file in files[:MAX_FILES]:
        try:
            stat = os.stat(file)
        except OSError:
            continue
        found.append((str(file), stat.st_mtime_ns, stat.st_size))
    return tuple(found)
