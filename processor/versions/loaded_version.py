"""A loaded version with the applier of its change log: publish on it, judge what it serves, find where it stands.

Used under its model's lock, except watch(), monitored and add_labels().
"""

from __future__ import annotations

from typing import NamedTuple

from freshet_serving.processor.errors import Conflict, NotFound
from freshet_serving.processor.generation import DIVERGED, Generation
from freshet_serving.processor.package import Delta, DeltaBytes
from freshet_serving.processor.repository import ChainLink, DurableDelta, delta_digest
from freshet_serving.processor.versions.judges import DeltaHeld
from freshet_serving.processor.versions.log_applier import LogApplier
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import AutoRollback, LabelSums, Sketch


class LoadedVersion(NamedTuple):
    """A loaded version.

    Attributes:
        version: The version in memory.
        log_applier: Keeps it in sync with its change log.
    """

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
        """Serve a delta on the head of the change log; return the milliseconds that applying it took.

        The delta is made durable while its rows are staged, and recorded once it can be served.

        Args:
            delta: The delta.
            data: Its bytes.
            content: SHA-256 of its bytes.

        Raises:
            Conflict: It does not continue what is served, or a judge holds it.
        """
        version, log_applier = self
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
            raise self._hold(delta, kept[0], held) from None
        except BaseException:
            for one in kept:
                change_log.forget(one)
            raise
        # A client that has the reply may query the next step at once.
        log_applier.tell(version)
        return apply_ms

    def _hold(self, delta: Delta, kept: DurableDelta, held: DeltaHeld) -> Conflict:
        """Record a delta that must not be served, behind a gate; return the error to raise.

        Args:
            delta: The delta.
            kept: Its durable file.
            held: Reason of the hold.
        """
        # Loaded with the first delta that is held.
        from freshet_serving.processor.versions.held_deltas import held_reason

        change_log = self.log_applier.change_log
        where = Generation(delta.version, delta.step)
        try:
            change_log.hold(held_reason(where, held.reason))
            change_log.commit(delta, kept)
        except BaseException:
            change_log.forget(kept)
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
        """Raise Conflict unless a generation that an operation committed is served, or a later one that continues it.

        Args:
            link: The generation.
            operation: Name of the operation, for the message.
        """
        served, log_applier = self
        history, status = log_applier.change_log.history, log_applier.status
        here = history.links.get(served.digest)
        if here is not None and any(one.digest == link.digest for one in history.back(here)):
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
        """Evaluate the newest deltas after deployment; return the rollback to make, or None. Takes no lock.

        Args:
            now_s: Monotonic seconds.
            sketch: Sketch of the version's batches (ModelHost.sketch).
        """
        return self.log_applier.checks.look(now_s, self.version.generation, sketch, self.log_applier.by_person)

    def add_labels(self, generation: Generation, evidence: LabelSums) -> None:
        """Add labels of rows that a generation has scored.

        Args:
            generation: The generation that scored the rows.
            evidence: Sums of scores and labels.

        Raises:
            NotFound: The generation is unknown.
            BadInput: The sums are invalid.
        """
        evidence.validate()
        history = self.log_applier.change_log.history
        # Generations before the snapshot that the server started from are unknown here.
        if generation.step >= history.base.step and history.known(generation.step) is None:
            raise NotFound(f"generation {generation} of model {self.version.manifest.model!r} does not exist")
        self.log_applier.checks.tell(generation, evidence)
