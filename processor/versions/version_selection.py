"""Select the versions of a model that are loaded, by policy, labels, people and decisions; say why others are not.

Used under the model's lock, except disturbed(). It decides; the model admits a version to requests, drops it and
publishes its status.

Invariants
- A version is dropped only once what is chosen instead is served.
- A version that failed to load is not retried until its files change; one that failed because the server was short of
  something is, and so is one whose policy lacked an extension.
- A version that a person has loaded, labelled or unloaded stays so, until a person or a restart changes that.

A version is retried when a file that it is loaded from has changed, wherever it lies in the folder: repairing a table
leaves the manifest as it was. Files that arrive with every delta (chain, deltas, snapshots) do not count: a stream of
them would cause the version to be read again and again. For a mirrored version only the manifest counts: a try itself
downloads files. A change counts once the files were the same in two checks, so that a file that is still being copied
is not taken for the repaired one.

A shortage on the server (memory, descriptors, a worker, a row store) is not a fault of the version, which waits and is
retried with a growing delay, up to MOST_WAIT_S.

A version that has just lost its traffic stays loaded for `bake_s` seconds: the way back takes one store and no load. It
is one version at most; the next switch or a lack of memory, which two versions may cause, ends it.

Costs: a comparison a poll. While a version has failed, one stat per file every LOOK_S; while one stays, memory is read
as often.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.cores import free_memory
from freshet_serving.processor.errors import BadInput, FreshetError, NotReady
from freshet_serving.processor.repository import (
    CHAIN,
    DELTAS,
    MANIFEST,
    SNAPSHOTS,
    FolderWatch,
    Identity,
    Repository,
    identity_of,
    is_written_to,
    listed,
)
from freshet_serving.processor.versions.changes import FailureMessage, WarningMessage
from freshet_serving.processor.versions.judges import Judges, VersionHeld
from freshet_serving.processor.versions.routed_model import RoutedModel
from freshet_serving.processor.versions.routes import END, LOADING, Routes, VersionStatus
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.versions.version_decisions import VersionDecisions

LOOK_S = 1.0
FIRST_WAIT_S, MOST_WAIT_S = 0.1, 10.0
MAX_FILES = 10_000
GROWING = {CHAIN, DELTAS, SNAPSHOTS}
LEAST_FREE = 0.2
"""Share of the memory that must be free for a replaced version to stay."""

Files = Mapping[str, Identity]
"""Identity of each file of a version, by path."""
Publish = Callable[[Callable[[Routes[ServedVersion]], Mapping[str, Any]]], None]


class VersionSelection:
    """The choice of one model's versions; `bake` is the replaced version that stays loaded."""

    def __init__(
        self,
        model: RoutedModel,
        judges: Judges,
        repository: Repository,
        clock: Clock,
        decisions: VersionDecisions,
        publish: Publish,
        admit: Callable[[int], ServedVersion],
        drop: Callable[[int], None],
    ) -> None:
        """Choose nothing yet; the model is only read, but adopts the repository's labels.

        publish() replaces fields of its routes; admit() loads a version and offers it to requests, or raises
        FreshetError; drop() stops serving it.
        """
        self._model, self._name, self._judges = model, model.name, judges
        self._repository, self._decisions = repository, decisions
        self._publish, self._admit, self._drop = publish, admit, drop
        self.by_hand: set[int] = set()
        self.unloaded: set[int] = set()
        # Versions that are being downloaded.
        self._coming: set[int] = set()
        self._told_barred: set[int] = set()
        # Labels whose version is not loaded, as they were last reported.
        self._waiting: Mapping[str, int] = {}
        self.failed = FailedVersions(partial(repository.path, model.name), clock, repository.remote)
        self.folder = FolderWatch(repository.root / model.name)
        # Mapped files of versions that were unloaded as damaged: they may still be written to.
        self._disturbed: dict[int, list[Path]] = {}
        self.bake = BakeTime(clock)

    def poll(self) -> list[str]:
        """Choose anew if anything may have changed; return the events."""
        due = self.bake.end_if_due(self._model.policy.bake_s) | self.folder.changed()
        if not due and not self.failed.changed() and not self._decided():
            return []
        try:
            return self.choose()
        except Exception:
            self.again()
            raise

    def _decided(self) -> bool:
        """Return True if there may be unread records about versions."""
        try:
            return self._repository.version_records(self._name).revision != self._decisions.seen
        except NotReady:
            # Unknown for now: what is served goes on, and its deltas are followed.
            return False

    def again(self) -> None:
        """Make the next poll() choose anew, even if the folder does not change."""
        self.folder.again()

    def disturbed(self, number: int, files: Sequence[Path]) -> None:
        """Do not try a version unloaded as damaged while its files are written to. Any thread may call it."""
        self._disturbed[number] = list(files)
        self.again()

    def dropped(self, number: int) -> None:
        """Forget a version that is no longer served."""
        self.by_hand.discard(number)
        self.failed.forget(number)

    def vouched(self, number: int) -> bool:
        """Report whether a person has named or released a version: it is not judged."""
        named = {*self.by_hand, *self._model.labelled, *self._model.policy.versions.versions}
        return number in named or self._decisions.released(number)

    def choose(self) -> list[str]:
        """Load and unload versions by policy, labels and decisions; return the events."""
        numbers, policy = self._repository.versions(self._name), self._model.policy.versions
        labels = self._model.routes.labels
        if numbers:
            # Another server may have changed them. A folder that is gone says nothing.
            self._model.adopt_labels(self._repository.labels(self._name))
        self.by_hand -= self._decisions.read(numbers)
        barred = self._decisions.barred
        pinned = (self._model.labelled | self.by_hand) & set(numbers)
        chosen = policy.choose(numbers, barred)
        self._decisions.warn({*policy.versions, *pinned})
        newest = max(chosen, default=0)
        self._coming.clear()
        events, default = [], self._model.routes.default
        first = pinned | (chosen - self.unloaded)
        candidates = set() if self.vouched(newest) else set(numbers) - barred.keys()
        if before := self._judges.begin(first, candidates, partial(self._repository.root_of, self._name)):
            first.add(before)
        # The newest trusted version first: an older one may only be served beside it.
        trusted = self._decisions.newest_trusted()
        for number in sorted(first, key=lambda number: (number != trusted, number)):
            events += self._try(number)
        # No version is served to fall back on, as at a start: the newest version that loads is the last good one.
        candidates = set() if policy.versions else set(numbers) - first - self.unloaded - barred.keys()
        for number in sorted(candidates, reverse=True):
            if self._model.routes.served or newest in self.unloaded or self._coming:
                break
            events += self._try(number)
        # A barred version goes on until what is chosen instead is loaded.
        if (newest in self._model.routes.served or not chosen) and self._model.routes.traffic.barred != barred.keys():
            self._publish(lambda routes: {"traffic": replace(routes.traffic, barred=frozenset(barred))})
        if default is not None and self._model.routes.default is not None:
            replaced = default.manifest.version
            if self._model.routes.default.manifest.version != replaced:
                # A version that was gone back from is not one to go back to.
                self.bake.begin(0 if replaced in barred else replaced)
                self.bake.end_if_due(self._model.policy.bake_s)
        events += self._tell_labels(labels)
        if newest in self._model.routes.served and (policy.versions or newest >= self._decisions.newest_trusted()):
            # A label leaves its former version when the new one is loaded.
            pinned = (self._model.labelled | self.by_hand) & set(numbers)
            for number in [v for v in self._model.routes.served if v not in chosen | pinned | {self.bake.number}]:
                self._drop(number)
                events.append(f"{self._name} version {number} unloaded")
        events += self._tell_barred(barred)
        named = set(policy.versions) | self._model.labelled
        self._forget(
            {v for v in numbers if v < newest} - first if newest in self._model.routes.served else set(), named
        )
        missing = named - set(numbers) - self._model.routes.served.keys()
        if missing:
            # A version that is being imported is not missing.
            events += self._miss(sorted(missing - self._repository.uncommitted(self._name).keys()), numbers)
        return events

    def _try(self, number: int) -> list[str]:
        """Load a version unless it is served or failed with the same files; return the events."""
        if number in self._model.routes.served or (identity := self.failed.worth_a_try(number)) is None:
            return []
        if number in self._disturbed:
            if any(map(is_written_to, self._disturbed[number])):
                # Try again even if the folder does not change.
                self.again()
                return []
            del self._disturbed[number]
        before = self._model.routes.states.get(number)
        try:
            self._model.policy.check_extensions(f"model.{self._name}")
        except BadInput as error:
            # It is not a fault of the files, so the version is tried again once the policy is another.
            self._tell(VersionStatus(number, END, str(error)))
            repeated = before is not None and before.error == str(error)
            return [] if repeated else [FailureMessage(f"{self._name} version {number} refused: {error}")]
        try:
            if not self._repository.ready(self._name, number):
                # The served version goes on meanwhile. Try again even if the folder does not change.
                self.again()
                self._coming.add(number)
                if before is None:
                    self._tell(VersionStatus(number, LOADING))
                return []
            generation = self._admit(number).generation
        except NotReady as error:
            self.failed.wait(number)
            repeated = before is not None and before.error == str(error)
            self._tell(VersionStatus(number, END, str(error)))
            return [] if repeated else [FailureMessage(f"{self._name} version {number} waits: {error}")]
        except VersionHeld as held:
            target = f"{self._name} {number}"
            cure = f"`freshet version release {target}` serves it, `freshet version reject {target}` withdraws it"
            return [FailureMessage(f"{self._name} version {number} is {held}; {cure}")]
        except FreshetError as error:
            self.failed.note(number, identity)
            self._tell(VersionStatus(number, END, str(error)))
            return [FailureMessage(f"{self._name} version {number} refused: {error}")]
        return [f"{self._name} {generation} loaded"]

    def _tell_labels(self, before: Mapping[str, int]) -> list[str]:
        """Return one line if labels have moved, or others than before wait for their version."""
        labels, served = self._model.routes.labels, self._model.routes.served.keys() | self._coming
        waiting = {label: number for label, number in self._model.labels.items() if number not in served}
        told, self._waiting = self._waiting, waiting
        if labels == before and waiting.items() <= told.items():
            return []
        each = [
            f"{label} {number}" + (f" (version {waiting[label]} is not loaded)" if label in waiting else "")
            for label, number in sorted(labels.items())
        ]
        line = f"{self._name} labels: {listed(each)}"
        return [WarningMessage(line) if waiting else line]

    def _tell_barred(self, barred: Mapping[int, str]) -> list[str]:
        """Publish which versions are barred (held or withdrawn) and not served; return new events."""
        events = []
        for number, why in barred.items():
            state = VersionStatus(number, END, why)
            if number not in self._model.routes.served and self._model.routes.states.get(number) != state:
                self._tell(state)
                events.append(f"{self._name} version {number} is {why}")
        for number in self._told_barred - barred.keys() - self._model.routes.served.keys():
            self._tell(VersionStatus(number, END))
        self._told_barred = set(barred)
        return events

    def _miss(self, numbers: Sequence[int], present: Sequence[int]) -> list[str]:
        """Report versions that the policy or a label names and that do not exist; return new events."""
        why = f"it is not in the repository, which holds {listed(map(str, reversed(present)))}"
        states = {n: VersionStatus(n, END, why) for n in numbers}
        if all(self._model.routes.states.get(n) == state for n, state in states.items()):
            return []
        self._publish(lambda routes: {"states": {**routes.states, **states}})
        return [FailureMessage(f"{self._name} version {n} refused: {why}") for n in states]

    def _forget(self, outdone: set[int], named: set[int]) -> None:
        """Forget versions that failed or were loading, once a newer one is served or the folder is gone."""
        states, path = self._model.routes.states, self._repository.path
        unserved = {v for v, state in states.items() if state.error or state.state == LOADING}
        old = {v for v in unserved if v in outdone or (v not in named and not os.path.exists(path(self._name, v)))}
        if old:
            for number in old:
                self.failed.forget(number)
            self._publish(lambda routes: {"states": {v: s for v, s in routes.states.items() if v not in old}})

    def _tell(self, state: VersionStatus) -> None:
        self._publish(lambda routes: {"states": {**routes.states, state.version: state}})


