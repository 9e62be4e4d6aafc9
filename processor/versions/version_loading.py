"""Load a version from its files: open it, replay its deltas to a generation, connect the replicas that answer by it.

Runs under the model's lock. What is built is served by nobody until its caller offers it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import Conflict, Corrupt, Diverged
from freshet_serving.processor.repository import (
    SNAPSHOTS,
    ChainLink,
    ChangeLog,
    Repository,
    VersionReader,
    root_hash,
)
from freshet_serving.processor.versions.delta_checks import DeltaChecks
from freshet_serving.processor.versions.failed_versions import report
from freshet_serving.processor.versions.loaded_version import LoadedVersion
from freshet_serving.processor.versions.log_applier import LogApplier
from freshet_serving.processor.versions.replica import Replicas
from freshet_serving.processor.versions.served_version import ServedVersion

log = logging.getLogger("freshet.model")


class VersionLoader:
    """Loads the versions of one model."""

    def __init__(
        self,
        name: str,
        repository: Repository,
        load: Callable[[VersionReader], ServedVersion],
        connect: Callable[[ServedVersion], Replicas],
        clock: Clock,
    ) -> None:
        """Load nothing yet.

        Args:
            name: Name of the model.
            repository: The model repository.
            load: Loads a version as its folder has it, without deltas.
            connect: Returns the replicas that answer by a version.
            clock: Source of time.
        """
        self._name, self._repository, self._clock = name, repository, clock
        self.load, self.connect = load, connect

    def build(self, number: int, checks: Callable[[], DeltaChecks], target: ChainLink | None = None) -> LoadedVersion:
        """Return an open version as its change log has it.

        Args:
            number: The version.
            checks: Returns the checks of its deltas, those of the version that it replaces if there is one.
            target: The generation to build; None for the one that is to be served.

        Raises:
            FreshetError: It cannot be served.
        """
        folder = self._repository.folder(self._name, number)
        try:
            built = self._replay(number, checks(), target, from_snapshot=True)
        except (Corrupt, Diverged) as error:
            if not (folder / SNAPSHOTS).exists():
                raise
            log.error("%s version %d: cannot start from its snapshot: %s", self._name, number, error)
            built = self._replay(number, checks(), target, from_snapshot=False)
        version = built.version
        if target is not None and version.digest != target.digest:
            raise Conflict(f"rollback: the deltas on disk produce {version.generation}, not {number}.{target.step}")
        if (memory := self._repository.keyring.memory) is not None:
            manifest = version.files.root_manifest
            root, digest = root_hash(manifest), version.files.digest
            memory.note_version(self._name, number, root, manifest.edition, digest)
        version.attach_replicas(self.connect(version))
        return built

    def _replay(self, number: int, checks: DeltaChecks, target: ChainLink | None, from_snapshot: bool) -> LoadedVersion:
        files = self._repository.reader(self._name, number)
        change_log = ChangeLog(files, self._clock.unix_s)
        log_applier = LogApplier(self._name, change_log, self._clock, checks, self._repository.seen_s)
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
