"""A served model: its loaded versions, its labels, and the single writer that changes them.

Every change runs under the model's lock. Requests only read `routes`, which is replaced as a whole, and every process
that answers by it is notified at once. A version is offered once it is loaded, verified, warm and caught up with its
change log; only then is the version that it replaces removed, and closed when no request is sent to it any more. Which
versions are loaded is chosen by processor.versions.version_selection.

Traffic has its own lock (processor.versions.routed_model). So has the removal of a version whose files are damaged
(examine()): a process that touches a missing page of a mapped file is killed. The next poll() reads the files as they
are now, reports what is wrong with them, and finds another sound version.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import Conflict, FreshetError, NotFound, NotReady, SigningKeyRequired
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Delta, DeltaBytes, parse_delta, read_delta_file, sha256
from freshet_serving.processor.repository import (
    MAX_REASON,
    ChainLink,
    ChangeLog,
    History,
    Repository,
    VersionReader,
    check_downgrade,
    check_name,
)
from freshet_serving.processor.versions.changes import (
    ApplyResult,
    DirtyVersions,
    FailureMessage,
    LockWatchdog,
    RollbackResult,
)
from freshet_serving.processor.versions.delta_checks import DeltaChecks
from freshet_serving.processor.versions.judges import JudgedModel, JudgementCounts, Judges, VersionHeld
from freshet_serving.processor.versions.loaded_version import LoadedVersion, VersionLoader, load_error
from freshet_serving.processor.versions.log_applier import LogApplier, RebuildRequired
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.replica import Replicas
from freshet_serving.processor.versions.routed_model import RoutedModel
from freshet_serving.processor.versions.routes import AVAILABLE, END, LOADING, Routes, VersionStatus, without
from freshet_serving.processor.versions.served_version import TORN, ServedVersion
from freshet_serving.processor.versions.version_decisions import VersionDecisions
from freshet_serving.processor.versions.version_selection import VersionSelection
from freshet_serving.processor.watching import AutoRollback, ChainStatus

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

        load() returns a version without deltas, connect() its replicas; changed() is called after `routes` was
        replaced. The repository's policy overrides this one. `scratch` keeps requests over a restart; "" for none.
        """
        super().__init__(name, repository, clock, changed, policy)
        self._loader = VersionLoader(name, repository, load, connect, clock)
        self._lock = threading.RLock()
        self.lock_watch = LockWatchdog(self._lock)
        self._dirty_versions = DirtyVersions(self._reload_log)
        self.decisions = VersionDecisions(name, repository)
        self._log_appliers: dict[int, LogApplier] = {}
        self.damaged: Counter[str] = Counter()
        """Number of times that a version was unloaded as damaged, by the damaged file."""
        self.judgement_counts = JudgementCounts()
        self.judges = Judges(JudgedModel(name, lambda: self.policy, clock, repository.root, scratch))
        self._selection = VersionSelection(
            self,
            self.judges,
            repository,
            clock,
            self.decisions,
            self._publish,
            partial(self._admit, by_itself=True),
            self._drop,
        )

    def chain(self, version: int) -> ChainStatus | None:
        """Return a version's state against its change log; None if it is not loaded."""
        log_applier = self._log_appliers.get(version)
        return log_applier.status if log_applier else None

    def staleness_s(self, version: int) -> float:
        """Return seconds since a version last served the newest record; 0.0 if it is not loaded."""
        log_applier = self._log_appliers.get(version)
        return max(0.0, self._clock.now_s() - log_applier.current_at_s) if log_applier else 0.0

    def timeline(self, number: int, most: int) -> dict[str, Any]:
        """Return the newest records of a loaded version, or raise NotFound. Takes no lock."""
        # Loaded when a person asks.
        from freshet_serving.processor.versions.timeline import timeline

        return timeline(*self.loaded(number), most)

    def poll(self) -> list[str]:
        """Poll the model's folders once: load a newer version, apply new deltas. Return the events."""
        with self._lock:
            self.lock_watch.turn()
            events = []
            for number, version in list(self.routes.served.items()):
                if version.torn:
                    events += self._unload_corrupt(number, version, TORN)
            # Versions that were unloaded as damaged are loaded anew, not followed further.
            self._log_appliers = {number: f for number, f in self._log_appliers.items() if number in self.routes.served}
            events += self._selection.poll()
            for number, version in sorted(self.routes.served.items()):
                events += self._follow(number, version)
            return events

    def examine(self, effort: int) -> list[str]:
        """Unload versions whose files have changed, by this effort, without a lock except that of routes."""
        damage = [(number, version, version.damage(effort)) for number, version in self.routes.served.items()]
        return [line for number, version, why in damage if why for line in self._unload_corrupt(number, version, why)]

    def load(self, number: int, by_hand: bool = True) -> None:
        """Load a version beside those served, or reload one that has departed from its change log.

        One loaded `by_hand` stays when a newer one is served. Raises NotFound, or FreshetError if it cannot be served.
        """
        if number in self._repository.versions(self.name):
            # Before the lock is taken, so that no other change waits for it.
            self._repository.prepare(self.name, number)
        with self._lock:
            self.lock_watch.turn()
            log_applier = self._log_appliers.get(number)
            if number in self.routes.served and log_applier is not None and log_applier.needs_reload:
                self._swap(number, *self._rebuild(number))
            elif number not in self.routes.served:
                if number not in self._repository.versions(self.name):
                    raise NotFound(f"version {number} of model {self.name!r} is not in the repository")
                self._admit(number)
                self._selection.unloaded.discard(number)
            if by_hand:
                self._selection.by_hand.add(number)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold off every other change; choose the versions anew at the end, also after an error."""
        with self._lock:
            self.lock_watch.turn()
            try:
                yield
            finally:
                self._selection.again()

    def choose(self) -> list[str]:
        """Load and unload versions by policy, labels and decisions; return the events."""
        with self._lock:
            return self._selection.choose()

    def prepare(self, number: int) -> None:
        """Fetch what loading a version needs; raise NotFound if there is no such version."""
        # Loaded when a person asks.
        from freshet_serving.processor.versions.version_actions import check_exists

        check_exists(self._repository, self.name, number)
        self._repository.prepare(self.name, number)

    def history(self, number: int) -> History:
        """Return a loaded version's history as far as it was read; raise NotFound."""
        return self.loaded(number).log_applier.change_log.history

    def unload(self, number: int) -> None:
        """Stop serving a version; queued requests are still answered."""
        with self._lock:
            if number not in self.routes.served:
                raise NotFound(f"version {number} of model {self.name!r} is not loaded")
            if number in self.routes.labels.values():
                labels = ", ".join(sorted(n for n, v in self.routes.labels.items() if v == number))
                raise Conflict(f"version {number} is held by label {labels}; move or remove the label first")
            self._drop(number)
            self._selection.unloaded.add(number)

    def set_label(self, label: str, number: int) -> None:
        """Point a label at a version, loading it if necessary; kept across restarts."""
        check_name(label, "label")
        if number not in self.routes.served and number in self._repository.versions(self.name):
            self._repository.prepare(self.name, number)
        with self._lock:
            self.load(number, by_hand=False)
            self.adopt_labels(self._repository.keep_labels(self.name, {label: number}))

    def replace_labels(self, labels: Mapping[str, int]) -> None:
        """Point labels at loaded versions, and remove all others but those that remove_label() refuses to remove."""
        with self.changing():
            gone = {label: None for label in self.routes.labels if label not in labels and not self._depends_on(label)}
            if changes := {**labels, **gone}:
                self.adopt_labels(self._repository.keep_labels(self.name, changes))

    def remove_label(self, label: str) -> None:
        """Remove a label, also across restarts; the next poll() unloads its version unless something else keeps it.

        Raises:
            NotFound: The label is not set.
            Conflict: Requests depend on it, or the configured policy would set it again.
            NotReady: The repository cannot be written.
        """
        with self.changing():
            if label not in self.routes.labels:
                unset = self.routes.no_label(label)
                raise NotFound(f"{unset}; it has {unset.known}")
            if why := self._depends_on(label):
                raise Conflict(f"label {label!r} {why}")
            self.adopt_labels(self._repository.keep_labels(self.name, {label: None}))

    def _depends_on(self, label: str) -> str:
        """Return why a label cannot be removed, and what to do; "" if it can."""
        if label in self._configured.labels:
            return "is set in the server's configuration; remove it there and restart"
        # A label without a share may go: nothing is routed by it, and a split may name labels that are not set.
        routed = [name for n, (name, weight) in enumerate(self.policy.split.items()) if n == 0 or weight > 0]
        if label in routed or label == self.policy.shadow:
            named = "split" if label in routed else "shadow"
            return f"receives requests by policy.{named}; change the policy first"
        return ""

    def apply_bytes(self, data: DeltaBytes) -> ApplyResult:
        """Verify, commit and serve a delta; a client that lost the reply may retry the newest with identical bytes."""
        delta, content = parse_delta(data), sha256(data)
        with self._lock, self._dirty_versions.changing(delta.version):
            self.lock_watch.turn()
            version = self._target(delta)
            before = version.digest
            self._look(delta.version, version)
            head = self._log_appliers[delta.version].change_log.history.head
            served = version.generation
            served_sha256 = head.record.sha256 if head.record is not None and head.digest == version.digest else ""
            if served == Generation(delta.version, delta.step) and served_sha256 == content:
                apply_ms = 0.0 if version.digest == before else version.last_apply_ms
                return ApplyResult(self.name, served, delta.rows, delta.removed, apply_ms)
            loaded = self._current(delta.version)
            apply_ms = loaded.publish(delta, data, content)
            return ApplyResult(self.name, loaded.version.generation, delta.rows, delta.removed, apply_ms)

    def apply_file(self, path: Path) -> ApplyResult:
        """Apply a delta file; it is copied into the version's folder if it is not there."""
        return self.apply_bytes(read_delta_file(path))

    def rollback(self, generation: Generation, reason: str = "") -> RollbackResult:
        """Serve an earlier generation of a loaded version on every server, and commit the rollback with its reason.

        A trainer goes on from there.
        """
        with self._lock, self._dirty_versions.changing(generation.version):
            self.lock_watch.turn()
            loaded = version, log_applier = self.loaded(generation.version)
            served = version.generation
            if generation.step > served.step:
                raise Conflict(f"rollback: expected a generation before {served}, got {generation}")
            loaded.check_follows()
            change_log = log_applier.change_log
            change_log.look()
            if generation.step < change_log.history.base.step:
                change_log.reach_back()
            link = change_log.history.on_line(generation.step)
            if link is None:
                raise NotFound(f"rollback: generation {generation} of model {self.name!r} does not exist")
            change_log.check_whole(link)
            undone = [new.step for new in change_log.history.back(change_log.history.head) if new.step > link.step]
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
            self._current(generation.version).check_serves(link, "rollback")
            reached = self._still(generation.version).generation
            steps = [Generation(generation.version, step) for step in reversed(undone)]
            return RollbackResult(reached, steps, change_log.history.top + 1, recorded=alone is None)

    def restore(self, generation: Generation, only: str) -> RollbackResult:
        """Restore one part of an earlier generation by a delta that is committed and served.

        The part is "entities", the features of entities, or "model", rows and dense weights.
        """
        number = generation.version
        self.loaded(number).check_follows()
        # A separate log: the lock is taken only to serve what is committed, as a poll does.
        change_log = ChangeLog(self._repository.reader(self.name, number), self._clock.unix_s)
        change_log.begin_at_snapshot()
        # Loaded with the first such rollback: a server that follows deltas compares no rows.
        from freshet_serving.processor.versions.part_restoration import publish_part

        link = publish_part(change_log, generation, only, self._clock.unix_s())
        with self._lock, self._dirty_versions.changing(number):
            self.lock_watch.turn()
            version, _ = self.loaded(number)
            if link is not None:
                self._look(number, version)
                self._current(number).check_serves(link, "rollback")
            reached, top = self._still(number).generation, self._log_appliers[number].change_log.history.top
            return RollbackResult(reached, [], top + 1, recorded=True)

    def release(self, number: int, reason: str = "") -> Generation:
        """Serve and commit the held deltas of a loaded version; raise NotFound, or Conflict if nothing is held."""
        with self._lock, self._dirty_versions.changing(number):
            self.lock_watch.turn()
            version, log_applier = self.loaded(number)
            log_applier.release(reason)
            released = log_applier.change_log.history.head
            self._look(number, version)
            self._current(number).check_serves(released, "release")
            return self._still(number).generation

    def reject(self, number: int, reason: str = "") -> RollbackResult:
        """Discard the held deltas of a loaded version; raise NotFound, or Conflict if nothing is held.

        If a guard has held them, those that do not depend on the first of them are published again.
        """
        # Loaded when somebody decides.
        from freshet_serving.processor.versions.held_deltas import publish_anew, sound_behind

        with self._lock:
            self.lock_watch.turn()
            version, log_applier = self.loaded(number)
            self._follow(number, version)
            change_log = log_applier.change_log
            if log_applier.target is change_log.history.head:
                raise Conflict("reject: nothing is held")
            sound = sound_behind(change_log, log_applier.target) if log_applier.held_by_guard else []
            done = self.rollback(Generation(number, log_applier.target.step), reason)
            steps = publish_anew(change_log, sound) if done.recorded else []
            self._follow(number, self._still(number))
            if steps and (again := change_log.history.known(steps[-1])) is not None:
                undone = "reject: the held deltas are undone, others published again"
                self._current(number).check_serves(again, undone)
            remaining = tuple(Generation(number, step) for step in steps)
            reached = self._still(number).generation
            return replace(done, generation=reached, kept=remaining, next_step=change_log.history.top + 1)

    def auto_rollback(self, verdict: AutoRollback) -> list[str]:
        """Roll back deltas that monitoring found bad, unless that is already done; return the events."""
        number = verdict.bad.version
        with self._lock:
            self.lock_watch.turn()
            version, log_applier = self.loaded(number)
            self._follow(number, version)
            bad, served = log_applier.change_log.history.on_line(verdict.bad.step), version.generation.step
            if bad is None or bad.digest != verdict.bad.digest or served < bad.step:
                return []
            self.judgement_counts.auto_rollbacks[verdict.verdict.kind] += 1
            reason = f"rolled back automatically: {verdict.verdict.kind}: {verdict.verdict.reason}"[:MAX_REASON]
            done = self.rollback(Generation(number, verdict.good.step), reason)
            return [f"{self.name} rolled back to {done.generation}: {reason}"]

    def _reload_log(self, number: int) -> None:
        if (log_applier := self._log_appliers.get(number)) is not None:
            change_log = ChangeLog(self._repository.reader(self.name, number), self._clock.unix_s)
            self._log_appliers[number] = log_applier.renewed(change_log)

    def loaded(self, number: int) -> LoadedVersion:
        version, log_applier = self.routes.served.get(number), self._log_appliers.get(number)
        if version is None or log_applier is None:
            raise NotFound(f"version {number} of model {self.name!r} is not loaded")
        return LoadedVersion(version, log_applier)

    @property
    def monitored(self) -> bool:
        """True if a version serves deltas that are still being monitored."""
        return any(
            LoadedVersion(v, f).monitored for n, v in self.routes.served.items() if (f := self._log_appliers.get(n))
        )

    def vouched(self, number: int) -> bool:
        """Report whether a person has named or released a version: it is not judged."""
        return self._selection.vouched(number)

    def _admit(self, number: int, by_itself: bool = False) -> ServedVersion:
        """Load a version, replay its deltas and offer it; one that comes `by_itself` must not be a downgrade."""
        self._state(VersionStatus(number, LOADING))
        try:
            self.policy.check_extensions(f"model.{self.name}")
            if by_itself:
                trusted = self.decisions.newest_trusted()
                beside = trusted in self.routes.served and trusted in self._repository.versions(self.name)
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
        self._selection.failed.forget(number)
        self._serve(number, version)
        self.judges.took_over(served, version)
        return version

    def _pass_gate(self, number: int, version: ServedVersion) -> None:
        """Judge a version about to take over by itself; close it and raise VersionHeld if it must not."""
        served = self.routes.default
        if served is None or served.manifest.version >= number or self._selection.vouched(number):
            return
        try:
            if (reason := self.judges.check(served, version)) and (why := self.decisions.hold(number, reason)):
                raise VersionHeld(why)
        except BaseException:
            version.close()
            raise

    def _rebuild(self, number: int, target: ChainLink | None = None) -> LoadedVersion:
        """Build a version from its change log, up to `target` or to what is to be served."""
        with self.lock_watch.excused():
            return self._loader.build(number, partial(self._checks, number), target)

    def _checks(self, number: int) -> DeltaChecks:
        """Return the checks of a version's deltas; a loaded version keeps its own."""
        applier = self._log_appliers.get(number) if number in self.routes.served else None
        return applier.checks if applier else DeltaChecks(self.judges.of_deltas(), self.judgement_counts)

    def _follow(self, number: int, version: ServedVersion) -> list[str]:
        """Poll a version's change log; rebuild the version if memory does not reach back far enough."""
        with self._dirty_versions.changing(number):
            return self._look(number, version)

    def _look(self, number: int, version: ServedVersion) -> list[str]:
        log_applier = self._log_appliers[number]
        if self._selection.failed.rests(number):
            return []
        try:
            return log_applier.follow(version)
        except RebuildRequired:
            step = log_applier.target.step
        try:
            self._swap(number, *self._rebuild(number))
        except NotReady as error:
            self._selection.failed.wait(number)
            return log_applier.wait(f"generation {number}.{step} waits: {error}")
        except FreshetError as error:
            return log_applier.unreachable(f"generation {number}.{step} cannot be built from the files: {error}")
        self._selection.failed.forget(number)
        return [f"{self.name} rolled back to {self._still(number).generation}"]

    def _swap(
        self, number: int, version: ServedVersion, log_applier: LogApplier, override: ChainLink | None = None
    ) -> None:
        """Serve a rebuilt version in place of the served one; `override`: see LogApplier.override()."""
        old = self.routes.served.get(number)
        log_applier.override(override)
        self._log_appliers[number] = log_applier
        log_applier.follow(version)
        self._serve(number, version)
        if old is not None:
            old.close()

    def let_go(self) -> None:
        """Release what was served, once no session reads it: maps, leases and descriptors end at once."""
        self.routes = Routes(self.name)
        self._log_appliers.clear()

    def _drop(self, number: int) -> None:
        dropped = self.routes.served.get(number)
        self._selection.dropped(number)
        self._log_appliers.pop(number, None)
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
            self._selection.disturbed(number, [file.path for file in version.files.mapped])
        self._changed()
        version.close()
        return [FailureMessage(f"{self.name} version {number} is no longer served: {why}")]

    def _current(self, number: int) -> LoadedVersion:
        return LoadedVersion(self._still(number), self._log_appliers[number])

    def _still(self, number: int) -> ServedVersion:
        """Return a version served a moment ago; raise NotReady if it was unloaded as damaged since."""
        version = self.routes.served.get(number)
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
        if delta.version in self.routes.served:
            return self.routes.served[delta.version]
        version = self.pick()
        version.check_delta(delta)
        return version
