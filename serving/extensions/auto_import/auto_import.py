"""Find plain SavedModels, Keras and ONNX files in a repository and import each in a process of its own.

Importing needs TensorFlow, takes seconds and reads untrusted files, so the server never does it in its own process. Two
imports run at a time, of two models, so that one that uses its whole time limit (import_process) does not delay the
others. The result is an ordinary package in the same folder, its manifest written last, which the next poll of the
repository finds.

A version's folder with neither a package nor a source is reported as not servable, unless it is empty: its content may
still be on its way. A model that lies directly in its own folder, not in a version's, is reported in the log, and so is
a Triton config.pbtxt beside a model (triton_config).

The model's policy says which versions are imported, by default the newest one. The status of any other source says that
it is left alone.

Invariants: a source is not touched until nothing in it has changed for SETTLED_S: it may still be being copied. A
source that failed is not tried again before it changes; meanwhile the version is tried that the policy names without
it. poll() never blocks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.package import read_file
from freshet_serving.processor.repository import FILE_SUFFIXES, MANIFEST, SAVED_MODEL, FolderWatch, Repository
from freshet_serving.processor.versions.changes import FailureMessage, report
from freshet_serving.processor.versions.routes import END, LOADING, VersionStatus
from freshet_serving.serving.extensions.auto_import.import_process import ImportLimits, RunningImport, Start, start
from freshet_serving.serving.extensions.auto_import.triton_config import CONFIG, MAX_NBYTES, remarks

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost

log = logging.getLogger("freshet.importer")

SETTLED_S = 2.0
LOOK_EVERY_S = 0.5
REST_S = 5.0
MAX_FILES = 1000
MAX_SHOWN = 5
UNSIGNED = "expected a signed version, got an unsigned source; sign it with `freshet import --key`"
LEFT = "not imported: the model's policy (versions) and labels name other versions; name it there to serve it"
AT_ONCE = 2
MAX_MANIFEST_NBYTES = 64 << 20
LEFT_OUT = "left out"

State = tuple[tuple[str, int, int], ...]
"""Path, modification time (ns) and size of every file of a source."""


class AutoImporter:
    """Imports the versions that each model's policy names. Used by one thread at a time, except for close().

    Args:
        models: The only models to import; empty for all.
        start: Starts an import process.
        signed: Signatures are required, so unsigned sources are refused.
    """

    def __init__(
        self,
        repository: str,
        models: Sequence[str],
        host: ModelHost,
        limits: ImportLimits,
        start: Start = start,
        now_s: Callable[[], float] = time.monotonic,
        signed: bool = False,
    ) -> None:
        self._signed = signed
        self._folder, self._models, self._host = Path(repository), frozenset(models), host
        self._limits, self._start, self._now_s = limits, start, now_s
        self._next_s = 0.0
        self._root = FolderWatch(self._folder)
        self._folders: dict[str, FolderWatch] = {}
        self._waiting: dict[str, dict[Path, FolderWatch]] = {}
        # Versions of each model that are not served yet, newest first: number, and the source or else the folder.
        self._pending: dict[str, list[tuple[int, Path]]] = {}
        # Of each model with sources that its policy does not name: all its versions, and those.
        self._left: dict[str, tuple[set[int], set[int]]] = {}
        # The last message about each model that has no version.
        self._misplaced: dict[str, str] = {}
        # For each config.pbtxt that was checked: its modification time, and the version that it was compared with.
        self._configs: dict[str, tuple[int, int]] = {}
        self._seen: dict[Path, tuple[State, float]] = {}
        self._done: dict[Path, State] = {}
        self._running: list[RunningImport] = []

    def announce(self) -> list[str]:
        """Report pending imports to the host before any begins, and return the models that have one."""
        with contextlib.suppress(OSError, NotReady):
            report(log, self._look())
        for model, pending in self._pending.items():
            self._host.tell(model, VersionStatus(pending[0][0], LOADING))
        return sorted(self._pending)

    def poll(self) -> list[str]:
        """Poll once, and return a line for each import that began or ended. A failed system call is retried later."""
        now_s = self._now_s()
        if now_s < self._next_s:
            return []
        self._next_s = now_s + LOOK_EVERY_S
        try:
            return self._advance(now_s)
        except (OSError, NotReady) as error:
            self._next_s = now_s + REST_S
            why = str(error) if isinstance(error, NotReady) else error.strerror or type(error).__name__
            return [FailureMessage(f"imports: {why}; next attempt in {REST_S:g} s")]

    def _advance(self, now_s: float) -> list[str]:
        events = [*self._collect(now_s), *self._look()]
        for model in sorted(self._pending.keys() - {running.model for running in self._running}):
            for version, path in self._pending[model]:
                state = self._settled(path, now_s)
                if state is not None and (foreign := UNSIGNED if self._signed else _foreign(path)):
                    self._done[path] = state
                    events.append(self._refuse(model, version, foreign))
                elif state is not None and len(self._running) < AT_ONCE:
                    events += self._begin(model, version, path, state, now_s)
                    break
                if self._done.get(path) != self._seen[path][0]:
                    break
        return events

    def close(self) -> None:
        """End running imports; what they have written stays hidden."""
        for running in self._running:
            running.close()
        self._running = []

    def _look(self) -> list[str]:
        """Find sources to import; return lines about models that cannot be read and about Triton's configurations."""
        if not self._folder.is_dir():
            return []
        repository = Repository(self._folder)
        try:
            return self._listed(repository)
        except NotReady:
            for folder in (self._root, *self._folders.values()):
                folder.again()
            raise

    def _configured(self, repository: Repository, model: str, committed: int) -> list[str]:
        """Return lines about a Triton configuration beside a model, once for each version of the model."""
        path = self._folder / model / CONFIG
        try:
            state = (path.stat().st_mtime_ns, committed)
            if self._configs.get(model) == state:
                return []
            text = read_file(path, MAX_NBYTES).tobytes().decode("utf-8", "replace")
            manifest = repository.version(model, committed).manifest if committed else None
        except FileNotFoundError:
            return []
        except (OSError, FreshetError) as error:
            log.debug("%s: %s: %s", model, CONFIG, error)
            return []
        self._configs[model] = state
        lines = remarks(text, manifest)
        return [FailureMessage(f"{model}: {line}") if wrong else f"{model}: {line}" for wrong, line in lines]

    def _listed(self, repository: Repository) -> list[str]:
        events: list[str] = []
        if self._root.changed():
            names = [n for n in repository.models() if not self._models or n in self._models]
            self._folders = {n: self._folders.get(n) or FolderWatch(self._folder / n) for n in names}
            self._pending = {n: pending for n, pending in self._pending.items() if n in self._folders}
        for name, folder in self._folders.items():
            waiting = self._waiting.get(name, {})
            # A file added later to a version's folder does not change the model's folder.
            filled = [watch.changed() for watch in waiting.values()]
            existing, left = self._left.get(name, (set[int](), set[int]()))
            named = bool(left and left & self._host.chosen(name, existing))
            if folder.changed() or any(filled) or named or name in self._pending:
                versions, pending = repository.versions(name), repository.uncommitted(name)
                committed = max(versions, default=0)
                self._waiting[name] = {path: waiting.get(path) or FolderWatch(path) for path in pending.values()}
                sources = repository.sources(name)
                with_files = {v: path for v, path in (pending | sources).items() if not _empty(pending[v])}
                due = self._due(name, versions, with_files)
                self._pending[name] = [(v, with_files[v]) for v in sorted(due, reverse=True)]
                if not due:
                    del self._pending[name]
                self._leave(name, {*versions, *with_files}, sources.keys() - due, report=bool(committed or not due))
                why = "" if committed or pending else _misplaced(self._folder / name)
                if why and self._misplaced.get(name) != why:
                    events.append(FailureMessage(f"{name} refused: {why}"))
                self._misplaced[name] = why
                events += self._configured(repository, name, committed)
        return events

    def _due(self, model: str, committed: Collection[int], pending: Mapping[int, Path]) -> set[int]:
        """Return the pending versions that the policy names, as if those that failed did not exist."""
        running = {each.version for each in self._running if each.model == model}
        failed = {v for v, path in pending.items() if path in self._done and v not in running}
        sound = {*committed, *pending} - failed
        return {v for v in pending if v in self._host.chosen(model, sound | {v})}

    def _leave(self, model: str, existing: set[int], left: set[int], report: bool) -> None:
        """Report sources that are not imported, once each, unless a model's first import is still due."""
        before = self._left.pop(model, (existing, set[int]()))[1]
        if report and left:
            self._left[model] = existing, left
            for version in sorted(left - before):
                self._host.tell(model, VersionStatus(version, END, LEFT))

    def _settled(self, path: Path, now_s: float) -> State | None:
        """Return the state of a source if it has settled and has not been tried in this state; otherwise None."""
        state = _state(path)
        seen, since_s = self._seen.get(path, (None, now_s))
        if seen != state:
            self._seen[path] = (state, now_s)
            return None
        return state if now_s - since_s >= SETTLED_S and self._done.get(path) != state else None

    def _begin(self, model: str, version: int, path: Path, state: State, now_s: float) -> list[str]:
        arguments = ["import", str(path), "--repository", str(self._folder.absolute()), "--name", model]
        arguments += ["--version", str(version)]
        self._running.append(RunningImport(model, version, arguments, self._limits, self._start, now_s))
        self._done[path] = state
        self._host.tell(model, VersionStatus(version, LOADING))
        return [f"importing {model} version {version}"]

    def _collect(self, now_s: float) -> list[str]:
        """Return lines about the imports that have ended."""
        events: list[str] = []
        left = []
        for running in self._running:
            why = running.ended(now_s)
            if why is None:
                left.append(running)
            elif why:
                events.append(self._refuse(running.model, running.version, why))
            else:
                events.append(f"{running.model} version {running.version} imported")
                folder = self._folder / running.model / str(running.version)
                events += [f"{running.model} version {running.version}: {note}" for note in _import_notes(folder)]
        self._running = left
        return events

    def _refuse(self, model: str, version: int, error: str) -> FailureMessage:
        self._host.tell(model, VersionStatus(version, END, error))
        return FailureMessage(f"{model} version {version} refused: {error}")


