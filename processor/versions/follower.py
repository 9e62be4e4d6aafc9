"""How a version in memory follows its chain on disk: the writer's eye, between a ledger and a ServedVersion.

What is served is made what the records say, not record by record: the target is the newest generation of the line that
is not behind a gate, the version goes back to the nearest generation that both have, and forward from there. So deltas
that were undone before they were seen are never read, and a rollback reaches every server of a repository with its
next look.

States
    CURRENT    serves the target
    WAITING    something is there that cannot be served: a recorded delta that was refused, or a file that continues
               nothing
    HELD       serves the gate: what is behind it waits for a release, or a rollback. A delta that the guard
               (processor.versions.probation) finds out of line is held so: by a record, which all servers of the
               repository follow, whichever of them was first; in memory alone where none can be written
    DIVERGED   what is on disk is not what is served under its name: nothing further is taken, until the file that says
               so is put back as it was, or the version is loaded anew

Staleness is how long ago a look last found that what is served is what the records say: CURRENT, or HELD, which is a
decision and the same everywhere. A look that finds something newer and cannot serve it, or that cannot be made at all,
leaves it to grow, and so does the time until the next look.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from processor.chain.bare_delta import Arrivals, BareDelta
from processor.chain.chain_record import MAX_REASON, RELEASE, ROLLBACK
from processor.chain.history import History, Link
from processor.chain.ledger import Ledger
from processor.chain.patrol import Identity, identity_of
from processor.clock import Clock
from processor.errors import Conflict, Diverged, FreshetError, NotReady
from processor.package.delta import SUFFIX, Delta
from processor.package.version import MANIFEST
from processor.versions.probation import NEW, OutOfLine, Probation
from processor.versions.served_version import Change, ServedVersion
from processor.watching.stats import CURRENT, DIVERGED, HELD, WAITING, ChainStatus

FOR_GOOD = -1
LEARNED = 32
"""Of many that are caught up with, the guard looks at so many, the newest."""


class OutOfReach(Exception):
    """The target cannot be reached from what is in memory: the version has to be built anew from its files."""


class Follower:
    """Follows the chain of one version. Used under its model's lock; status is replaced whole."""

    def __init__(
        self, model: str, ledger: Ledger, clock: Clock, probation: Probation, seen_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """seen_s: see Repository.seen_s."""
        self.ledger, self.probation = ledger, probation
        self._clock, self._seen_s = clock, seen_s
        self.current_at_s = clock.now_s()
        """When it last was known to serve what the records say; at first, when it began to follow them."""
        self._model, self._arrivals = model, Arrivals(ledger.folder, clock.now_s)
        # Path -> what the file was, and at how many records (or FOR_GOOD) it was refused.
        self._refused: dict[Path, tuple[Identity, int]] = {}
        self._diverged = self._said = self._told = ""
        # The file that says so, and what it was when it last said so.
        self._astray: Path | None = None
        self._seen: Identity | tuple[()] | None = ()
        # The record number at which a recorded delta was refused, and why.
        self._blocked: tuple[int, str] | None = None
        # Gone back to here alone, because the repository could not be written; and why, where it was held.
        self._here: Link | None = None
        self._held_here = ""
        self._vouched_here = 0
        self._waiting: dict[Path, str] = {}
        # What was served at how many records, and how many generations that was behind.
        self._counted: tuple[tuple[str, int], int] = (("", -1), 0)
        self.status = ChainStatus(CURRENT, "", ledger.history.head.digest, 0, 1, 0)

    def renewed(self, ledger: Ledger) -> Follower:
        """A follower that knows of the records what it reads now, and of the rest what this one knew."""
        other = Follower(self._model, ledger, self._clock, self.probation, self._seen_s)
        other.open()
        other.stay(self._here, self._held_here)
        other.current_at_s, other._vouched_here, other.status = self.current_at_s, self._vouched_here, self.status
        return other

    @property
    def target(self) -> Link:
        """The generation that is to be served."""
        return self._here or self.ledger.history.target

    @property
    def vouched(self) -> int:
        """The newest step that a person has released: nothing up to it is judged."""
        return max(self.ledger.history.vouched, self._vouched_here)

    @property
    def strays(self) -> bool:
        """Whether it has left what the records say: only loading the version anew is sure to bring it back."""
        return bool(self._diverged) or self._here is not None

    def open(self, from_snapshot: bool = True) -> None:
        """The first look, before anything is loaded. Raises Diverged where what follows the newest snapshot is no
        chain: what comes before it may be."""
        self.ledger.recall()
        if from_snapshot:
            with contextlib.suppress(Diverged):
                self.ledger.begin_at_snapshot()
        try:
            self.ledger.look()
        except Diverged as error:
            if not self.ledger.history.whole:
                raise
            self._diverge(error)

    def unreachable(self, why: str) -> list[str]:
        """What the records say cannot be served at all; tried again once they say something else."""
        told = self._blocked is not None and self._blocked[1] == why
        self._blocked = self.ledger.history.number, why
        return [] if told else [f"{self._model} {why}"]

    def wait(self, why: str) -> list[str]:
        """Tells once of what will be tried again at the next look."""
        told, self._told = self._told == why, why
        self._blocked = FOR_GOOD, why
        return [] if told else [f"{self._model} {why}"]

    def follow(self, version: ServedVersion) -> list[str]:
        """One look: takes what has come, and makes the version serve it; returns what happened. Raises OutOfReach."""
        events: list[str] = []
        # Served, so to be followed, also while nothing of it is read.
        self.ledger.place.look_for(MANIFEST)
        if self._diverged and self._astray is not None:
            # Before it is read: what is put back while it is must not go unnoticed.
            now = identity_of(self._astray)
            if now != self._seen:
                self._seen, self._diverged = now, ""
        if not self._diverged:
            try:
                came = {record.kind for record in self.ledger.look()}
                self.ledger.remember()
                if ROLLBACK in came or (self._held_here and RELEASE in came):
                    self.stay(None)
                self.ledger.patrol()
                events += self.reconcile(version, self.target)
                if self.target is self.ledger.history.head and self._blocked is None:
                    events += self._adopt(version)
            except Diverged as error:
                events += self._diverge(error)
                # What was read before it broke still counts.
                events += self.reconcile(version, self.target)
            except NotReady as error:
                events += self.wait(str(error))
        if self._said and not self._diverged:
            self._said = ""
            events.insert(0, f"{self._model} goes on: what is on disk is again what is served")
        self.tell(version)
        return events

    def reconcile(self, version: ServedVersion, target: Link) -> list[str]:
        """Makes the version serve a generation of the chain, as far as that can be; raises OutOfReach."""
        number = self.ledger.history.number
        if target.digest == version.digest:
            self._blocked = None
            return []
        if self._blocked is not None and self._blocked[0] == number:
            return []
        ahead: list[Link] = []
        for link in self.ledger.history.back(target):
            step = version.step_of(link.digest)
            if step is not None:
                break
            ahead.append(link)
        else:
            raise OutOfReach
        self._blocked = None
        events = []
        if step != version.position.step:
            version.rollback(step)
            events.append(f"{self._model} rolled back to {version.generation}")
        judged = version.opened and len(ahead) <= NEW
        for left, link in zip(range(len(ahead), 0, -1), reversed(ahead)):
            try:
                delta = self.ledger.read_delta(link)
                if left > LEARNED:
                    version.apply(delta, link.digest)
                    self.probation.replayed(version, delta)
                else:
                    self.apply(version, delta, link.digest, judged=judged)
            except Diverged as error:
                return [*events, *self._diverge(error)]
            except OutOfLine as error:
                return [*events, *self._hold(link, error)]
            except NotReady as error:
                return [*events, *self.wait(f"delta {link.step} waits: {error}")]
            except FreshetError as error:
                self._blocked = number, f"delta {link.step} refused: {error}"
                return [*events, f"{self._model} {self._blocked[1]}"]
            events.append(f"{self._model} {version.generation} served")
        return events

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
        """ServedVersion.apply(), on probation. judged: it may be held. Raises OutOfLine."""
        judged = judged and delta.step > self.vouched

        def examine(change: Change) -> None:
            self.probation.examine(version, delta, change, judged)

        apply_ms = version.apply(delta, digest, keep=keep, examine=examine, commit=commit)
        self.probation.served(version, delta)
        return apply_ms

    def _hold(self, link: Link, error: OutOfLine) -> list[str]:
        """Has everybody serve what a delta stands on, and not the delta; raises Diverged."""
        reason = f"{self.ledger.manifest.version}.{link.step} held: {error.reason}"[:MAX_REASON]
        before = self.ledger.history.links[link.parent]
        try:
            self.ledger.hold(reason, before)
        except Diverged:
            raise
        except FreshetError:
            self.stay(before, reason)
        return [f"{self._model} {reason}"]

    def release(self, reason: str) -> None:
        """Lifts the gate, for everybody where it is one of the records. Raises Conflict where nothing is held."""
        if self._held_here:
            self._vouched_here = self.ledger.history.head.step
            self.stay(None)
            return
        self.ledger.look()
        if self.ledger.history.gate is None:
            raise Conflict("release: nothing of it is held")
        self.ledger.release(reason)

    def ready(self, version: ServedVersion) -> None:
        """Raises Conflict unless the version serves the head of its chain, so that something may be put on it."""
        self.tell(version)
        if self._blocked is not None and self._blocked[0] == FOR_GOOD:
            raise NotReady(f"chain: {self._blocked[1]}")
        if self.target is not self.ledger.history.head or self.status.state in (HELD, DIVERGED) or self._blocked:
            raise Conflict(f"chain: {self.status.state}: {self.status.reason}")

    def stay(self, link: Link | None, held: str = "") -> None:
        """Serves this generation, whatever the records say, until one of them rolls back: the repository cannot be
        written. None: what the records say. held: why what follows it is."""
        self._here, self._held_here = link, held

    def _adopt(self, version: ServedVersion) -> list[str]:
        """Gives files that were dropped their records, and serves them; again as long as one follows another."""
        events: list[str] = []
        history = self.ledger.history
        self._waiting = {
            path: why
            for path, why in self._waiting.items()
            if int(path.name.removesuffix(SUFFIX)) > history.top and path.exists()
        }
        number = FOR_GOOD
        while number != history.number and self._blocked is None:
            number = history.number
            for arrived in (self._arrivals.next, self._arrivals.others):
                for bare in arrived(history.top) if number == history.number else ():
                    if bare.step > history.top and self._blocked is None:
                        events += self._try(version, bare)
        return events

    def _try(self, version: ServedVersion, bare: BareDelta) -> list[str]:
        number = self.ledger.history.number
        seen, refused = identity_of(bare.path), self._refused.get(bare.path)
        if seen is None or refused in ((seen, number), (seen, FOR_GOOD)):
            return []
        self._waiting.pop(bare.path, None)
        try:
            link, delta = self.ledger.adopt(bare.path)
            return self._serve(version, link, delta)
        except Diverged:
            raise
        except NotReady as error:
            self._arrivals.again()
            return self.wait(f"delta {bare.step} waits: {error}")
        except Conflict as error:
            self._refused[bare.path] = seen, number
            self._waiting[bare.path] = f"delta {bare.step} waits: {error}"
        except FreshetError as error:
            self._refused[bare.path] = seen, FOR_GOOD
            self._waiting[bare.path] = f"delta {bare.step} refused: {error}"
        return [f"{self._model} {self._waiting[bare.path]}"]

    def _serve(self, version: ServedVersion, link: Link, delta: Delta) -> list[str]:
        if version.digest != link.parent:
            return self.reconcile(version, self.target)
        try:
            self.apply(version, delta, link.digest)
        except NotReady:
            raise
        except OutOfLine as error:
            return self._hold(link, error)
        except FreshetError as error:
            self._blocked = self.ledger.history.number, f"delta {link.step} refused: {error}"
            return [f"{self._model} {self._blocked[1]}"]
        return [f"{self._model} {version.generation} served"]

    def _diverge(self, error: Diverged) -> list[str]:
        told, self._diverged = self._said == str(error), str(error)
        self._said = self._diverged
        if error.file != self._astray:
            self._astray, self._seen = error.file, ()
        return [] if told else [f"{self._model} DIVERGED: {error}"]

    def tell(self, version: ServedVersion) -> None:
        """Says in `status` where the version stands now."""
        history = self.ledger.history
        state, reason = CURRENT, ""
        if self._diverged:
            state, reason = DIVERGED, self._diverged
        elif self._blocked is not None:
            state, reason = WAITING, self._blocked[1]
        elif self._here is not None:
            alone = "on this server alone, which cannot write to the repository"
            state, reason = HELD, f"{self._held_here}; {alone}" if self._held_here else f"rolled back {alone}"
        elif history.gate is not None:
            state, reason = HELD, history.held or "held"
        elif self._waiting:
            state, reason = WAITING, next(iter(self._waiting.values()))
        seen = version.digest, history.number
        if seen != self._counted[0]:
            self._counted = seen, _distance(history, version.digest)
        behind = self._counted[1] + len(self._waiting)
        if state in (CURRENT, HELD) and self.ledger.folder.is_dir():
            # Where the folder has gone nobody has looked at anything, though no record was missed.
            self.current_at_s = max(self.current_at_s, self._clock.now_s() - self._seen_s())
        now = ChainStatus(state, reason, version.digest, history.number, history.top + 1, behind)
        if now != self.status:
            self.status = now


def _distance(history: History, digest: str) -> int:
    """Generations of the line after one of it; all of them where it is none of it."""
    if digest == history.head.digest:
        return 0
    links = list(history.back(history.head))
    return next((n for n, link in enumerate(links) if link.digest == digest), len(links))
