"""A loaded version with the applier of its change log: load it, publish on it, judge what it serves.

Used under its model's lock, except watch(), monitored and add_labels(). What VersionLoader builds (files opened, deltas
replayed to a generation, replicas connected) is served by nobody until its caller offers it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import Conflict, Corrupt, Diverged, FreshetError, NotFound, shortage
from freshet_serving.processor.generation import DIVERGED, Generation
from freshet_serving.processor.package import Delta, DeltaBytes
from freshet_serving.processor.repository import (
    SNAPSHOTS,
    ChainLink,
    ChangeLog,
    DurableDelta,
    Repository,
    VersionReader,
    delta_digest,
    root_hash,
)
from freshet_serving.processor.versions.changes import report
from freshet_serving.processor.versions.delta_checks import DeltaChecks
from freshet_serving.processor.versions.judges import DeltaHeld
from freshet_serving.processor.versions.log_applier import LogApplier
from freshet_serving.processor.versions.replica import Replicas
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import AutoRollback, LabelSums, Sketch

log = logging.getLogger("freshet.model")


class LoadedVersion(NamedTuple):
    """A loaded version and what keeps it in sync with its change log."""

    version: ServedVersion
    log_applier: LogApplier

    def line(self) -> list[ChainLink]:
        """Return the generations that lead to what it serves, newest first."""
        change_log = self.log_applier.change_log
        if self.version.generation.step == change_log.history.base.step:
            change_log.reach_back()
        link = change_log.history.links.get(self.version.digest)
        return list(change_log.history.back(link)) if link is not None else []

    def publish(self, delta: Delta, data: DeltaBytes, content: str) -> float:
        """Serve a delta (SHA-256 of its bytes: `content`) on the head of the log; return milliseconds to apply it.

        The delta and its record are made durable while its rows are staged; the record gets its name, and so counts,
        once the delta can be served. Raises Conflict if it does not continue what is served, or a judge holds it.
        """
        version, log_applier = self
        change_log = log_applier.change_log
        change_log.may_write()
        log_applier.ready(version)
        version.check_delta(delta)
        change_log.check_delta(delta, content)
        digest = delta_digest(change_log.history.head.digest, content)
        durable: list[DurableDelta] = []

        def keep() -> None:
            durable.append(change_log.keep(delta, data))
            change_log.prepare(delta, durable[0])

        def commit() -> None:
            if change_log.commit(delta, durable[0]).digest != digest:
                raise Conflict("delta: another delta was published at the same time; the server applies that one first")

        try:
            apply_ms = log_applier.apply(version, delta, digest, keep=keep, commit=commit)
        except DeltaHeld as held:
            if not durable:
                raise
            raise self._hold(delta, durable[0], held) from None
        except BaseException:
            for stored in durable:
                change_log.forget(stored)
            raise
        # A client that has the reply may query the next step at once.
        log_applier.tell(version)
        return apply_ms

    def _hold(self, delta: Delta, durable: DurableDelta, held: DeltaHeld) -> Conflict:
        """Record a delta that must not be served, behind a gate; return the error to raise."""
        # Loaded with the first delta that is held.
        from freshet_serving.processor.versions.held_deltas import held_reason

        change_log = self.log_applier.change_log
        where = Generation(delta.version, delta.step)
        try:
            change_log.hold(held_reason(where, held.reason))
            change_log.commit(delta, durable)
        except BaseException:
            change_log.forget(durable)
            raise
        self.log_applier.tell(self.version)
        return Conflict(
            f"delta: {where} is held: {held.reason}; `freshet delta release` serves it, `freshet delta reject` "
            "undoes it"
        )

    def check_follows(self) -> None:
        """Raise Conflict if it has departed from its change log."""
        status = self.log_applier.status
        if status.state == DIVERGED:
            raise Conflict(f"change log: DIVERGED: {status.reason}; load the version again")

    def check_serves(self, link: ChainLink, operation: str) -> None:
        """Raise Conflict unless what an operation committed is served, or a later generation that continues it."""
        served, log_applier = self
        history, status = log_applier.change_log.history, log_applier.status
        served_link = history.links.get(served.digest)
        if served_link is not None and any(earlier.digest == link.digest for earlier in history.back(served_link)):
            return
        name, number = served.manifest.model, served.manifest.version
        written = Generation(number, link.step)
        state = f"{status.state}: {status.reason}" if status.reason else "another writer has undone it"
        cure = ""
        if log_applier.target is not history.head:
            cure = (
                f"; `freshet delta release {name} --version {number}` serves it, `freshet delta reject "
                f"{name} --version {number}` undoes it"
            )
        raise Conflict(
            f"{operation}: {written} is committed but not served: {state}; this server serves {served.generation}{cure}"
        )

    @property
    def monitored(self) -> bool:
        """True if it serves deltas that are still being monitored."""
        return self.log_applier.checks.monitored(self.version.generation)

    def watch(self, now_s: float, sketch: Sketch) -> AutoRollback | None:
        """Evaluate the newest deltas after deployment; return the rollback to make, or None. Takes no lock."""
        return self.log_applier.checks.look(now_s, self.version.generation, sketch, self.log_applier.by_person)

    def add_labels(self, generation: Generation, evidence: LabelSums) -> None:
        """Add labels of rows that a generation has scored; raise NotFound or, for invalid sums, BadInput."""
        evidence.validate()
        history = self.log_applier.change_log.history
        # Generations before the snapshot that the server started from are unknown here.
        if generation.step >= history.base.step and history.known(generation.step) is None:
            raise NotFound(f"generation {generation} of model {self.version.manifest.model!r} does not exist")
        self.log_applier.checks.tell(generation, evidence)


@dataclass(slots=True)
class VersionLoader:
    """Loads the versions of one model."""

    name: str
    repository: Repository
    load: Callable[[VersionReader], ServedVersion]
    connect: Callable[[ServedVersion], Replicas]
    clock: Clock

    def build(self, number: int, checks: Callable[[], DeltaChecks], target: ChainLink | None = None) -> LoadedVersion:
        """Return an open version, up to `target` or to what is to be served; raise FreshetError if it cannot be served.

        `checks` returns the checks of its deltas: those of the version that it replaces, if any.
        """
        folder = self.repository.folder(self.name, number)
        try:
            built = self._replay(number, checks(), target, from_snapshot=True)
        except (Corrupt, Diverged) as error:
            if not (folder / SNAPSHOTS).exists():
                raise
            log.error("%s version %d: cannot start from its snapshot: %s", self.name, number, error)
            built = self._replay(number, checks(), target, from_snapshot=False)
        version = built.version
        if target is not None and version.digest != target.digest:
            raise Conflict(f"rollback: the deltas on disk produce {version.generation}, not {number}.{target.step}")
        if (memory := self.repository.keyring.memory) is not None:
            manifest = version.files.root_manifest
            root, digest = root_hash(manifest), version.files.digest
            memory.note_version(self.name, number, root, manifest.edition, digest)
        version.attach_replicas(self.connect(version))
        return built

    def _replay(self, number: int, checks: DeltaChecks, target: ChainLink | None, from_snapshot: bool) -> LoadedVersion:
        files = self.repository.reader(self.name, number)
        change_log = ChangeLog(files, self.clock.unix_s)
        log_applier = LogApplier(self.name, change_log, self.clock, checks, self.repository.seen_s)
        log_applier.start(from_snapshot)
        anew = target is None and checks.known >= 0
        # Records that arrived since it was last served are checked once the version is open.
        until = log_applier.recorded_by(checks.known) if anew else target or log_applier.target
        if until.step < change_log.history.base.step:
            change_log.reach_back()
        record = change_log.history.snapshot(until) if from_snapshot else None
        if record is not None:
            # Loaded with the first version that begins at a snapshot.
            from freshet_serving.processor.repository import open_snapshot

            files = open_snapshot(files, record)
        version = self.load(files)
        if version.files.snapshot is None:
            # Rows in a row store are those that the version was published with.
            change_log.reach_back()
        events = log_applier.reconcile(version, until)
        report(log, events if target or anew else [*events, *log_applier.follow(version)])
        return LoadedVersion(version, log_applier)


def load_error(what: str, error: Exception) -> FreshetError:
    """Return a client-safe error for a version that cannot be loaded (`what` names it in the log)."""
    if (short := shortage(error)) is not None:
        return short
    if isinstance(error, OSError) and error.strerror:
        return FreshetError(f"{Path(str(error.filename or 'the version')).name}: {error.strerror}")
    log.error("cannot load %s", what, exc_info=error)
    return FreshetError("the version cannot be loaded; see the server's log")
