"""Decide about a repository's versions, for people and for servers that act for them, and list what was decided.

Every decision is a record (processor.repository.version_records), unless it stands already. Loaded with the first
decision; what a server reads with each poll is in processor.versions.version_decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.errors import Conflict, FreshetError, NotFound, printable
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.repository import (
    MAX_REASON,
    RELEASE,
    WITHDRAW,
    Repository,
    listed,
    root_hash,
)

if TYPE_CHECKING:
    from freshet_serving.processor.repository import VersionRecord
    from freshet_serving.processor.versions.routes import Routes
    from freshet_serving.processor.versions.served_version import ServedVersion

NO_VERDICTS: Mapping[str, Any] = {}
MAX_GATE_LINES = 20


def decide(
    repository: Repository, model: str, number: int, action: str, reason: str = "", by: str = "", root: str = ""
) -> VersionRecord:
    """Record a decision (RELEASE, WITHDRAW) about a committed version unless it stands; return the record that stands.

    `root` is the root hash of a candidate. Raises NotFound, or Conflict if another writer decided otherwise at the same
    time.
    """
    records = repository.version_records(model)
    root = root or repository.root_of(model, number)
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
    """Let servers choose a version again that was held, withdrawn, or kept as a candidate."""
    if number in repository.candidates(model):
        # The record first: the server's gate does not judge again what a person has released.
        root = root_hash(repository.candidate(model, number).root_manifest)
        decide(repository, model, number, RELEASE, reason, by, root)
        repository.release_candidate(model, number)
        return
    check_exists(repository, model, number)
    decide(repository, model, number, RELEASE, reason, by)


def reject_version(repository: Repository, model: str, number: int, reason: str = "", by: str = "") -> None:
    """Withdraw a version, unless it is the only one that can be served (Conflict), or remove a candidate."""
    numbers = repository.versions(model)
    if number in repository.candidates(model) and not _is_released(repository, model, number):
        # A version of the same number is another one, and stays.
        repository.reject_candidate(model, number)
        return
    check_exists(repository, model, number)
    barred = repository.barred(model, numbers)
    if number not in barred and not set(numbers) - barred.keys() - {number}:
        raise Conflict(f"version {number} of model {model!r} is the only one that can be served; publish another first")
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
    """Raise NotFound unless a version is in the repository."""
    numbers = repository.versions(model)
    if number not in numbers:
        present = listed(map(str, reversed(numbers)))
        raise NotFound(f"version {number} of model {model[:64]!r} is not in the repository, which holds {present}")


def describe_served(
    repository: Repository, routes: Routes[ServedVersion], verdicts: Mapping[str, Any] = NO_VERDICTS
) -> list[dict[str, Any]]:
    """Return the entries of describe_versions() with what a server does with each version.

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

    Returns:
        Entries with `version`, `state` ("available", "held", "withdrawn" or "candidate"), `reason`, `by`, `at` of the
        standing record, and `gate`: `verdict`, `reasons`, `reported` and `unjudged` of the trainer's gate.
    """
    numbers = repository.versions(model)
    standing = repository.standing(model, numbers)
    entries: list[dict[str, Any]] = []
    for number in numbers:
        record = standing.get(number)
        state = record.state if record is not None else "available"
        gate = _gate_of(repository.manifest(model, number))
        entries.append({"version": number, "state": state, "gate": gate, **_decision(record)})
    for number in repository.candidates(model):
        try:
            gate = _gate_of(repository.candidate(model, number).root_manifest)
        except FreshetError as error:
            gate = {"reasons": [printable(str(error))]}
        entries.append({"version": number, "state": "candidate", "gate": gate, **_decision(None)})
    return sorted(entries, key=lambda entry: (entry["version"], entry["state"] == "candidate"), reverse=True)


def _gate_of(manifest: Manifest | None) -> dict[str, Any]:
    """Return the trainer's verdict in a manifest's notes, in bounded lines of text whoever wrote it; empty for none."""
    gate = manifest.notes.get("gate") if manifest is not None else None
    if not isinstance(gate, dict):
        return {}
    lines = {name: _texts(gate.get(name)) for name in ("reasons", "reported", "unjudged")}
    return {"verdict": "".join(_texts([gate.get("verdict")])), **lines}


def _texts(raw: Any) -> list[str]:
    texts = [line for line in raw[:MAX_GATE_LINES] if isinstance(line, str)] if isinstance(raw, list) else []
    return [printable(text[:MAX_REASON]) for text in texts]


def _decision(record: VersionRecord | None) -> dict[str, Any]:
    return {
        "reason": record.why if record else "",
        "by": printable(record.by) if record else "",
        "at": record.at if record else None,
    }
