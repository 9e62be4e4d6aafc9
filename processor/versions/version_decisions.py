"""Decisions about a model's versions, as a server acts on them and writes them.

A version whose standing record holds or withdraws it (processor.repository.version_records) is barred: no policy of
"latest:N" or "all" chooses it, it takes no share of traffic, and it is not what a model falls back on. A person may
still name it: a list of versions in the policy, a label, or a load by hand after the record. It is served then, for
requests that name its number or label, with a warning in the log.

Invariants
- What bars a version is read before versions are chosen, and again whenever the records change: one stat a poll.
- Without a process that may write (no key, a folder that is read only) a withdrawal holds on this server until it ends.
- Where trust is remembered, an older version is no downgrade if a trusted record bars every newer one that was served.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.errors import Conflict, FreshetError, NotFound, NotReady, SigningKeyRequired, printable
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.repository import (
    HOLD,
    MAX_REASON,
    RELEASE,
    Repository,
    listed,
    root_hash,
)

if TYPE_CHECKING:
    from freshet_serving.processor.repository import VersionRecord
    from freshet_serving.processor.versions.routes import Routes
    from freshet_serving.processor.versions.served_version import ServedVersion

log = logging.getLogger("freshet.model")

GATE, ROLLBACK = "gate", "rollback"
NO_VERDICTS: Mapping[str, Any] = {}
MAX_GATE_LINES = 20


class VersionDecisions:
    """The decisions about one served model. Used under the model's lock."""

    def __init__(self, model: str, repository: Repository) -> None:
        self._model, self._repository = model, repository
        self.seen = -1
        """Revision of the records that were read last."""
        # Root hashes of versions that only this server withdraws.
        self._here: dict[int, str] = {}
        # Versions that only this server holds: root hash and why.
        self._held_here: dict[int, tuple[str, str]] = {}
        self._warned: set[tuple[int, int]] = set()
        self.barred: Mapping[int, str] = {}
        """Why each barred version of the repository is barred."""

    @property
    def held(self) -> Mapping[int, str]:
        """The barred versions that are held, with the reason: a person is to decide about them."""
        # The reason begins with what was done, VersionRecord.describe().
        return {number: why for number, why in self.barred.items() if why.startswith("held")}

    def binding(self, known: Iterable[int]) -> dict[int, str]:
        """Return which versions of the repository are barred by now, and why.

        Args:
            known: The versions.
        """
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
        """Return the versions of the repository that nothing bars, ascending.

        Args:
            after: Only versions after this one.
            until: Only versions up to this one.
        """
        known = self._repository.versions(self._model)
        barred = self.binding(known)
        return tuple(number for number in known if after < number <= until and number not in barred)

    def read(self, known: Iterable[int]) -> set[int]:
        """Take over what bars versions by now; return those that are barred since the last call.

        Args:
            known: The versions.
        """
        before, self.seen = set(self.barred), self._repository.version_records(self._model).revision
        self.barred = self.binding(known)
        return self.barred.keys() - before

    def warn(self, named: Iterable[int]) -> None:
        """Log once for each barred version that a label or the policy names, and that is served for it.

        Args:
            named: The versions that are named.
        """
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
        """Return the newest version that was served before and that no trusted record bars; 0 if none is remembered."""
        memory = self._repository.keyring.memory
        if memory is None:
            return 0
        known = memory.of(self._model)
        records = self._repository.version_records(self._model)
        for number in sorted({known.newest, *(v for v in known.versions if v < known.newest)}, reverse=True):
            served = known.versions.get(number)
            record = records.standing(number, served.root) if served is not None else None
            if record is None or not record.binds:
                return number
        return 0

    def released(self, number: int) -> bool:
        """Report whether a release stands for a version."""
        standing = self._repository.standing(self._model, [number]).get(number)
        return standing is not None and not standing.binds

    def advice(self, number: int) -> str:
        """Return why servers do not choose a version, and what to do about it."""
        which = f"{self._model} {number}"
        if number in self._repository.candidates(self._model):
            return f"it is a candidate that the gate refused; `freshet version release {which}` makes it a version"
        if number not in (known := self._repository.versions(self._model)):
            return f"it is not in the repository, which holds {listed(map(str, reversed(known)))}"
        if (why := self.binding([number]).get(number)) is not None:
            return f"it is {why}; `freshet version release {which}` lets servers choose it"
        return f"nothing bars it; `freshet version list {self._model}` and the server's log say why it is not served"

    def hold(self, number: int, reason: str) -> str:
        """Hold a version that the gate does not let pass; return why it is held, "" if it was released meanwhile.

        Args:
            number: The version.
            reason: The gate's reason.
        """
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

        The last record is the one by which other servers switch, so a kill before it leaves what is served as it is.

        Args:
            numbers: The versions.
            reason: Reason for the records.

        Raises:
            Conflict: A version was released at the same time.
        """
        # Loaded when somebody decides, here and below.
        from freshet_serving.processor.repository import WITHDRAW

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
        """Release the version that is gone back to: no gate judges it again, and nothing bars it.

        Args:
            number: The version.
            reason: Reason for the record.
        """
        self._here.pop(number, None)
        try:
            decide(self._repository, self._model, number, RELEASE, reason, ROLLBACK)
        except (NotReady, SigningKeyRequired) as error:
            if self.binding([number]) or (self._repository.remote and isinstance(error, NotReady)):
                raise


def decide(
    repository: Repository, model: str, number: int, action: str, reason: str = "", by: str = ""
) -> VersionRecord:
    """Record a decision about a committed version, unless it stands already; return the record that stands.

    Args:
        repository: The model repository.
        model: Name of the model.
        number: The version.
        action: RELEASE or WITHDRAW.
        reason: Reason for people.
        by: Who decides.

    Raises:
        NotFound: The version does not exist.
        Conflict: Another writer decided otherwise at the same time.
    """
    records = repository.version_records(model)
    root = repository.root_of(model, number)
    if not root:
        raise NotFound(f"version {number} of model {model!r} is not in the repository")
    standing = records.standing(number, root)
    if standing is not None and standing.action == action:
        return standing
    try:
        return records.add(number, root, action, reason[:MAX_REASON], by)
    except Conflict:
        standing = records.standing(number, root)
        if standing is not None and standing.action == action:
            return standing
        raise


def release_version(repository: Repository, model: str, number: int, reason: str = "", by: str = "") -> None:
    """Let servers choose a version again that was held, withdrawn, or kept as a candidate.

    Args:
        repository: The model repository.
        model: Name of the model.
        number: The version.
        reason: Reason for people.
        by: Who decides.
    """
    if number in repository.candidates(model):
        # The record first: the server's gate does not judge again what a person has released.
        root = root_hash(repository.candidate(model, number).root_manifest)
        records = repository.version_records(model)
        standing = records.standing(number, root)
        if standing is None or standing.binds:
            records.add(number, root, RELEASE, reason, by)
        repository.release_candidate(model, number)
        return
    check_exists(repository, model, number)
    decide(repository, model, number, RELEASE, reason, by)


def reject_version(repository: Repository, model: str, number: int, reason: str = "", by: str = "") -> None:
    """Withdraw a version, or remove a candidate.

    Args:
        repository: The model repository.
        model: Name of the model.
        number: The version.
        reason: Reason for people.
        by: Who decides.

    Raises:
        Conflict: No other version could be served.
    """
    known = repository.versions(model)
    if number in repository.candidates(model) and not _is_released(repository, model, number):
        # A version of the same number is another one, and stays.
        repository.reject_candidate(model, number)
        return
    check_exists(repository, model, number)
    barred = repository.barred(model, known)
    if number not in barred and not set(known) - barred.keys() - {number}:
        raise Conflict(f"version {number} of model {model!r} is the only one that can be served; publish another first")
    from freshet_serving.processor.repository import WITHDRAW

    decide(repository, model, number, WITHDRAW, reason, by)
    if number in repository.candidates(model):
        repository.reject_candidate(model, number)


def _is_released(repository: Repository, model: str, number: int) -> bool:
    """Return True if a candidate is the version of its number: a kill interrupted its release."""
    try:
        root = root_hash(repository.candidate(model, number).root_manifest)
    except FreshetError:
        return False
    return root == repository.root_of(model, number)


def check_exists(repository: Repository, model: str, number: int) -> None:
    """Raise NotFound unless a version is in the repository.

    Args:
        repository: The model repository.
        model: Name of the model.
        number: The version.
    """
    known = repository.versions(model)
    if number not in known:
        there = listed(map(str, reversed(known)))
        raise NotFound(f"version {number} of model {model[:64]!r} is not in the repository, which holds {there}")


def describe_served(
    repository: Repository, routes: Routes[ServedVersion], verdicts: Mapping[str, Any] = NO_VERDICTS
) -> list[dict[str, Any]]:
    """Return the entries of describe_versions() with what a server does with each version.

    Args:
        repository: The model repository.
        routes: The routes of the model.
        verdicts: The newest verdicts on versions (judges.Judge.verdicts).

    Returns:
        Entries with, in addition, `generation` ("" if it is not served), `default`, `labels`, and `unjudged`: why the
        server's gate has not judged it ("" if it has, or need not), `start` if it was chosen at the server's start.
    """
    entries = describe_versions(repository, routes.model)
    for entry in entries:
        version = routes.served.get(entry["version"]) if entry["state"] != "candidate" else None
        entry["generation"] = str(version.generation) if version is not None else ""
        entry["default"] = version is not None and version is routes.default
        entry["labels"] = sorted(label for label, number in routes.labels.items() if number == entry["version"])
        verdict = verdicts.get(str(entry["version"])) if version is not None else None
        entry["unjudged"] = verdict["unjudged"] if verdict is not None else ""
    return entries


def describe_versions(repository: Repository, model: str) -> list[dict[str, Any]]:
    """Return one JSON-able entry for each version and candidate, newest first.

    Args:
        repository: The model repository.
        model: Name of the model.

    Returns:
        Entries with `version`, `state` ("available", "held", "withdrawn" or "candidate"), `reason`, `by`, `at` of the
        standing record, and `gate`: `verdict`, `reasons`, `reported` and `unjudged` of the trainer's gate.
    """
    known = repository.versions(model)
    standing = repository.standing(model, known)
    entries: list[dict[str, Any]] = []
    for number in known:
        record = standing.get(number)
        state = record.state if record is not None else "available"
        gate = _gate_of(repository.manifest(model, number))
        entries.append({"version": number, "state": state, "gate": gate, **_said(record)})
    for number in repository.candidates(model):
        try:
            gate = _gate_of(repository.candidate(model, number).root_manifest)
        except FreshetError as error:
            gate = {"reasons": [printable(str(error))]}
        entries.append({"version": number, "state": "candidate", "gate": gate, **_said(None)})
    return sorted(entries, key=lambda entry: (entry["version"], entry["state"] == "candidate"), reverse=True)


def _gate_of(manifest: Manifest | None) -> dict[str, Any]:
    """Return the trainer's verdict in a manifest's notes, in bounded lines of text whoever wrote it; empty for none."""
    gate = manifest.notes.get("gate") if manifest is not None else None
    if not isinstance(gate, dict):
        return {}
    lines = {name: _texts(gate.get(name)) for name in ("reasons", "reported", "unjudged")}
    return {"verdict": "".join(_texts([gate.get("verdict")])), **lines}


def _texts(raw: Any) -> list[str]:
    texts = [one for one in raw[:MAX_GATE_LINES] if isinstance(one, str)] if isinstance(raw, list) else []
    return [printable(text[:MAX_REASON]) for text in texts]


def _said(record: VersionRecord | None) -> dict[str, Any]:
    return {
        "reason": record.why if record else "",
        "by": printable(record.by) if record else "",
        "at": record.at if record else None,
    }
