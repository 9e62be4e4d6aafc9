"""Keep a loaded version in sync with its change log on disk.

A LogApplier reads a change log and drives a ServedVersion. It does not apply record by record: its target is the newest
generation of the line that is not behind a gate. The version goes back to the nearest common generation and forward
from there, so deltas undone before they were seen are never read, and a rollback reaches every server with its next
poll.

Deltas that arrive together are one change: folded (processor.package.delta), checked as one from what is served, and
served by one flip. If that change is out of line, they are applied one by one, each checked by itself, up to the first
out of line. So no reader meets an unchecked generation within a run, a bad delta that the next one repairs is never
served, and a run costs what its deltas hold, at most twice. A run larger than a version can stage at once waits,
refused. To go back into the middle of a run, the version is rebuilt beside what is served: memory has only its two
ends.

A guard's hold is released by a guard. When something new arrives behind the gate, everything from what is served to the
newest generation is checked as one change. If it is in line, a release is recorded and the change served by one flip.
The record is written exclusively, after the check and before the flip, and only if the head is still the one checked:
one of many servers writes it, the others follow. A gate set by a person or a trainer is lifted only by them, also where
a guard has moved it further back (processor.versions.held_deltas).

States
    CURRENT    serves the target
    WAITING    something cannot be served: a recorded delta that was refused, or a file that continues nothing
    HELD       serves the gate: the deltas behind it wait for a release or a rollback. A delta that the guard
               (processor.versions.delta_checks) finds out of line is held by a record, which all servers follow; in
               memory alone where no record can be written
    DIVERGED   the files are not what is served under their name: nothing further is applied until the file that shows
               it is restored, a repair sets it aside (processor.repository.log.repair), or the version is reloaded

Staleness is the time since a poll last found that what is served matches the records: CURRENT, or HELD, which is a
decision and the same on every server. It grows between polls, while polls fail, and while one finds something newer
that it cannot serve.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import Conflict, Diverged, FreshetError, NotReady
from freshet_serving.processor.generation import CURRENT, DIVERGED, HELD, WAITING, Generation
from freshet_serving.processor.package import Delta
from freshet_serving.processor.repository import (
    FOR_GOOD,
    HOLD,
    MANIFEST,
    RELEASE,
    REPAIR,
    ROLLBACK,
    ChainLink,
    ChangeLog,
    DroppedDeltas,
    Identity,
    UnrecordedDelta,
    identity_of,
)
from freshet_serving.processor.versions.changes import StateChange, WarningMessage
from freshet_serving.processor.versions.delta_checks import DeltaChecks
from freshet_serving.processor.versions.judges import GATED, ONE, RUN, DeltaHeld
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import DAMAGED, GAP, GATE, REFUSED, UNREADABLE, ChainStatus

if TYPE_CHECKING:
    from freshet_serving.processor.versions.held_deltas import ReleaseBackoff
    from freshet_serving.processor.versions.run_reading import ReadRun

LEARNED = 32
"""Number of newest deltas that the guard learns from when many are replayed."""


class RebuildRequired(Exception):
    """The target cannot be reached from memory: rebuild the version from its files."""


class LogApplier:
    """Applier of one version's change log. Used under its model's lock; `status` is replaced as a whole."""

    def __init__(
        self,
        model: str,
        change_log: ChangeLog,
        clock: Clock,
        checks: DeltaChecks,
        seen_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start at the head of the log as far as it was read; seen_s() is Repository.seen_s()."""
        self.change_log, self.checks = change_log, checks
        self._clock, self._seen_s = clock, seen_s
        self.current_at_s = clock.now_s()
        """Time at which it was last known to serve what the records say; initially the time of creation."""
        self._model, self._dropped = model, DroppedDeltas(change_log.folder, clock.now_s)
        self._diverged = self._logged = self._told = ""
        # The file that shows the divergence, and its identity when it last did.
        self._diverged_file: Path | None = None
        self._seen: Identity | tuple[()] | None = ()
        # Record number at which a recorded delta was refused, and the reason.
        self._blocked: tuple[int, str] | None = None
        # Generation that only this server goes back to, as the repository is not writable; and the reason of a hold.
        self._here: ChainLink | None = None
        self._held_here = ""
        self._vouched_here = 0
        # Newest step that a person has released since this server started, which is not monitored, and the number of
        # records read for it.
        self.by_person = self._noted = 0
        # Schedule of release checks, None before the first, and the error of the last one.
        self._looks: ReleaseBackoff | None = None
        self._stays = ""
        # (Digest served, number of records), and how many generations that is behind.
        self._counted: tuple[tuple[str, int], int] = (("", -1), 0)
        self.status = ChainStatus(CURRENT, "", change_log.history.head.digest, 0, 1, 0)

    def renewed(self, change_log: ChangeLog) -> LogApplier:
        """Return an applier that reads the records again and keeps this one's other state."""
        applier = LogApplier(self._model, change_log, self._clock, self.checks, self._seen_s)
        applier.start()
        applier.override(self._here, self._held_here)
        applier.current_at_s, applier._vouched_here, applier.status = self.current_at_s, self._vouched_here, self.status
        applier.by_person, applier._noted, applier._looks = self.by_person, self._noted, self._looks
        return applier

    @property
    def _release_checks(self) -> ReleaseBackoff:
        """Schedule of release checks. What only held deltas need is loaded with the first of them, here and below."""
        from freshet_serving.processor.versions.held_deltas import ReleaseBackoff

        self._looks = self._looks or ReleaseBackoff()
        return self._looks

    @property
    def target(self) -> ChainLink:
        """The generation to serve."""
        return self._here or self.change_log.history.target

    def recorded_by(self, number: int) -> ChainLink:
        """Return the newest generation on the way to the target that was recorded up to a record number."""
        links = self.change_log.history.back(self.target)
        return next((link for link in links if link.record is None or link.record.number <= number), self.target)

    @property
    def vouched(self) -> int:
        """The newest released step: nothing up to it is checked."""
        return max(self.change_log.history.vouched, self._vouched_here)

    @property
    def needs_reload(self) -> bool:
        """True if it has departed from the records: only loading the version again is sure to repair that."""
        return bool(self._diverged) or self._here is not None

    def start(self, from_snapshot: bool = True) -> None:
        """Read the log, from its newest snapshot or its first record, before anything is loaded.

        Raises Diverged if the records after the newest snapshot are invalid; those before it may be.
        """
        self.change_log.recall()
        if from_snapshot:
            with contextlib.suppress(Diverged):
                self.change_log.begin_at_snapshot()
        try:
            self.change_log.look()
        except Diverged as error:
            if not self.change_log.history.whole:
                raise
            self._diverge(error)

    def unreachable(self, why: str) -> list[str]:
        """Record that the target cannot be served until there are other records. Return new events."""
        repeated = self._blocked is not None and self._blocked[1] == why
        self._blocked = self.change_log.history.number, why
        return [] if repeated else [f"{self._model} {why}"]

    def wait(self, why: str) -> list[str]:
        """Record a temporary failure, tried again at the next poll. Return an event if the reason is new."""
        repeated, self._told = self._told == why, why
        self._blocked = FOR_GOOD, why
        return [] if repeated else [f"{self._model} {why}"]

    def follow(self, version: ServedVersion) -> list[str]:
        """Read new records, make the version serve them, and return the events; raise RebuildRequired."""
        events: list[str] = []
        # A served version must be followed even while none of its files is read.
        self.change_log.storage.look_for(MANIFEST)
        if self._diverged and self._diverged_file is not None:
            # Take the identity before the file is read: a file restored during the read must be noticed.
            now = identity_of(self._diverged_file)
            if now != self._seen:
                self._seen, self._diverged = now, ""
        if self._diverged and self.change_log.repaired():
            self._diverged = ""
        goes_on = "the files match the served version again"
        if not self._diverged:
            try:
                new_records = {record.kind: record for record in self.change_log.look()}
                self.change_log.remember()
                if REPAIR in new_records:
                    repair = new_records[REPAIR]
                    goes_on = f"record {repair.number} sets aside records {repair.since} to {repair.number - 1}"
                if ROLLBACK in new_records or REPAIR in new_records or (self._held_here and RELEASE in new_records):
                    self.override(None)
                if HOLD in new_records and (gate := self.change_log.history.gate) is not None:
                    after = Generation(self.change_log.manifest.version, gate.step)
                    why = new_records[HOLD].why or "no reason given"
                    events.append(WarningMessage(f"{self._model} deltas after {after} are held: {why}"))
                self._note_releases()
                self.change_log.scrub()
                events += self.reconcile(version, self.target)
                events += self._release_if_sound(version)
                if self.target is self.change_log.history.head and self._blocked is None:
                    events += self._adopt(version)
            except Diverged as error:
                events += self._diverge(error)
                # Records read before the error still count.
                events += self.reconcile(version, self.target)
            except NotReady as error:
                events += self.wait(str(error))
        if self._logged and not self._diverged:
            self._logged = ""
            events.insert(0, f"{self._model} continues: {goes_on}")
        if version.digest == self.target.digest:
            self.checks.known = self.change_log.history.number
        self.tell(version)
        return events

    def reconcile(self, version: ServedVersion, target: ChainLink) -> list[str]:
        """Make the version serve a generation as far as possible; return the events, or raise RebuildRequired."""
        number = self.change_log.history.number
        if target.digest == version.digest:
            self._blocked = None
            return []
        if self._blocked is not None and self._blocked[0] == number:
            return []
        ahead: list[ChainLink] = []
        for link in self.change_log.history.back(target):
            step = version.step_of(link.digest)
            if step is not None:
                break
            ahead.append(link)
        else:
            raise RebuildRequired
        ahead.reverse()
        back = step != version.position.step
        if back and ahead and version.opened and not self._is_new(ahead[0]):
            # The generation is in the middle of a run: readers must not see the state before that run again.
            raise RebuildRequired
        self._blocked = None
        events: list[str] = []
        if back:
            version.rollback(step)
            events.append(f"{self._model} rolled back to {version.generation}")
        if version.opened and len(ahead) > 1:
            return events + self._apply_together(version, ahead)
        return events + self._apply_each(version, ahead)

    def _apply_each(self, version: ServedVersion, ahead: Sequence[ChainLink]) -> list[str]:
        """Serve deltas one after another, up to the first that cannot be served or is out of line."""
        events: list[str] = []
        for links_left, link in zip(range(len(ahead), 0, -1), ahead):
            try:
                delta = self.change_log.read_delta(link)
                if links_left > LEARNED and not version.opened:
                    version.apply(delta, link.digest)
                    self.checks.replayed(version, delta)
                else:
                    self.apply(version, delta, link.digest, judged=version.opened and self._is_new(link))
            except DeltaHeld as error:
                return [*events, *self._hold(link, error)]
            except FreshetError as error:
                return [*events, *self._stopped(link, error)]
            events.append(f"{self._model} {version.generation} served")
        return events

    def _apply_together(self, version: ServedVersion, ahead: Sequence[ChainLink]) -> list[str]:
        """Serve a run of deltas by one flip, or one after another if it is out of line as a whole."""
        deltas, events = self._read_run(version, ahead), list[str]()
        if deltas.links:
            newest = deltas.links[-1]
            try:
                judged = newest.step > self.vouched and self._is_new(newest)
                self._apply_run(version, deltas, judged, RUN)
            except DeltaHeld:
                return self._apply_each(version, ahead)
            except FreshetError as error:
                return self._stopped(newest, error)
            earlier = len(deltas.links) - 1
            events = [f"{self._model} {version.generation} served{f', with {earlier} before it' if earlier else ''}"]
        if deltas.stopped is not None:
            events += self._stopped(ahead[len(deltas.links)], deltas.stopped)
        return events

    def _read_run(self, version: ServedVersion, ahead: Sequence[ChainLink]) -> ReadRun:
        # Loaded with the first run.
        from freshet_serving.processor.versions.run_reading import ReadRun

        return ReadRun.of(self.change_log, version, ahead)

    def _is_new(self, link: ChainLink) -> bool:
        """Return True if a generation was recorded after this server last served what the records said."""
        return link.record is not None and link.record.number > self.checks.known

    def _apply_run(
        self,
        version: ServedVersion,
        deltas: ReadRun,
        judged: bool,
        scope: str,
        commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve a run by one flip; raise DeltaHeld if it is `judged` and out of line (scope: RUN or GATED)."""
        delta, digest = deltas.run.folded(), deltas.links[-1].digest

        def examine(change: StateChange) -> None:
            self.checks.examine(version, delta, change, judged, scope)

        version.apply(delta, digest, examine=examine, commit=commit)
        self.checks.served(version, delta, deltas.entries[:-1])

    def _stopped(self, link: ChainLink, error: FreshetError) -> list[str]:
        if isinstance(error, Diverged):
            return self._diverge(error)
        if isinstance(error, NotReady):
            return self.wait(f"delta {link.step} waits: {error}")
        self._blocked = self.change_log.history.number, f"delta {link.step} refused: {error}"
        return [f"{self._model} {self._blocked[1]}"]

    def _release_if_sound(self, version: ServedVersion) -> list[str]:
        """Lift a guard's gate if the newest generation behind it is consistent with what is served."""
        history, gate = self.change_log.history, self.target
        pair = gate.digest, history.head.digest
        if not version.opened or gate is history.head or self._blocked is not None or version.digest != gate.digest:
            return []
        from freshet_serving.processor.versions.held_deltas import AUTOMATIC

        began_s = self._clock.now_s()
        if not self._release_checks.due(pair, began_s) or not self.checks.judges or not self.held_by_guard:
            return []
        ahead = [link for link in history.back(history.head) if link.step > gate.step][::-1]
        reason = f"{AUTOMATIC}{version.manifest.version}.{history.head.step} is consistent with {version.generation}"
        try:
            if not self._held_here:
                self.change_log.may_write()
            deltas = self._read_run(version, ahead)
            if deltas.stopped is not None:
                return []
            self._apply_run(version, deltas, True, GATED, lambda: self._commit_release(reason, pair))
        except DeltaHeld:
            version.forget_refused()
            return []
        except FreshetError as error:
            version.forget_refused()
            repeated, self._stays = self._stays == str(error), str(error)
            return [] if repeated else [f"{self._model} remains held: {error}"]
        finally:
            self._release_checks.looked(pair, began_s, self._clock.now_s())
        self.checks.released()
        return [f"{self._model} {version.generation} served: the hold is released: {reason}"]

    def _commit_release(self, reason: str, pair: tuple[str, str]) -> None:
        """Lift the gate; raise Conflict if there are new records since it was checked."""
        if self._held_here:
            self._vouched_here = self.change_log.history.head.step
            self.override(None)
            return
        self.change_log.release(reason, *pair)

    def _note_releases(self) -> None:
        history = self.change_log.history
        if history.number != self._noted:
            self._noted = history.number
            releases = [record for record in history.events if record.kind == RELEASE]
            if releases:
                from freshet_serving.processor.versions.held_deltas import AUTOMATIC

                theirs = (record.step for record in releases if not record.reason.startswith(AUTOMATIC))
                self.by_person = max(self.by_person, *theirs, 0)

    @property
    def held_by_guard(self) -> bool:
        """True if something is held, and only by guards of servers."""
        from freshet_serving.processor.versions.held_deltas import BY_GUARD, set_by_guard

        if self._here is not None:
            return BY_GUARD.match(self._held_here) is not None and self.change_log.history.gate is None
        return set_by_guard(self.change_log.history)

    def apply(
        self,
        version: ServedVersion,
        delta: Delta,
        digest: str,
        *,
        keep: Callable[[], None] | None = None,
        commit: Callable[[], None] = lambda: None,
        judged: bool = True,
    ) -> float:
        """Apply a delta by ServedVersion.apply(); raise DeltaHeld if it is `judged` and out of line."""
        judged = judged and delta.step > self.vouched

        def examine(change: StateChange) -> None:
            self.checks.examine(version, delta, change, judged, ONE, lambda: self._was_served(delta))

        apply_ms = version.apply(delta, digest, keep=keep, examine=examine, commit=commit)
        self.checks.served(version, delta)
        return apply_ms

    def _was_served(self, delta: Delta) -> bool:
        """Report whether a delta only restores a part; False if the files do not show it."""
        if delta.restores is None:
            return False
        from freshet_serving.processor.repository import restores_part

        try:
            return restores_part(self.change_log, delta)
        except FreshetError:
            return False

    def _hold(self, link: ChainLink, error: DeltaHeld) -> list[str]:
        """Make all servers serve the parent of a delta; raise Diverged."""
        from freshet_serving.processor.versions.held_deltas import held_reason

        reason = held_reason(Generation(self.change_log.manifest.version, link.step), error.reason)
        before = self.change_log.history.links[link.parent]
        if link is self.change_log.history.head:
            # It has just been checked.
            now_s = self._clock.now_s()
            self._release_checks.looked((before.digest, link.digest), now_s, now_s)
        try:
            self.change_log.hold(reason, before)
        except Diverged:
            raise
        except FreshetError:
            self.override(before, reason)
        return [f"{self._model} {reason}"]

    def release(self, reason: str) -> None:
        """Lift the gate, for all servers if it is one of the records; raise Conflict if nothing is held."""
        if self._held_here:
            self._vouched_here = self.by_person = self.change_log.history.head.step
            self.override(None)
            return
        self.change_log.look()
        if self.change_log.history.gate is None:
            raise Conflict("release: nothing is held")
        self.change_log.release(reason)

    def ready(self, version: ServedVersion) -> None:
        """Raise Conflict or NotReady unless the version serves the head of its log and a delta may be added."""
        self.tell(version)
        if self._blocked is not None and self._blocked[0] == FOR_GOOD:
            raise NotReady(f"change log: {self._blocked[1]}")
        if self.target is not self.change_log.history.head or self.status.state in (HELD, DIVERGED) or self._blocked:
            raise Conflict(f"change log: {self.status.state}: {self.status.reason}")

    def override(self, link: ChainLink | None, held: str = "") -> None:
        """Serve this generation (None: what the records say) until a record rolls back or repairs.

        Used when the repository is not writable; `held` is why later deltas are held.
        """
        self._here, self._held_here = link, held

    def _adopt(self, version: ServedVersion) -> list[str]:
        """Record and serve delta files dropped into the folder, as long as one continues another."""
        events: list[str] = []
        history, number = self.change_log.history, FOR_GOOD
        self._dropped.prune(history.top)
        while number != history.number and self._blocked is None:
            number = history.number
            for arrived in (self._dropped.next, self._dropped.others):
                for bare in arrived(history.top) if number == history.number else ():
                    if bare.step > history.top and self._blocked is None:
                        events += self._try(version, bare)
        return events

    def _try(self, version: ServedVersion, bare: UnrecordedDelta) -> list[str]:
        identity = self._dropped.worth_a_try(bare, self.change_log.history.number)
        if identity is None:
            return []
        number = self.change_log.history.number
        try:
            link, delta = self.change_log.adopt(bare.path)
            return self._serve(version, link, delta)
        except Diverged:
            raise
        except NotReady as error:
            self._dropped.again()
            return self.wait(f"delta {bare.step} waits: {error}")
        except Conflict as error:
            return [f"{self._model} {self._dropped.refuse(bare, identity, number, f'waits: {error}')}"]
        except FreshetError as error:
            return [f"{self._model} {self._dropped.refuse(bare, identity, FOR_GOOD, f'refused: {error}')}"]

    def _serve(self, version: ServedVersion, link: ChainLink, delta: Delta) -> list[str]:
        if version.digest != link.parent:
            return self.reconcile(version, self.target)
        try:
            self.apply(version, delta, link.digest)
        except (NotReady, Diverged):
            raise
        except DeltaHeld as error:
            return self._hold(link, error)
        except FreshetError as error:
            return self._stopped(link, error)
        return [f"{self._model} {version.generation} served"]

    def _diverge(self, error: Diverged) -> list[str]:
        """Record a divergence; return an event if it is new."""
        repeated, self._diverged = self._logged == str(error), str(error)
        self._logged = self._diverged
        if error.file != self._diverged_file or not repeated:
            # What the file was like after an earlier divergence says nothing about this one.
            self._diverged_file, self._seen = error.file, ()
        return [] if repeated else [WarningMessage(f"{self._model} DIVERGED: {error}")]

    def tell(self, version: ServedVersion) -> None:
        """Update `status`."""
        history = self.change_log.history
        state, reason, obstacle = CURRENT, "", ""
        if self._diverged:
            state, reason, obstacle = DIVERGED, self._diverged, DAMAGED
        elif self._blocked is not None:
            state, reason = WAITING, self._blocked[1]
            obstacle = UNREADABLE if self._blocked[0] == FOR_GOOD else REFUSED
        elif self._here is not None:
            alone = "on this server only, which cannot write to the repository"
            state, reason = HELD, f"{self._held_here}; {alone}" if self._held_here else f"rolled back {alone}"
            obstacle = GATE
        elif history.gate is not None:
            state, reason, obstacle = HELD, history.held or "held", GATE
        elif len(self._dropped):
            reason, refused = self._dropped.first(history.top)
            state, obstacle = WAITING, REFUSED if refused else GAP
        position = version.digest, history.number
        if position != self._counted[0]:
            self._counted = position, history.distance(version.digest)
        behind = self._counted[1] + len(self._dropped)
        if state in (CURRENT, HELD) and self.change_log.folder.is_dir():
            # If the folder has gone, nothing was read, although no record was missed.
            self.current_at_s = max(self.current_at_s, self._clock.now_s() - self._seen_s())
        now = ChainStatus(state, reason, version.digest, history.number, history.top + 1, behind, obstacle)
        if now != self.status:
            self.status = now
