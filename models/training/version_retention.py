"""Full versions that training has published and that may go, and their end.

Kept, always: the newest `keep` of the model, two at least, whoever made them; the one that is trained on; what labels
or the policy that the repository keeps name; whatever somebody else has put there. What a server's own configuration
file names, nobody but that server knows: a label keeps it.

A version goes by one rename to a hidden name, made durable, and then file by file. A kill leaves it whole or hidden,
and the next run, or `freshet repository prune`, removes what is hidden. Servers that still serve it have its files
mapped and go on; they find it gone when they look at the folder, and drop it as their policy has it.

Refused: removing by age (a model that is trained once a month would lose what it serves), and asking servers what they
serve (they need not be reachable, and may start a moment later).
"""

from __future__ import annotations

from freshet_serving.models.config.publish_section import LEAST_KEPT
from freshet_serving.processor.errors import BadInput, Corrupt, NotFound
from freshet_serving.processor.repository import Repository
from freshet_serving.processor.versions.policy import ModelPolicy

NOTE = {"made_by": "freshet train"}
"""Of a manifest, by which a version is known as training's own."""


def removable(repository: Repository, model: str, keep: int, current: int) -> list[int]:
    """The versions that may go, ascending. current: the one that is trained on. Raises FreshetError where that cannot
    be told."""
    numbers = repository.versions(model)
    policy = ModelPolicy.parse(repository.traffic(model).get("policy", {}), "policy")
    stays = {current, *numbers[-max(keep, LEAST_KEPT) :], *repository.labels(model).values(), *policy.labels.values()}
    if "versions" in policy.given:
        stays |= policy.versions.choose(numbers)
    return [number for number in numbers if number not in stays and _is_ours(repository, model, number)]


def remove_version(repository: Repository, model: str, number: int) -> None:
    """Ends a version; raises OSError where it cannot be renamed, NotReady where it cannot be reached."""
    repository.storage(model, number).end()


def _is_ours(repository: Repository, model: str, number: int) -> bool:
    if repository.path(model, number).is_symlink():
        return False
    try:
        notes = repository.version(model, number).root_manifest.notes
    except (NotFound, Corrupt, BadInput):
        return False
    return all(notes.get(key) == value for key, value in NOTE.items())
