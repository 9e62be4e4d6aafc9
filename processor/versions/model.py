"""A served model: its loaded versions, its labels, and the single writer that changes them.

Invariants: every change runs under the model's lock. Requests only ever read `routes`, which is replaced as a whole,
never edited, and every other process that answers by it is notified at once. A version is offered to requests only once
it is loaded, verified, warm and caught up with its change log. The version it replaces is removed only after that, and
is closed only when no request is sent to it any more. A version that failed to load is not retried until its files
change; one that failed because the server was short of something is. The policy selects the versions to serve; those
that a label names, or that were loaded by hand, stay beside them.

Traffic has its own lock (processor.versions.routed_model). So has the removal of a version whose files are damaged
(examine()): a process that touches a missing page of a mapped file is killed. The next poll() then reads the files as
they are now, which shows what is wrong with them, and finds another version that is sound.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import (
    BadInput,
    Conflict,
    Corrupt,
    Diverged,
    FreshetError,
    NotFound,
    NotReady,
    SigningKeyRequired,
)
from freshet_serving.processor.generation import DIVERGED, Generation
from freshet_serving.processor.package import Delta, DeltaBytes, parse_delta, read_delta_file
from freshet_serving.processor.repository import (
    MAX_REASON,
    SNAPSHOTS,
    ChainLink,
    ChangeLog,
    DurableDelta,
    FolderWatch,
    History,
    Repository,
    VersionReader,
    check_downgrade,
    check_name,
    delta_digest,
    is_written_to,
    listed,
    open_snapshot,
    root_hash,
    sha256,
)
from freshet_serving.processor.versions.bake_time import BakeTime
from freshet_serving.processor.versions.change_results import ApplyResult, RollbackResult
from freshet_serving.processor.versions.delta_checks import DeltaChecks
from freshet_serving.processor.versions.failed_versions import (
    DirtyVersions,
    FailedVersions,
    FailureMessage,
    load_error,
    report,
)
from freshet_serving.processor.versions.held_deltas import held_reason, publish_anew, sound_behind
from freshet_serving.processor.versions.judges import DeltaHeld, JudgedModel, JudgementCounts, Judges, VersionHeld
from freshet_serving.processor.versions.log_applier import LogApplier, RebuildRequired
from freshet_serving.processor.versions.part_restoration import publish_part
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.readiness import LockWatchdog
from freshet_serving.processor.versions.replica import Replicas
from freshet_serving.processor.versions.routed_model import RoutedModel
from freshet_serving.processor.versions.routes import AVAILABLE, END, LOADING, Routes, VersionStatus, without
from freshet_serving.processor.versions.served_version import TORN, ServedVersion
from freshet_serving.processor.versions.timeline import timeline
from freshet_serving.processor.versions.version_decisions import VersionDecisions, check_exists
from freshet_serving.processor.watching import AutoRollback, ChainStatus, LabelSums, Sketch

log = logging.getLogger("freshet.model")


class ServedModel(RoutedModel):
    """The versions of one model in memory; poll(), load() and apply_bytes() change them, pick() reads them."""

    def __init__(
        self,
        name: str,
        repository: Repository,
        load: Callable[[VersionReader], ServedVersion],
        connect: Callable[[ServedVersion], Replicas],
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
        policy: ModelPolicy | None = None,
        scratch: str = "",
    ) -> None:
        """Create the model without loading a version.

        Args:
            name: Name of the model.
            repository: The model repository.
            load: Loads a version as its folder has it, without deltas.
            connect: Returns the replicas that answer by a version.
            clock: Source of time.
            changed: Called after `routes` was replaced.
            policy: The configured policy; what the repository has kept overrides it.
            scratch: Folder that keeps requests over a restart; "" for none.
        """
        super().__init__(name, repository, clock, changed, policy)
        self._load, self._connect = load, connect
        self._lock = threading.RLock()
        self.lock_watch = LockWatchdog(self._lock)
        self._dirty_versions = DirtyVersions(self._reload_log)
        self._by_hand: set[int] = set()
        # Versions that are being downloaded.
        self._coming: set[int] = set()
        self._unloaded: set[int] = set()
        self._told_barred: set[int] = set()
        self._refusals = FailedVersions(partial(repository.path, name), clock, repository.remote)
        self._folder = FolderWatch(repository.root / name)
        self.decisions = VersionDecisions(name, repository)
        self._log_appliers: dict[int, LogApplier] = {}
        # Mapped files of versions that were unloaded as damaged: they may still be written to.
        self._disturbed: dict[int, list[Path]] = {}
        self.damaged: Counter[str] = Counter()
        """Number of times that a version was unloaded as damaged, by the damaged file."""
        self.judgement_counts = JudgementCounts()
        self.judges = Judges(JudgedModel(name, lambda: self.policy, clock, repository.root, scratch))
        self._bake = BakeTime(clock)

    def chain(self, version: int) -> ChainStatus | None:
        """Return how a loaded version stands against its change log; None if it is not loaded."""
        log_applier = self._log_appliers.get(version)
        return log_applier.status if log_applier else None

    def staleness_s(self, version: int) -> float:
        """Return seconds since a version was last known to serve the newest record; 0.0 if it is not loaded."""
        log_applier = self._log_appliers.get(version)
        return max(0.0, self._clock.now_s() - log_applier.current_at_s) if log_applier else 0.0

    def timeline(self, number: int, most: int) -> dict[str, Any]:
        """Return the newest records of a loaded version (processor.versions.timeline). Takes no lock.

        Args:
            number: The version.
            most: Maximum number of records.

        Raises:
            NotFound: The version is not loaded.
        """
        version, log_applier = self.served.get(number), self._log_appliers.get(number)
        if version is None or log_applier is None:
            raise NotFound(f"version {number} of model {self.name!r} is not loaded")
        return timeline(version, log_applier, most)

    def poll(self) -> list[str]:
        """Poll the model's folders once: load a newer version, apply new deltas. Return the events."""
        with self._lock:
            self.lock_watch.turn()
            events = []
            for number, version in list(self.served.items()):
                if version.torn:
                    events += self._unload_corrupt(number, version, TORN)
            due = self._bake.end_if_due(self.policy.bake_s) | self._folder.changed()
            if due or self._refusals.changed() or self.decisions.changed():
                try:
                    events += self._poll_versions()
                except Exception:
                    self._folder.again()
                    raise
            for number, version in sorted(self.served.items()):
                events += self._follow(number, version)
            return events

    def examine(self, effort: int) -> list[str]:
        """Unload versions whose files are no longer what was verified; return the events.

        Takes no lock except that of routes.

        Args:
            effort: Thoroughness of the check (processor.repository.mapped_file).
        """
        found = [(number, version, version.damage(effort)) for number, version in self.served.items()]
        return [line for number, version, why in found if why for line in self._unload_corrupt(number, version, why)]

    def load(self, number: int, by_hand: bool = True) -> None:
        """Load a version beside those served, or reload one that has departed from its change log.

        Args:
            number: The version.
            by_hand: True to keep it when a newer one is served.

        Raises:
            NotFound: It is not in the repository.
            FreshetError: It cannot be served.
        """
        if number in self._repository.versions(self.name):
            # Before the lock is taken, so that no other change waits for it.
            self._repository.prepare(self.name, number)
        with self._lock:
            self.lock_watch.turn()
            log_applier = self._log_appliers.get(number)
            if number in self.served and log_applier is not None and log_applier.needs_reload:
                self._swap(number, *self._rebuild(number))
            elif number not in self.served:
                if number not in self._repository.versions(self.name):
                    raise NotFound(f"version {number} of model {self.name!r} is not in the repository")
                self._admit(number)
                self._unloaded.discard(number)
            if by_hand:
                self._by_hand.add(number)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold off every other change; the versions are chosen anew at the end, also after an error."""
        with self._lock:
            self.lock_watch.turn()
            try:
                yield
            finally:
                self._folder.again()

    def choose(self) -> list[str]:
        """Load and unload versions as policy, labels and decisions are now; return the events."""
        with self._lock:
            return self._poll_versions()

    def prepare(self, number: int) -> None:
        """Fetch what a version of the repository needs to be loaded; raise NotFound if there is no such version."""
        check_exists(self._repository, self.name, number)
        self._repository.prepare(self.name, number)

    def history(self, number: int) -> History:
        """Return the history of a loaded version, as far as it was read; raise NotFound."""
        return self._loaded(number)[1].change_log.history

    def line(self, number: int) -> list[ChainLink]:
        """Return the generations that lead to what a loaded version serves, newest first; raise NotFound."""
        version, log_applier = self._loaded(number)
        change_log = log_applier.change_log
        if version.generation.step == change_log.history.base.step:
            change_log.reach_back()
        link = change_log.history.links.get(version.digest)
        return list(change_log.history.back(link)) if link is not None else []

    def unload(self, number: int) -> None:
        """Stop serving a version; requests already queued for it are still answered."""
        with self._lock:
            if number not in self.served:
                raise NotFound(f"version {number} of model {self.name!r} is not loaded")
            if number in self.labels.values():
                held = ", ".join(sorted(n for n, v in self.labels.items() if v == number))
                raise Conflict(f"version {number} is held by label {held}; move the label first")
            self._drop(number)
            self._unloaded.add(number)

    def set_label(self, label: str, number: int) -> None:
        """Point a label at a version, loading it if necessary; kept across restarts.

        Args:
            label: The label.
            number: The version.
        """
        check_name(label, "label")
        if number not in self.served and number in self._repository.versions(self.name):
            self._repository.prepare(self.name, number)
        with self._lock:
            self.load(number, by_hand=False)
            kept = {**self._kept_labels, label: number}
            self._repository.keep_labels(self.name, kept)
            self._kept_labels = kept
            self._publish(lambda routes: {"labels": {**routes.labels, label: number}})

    def apply_bytes(self, data: DeltaBytes) -> ApplyResult:
        """Verify a delta, commit it to its version's change log and serve it.

        Idempotent for the newest served delta: if the bytes are identical, the result is as if it had just been
        applied, so that a client that lost the first reply may retry.
        """
        delta, content = parse_delta(data), sha256(data)
        with self._lock, self._dirty_versions.changing(delta.version):
            self.lock_watch.turn()
            version = self._target(delta)
            before = version.digest
            self._look(delta.version, version)
            head = self._log_appliers[delta.version].change_log.history.head
            here = version.generation
            known = head.record.sha256 if head.record is not None and head.digest == version.digest else ""
            if here == Generation(delta.version, delta.step) and known == content:
                apply_ms = 0.0 if version.digest == before else version.last_apply_ms
                return ApplyResult(self.name, here, delta.rows, delta.removed, apply_ms)
            return self._apply(version, delta, data, content)

    def apply_file(self, path: Path) -> ApplyResult:
        """Apply a delta file in the repository; it is copied into the version's folder if it is not there."""
        return self.apply_bytes(read_delta_file(path))

    def rollback(self, generation: Generation, reason: str = "") -> RollbackResult:
        """Serve an earlier generation of a loaded version, and commit the rollback to its change log.

        The later deltas are undone on every server of the repository, and a trainer goes on from there.

        Args:
            generation: The generation to serve.
            reason: Reason for the record.
        """
        with self._lock, self._dirty_versions.changing(generation.version):
            self.lock_watch.turn()
            version, log_applier = self._loaded(generation.version)
            here = version.generation
            if generation.step > here.step:
                raise Conflict(f"rollback: expected a generation before {here}, got {generation}")
            self._check_follows(log_applier)
            change_log = log_applier.change_log
            change_log.look()
            if generation.step < change_log.history.base.step:
                change_log.reach_back()
            link = change_log.history.on_line(generation.step)
            if link is None:
                raise NotFound(f"rollback: generation {generation} of model {self.name!r} does not exist")
            change_log.check_whole(link)
            undone = [one.step for one in change_log.history.back(change_log.history.head) if one.step > link.step]
            rebuilt = None if version.step_of(link.digest) is not None else self._rebuild(generation.version, link)
            try:
                change_log.rollback(link.step, reason)
                alone = None
            except (NotReady, SigningKeyRequired) as error:
                if isinstance(error, NotReady) and self._repository.remote:
                    # An outage ends by itself; a rollback known to this server alone would not.
                    raise
                alone = link
            if rebuilt is None:
                log_applier.override(alone)
                self._look(generation.version, version)
            else:
                self._swap(generation.version, *rebuilt, override=alone)
            self._check_served(generation.version, link, "rollback")
            reached = self._still(generation.version).generation
            steps = [Generation(generation.version, step) for step in reversed(undone)]
            return RollbackResult(reached, steps, change_log.history.top + 1, recorded=alone is None)

    def restore(self, generation: Generation, only: str) -> RollbackResult:
        """Take one part of a loaded version back and leave the other, with a delta that is committed and served.

        Args:
            generation: The generation whose part to serve.
            only: "entities" for the features of entities, "model" for rows and dense weights.
        """
        number = generation.version
        self._check_follows(self._loaded(number)[1])
        # A log of its own: the lock is taken only to serve what is committed, as a poll does.
        change_log = ChangeLog(self._repository.reader(self.name, number), self._clock.unix_s)
        change_log.begin_at_snapshot()
        link = publish_part(change_log, generation, only, self._clock.unix_s())
        with self._lock, self._dirty_versions.changing(number):
            self.lock_watch.turn()
            version, _ = self._loaded(number)
            if link is not None:
                self._look(number, version)
                self._check_served(number, link, "rollback")
            reached, top = self._still(number).generation, self._log_appliers[number].change_log.history.top
            return RollbackResult(reached, [], top + 1, recorded=True)

    def release(self, number: int, reason: str = "") -> Generation:
        """Serve the held deltas of a loaded version, and commit the release to its change log.

        Args:
            number: The version.
            reason: Reason for the record.

        Returns:
            The generation that is served now.

        Raises:
            NotFound: The version is not loaded.
            Conflict: Nothing of it is held.
        """
        with self._lock, self._dirty_versions.changing(number):
            self.lock_watch.turn()
            version, log_applier = self._loaded(number)
            log_applier.release(reason)
            released = log_applier.change_log.history.head
            self._look(number, version)
            self._check_served(number, released, "release")
            return self._still(number).generation

    def reject(self, number: int, reason: str = "") -> RollbackResult:
        """Discard the held deltas of a loaded version: roll back to what is served.

        If a guard has held them, those that do not depend on the first of them are published again.

        Args:
            number: The version.
            reason: Reason for the record.

        Raises:
            NotFound: The version is not loaded.
            Conflict: Nothing of it is held.
        """
        with self._lock:
            self.lock_watch.turn()
            version, log_applier = self._loaded(number)
            self._follow(number, version)
            change_log = log_applier.change_log
            if log_applier.target is change_log.history.head:
                raise Conflict("reject: nothing is held")
            sound = sound_behind(change_log, log_applier.target) if log_applier.held_by_guard else []
            done = self.rollback(Generation(number, log_applier.target.step), reason)
            steps = publish_anew(change_log, sound) if done.recorded else []
            self._follow(number, self._still(number))
            if steps and (again := change_log.history.known(steps[-1])) is not None:
                self._check_served(number, again, "reject: the held deltas are undone, others published again")
            kept = tuple(Generation(number, step) for step in steps)
            reached = self._still(number).generation
            return replace(done, generation=reached, kept=kept, next_step=change_log.history.top + 1)

    def auto_rollback(self, verdict: AutoRollback) -> list[str]:
        """Roll back deltas that turn out to be bad, unless that has already been done; return the events."""
        number = verdict.bad.version
        with self._lock:
            self.lock_watch.turn()
            version, log_applier = self._loaded(number)
            self._follow(number, version)
            bad, served = log_applier.change_log.history.on_line(verdict.bad.step), version.generation.step
            if bad is None or bad.digest != verdict.bad.digest or served < bad.step:
                return []
            self.judgement_counts.auto_rollbacks[verdict.verdict.kind] += 1
            reason = f"rolled back automatically: {verdict.verdict.kind}: {verdict.verdict.reason}"[:MAX_REASON]
            done = self.rollback(Generation(number, verdict.good.step), reason)
            return [f"{self.name} rolled back to {done.generation}: {reason}"]

    def watch(self, now_s: float, number: int, sketch: Sketch) -> AutoRollback | None:
        """Evaluate a version's newest deltas after deployment; return the rollback to make, or None. Takes no lock.

        Args:
            now_s: Current time in seconds.
            number: The version.
            sketch: Sketch of the version's batches (ModelHost.sketch).
        """
        log_applier, version = self._log_appliers.get(number), self.served.get(number)
        if log_applier is None or version is None:
            return None
        return log_applier.checks.look(now_s, version.generation, sketch, log_applier.by_person)

    @property
    def monitored(self) -> bool:
        """True if a version serves deltas that are still being monitored."""
        pairs = [(self._log_appliers.get(number), version) for number, version in self.served.items()]
        return any(f is not None and f.checks.monitored(version.generation) for f, version in pairs)

    def calibrated(self, generation: Generation, evidence: LabelSums) -> None:
        """Add labels of rows that a generation has scored.

        Args:
            generation: The generation that scored the rows.
            evidence: Sums of scores and labels.

        Raises:
            NotFound: The generation is unknown.
            BadInput: The sums are invalid.
        """
        evidence.validate()
        log_applier = self._log_appliers.get(generation.version)
        if log_applier is None:
            raise NotFound(f"version {generation.version} of model {self.name!r} is not loaded")
        history = log_applier.change_log.history
        # Generations before the snapshot that the server started from are unknown here.
        if generation.step >= history.base.step and history.known(generation.step) is None:
            raise NotFound(f"generation {generation} of model {self.name!r} does not exist")
        log_applier.checks.tell(generation, evidence)

    def _reload_log(self, number: int) -> None:
        """Read a version's change log again."""
        if (log_applier := self._log_appliers.get(number)) is not None:
            change_log = ChangeLog(self._repository.reader(self.name, number), self._clock.unix_s)
            self._log_appliers[number] = log_applier.renewed(change_log)

    def _loaded(self, number: int) -> tuple[ServedVersion, LogApplier]:
        version = self.served.get(number)
        if version is None:
            raise NotFound(f"version {number} of model {self.name!r} is not loaded")
        return version, self._log_appliers[number]

    def _check_follows(self, log_applier: LogApplier) -> None:
        if log_applier.status.state == DIVERGED:
            raise Conflict(f"change log: DIVERGED: {log_applier.status.reason}; load the version again")

    def _check_served(self, number: int, link: ChainLink, operation: str) -> None:
        """Raise Conflict unless a generation that an operation committed is served, or a later one that continues it.

        Args:
            number: The version.
            link: The generation.
            operation: Name of the operation, for the message.
        """
        served, log_applier = self._still(number), self._log_appliers[number]
        history, status = log_applier.change_log.history, log_applier.status
        here = history.links.get(served.digest)
        if here is not None and any(one.digest == link.digest for one in history.back(here)):
            return
        written = Generation(number, link.step)
        state = f"{status.state}: {status.reason}" if status.reason else "another writer has undone it"
        cure = ""
        if log_applier.target is not history.head:
            cure = (
                f"; `freshet delta release {self.name} --version {number}` serves it, `freshet delta reject "
                f"{self.name} --version {number}` undoes it"
            )
        raise Conflict(
            f"{operation}: {written} is committed but not served: {state}; this server serves {served.generation}{cure}"
        )

    def _poll_versions(self) -> list[str]:
        known, policy = self._repository.versions(self.name), self.policy.versions
        self._by_hand -= self.decisions.read(known)
        barred = self.decisions.barred
        wanted = {v for v in self.labels.values() if v in known} | (self._by_hand & set(known))
        chosen = policy.choose(known, barred)
        self.decisions.warn({*policy.versions, *wanted})
        newest = max(chosen, default=0)
        self._coming.clear()
        self._log_appliers = {number: self._log_appliers[number] for number in self.served}
        events, default = [], self.routes.default
        first = wanted | (chosen - self._unloaded)
        self.judges.begin(lambda: {number: self._repository.root_of(self.name, number) for number in first})
        # The newest trusted version first: an older one may only be served beside it.
        trusted = self.decisions.newest_trusted()
        for number in sorted(first, key=lambda number: (number != trusted, number)):
            events += self._try(number)
        # No version is served to fall back on, as at a start: the newest version that loads is the last good one.
        others = set() if policy.versions else set(known) - first - self._unloaded - barred.keys()
        for number in sorted(others, reverse=True):
            if self.served or newest in self._unloaded or self._coming:
                break
            events += self._try(number)
        # A barred version goes on until what is chosen instead is loaded.
        if (newest in self.served or not chosen) and self.routes.traffic.barred != barred.keys():
            self._publish(lambda routes: {"traffic": replace(routes.traffic, barred=frozenset(barred))})
        if default is not None and self.routes.default is not None:
            replaced = default.manifest.version
            if self.routes.default.manifest.version != replaced:
                # A version that was gone back from is not one to go back to.
                self._bake.begin(0 if replaced in barred else replaced)
                self._bake.end_if_due(self.policy.bake_s)
        if newest in self.served and (policy.versions or newest >= self.decisions.newest_trusted()):
            for number in [v for v in self.served if v not in chosen | wanted | {self._bake.number}]:
                self._drop(number)
                events.append(f"{self.name} version {number} unloaded")
        events += self._tell_barred(barred)
        named = set(policy.versions) | set(self.labels.values())
        self._forget({v for v in known if v < newest} - first if newest in self.served else set(), named)
        missing = named - set(known) - self.served.keys()
        if missing:
            # A version that is being imported is not missing.
            events += self._miss(sorted(missing - self._repository.uncommitted(self.name).keys()), known)
        return events

    def _tell_barred(self, barred: Mapping[int, str]) -> list[str]:
        """Publish which versions are held or withdrawn and not served; return new events."""
        events = []
        for number, why in barred.items():
            state = VersionStatus(number, END, why)
            if number not in self.served and self.routes.states.get(number) != state:
                self._state(state)
                events.append(f"{self.name} version {number} is {why}")
        for number in self._told_barred - barred.keys() - self.served.keys():
            self._state(VersionStatus(number, END))
        self._told_barred = set(barred)
        return events

    def _miss(self, numbers: Sequence[int], known: Sequence[int]) -> list[str]:
        """Report versions that the policy or a label names and that do not exist; return new events."""
        why = f"it is not in the repository, which holds {listed(map(str, reversed(known)))}"
        states = {n: VersionStatus(n, END, why) for n in numbers}
        if all(self.routes.states.get(n) == state for n, state in states.items()):
            return []
        self._publish(lambda routes: {"states": {**routes.states, **states}})
        return [FailureMessage(f"{self.name} version {n} refused: {why}") for n in states]

    def _forget(self, outdone: set[int], named: set[int]) -> None:
        """Forget versions that failed, or were announced as loading, once they are not needed.

        A newer version is served then, or the folder is gone.
        """
        states, path = self.routes.states, self._repository.path
        unserved = {v for v, state in states.items() if state.error or state.state == LOADING}
        gone = {v for v in unserved if v in outdone or (v not in named and not os.path.exists(path(self.name, v)))}
        if gone:
            for number in gone:
                self._refusals.forget(number)
            self._publish(lambda routes: {"states": {v: s for v, s in routes.states.items() if v not in gone}})

    def _try(self, number: int) -> list[str]:
        """Load a version unless it is served or has failed with the same files; return the events."""
        if number in self.served or (seen := self._refusals.worth_a_try(number)) is None:
            return []
        if number in self._disturbed:
            if any(map(is_written_to, self._disturbed[number])):
                # Try again even if the folder does not change.
                self._folder.again()
                return []
            del self._disturbed[number]
        before = self.routes.states.get(number)
        try:
            self.policy.check_extensions(f"model.{self.name}")
        except BadInput as error:
            # It is not a fault of the files, so the version is tried again once the policy is another.
            self._state(VersionStatus(number, END, str(error)))
            repeated = before is not None and before.error == str(error)
            return [] if repeated else [FailureMessage(f"{self.name} version {number} refused: {error}")]
        try:
            if not self._repository.ready(self.name, number):
                # The served version goes on meanwhile. Try again even if the folder does not change.
                self._folder.again()
                self._coming.add(number)
                if before is None:
                    self._state(VersionStatus(number, LOADING))
                return []
            generation = self._admit(number, by_itself=True).generation
        except NotReady as error:
            self._refusals.wait(number)
            repeated = before is not None and before.error == str(error)
            self._state(VersionStatus(number, END, str(error)))
            return [] if repeated else [FailureMessage(f"{self.name} version {number} waits: {error}")]
        except VersionHeld as held:
            which = f"{self.name} {number}"
            cure = f"`freshet version release {which}` serves it, `freshet version reject {which}` withdraws it"
            return [FailureMessage(f"{self.name} version {number} is {held}; {cure}")]
        except FreshetError as error:
            self._refusals.note(number, seen)
            self._state(VersionStatus(number, END, str(error)))
            return [FailureMessage(f"{self.name} version {number} refused: {error}")]
        return [f"{self.name} {generation} loaded"]

    def _admit(self, number: int, by_itself: bool = False) -> ServedVersion:
        """Load a version, replay its deltas, then offer it to requests.

        Args:
            number: The version.
            by_itself: True if it was not requested explicitly: it must not be a downgrade then.
        """
        self._state(VersionStatus(number, LOADING))
        try:
            self.policy.check_extensions(f"model.{self.name}")
            if by_itself:
                trusted = self.decisions.newest_trusted()
                beside = trusted in self.served and trusted in self._repository.versions(self.name)
                if not beside and number not in self.policy.versions.versions:
                    check_downgrade(trusted, number)
            version, log_applier = self._rebuild(number)
            served = self.routes.default
            if by_itself:
                self._pass_gate(number, version)
        except Exception as error:
            if not isinstance(error, FreshetError):
                error = load_error(f"version {number} of {self.name}", error)
            self._state(VersionStatus(number, END, str(error)))
            raise error from None
        self._log_appliers[number] = log_applier
        self._refusals.forget(number)
        self._serve(number, version)
        self.judges.took_over(served, version)
        return version

    def _pass_gate(self, number: int, version: ServedVersion) -> None:
        """Judge a version that is about to take over by itself; raise VersionHeld if it must not.

        Args:
            number: The version.
            version: The loaded version, which is closed if it is held, or cannot be judged yet.
        """
        served = self.routes.default
        if served is None or served.manifest.version >= number or self.vouched(number):
            return
        try:
            if (reason := self.judges.check(served, version)) and (why := self.decisions.hold(number, reason)):
                raise VersionHeld(why)
        except BaseException:
            version.close()
            raise

    def vouched(self, number: int) -> bool:
        """Report whether a person has named a version, or released it: it is not judged."""
        named = {*self._by_hand, *self.labels.values(), *self.policy.versions.versions}
        return number in named or self.decisions.released(number)

    def _rebuild(self, number: int, target: ChainLink | None = None) -> tuple[ServedVersion, LogApplier]:
        """Return an open version as its change log has it, and its applier.

        Args:
            number: The version.
            target: The generation to build; None for the one that is to be served.
        """
        with self.lock_watch.excused():
            return self._rebuild_now(number, target)

    def _rebuild_now(self, number: int, target: ChainLink | None) -> tuple[ServedVersion, LogApplier]:
        folder = self._repository.folder(self.name, number)
        try:
            version, log_applier = self._replay(number, target, from_snapshot=True)
        except (Corrupt, Diverged) as error:
            if not (folder / SNAPSHOTS).exists():
                raise
            log.error("%s version %d: cannot start from its snapshot: %s", self.name, number, error)
            version, log_applier = self._replay(number, target, from_snapshot=False)
        if target is not None and version.digest != target.digest:
            raise Conflict(f"rollback: the deltas on disk produce {version.generation}, not {number}.{target.step}")
        if (memory := self._repository.keyring.memory) is not None:
            manifest = version.files.root_manifest
            root, digest = root_hash(manifest), version.files.digest
            memory.note_version(self.name, number, root, manifest.edition, digest)
        version.attach_replicas(self._connect(version))
        return version, log_applier

    def _replay(self, number: int, target: ChainLink | None, from_snapshot: bool) -> tuple[ServedVersion, LogApplier]:
        files = self._repository.reader(self.name, number)
        change_log = ChangeLog(files, self._clock.unix_s)
        known = self._log_appliers.get(files.manifest.version)
        checks = known.checks if known else DeltaChecks(self.judges.of_deltas(), self.judgement_counts)
        log_applier = LogApplier(self.name, change_log, self._clock, checks, self._repository.seen_s)
        log_applier.start(from_snapshot)
        anew = target is None and checks.known >= 0
        # Records that arrived since it was last served are checked once the version is open.
        until = log_applier.recorded_by(checks.known) if anew else target or log_applier.target
        if until.step < change_log.history.base.step:
            change_log.reach_back()
        record = change_log.history.snapshot(until) if from_snapshot else None
        version = self._load(files if record is None else open_snapshot(files, record))
        if version.files.snapshot is None:
            # Rows in a row store are those that the version was published with.
            change_log.reach_back()
        events = log_applier.reconcile(version, until)
        report(log, events if target or anew else [*events, *log_applier.follow(version)])
        return version, log_applier

    def _follow(self, number: int, version: ServedVersion) -> list[str]:
        """Poll a version's change log; rebuild the version if memory does not reach back far enough."""
        with self._dirty_versions.changing(number):
            return self._look(number, version)

    def _look(self, number: int, version: ServedVersion) -> list[str]:
        """Do the work of _follow() within a change of the version."""
        log_applier = self._log_appliers[number]
        if self._refusals.rests(number):
            return []
        try:
            return log_applier.follow(version)
        except RebuildRequired:
            step = log_applier.target.step
        try:
            self._swap(number, *self._rebuild(number))
        except NotReady as error:
            self._refusals.wait(number)
            return log_applier.wait(f"generation {number}.{step} waits: {error}")
        except FreshetError as error:
            return log_applier.unreachable(f"generation {number}.{step} cannot be built from the files: {error}")
        self._refusals.forget(number)
        return [f"{self.name} rolled back to {self._still(number).generation}"]

    def _swap(
        self, number: int, version: ServedVersion, log_applier: LogApplier, override: ChainLink | None = None
    ) -> None:
        """Serve a rebuilt version in place of the served one.

        Args:
            number: The version.
            version: The rebuilt version.
            log_applier: Its applier.
            override: Generation that only this server goes back to, or None.
        """
        old = self.served.get(number)
        log_applier.override(override)
        self._log_appliers[number] = log_applier
        log_applier.follow(version)
        self._serve(number, version)
        if old is not None:
            old.close()

    def let_go(self) -> None:
        """Let go of what was served, once no session reads it: its maps, leases and descriptors end at once."""
        self.routes = Routes(self.name)
        self._log_appliers.clear()

    def _drop(self, number: int) -> None:
        dropped = self.served.get(number)
        self._by_hand.discard(number)
        self._log_appliers.pop(number, None)
        self._refusals.forget(number)
        self._publish(lambda routes: without(routes, number))
        if dropped is not None:
            dropped.close()
        self._repository.release(self.name, number)

    def _unload_corrupt(self, number: int, version: ServedVersion, why: str) -> list[str]:
        """Unload a version with a damaged file, without waiting for a change in progress."""
        with self._routing:
            if self.routes.served.get(number) is not version:
                return []
            self.routes = replace(self.routes, **without(self.routes, number, why))
            self.damaged[why.partition(":")[0]] += 1
            self._disturbed[number] = [file.path for file in version.files.mapped]
            # Makes the next poll() list the versions.
            self._folder.again()
        self._changed()
        version.close()
        return [FailureMessage(f"{self.name} version {number} is no longer served: {why}")]

    def _still(self, number: int) -> ServedVersion:
        """Return a version that was served a moment ago; raise NotReady if it has been unloaded as damaged since."""
        version = self.served.get(number)
        if version is None:
            raise NotReady(f"version {number} of model {self.name!r} is no longer served")
        return version

    def _serve(self, number: int, version: ServedVersion) -> None:
        available = VersionStatus(number, AVAILABLE)
        self._publish(
            lambda routes: {
                "served": {**routes.served, number: version},
                "states": {**routes.states, number: available},
            }
        )

    def _state(self, state: VersionStatus) -> None:
        self._publish(lambda routes: {"states": {**routes.states, state.version: state}})

    def _target(self, delta: Delta) -> ServedVersion:
        if delta.version in self.served:
            return self.served[delta.version]
        version = self.pick()
        version.check_delta(delta)
        return version

    def _apply(self, version: ServedVersion, delta: Delta, data: DeltaBytes, content: str) -> ApplyResult:
        """Serve a delta on the head of its change log.

        The delta is made durable while its rows are staged, and recorded once it can be served.

        Args:
            version: The loaded version.
            delta: The delta.
            data: Its bytes.
            content: SHA-256 of its bytes.
        """
        log_applier = self._log_appliers[version.manifest.version]
        change_log = log_applier.change_log
        change_log.may_write()
        log_applier.ready(version)
        version.check_delta(delta)
        change_log.check_delta(delta, content)
        digest = delta_digest(change_log.history.head.digest, content)
        kept: list[DurableDelta] = []

        def commit() -> None:
            if change_log.commit(delta, kept[0]).digest != digest:
                raise Conflict("delta: another delta was published at the same time; the server applies that one first")

        try:
            apply_ms = log_applier.apply(
                version, delta, digest, keep=lambda: kept.append(change_log.keep(delta, data)), commit=commit
            )
        except DeltaHeld as held:
            if not kept:
                raise
            raise self._hold(log_applier, version, delta, kept[0], held) from None
        except BaseException:
            for one in kept:
                change_log.forget(one)
            raise
        # A client that has the reply may query the next step at once.
        log_applier.tell(version)
        return ApplyResult(self.name, version.generation, delta.rows, delta.removed, apply_ms)

    def _hold(
        self, log_applier: LogApplier, version: ServedVersion, delta: Delta, kept: DurableDelta, held: DeltaHeld
    ) -> Conflict:
        """Record a delta that must not be served, behind a gate; return the error to raise.

        Args:
            log_applier: The version's applier.
            version: The loaded version.
            delta: The delta.
            kept: Its durable file.
            held: Reason of the hold.
        """
        change_log = log_applier.change_log
        where = Generation(delta.version, delta.step)
        try:
            change_log.hold(held_reason(where, held.reason))
            change_log.commit(delta, kept)
        except BaseException:
            change_log.forget(kept)
            raise
        log_applier.tell(version)
        return Conflict(
            f"delta: {where} is held: {held.reason}; `freshet delta release` serves it, `freshet delta reject` "
            "undoes it"
        )
