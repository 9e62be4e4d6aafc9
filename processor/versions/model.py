"""A served model: its loaded versions, its labels, and the single writer that changes them.

Invariants: every change runs under the model's lock; requests only ever read `routes`, which is replaced whole, never
edited, and whoever else answers by it is told at once. A version is offered to requests only once it is loaded,
verified, warm and caught up with its chain of deltas; the version it replaces goes only after that, and is closed only
when nobody is sent to it any more. A version that was refused is not tried again until its files change; one that
nobody was there to serve is. The policy says which versions are served; those that a label names, or that were loaded
by hand, stay beside them.

Traffic belongs to a lock of its own (processor.versions.routed_model). So does the end of a version whose files are
damaged (examine()): whoever touches what is gone of a mapped file dies. The next poll() then reads its files as they
are now, which says what is wrong with them, and looks for another version that is sound.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from freshet_serving.processor.chain.chain_record import MAX_REASON, delta_digest, root_hash, sha256
from freshet_serving.processor.chain.history import Link
from freshet_serving.processor.chain.ledger import KeptDelta, Ledger
from freshet_serving.processor.chain.snapshots import open_snapshot
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import Conflict, Corrupt, Diverged, FreshetError, KeyWanted, NotFound, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import Delta, DeltaBytes, parse_delta, read_delta_file
from freshet_serving.processor.package.mapped_file import is_written_to
from freshet_serving.processor.package.repository import FolderWatch, Repository, check_name, listed
from freshet_serving.processor.package.trust_memory import check_downgrade, newest_trusted
from freshet_serving.processor.package.version import SNAPSHOTS, VersionReader
from freshet_serving.processor.versions.automatic_release import held_reason
from freshet_serving.processor.versions.change_results import Applied, RolledBack
from freshet_serving.processor.versions.doubts import Doubts
from freshet_serving.processor.versions.follower import Follower, OutOfReach
from freshet_serving.processor.versions.lock_watch import LockWatch
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.probation import OutOfLine, Probation, Vigilance
from freshet_serving.processor.versions.refusals import Refusal, Refusals, load_error
from freshet_serving.processor.versions.rejection import publish_anew, sound_behind
from freshet_serving.processor.versions.replica import Replicas
from freshet_serving.processor.versions.routed_model import RoutedModel
from freshet_serving.processor.versions.routes import AVAILABLE, END, LOADING, VersionStatus, without
from freshet_serving.processor.versions.served_version import TORN, ServedVersion
from freshet_serving.processor.versions.timeline import timeline
from freshet_serving.processor.watching.aftermath import LabelSums, TakeBack
from freshet_serving.processor.watching.delta_guard import OFF
from freshet_serving.processor.watching.sketch import Sketch
from freshet_serving.processor.watching.stats import DIVERGED, ChainStatus

log = logging.getLogger("freshet.model")


class ServedModel(RoutedModel):
    """The versions of one model in memory; poll(), load() and apply() change them, pick() reads them."""

    def __init__(
        self,
        name: str,
        repository: Repository,
        load: Callable[[VersionReader], ServedVersion],
        connect: Callable[[ServedVersion], Replicas],
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
        policy: ModelPolicy | None = None,
    ) -> None:
        """load: a version as its folder has it, without deltas. connect: who is to answer by it. changed: called after
        `routes` was replaced. policy: the configuration's; what the repository has kept counts over it."""
        super().__init__(name, repository, clock, changed, policy)
        self._load, self._connect = load, connect
        self._lock = threading.RLock()
        self.lock_watch = LockWatch(self._lock)
        self._doubts = Doubts(self._relearn)
        self._by_hand: set[int] = set()
        # Versions that are on their way here.
        self._coming: set[int] = set()
        self._unloaded: set[int] = set()
        self._refusals = Refusals(partial(repository.path, name), clock, repository.remote)
        self._folder = FolderWatch(repository.root / name)
        self._followers: dict[int, Follower] = {}
        # What was served no more because of its files: they may still be written to.
        self._disturbed: dict[int, list[Path]] = {}
        self.damaged: Counter[str] = Counter()
        """How often a version was condemned, by the file that was damaged."""
        self.vigilance = Vigilance()

    def chain(self, version: int) -> ChainStatus | None:
        """Where a loaded version stands against its chain."""
        follower = self._followers.get(version)
        return follower.status if follower else None

    def staleness_s(self, version: int) -> float:
        """Seconds since a version was last known to serve the newest record; 0.0 for one that is not loaded."""
        follower = self._followers.get(version)
        return max(0.0, self._clock.now_s() - follower.current_at_s) if follower else 0.0

    def timeline(self, number: int, most: int) -> dict[str, Any]:
        """The newest records of a loaded version (processor.versions.timeline); takes no lock. Raises NotFound."""
        version, follower = self.served.get(number), self._followers.get(number)
        if version is None or follower is None:
            raise NotFound(f"version {number} of model {self.name!r} is not loaded")
        return timeline(version, follower, most)

    def poll(self) -> list[str]:
        """Looks at the model's folders once: loads a newer version, applies new deltas. Returns what happened."""
        with self._lock:
            self.lock_watch.turn()
            events = []
            for number, version in list(self.served.items()):
                if version.torn:
                    events += self._condemn(number, version, TORN)
            if self._folder.changed() or self._refusals.changed():
                try:
                    events += self._poll_versions()
                except Exception:
                    self._folder.again()
                    raise
            for number, version in sorted(self.served.items()):
                events += self._follow(number, version)
            return events

    def examine(self, effort: int) -> list[str]:
        """Serves no more what is not what was verified; returns what has happened. Takes no lock but that of routes.
        effort: see processor.package.mapped_file."""
        found = [(number, version, version.damage(effort)) for number, version in self.served.items()]
        return [line for number, version, why in found if why for line in self._condemn(number, version, why)]

    def load(self, number: int, by_hand: bool = True) -> None:
        """Loads a version beside those served, or one anew that does not serve what its chain says; raises NotFound or
        why it cannot be served."""
        if number in self._repository.versions(self.name):
            # Before anybody has to wait for it.
            self._repository.prepare(self.name, number)
        with self._lock:
            self.lock_watch.turn()
            follower = self._followers.get(number)
            if number in self.served and follower is not None and follower.strays:
                self._swap(number, *self._rebuild(number))
            elif number not in self.served:
                if number not in self._repository.versions(self.name):
                    raise NotFound(f"version {number} of model {self.name!r} is not in the repository")
                self._admit(number)
                self._unloaded.discard(number)
            if by_hand:
                self._by_hand.add(number)

    def unload(self, number: int) -> None:
        """Stops serving a version; requests already queued for it are still answered."""
        with self._lock:
            if number not in self.served:
                raise NotFound(f"version {number} of model {self.name!r} is not loaded")
            if number in self.labels.values():
                held = ", ".join(sorted(n for n, v in self.labels.items() if v == number))
                raise Conflict(f"version {number} is held by label {held}; move the label first")
            self._drop(number)
            self._unloaded.add(number)

    def set_label(self, label: str, number: int) -> None:
        """Points a label at a version, loading it if need be; kept across restarts."""
        check_name(label, "label")
        if number not in self.served and number in self._repository.versions(self.name):
            self._repository.prepare(self.name, number)
        with self._lock:
            self.load(number, by_hand=False)
            kept = {**self._kept_labels, label: number}
            self._repository.keep_labels(self.name, kept)
            self._kept_labels = kept
            self._publish(lambda routes: {"labels": {**routes.labels, label: number}})

    def apply_bytes(self, data: DeltaBytes) -> Applied:
        """Verifies a delta, commits it to its version's chain, serves it. One that is served already, as the newest and
        bit for bit, answers as if just applied: whoever lost the first answer may ask again."""
        delta, content = parse_delta(data), sha256(data)
        with self._lock, self._doubts.about(delta.version):
            self.lock_watch.turn()
            version = self._target(delta)
            before = version.digest
            self._look(delta.version, version)
            head = self._followers[delta.version].ledger.history.head
            here = version.generation
            known = head.record.sha256 if head.record is not None and head.digest == version.digest else ""
            if here == Generation(delta.version, delta.step) and known == content:
                apply_ms = 0.0 if version.digest == before else version.last_apply_ms
                return Applied(self.name, here, delta.rows, delta.removed, apply_ms)
            return self._apply(version, delta, data, content)

    def apply_file(self, path: Path) -> Applied:
        """The same for a delta in the repository; it is copied into the version's folder if it is not there."""
        return self.apply_bytes(read_delta_file(path))

    def rollback(self, generation: Generation, reason: str = "") -> RolledBack:
        """Serves an earlier generation of a loaded version, and commits that to its chain: the later deltas are undone
        on every server of the repository, and a trainer goes on from there."""
        with self._lock, self._doubts.about(generation.version):
            self.lock_watch.turn()
            version, follower = self._loaded(generation.version)
            here = version.generation
            if generation.step > here.step:
                raise Conflict(f"rollback: a generation before {here} wanted, got {generation}")
            if follower.status.state == DIVERGED:
                raise Conflict(f"chain: DIVERGED: {follower.status.reason}; load the version anew")
            ledger = follower.ledger
            ledger.look()
            if generation.step < ledger.history.base.step:
                ledger.reach_back()
            link = ledger.history.on_line(generation.step)
            if link is None:
                raise NotFound(f"rollback: {generation} is not a generation of model {self.name!r} to go back to")
            ledger.check_whole(link)
            undone = [one.step for one in ledger.history.back(ledger.history.head) if one.step > link.step]
            rebuilt = None if version.step_of(link.digest) is not None else self._rebuild(generation.version, link)
            try:
                ledger.rollback(link.step, reason)
                alone = None
            except (NotReady, KeyWanted) as error:
                if isinstance(error, NotReady) and self._repository.remote:
                    # An outage passes: a rollback that only this server knows would not.
                    raise
                alone = link
            if rebuilt is None:
                follower.stay(alone)
                self._look(generation.version, version)
            else:
                self._swap(generation.version, *rebuilt, stay=alone)
            reached = self._still(generation.version).generation
            steps = [Generation(generation.version, step) for step in reversed(undone)]
            return RolledBack(reached, steps, ledger.history.top + 1, recorded=alone is None)

    def release(self, number: int, reason: str = "") -> Generation:
        """Serves what is held of a loaded version, and commits that to its chain; returns what is served then. Raises
        NotFound, Conflict."""
        with self._lock, self._doubts.about(number):
            self.lock_watch.turn()
            version, follower = self._loaded(number)
            follower.release(reason)
            self._look(number, version)
            return self._still(number).generation

    def reject(self, number: int, reason: str = "") -> RolledBack:
        """Undoes what is held of a loaded version: a rollback to what is served. Of what a guard has held, deltas are
        published anew that do not stand on the first of them. Raises NotFound, Conflict."""
        with self._lock:
            self.lock_watch.turn()
            version, follower = self._loaded(number)
            self._follow(number, version)
            ledger = follower.ledger
            if follower.target is ledger.history.head:
                raise Conflict("reject: nothing of it is held")
            sound = sound_behind(ledger, follower.target) if follower.held_by_guard else []
            done = self.rollback(Generation(number, follower.target.step), reason)
            steps = publish_anew(ledger, sound) if done.recorded else []
            self._follow(number, self._still(number))
            kept = tuple(Generation(number, step) for step in steps)
            reached = self._still(number).generation
            return replace(done, generation=reached, kept=kept, next_step=ledger.history.top + 1)

    def take_back(self, verdict: TakeBack) -> list[str]:
        """Undoes what is served and turns out to be bad, unless somebody has done so; returns what has happened."""
        number = verdict.bad.version
        with self._lock:
            self.lock_watch.turn()
            version, follower = self._loaded(number)
            self._follow(number, version)
            bad, served = follower.ledger.history.on_line(verdict.bad.step), version.generation.step
            if bad is None or bad.digest != verdict.bad.digest or served < bad.step:
                return []
            self.vigilance.taken_back[verdict.verdict.kind] += 1
            reason = f"taken back by itself: {verdict.verdict.kind}: {verdict.verdict.reason}"[:MAX_REASON]
            done = self.rollback(Generation(number, verdict.good.step), reason)
            return [f"{self.name} rolled back to {done.generation}: {reason}"]

    def watch(self, now_s: float, number: int, sketch: Sketch) -> TakeBack | None:
        """Looks at what a version's newest deltas have come to; takes no lock. sketch: see ModelHost.sketch."""
        follower, version = self._followers.get(number), self.served.get(number)
        if follower is None or version is None or self.policy.delta_guard.mode == OFF:
            return None
        known, person = follower.probation, follower.by_person
        return known.aftermath.look(self.policy.delta_guard, now_s, version.generation, sketch, known.moved, person)

    @property
    def doubtful(self) -> bool:
        """Whether a version serves deltas that are still watched."""
        if self.policy.delta_guard.mode == OFF:
            return False
        pairs = [(self._followers.get(number), version) for number, version in self.served.items()]
        return any(f is not None and f.probation.aftermath.doubtful(version.generation) for f, version in pairs)

    def calibrated(self, generation: Generation, evidence: LabelSums) -> None:
        """Labels have come of rows that a generation has scored; raises NotFound, BadInput for sums that none are."""
        evidence.check()
        follower = self._followers.get(generation.version)
        if follower is None:
            raise NotFound(f"version {generation.version} of model {self.name!r} is not loaded")
        history = follower.ledger.history
        # What was before the snapshot that the server began with it cannot know.
        if generation.step >= history.base.step and history.known(generation.step) is None:
            raise NotFound(f"generation {generation} of model {self.name!r} never was")
        follower.probation.aftermath.tell(generation, evidence)

    def _relearn(self, number: int) -> None:
        """Reads a version's log anew."""
        if (follower := self._followers.get(number)) is not None:
            ledger = Ledger(self._repository.reader(self.name, number), self._clock.unix_s)
            self._followers[number] = follower.renewed(ledger)

    def _loaded(self, number: int) -> tuple[ServedVersion, Follower]:
        version = self.served.get(number)
        if version is None:
            raise NotFound(f"version {number} of model {self.name!r} is not loaded")
        return version, self._followers[number]

    def _poll_versions(self) -> list[str]:
        known, policy = self._repository.versions(self.name), self.policy.versions
        wanted = {v for v in self.labels.values() if v in known} | (self._by_hand & set(known))
        chosen = policy.choose(known)
        newest = max(chosen, default=0)
        self._coming.clear()
        self._followers = {number: self._followers[number] for number in self.served}
        events = []
        first = wanted | (chosen - self._unloaded)
        # The newest that was trusted before any older one, which is served beside it alone.
        for number in sorted(first, key=lambda number: (number != self._newest_trusted(), number)):
            events += self._try(number)
        # Nothing to fall back on in memory, as at a start: the newest version that loads is the last good one.
        others = set() if policy.versions else set(known) - first - self._unloaded
        for number in sorted(others, reverse=True):
            if self.served or newest in self._unloaded or self._coming:
                break
            events += self._try(number)
        if newest in self.served and (policy.versions or newest >= self._newest_trusted()):
            for number in [v for v in self.served if v not in chosen and v not in wanted]:
                self._drop(number)
                events.append(f"{self.name} version {number} unloaded")
        named = set(policy.versions) | set(self.labels.values())
        self._forget({v for v in known if v < newest} - first if newest in self.served else set(), named)
        missing = named - set(known) - self.served.keys()
        if missing:
            # What is being imported is there.
            events += self._miss(sorted(missing - self._repository.uncommitted(self.name).keys()), known)
        return events

    def _miss(self, numbers: Sequence[int], known: Sequence[int]) -> list[str]:
        """Tells of versions that the policy or a label names and that are not there."""
        why = f"it is asked for, but not in the repository, which holds {listed(map(str, reversed(known)))}"
        states = {n: VersionStatus(n, END, why) for n in numbers}
        if all(self.routes.states.get(n) == state for n, state in states.items()):
            return []
        self._publish(lambda routes: {"states": {**routes.states, **states}})
        return [Refusal(f"{self.name} version {n} refused: {why}") for n in states]

    def _forget(self, outdone: set[int], named: set[int]) -> None:
        """Forgets what was refused, or told of as coming, once nobody asks for it: a newer version is served, or its
        folder has gone."""
        states, path = self.routes.states, self._repository.path
        unserved = {v for v, state in states.items() if state.error or state.state == LOADING}
        gone = {v for v in unserved if v in outdone or (v not in named and not os.path.exists(path(self.name, v)))}
        if gone:
            for number in gone:
                self._refusals.forget(number)
            self._publish(lambda routes: {"states": {v: s for v, s in routes.states.items() if v not in gone}})

    def _try(self, number: int) -> list[str]:
        """Loads a version unless it is served or was refused as it is; returns what happened."""
        if number in self.served or (seen := self._refusals.worth_a_try(number)) is None:
            return []
        if number in self._disturbed:
            if any(map(is_written_to, self._disturbed[number])):
                # Looked at again whether or not the folder will have changed.
                self._folder.again()
                return []
            del self._disturbed[number]
        before = self.routes.states.get(number)
        try:
            if not self._repository.ready(self.name, number):
                # What is served goes on meanwhile. Looked at again whether or not the folder will have changed.
                self._folder.again()
                self._coming.add(number)
                if before is None:
                    self._state(VersionStatus(number, LOADING))
                return []
            generation = self._admit(number, by_itself=True).generation
        except NotReady as error:
            self._refusals.wait(number)
            told = before is not None and before.error == str(error)
            self._state(VersionStatus(number, END, str(error)))
            return [] if told else [Refusal(f"{self.name} version {number} waits: {error}")]
        except FreshetError as error:
            self._refusals.note(number, seen)
            self._state(VersionStatus(number, END, str(error)))
            return [Refusal(f"{self.name} version {number} refused: {error}")]
        return [f"{self.name} {generation} loaded"]

    def _newest_trusted(self) -> int:
        return newest_trusted(self._repository.keyring.memory, self.name)

    def _admit(self, number: int, by_itself: bool = False) -> ServedVersion:
        """Loads a version, replays its deltas, then offers it to requests. by_itself: nobody has asked for it."""
        self._state(VersionStatus(number, LOADING))
        try:
            if by_itself:
                trusted = self._newest_trusted()
                beside = trusted in self.served and trusted in self._repository.versions(self.name)
                if not beside and number not in self.policy.versions.versions:
                    check_downgrade(trusted, number)
            version, follower = self._rebuild(number)
        except Exception as error:
            if not isinstance(error, FreshetError):
                error = load_error(f"version {number} of {self.name}", error)
            self._state(VersionStatus(number, END, str(error)))
            raise error from None
        self._followers[number] = follower
        self._refusals.forget(number)
        self._serve(number, version)
        return version

    def _rebuild(self, number: int, target: Link | None = None) -> tuple[ServedVersion, Follower]:
        """A version as its chain has it, at a generation of it (default: the one that is to be served), and open."""
        with self.lock_watch.excused():
            return self._rebuild_now(number, target)

    def _rebuild_now(self, number: int, target: Link | None) -> tuple[ServedVersion, Follower]:
        folder = self._repository.folder(self.name, number)
        try:
            version, follower = self._replay(number, target, from_snapshot=True)
        except (Corrupt, Diverged) as error:
            if not (folder / SNAPSHOTS).exists():
                raise
            log.error("%s version %d: cannot begin at its snapshot: %s", self.name, number, error)
            version, follower = self._replay(number, target, from_snapshot=False)
        if target is not None and version.digest != target.digest:
            raise Conflict(f"rollback: the deltas on disk lead to {version.generation}, not to {number}.{target.step}")
        if (memory := self._repository.keyring.memory) is not None:
            manifest = version.files.root_manifest
            root, digest = root_hash(manifest), version.files.digest
            memory.note_version(self.name, number, root, manifest.edition, digest)
        version.open(self._connect(version))
        return version, follower

    def _replay(self, number: int, target: Link | None, from_snapshot: bool) -> tuple[ServedVersion, Follower]:
        files = self._repository.reader(self.name, number)
        ledger = Ledger(files, self._clock.unix_s)
        known = self._followers.get(files.manifest.version)
        probation = known.probation if known else self._probation()
        follower = Follower(self.name, ledger, self._clock, probation, self._repository.seen_s)
        follower.open(from_snapshot)
        anew = target is None and probation.known >= 0
        # What has come since it was served last is judged once the version is open.
        until = follower.recorded_by(probation.known) if anew else target or follower.target
        if until.step < ledger.history.base.step:
            ledger.reach_back()
        record = ledger.history.snapshot(until) if from_snapshot else None
        version = self._load(files if record is None else open_snapshot(files, record))
        if version.files.snapshot is None:
            # Rows that are in a row store are those that the version was published with.
            ledger.reach_back()
        events = follower.reconcile(version, until)
        for event in events if target or anew else [*events, *follower.follow(version)]:
            log.info("%s", event)
        return version, follower

    def _probation(self) -> Probation:
        return Probation(lambda: self.policy.delta_guard, self.vigilance, self._clock)

    def _follow(self, number: int, version: ServedVersion) -> list[str]:
        """One look at a version's chain; where memory does not reach back far enough, the version is built anew."""
        with self._doubts.about(number):
            return self._look(number, version)

    def _look(self, number: int, version: ServedVersion) -> list[str]:
        """_follow() within a change of the version."""
        follower = self._followers[number]
        if self._refusals.rests(number):
            return []
        try:
            return follower.follow(version)
        except OutOfReach:
            step = follower.target.step
        try:
            self._swap(number, *self._rebuild(number))
        except NotReady as error:
            self._refusals.wait(number)
            return follower.wait(f"generation {number}.{step} waits: {error}")
        except FreshetError as error:
            return follower.unreachable(f"generation {number}.{step} cannot be built from the files: {error}")
        self._refusals.forget(number)
        return [f"{self.name} rolled back to {self._still(number).generation}"]

    def _swap(self, number: int, version: ServedVersion, follower: Follower, stay: Link | None = None) -> None:
        """Serves a version that was built anew in the place of the one that is served."""
        old = self.served.get(number)
        follower.stay(stay)
        self._followers[number] = follower
        follower.follow(version)
        self._serve(number, version)
        if old is not None:
            old.close()

    def _drop(self, number: int) -> None:
        dropped = self.served.get(number)
        self._by_hand.discard(number)
        self._followers.pop(number, None)
        self._refusals.forget(number)
        self._publish(lambda routes: without(routes, number))
        if dropped is not None:
            dropped.close()
        self._repository.release(self.name, number)

    def _condemn(self, number: int, version: ServedVersion, why: str) -> list[str]:
        """Serves a version with a damaged file no more, whoever else changes the model meanwhile."""
        with self._routing:
            if self.routes.served.get(number) is not version:
                return []
            self.routes = replace(self.routes, **without(self.routes, number, why))
            self.damaged[why.partition(":")[0]] += 1
            self._disturbed[number] = [file.path for file in version.files.mapped]
            # So that the next poll() looks at the versions there are.
            self._folder.again()
        self._changed()
        version.close()
        return [Refusal(f"{self.name} version {number} is served no more: {why}")]

    def _still(self, number: int) -> ServedVersion:
        """A version that was served a moment ago; raises NotReady where it was condemned meanwhile."""
        version = self.served.get(number)
        if version is None:
            raise NotReady(f"version {number} of model {self.name!r} is served no more")
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
        version.check(delta)
        return version

    def _apply(self, version: ServedVersion, delta: Delta, data: DeltaBytes, content: str) -> Applied:
        """Serves a delta on the head of its chain: kept while its rows are staged, part of the chain once it can be
        served. content: SHA-256 of its bytes."""
        follower = self._followers[version.manifest.version]
        ledger = follower.ledger
        ledger.may_write()
        follower.ready(version)
        version.check(delta)
        ledger.check(delta, content)
        digest = delta_digest(ledger.history.head.digest, content)
        kept: list[KeptDelta] = []

        def commit() -> None:
            if ledger.commit(delta, kept[0]).digest != digest:
                raise Conflict("delta: another one was published at the same time; the server takes that one first")

        try:
            apply_ms = follower.apply(
                version, delta, digest, keep=lambda: kept.append(ledger.keep(delta, data)), commit=commit
            )
        except OutOfLine as held:
            if not kept:
                raise
            raise self._hold(follower, version, delta, kept[0], held) from None
        except BaseException:
            for one in kept:
                ledger.forget(one)
            raise
        # Who has the answer may ask at once for the next step.
        follower.tell(version)
        return Applied(self.name, version.generation, delta.rows, delta.removed, apply_ms)

    def _hold(
        self, follower: Follower, version: ServedVersion, delta: Delta, kept: KeptDelta, held: OutOfLine
    ) -> Conflict:
        """Makes a delta that is not to be served part of its chain, behind a gate; returns what it is refused by."""
        ledger = follower.ledger
        where = Generation(delta.version, delta.step)
        try:
            ledger.hold(held_reason(where, held.reason))
            ledger.commit(delta, kept)
        except BaseException:
            ledger.forget(kept)
            raise
        follower.tell(version)
        return Conflict(
            f"delta: {where} is held: {held.reason}; `freshet delta release` serves it, `freshet delta reject` "
            "undoes it"
        )
