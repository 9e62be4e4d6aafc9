"""Decisions about a model's versions, as a server acts on them; version_actions writes them.

A version whose standing record holds or withdraws it (processor.repository.version_records) is barred: "latest:N" and
"all" do not choose it, it takes no share of traffic, and no model falls back on it. A person may still name it, in a
list of versions, by a label, or with a load by hand after the record: then it answers requests that name its number or
label, with a warning in the log.

Invariants
- What bars a version is read before versions are chosen, and again whenever the records change: one stat a poll.
- Where records cannot be written (no key, a read-only folder), a withdrawal holds on this server until it ends.
- Where trust is remembered, an older version is no downgrade if a trusted record bars every newer one that was served.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from freshet_serving.processor.errors import Conflict, NotReady, SigningKeyRequired
from freshet_serving.processor.repository import HOLD, MAX_REASON, RELEASE, Repository, listed

log = logging.getLogger("freshet.model")

GATE, ROLLBACK = "gate", "rollback"


class VersionDecisions:
    """The decisions about one served model. Used under the model's lock."""

    def __init__(self, model: str, repository: Repository) -> None:
        self._model, self._repository = model, repository
        self.seen = -1
        """Revision of the records that were read last."""
        # Root hashes of versions that only this server withdraws, and of those that only it holds, with the reason.
        self._here: dict[int, str] = {}
        self._held_here: dict[int, tuple[str, str]] = {}
        self._warned: set[tuple[int, int]] = set()
        self.barred: Mapping[int, str] = {}
        """Why each barred version of the repository is barred."""

    @property
    def held(self) -> Mapping[int, str]:
        """The held versions with the reason: a person is to decide about them."""
        # The reason begins with what was done, VersionRecord.describe().
        return {number: why for number, why in self.barred.items() if why.startswith("held")}

    def binding(self, known: Iterable[int]) -> dict[int, str]:
        """Return which versions of the repository are barred now, and why."""
        numbers = list(known)
        standing = self._repository.standing(self._model, numbers)
        barred = {number: record.describe() for number, record in standing.items() if record.binds}
        for number, root in self._here.items():
            if number in numbers and self._repository.root_of(self._model, number) == root:
                barred.setdefault(number, "withdrawn by rollback, on this server alone")
        for number, (root, why) in self._held_here.items():
            # A record rules, also one that releases.
            if number in numbers and number not in standing and self._repository.root_of(self._model, number) == root:
                barred.setdefault(number, why)
        return barred

    def choosable(self, after: int, until: int) -> tuple[int, ...]:
        """Return the versions in (after, until] that nothing bars, ascending."""
        present = self._repository.versions(self._model)
        barred = self.binding(present)
        return tuple(number for number in present if after < number <= until and number not in barred)

    def read(self, known: Iterable[int]) -> set[int]:
        """Read what bars versions now; return those barred since the last call."""
        before, self.seen = set(self.barred), self._repository.version_records(self._model).revision
        self.barred = self.binding(known)
        return self.barred.keys() - before

    def warn(self, named: Iterable[int]) -> None:
        """Log once for each barred version that is served because a label or the policy names it."""
        for number in sorted(set(named) & self.barred.keys()):
            if (number, self.seen) not in self._warned:
                self._warned.add((number, self.seen))
                log.warning(
                    "%s version %d is %s, and is served because a label or the policy names it",
                    self._model,
                    number,
                    self.barred[number],
                )

    def newest_trusted(self) -> int:
        """Return the newest version served before that no trusted record bars; 0 if none is remembered."""
        memory = self._repository.keyring.memory
        if memory is None:
            return 0
        remembered = memory.of(self._model)
        records = self._repository.version_records(self._model)
        older = (number for number in remembered.versions if number < remembered.newest)
        for number in sorted({remembered.newest, *older}, reverse=True):
            served = remembered.versions.get(number)
            record = records.standing(number, served.root) if served is not None else None
            if record is None or not record.binds:
                return number
        return 0

    def released(self, number: int) -> bool:
        standing = self._repository.standing(self._model, [number]).get(number)
        return standing is not None and not standing.binds

    def advice(self, number: int) -> str:
        """Return why servers do not choose a version, and what to do about it."""
        which = f"{self._model} {number}"
        if number in self._repository.candidates(self._model):
            return f"it is a candidate that the gate refused; `freshet version release {which}` makes it a version"
        if number not in (present := self._repository.versions(self._model)):
            return f"it is not in the repository, which holds {listed(map(str, reversed(present)))}"
        if (why := self.binding([number]).get(number)) is not None:
            return f"it is {why}; `freshet version release {which}` lets servers choose it"
        return f"nothing bars it; `freshet version list {self._model}` and the server's log say why it is not served"

    def hold(self, number: int, reason: str) -> str:
        """Hold a version that fails the gate; return why it is held, "" if it was released meanwhile."""
        records, root = self._repository.version_records(self._model), self._repository.root_of(self._model, number)
        try:
            why = records.add(number, root, HOLD, reason[:MAX_REASON], GATE).describe()
        except Conflict:
            # Another server was first, and what it has decided stands.
            standing = records.standing(number, root)
            if standing is None or not standing.binds:
                return ""
            why = standing.describe()
        except (NotReady, SigningKeyRequired) as error:
            log.warning("%s version %d is held by this server alone: %s", self._model, number, error)
            why = f"held by {GATE}, on this server alone: {reason}"
            self._held_here[number] = root, why
        self.barred = {**self.barred, number: why}
        return why

    def withdraw(self, numbers: Iterable[int], reason: str) -> bool:
        """Withdraw versions after a rollback, oldest first; return False if some hold on this server alone.

        Other servers switch by the last record, so a kill before it leaves what is served as it is. Raises Conflict if
        a version was released at the same time.
        """
        # Loaded when somebody decides, here and below.
        from freshet_serving.processor.repository import WITHDRAW
        from freshet_serving.processor.versions.version_actions import decide

        recorded = True
        for number in sorted(numbers):
            try:
                decide(self._repository, self._model, number, WITHDRAW, reason, ROLLBACK)
            except (NotReady, SigningKeyRequired) as error:
                if isinstance(error, NotReady) and self._repository.remote:
                    # An outage ends by itself; a withdrawal known to this server alone would not.
                    raise
                self._here[number] = self._repository.root_of(self._model, number)
                recorded = False
        return recorded

    def release(self, number: int, reason: str) -> None:
        """Release the version that a rollback returns to: no gate judges it again, and nothing bars it."""
        from freshet_serving.processor.versions.version_actions import decide

        self._here.pop(number, None)
        try:
            decide(self._repository, self._model, number, RELEASE, reason, ROLLBACK)
        except (NotReady, SigningKeyRequired) as error:
            if self.binding([number]) or (self._repository.remote and isinstance(error, NotReady)):
                raise