def _import_notes(folder: Path) -> list[str]:
    """Return the notes of an import on what is not served, signatures and outputs, and on what no gate has judged."""
    try:
        manifest = json.loads(read_file(folder / MANIFEST, MAX_MANIFEST_NBYTES).tobytes())
        noted, gate = manifest["notes"]["import"]["notes"], manifest["notes"].get("gate", {})
        lines = [note for note in map(str, noted) if LEFT_OUT in note]
        return [*lines, *(f"gate: {note}" for note in gate.get("unjudged", ()))]
    except (OSError, FreshetError, ValueError, KeyError, TypeError, AttributeError):
        # The next poll opens the version, and says what is wrong with it.
        return []


def _empty(folder: Path) -> bool:
    """Return whether a folder is empty so far; one that cannot be read is not empty."""
    try:
        return all(name.startswith(".") for name in os.listdir(folder))
    except OSError:
        return not os.path.exists(folder)


def _misplaced(folder: Path) -> str:
    """Return why a model without a version cannot be served; "" if something may still be copied there."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        return f"cannot read its folder: {error.strerror}"
    lies = sorted(n for n in names if n in (MANIFEST, SAVED_MODEL) or n.endswith(FILE_SUFFIXES))
    return f"{lies[0]} belongs in a version folder, {folder.name}/1" if lies else ""


def _foreign(path: Path) -> str:
    """Return why a version's folder holds nothing that can be imported; "" for a source."""
    if path.suffix in FILE_SUFFIXES or os.path.exists(path / SAVED_MODEL):
        return ""
    try:
        names = sorted(_called(path, name) for name in os.listdir(path) if not name.startswith("."))
    except OSError as error:
        return f"cannot read its folder: {error.strerror}"
    shown = ", ".join(names[:MAX_SHOWN]) + (", ..." if len(names) > MAX_SHOWN else "")
    expected = f"{MANIFEST}, {SAVED_MODEL}, or one {' or '.join(FILE_SUFFIXES)} file"
    return f"no model found: expected {expected}, got {shown}"


def _called(folder: Path, name: str) -> str:
    """Return a file's name for a message, marked if it is not a regular file or folder, such as a pipe."""
    path = os.path.join(folder, name)
    return name[:64] if os.path.isfile(path) or os.path.isdir(path) else f"{name[:64]} (not a regular file)"


def _state(path: Path) -> State:
    """Return the state of a source: of its file, or of all files in its folder.

    An ONNX file may keep its weights beside it, so all files of its folder count.
    """
    alone = os.path.isfile(path)
    if alone and path.suffix != ".onnx":
        files = [str(path)]
    else:
        files = sorted(itertools.islice(_files(path.parent if alone else path), MAX_FILES))
    state = []
    for file in files:
        with contextlib.suppress(OSError):
            status = os.stat(file)
            state.append((file, status.st_mtime_ns, status.st_size))
    return tuple(state)


def _files(folder: Path) -> Iterator[str]:
    """Yield all files below a folder, except hidden entries at its top.

    Hidden files deeper down belong to a copy in progress, so they count.
    """
    for root, folders, names in os.walk(folder):
        if root == str(folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            names = [name for name in names if not name.startswith(".")]
        yield from (os.path.join(root, name) for name in names)
