"""Select the versions of a model that are loaded, by policy, labels, people and decisions; say why others are not.

Used under the model's lock, except disturbed(). It decides, and the model acts: it admits a version to requests, drops
it, publishes its status.

Invariants
- A version is dropped only once what is chosen instead is served.
- A version that failed to load is not retried until its files change; one that failed because the server was short of
  something is, and so is one whose policy lacked an extension.
- A version that a person has loaded, labelled or unloaded stays so, until a person or a restart changes that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput, FreshetError, NotReady
from freshet_serving.processor.repository import FolderWatch, Repository, is_written_to, listed
from freshet_serving.processor.versions.bake_time import BakeTime
from freshet_serving.processor.versions.failed_versions import FailedVersions, FailureMessage
from freshet_serving.processor.versions.judges import Judges, VersionHeld
from freshet_serving.processor.versions.routed_model import RoutedModel
from freshet_serving.processor.versions.routes import END, LOADING, Routes, VersionStatus
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.versions.version_decisions import VersionDecisions

Publish = Callable[[Callable[[Routes[ServedVersion]], Mapping[str, Any]]], None]


class VersionSelection:
    """The choice of one model's versions.

    Attributes:
        by_hand: Versions that a person has loaded.
        unloaded: Versions that a person has unloaded.
        failed: Versions that failed to load.
        bake: The replaced version that stays loaded.
    """

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
        """Choose nothing yet.

        Args:
            model: The model, of which only what it serves and follows is read.
            judges: Its judges.
            repository: The model repository.
            clock: Source of time.
            decisions: Decisions of people and gates about the versions.
            publish: Replaces fields of the model's routes.
            admit: Loads a version and offers it to requests; raises FreshetError.
            drop: Stops serving a version.
        """
        self._model, self._name, self._judges = model, model.name, judges
        self._repository, self._decisions = repository, decisions
        self._publish, self._admit, self._drop = publish, admit, drop
        self.by_hand: set[int] = set()
        self.unloaded: set[int] = set()
        # Versions that are being downloaded.
        self._coming: set[int] = set()
        self._told_barred: set[int] = set()
        self.failed = FailedVersions(partial(repository.path, model.name), clock, repository.remote)
        self.folder = FolderWatch(repository.root / model.name)
        # Mapped files of versions that were unloaded as damaged: they may still be written to.
        self._disturbed: dict[int, list[Path]] = {}
        self.bake = BakeTime(clock)

    def poll(self) -> list[str]:
        """Choose anew if anything may have changed; return the events."""
        due = self.bake.end_if_due(self._model.policy.bake_s) | self.folder.changed()
        if not due and not self.failed.changed() and not self._decisions.changed():
            return []
        try:
            return self.choose()
        except Exception:
            self.again()
            raise

    def again(self) -> None:
        """Make the next poll() choose anew, even if the folder does not change."""
        self.folder.again()

    def disturbed(self, number: int, files: Sequence[Path]) -> None:
        """Do not try a version that was unloaded as damaged while its files are written to. Any thread may call it.

        Args:
            number: The version.
            files: Its mapped files.
        """
        self._disturbed[number] = list(files)
        self.again()

    def dropped(self, number: int) -> None:
        """Forget what is known of a version that is no longer served."""
        self.by_hand.discard(number)
        self.failed.forget(number)

    def vouched(self, number: int) -> bool:
        """Report whether a person has named a version, or released it: it is not judged."""
        named = {*self.by_hand, *self._model.labels.values(), *self._model.policy.versions.versions}
        return number in named or self._decisions.released(number)

    def choose(self) -> list[str]:
        """Load and unload versions as policy, labels and decisions are now; return the events."""
        known, policy = self._repository.versions(self._name), self._model.policy.versions
        self.by_hand -= self._decisions.read(known)
        barred = self._decisions.barred
        wanted = {v for v in self._model.labels.values() if v in known} | (self.by_hand & set(known))
        chosen = policy.choose(known, barred)
        self._decisions.warn({*policy.versions, *wanted})
        newest = max(chosen, default=0)
        self._coming.clear()
        events, default = [], self._model.routes.default
        first = wanted | (chosen - self.unloaded)
        others = set() if self.vouched(newest) else set(known) - barred.keys()
        if before := self._judges.begin(first, others, partial(self._repository.root_of, self._name)):
            first.add(before)
        # The newest trusted version first: an older one may only be served beside it.
        trusted = self._decisions.newest_trusted()
        for number in sorted(first, key=lambda number: (number != trusted, number)):
            events += self._try(number)
        # No version is served to fall back on, as at a start: the newest version that loads is the last good one.
        others = set() if policy.versions else set(known) - first - self.unloaded - barred.keys()
        for number in sorted(others, reverse=True):
            if self._model.served or newest in self.unloaded or self._coming:
                break
            events += self._try(number)
        # A barred version goes on until what is chosen instead is loaded.
        if (newest in self._model.served or not chosen) and self._model.routes.traffic.barred != barred.keys():
            self._publish(lambda routes: {"traffic": replace(routes.traffic, barred=frozenset(barred))})
        if default is not None and self._model.routes.default is not None:
            replaced = default.manifest.version
            if self._model.routes.default.manifest.version != replaced:
                # A version that was gone back from is not one to go back to.
                self.bake.begin(0 if replaced in barred else replaced)
                self.bake.end_if_due(self._model.policy.bake_s)
        if newest in self._model.served and (policy.versions or newest >= self._decisions.newest_trusted()):
            for number in [v for v in self._model.served if v not in chosen | wanted | {self.bake.number}]:
                self._drop(number)
                events.append(f"{self._name} version {number} unloaded")
        events += self._tell_barred(barred)
        named = set(policy.versions) | set(self._model.labels.values())
        self._forget({v for v in known if v < newest} - first if newest in self._model.served else set(), named)
        missing = named - set(known) - self._model.served.keys()
        if missing:
            # A version that is being imported is not missing.
            events += self._miss(sorted(missing - self._repository.uncommitted(self._name).keys()), known)
        return events

    def _try(self, number: int) -> list[str]:
        """Load a version unless it is served or has failed with the same files; return the events."""
        if number in self._model.served or (seen := self.failed.worth_a_try(number)) is None:
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
            which = f"{self._name} {number}"
            cure = f"`freshet version release {which}` serves it, `freshet version reject {which}` withdraws it"
            return [FailureMessage(f"{self._name} version {number} is {held}; {cure}")]
        except FreshetError as error:
            self.failed.note(number, seen)
            self._tell(VersionStatus(number, END, str(error)))
            return [FailureMessage(f"{self._name} version {number} refused: {error}")]
        return [f"{self._name} {generation} loaded"]

    def _tell_barred(self, barred: Mapping[int, str]) -> list[str]:
        """Publish which versions are held or withdrawn and not served; return new events."""
        events = []
        for number, why in barred.items():
            state = VersionStatus(number, END, why)
            if number not in self._model.served and self._model.routes.states.get(number) != state:
                self._tell(state)
                events.append(f"{self._name} version {number} is {why}")
        for number in self._told_barred - barred.keys() - self._model.served.keys():
            self._tell(VersionStatus(number, END))
        self._told_barred = set(barred)
        return events

    def _miss(self, numbers: Sequence[int], known: Sequence[int]) -> list[str]:
        """Report versions that the policy or a label names and that do not exist; return new events."""
        why = f"it is not in the repository, which holds {listed(map(str, reversed(known)))}"
        states = {n: VersionStatus(n, END, why) for n in numbers}
        if all(self._model.routes.states.get(n) == state for n, state in states.items()):
            return []
        self._publish(lambda routes: {"states": {**routes.states, **states}})
        return [FailureMessage(f"{self._name} version {n} refused: {why}") for n in states]

    def _forget(self, outdone: set[int], named: set[int]) -> None:
        """Forget versions that failed, or were announced as loading, once they are not needed.

        A newer version is served then, or the folder is gone.
        """
        states, path = self._model.routes.states, self._repository.path
        unserved = {v for v, state in states.items() if state.error or state.state == LOADING}
        gone = {v for v in unserved if v in outdone or (v not in named and not os.path.exists(path(self._name, v)))}
        if gone:
            for number in gone:
                self.failed.forget(number)
            self._publish(lambda routes: {"states": {v: s for v, s in routes.states.items() if v not in gone}})

    def _tell(self, state: VersionStatus) -> None:
        self._publish(lambda routes: {"states": {**routes.states, state.version: state}})
