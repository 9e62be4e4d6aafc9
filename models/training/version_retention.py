"""Remove old full versions that training has published.

Always kept: the newest `keep` versions, at least two, of any origin; as many that are neither held nor withdrawn, so
that what servers went back to stays; the version being trained on; versions that labels or the policy in the repository
name; versions that training did not make. A name in a server's own configuration file is unknown here: use a label.

A version is removed by one durable rename to a hidden name, and then file by file. A kill leaves it whole or hidden;
the next run, or `freshet repository prune`, removes hidden ones. Servers that still serve it have its files mapped, and
drop it at their next check according to their policy.

Rejected: removal by age (a model trained once a month would lose its served version), and asking servers what they
serve (they need not be reachable, and may start a moment later).
"""

from __future__ import annotations

from freshet_serving.models.config.publish_section import LEAST_KEPT
from freshet_serving.processor.errors import BadInput, Corrupt, NotFound
from freshet_serving.processor.repository import Repository
from freshet_serving.processor.versions.policy import ModelPolicy

NOTE = {"made_by": "freshet train"}
"""Notes in a manifest of a version made by training."""


def removable(repository: Repository, model: str, keep: int, current: int) -> list[int]:
    """Return the versions that may be removed, ascending: not the newest `keep`, nor `current`, which is trained on."""
    numbers = repository.versions(model)
    policy = ModelPolicy.parse(repository.traffic(model).get("policy", {}), "policy")
    barred = repository.barred(model, numbers)
    keep, sound = max(keep, LEAST_KEPT), [number for number in numbers if number not in barred]
    stays = {current, *numbers[-keep:], *sound[-keep:]}
    stays |= {*repository.labels(model).values(), *policy.labels.values()}
    if "versions" in policy.given:
        stays |= policy.versions.choose(numbers, barred)
    return [number for number in numbers if number not in stays and _is_ours(repository, model, number)]


def remove_version(repository: Repository, model: str, number: int) -> None:
    """Remove a version; raise OSError if it cannot be renamed, NotReady if the repository is unreachable."""
    repository.storage(model, number).end()


def _is_ours(repository: Repository, model: str, number: int) -> bool:
    if repository.path(model, number).is_symlink():
        return False
    try:
        notes = repository.version(model, number).root_manifest.notes
    except (NotFound, Corrupt, BadInput):
        return False
    return all(notes.get(key) == value for key, value in NOTE.items())