class FailedVersions:
    """The failed versions of one model, with the files that they failed with. Used under the model's lock."""

    def __init__(self, folder: Callable[[int], Path], clock: Clock, copied: bool = False) -> None:
        """Start without failed versions, in folders that may be `copied` from elsewhere."""
        self._folder, self._clock, self._copied = folder, clock, copied
        self._refused: dict[int, Files] = {}
        self._seen: dict[int, Files] = {}
        self._next_s = 0.0
        # For waiting versions: how often each has been tried, and when it is to be retried.
        self._tries: dict[int, int] = {}
        self._due_s: dict[int, float] = {}

    def worth_a_try(self, number: int) -> Files | None:
        """Return the version's current files if it should be tried; None if it failed with the same ones or must wait.

        Call this before the version is read: it may be replaced meanwhile.
        """
        if self.rests(number):
            return None
        files = self._files(number)
        return None if not files or self._refused.get(number) == files else files

    def note(self, number: int, files: Files) -> None:
        """Record that the version failed to load with these files."""
        self.forget(number)
        self._refused[number] = files

    def wait(self, number: int) -> None:
        """Schedule another try of a version that failed for a temporary reason."""
        tries = self._tries[number] = self._tries.get(number, 0) + 1
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(tries - 1, 16), MOST_WAIT_S)
        self._due_s[number] = self._clock.now_s() + wait_s

    def rests(self, number: int) -> bool:
        return self._clock.now_s() < self._due_s.get(number, 0.0)

    def forget(self, number: int) -> None:
        """Forget a version that is served or no longer requested."""
        self._refused.pop(number, None)
        self._seen.pop(number, None)
        self._tries.pop(number, None)
        self._due_s.pop(number, None)

    def changed(self) -> bool:
        """Return True if a waiting version is due, or a failed one has changed (checked every LOOK_S)."""
        now_s = self._clock.now_s()
        due = [number for number, due_s in self._due_s.items() if now_s >= due_s]
        for number in due:
            del self._due_s[number]
        if due:
            return True
        if not self._refused or now_s < self._next_s:
            return False
        self._next_s = now_s + LOOK_S
        before, self._seen = self._seen, {number: self._files(number) for number in self._refused}
        return any(files not in ({}, self._refused[n]) and files == before.get(n) for n, files in self._seen.items())

    def _files(self, number: int) -> Files:
        root, identities = self._folder(number), dict[str, Identity]()
        if self._copied:
            identity = identity_of(root / MANIFEST)
            return {} if identity is None else {MANIFEST: identity}
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in GROWING and not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                identity = identity_of(path)
                if identity is not None and len(identities) < MAX_FILES:
                    identities[path.relative_to(root).as_posix()] = identity
        return identities


class BakeTime:
    """The replaced version of one model (`number`; 0 for none). Used under its model's lock."""

    def __init__(self, clock: Clock, free: Callable[[], float] = free_memory) -> None:
        self._clock, self._free = clock, free
        self.number, self._since_s, self._next_s = 0, 0.0, 0.0

    def begin(self, number: int) -> None:
        """Keep a version just replaced, instead of any other."""
        self.number, self._since_s = number, self._clock.now_s()
        self._next_s = self._since_s

    def end_if_due(self, bake_s: float) -> bool:
        """End the bake time after bake_s seconds, or if memory is short; return True if it has just ended."""
        now_s = self._clock.now_s()
        if not self.number or now_s < min(self._next_s, self._since_s + bake_s):
            return False
        self._next_s = now_s + LOOK_S
        if now_s - self._since_s < bake_s and self._free() >= LEAST_FREE:
            return False
        self.number = 0
        return True
