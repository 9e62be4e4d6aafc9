"""Requests about a kept user: the seam between what a client sends and what is kept of the user's inputs.

A client sends the inputs of a user once, under a sequence id, and the candidates of later requests alone. What is kept
completes the request's inputs before anything else looks at them.

Invariants
- What a request sends wins over what is kept, and what is kept wins over what is looked up by key.
- A sequence id is personal data: no message, log, trace or metric has it.
- A process without kept users (a Predictor has None in their place, without the extension user_state or memory for it)
  answers a request that is whole as if it had no sequence id, and refuses any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Feature, Manifest

SCORE, PREPARE, APPEND, REPLACE, REMOVE = "score", "prepare", "append", "replace", "remove"
CHANGES = (PREPARE, APPEND, REPLACE, REMOVE)
MAX_ID_NBYTES = 256
MAX_VERSION = 2**53
"""Versions are below this: a number of JSON holds them."""


@dataclass(slots=True)
class UserCall:
    """The part of a request that is about its user.

    Attributes:
        id: The sequence id, 1 to MAX_ID_NBYTES bytes.
        change: One of CHANGES, or SCORE to append what the request sends of the user, if anything.
        releases: True to forget the user once the request is answered; without inputs it does nothing else.
        expected: The version that the user must have before the change; None for any.
        owner: Whose the id is: the name of an API key; b"" where there are none.
        version: The user's version after the request; 0 for none. Set when it is submitted.
    """

    id: bytes
    change: str = SCORE
    releases: bool = False
    expected: int | None = None
    owner: bytes = b""
    version: int = 0


class CompletedInputs(NamedTuple):
    """A request's inputs with those of the kept user.

    `scores` if the reply has a row for each candidate; `computes` if the user's part is computed, which a request that
    only changes or forgets what is kept does not need.
    """

    inputs: Mapping[str, Column]
    scores: bool
    computes: bool


class KeptUsers(Protocol):
    """The kept users of one process. Thread-safe."""

    def complete(
        self, call: UserCall, manifest: Manifest, inputs: Mapping[str, Column], ranks: bool
    ) -> CompletedInputs:
        """Make a call's change, set its version, and complete a request's inputs; `ranks` asks for the best items.

        Raises:
            UserGone: Nothing is kept of the user, and the request needs it.
            Conflict: The user has another version than the call expects.
            BadInput: An input is wrong.
            TooLarge: The user's inputs take too much memory.
            NotReady: Another request changes the user for too long.
        """

    def release(self, call: UserCall, model: str) -> None:
        """Forget a user; errors as of complete(). A call that expects a version raises Conflict for another."""


class InputRoles(NamedTuple):
    """The roles of a model's inputs.

    Attributes:
        user: All columns of sequences, what features of side "user" alone read, and keys that only fill such inputs.
        candidates: What features of side "item" read, and keys of entities; else all that are not the user's.
    """

    user: frozenset[str]
    candidates: frozenset[str]


def sides_of(manifest: Manifest, features: Iterable[Feature]) -> dict[str, set[str]]:
    """Return the sides of features that read an input, directly or through transforms, by input."""
    sides: dict[str, set[str]] = {}
    for feature in features:
        for name in sorted(manifest.origins([feature.input])):
            sides.setdefault(name, set()).add(feature.side)
    return sides


def roles_of(manifest: Manifest) -> InputRoles:
    sides = sides_of(manifest, manifest.features)
    entity_keys = {entity.key for entity in manifest.entities}
    filled_by_entities = {name for entity in manifest.entities for name in entity.inputs}
    user = {name for name, read_by in sides.items() if read_by == {"user"}}
    user |= {name for sequence in manifest.sequences for name in manifest.origins(sequence.inputs)}
    user -= entity_keys | filled_by_entities
    for name, filler in manifest.fillers.items():
        if name in user:
            user |= {key for key in filler.keys if key not in sides and key not in entity_keys}
    names = {i.name for i in manifest.inputs}
    others = names - user
    candidates = {name for name in others if "item" in sides.get(name, ())} | (entity_keys & others)
    return InputRoles(frozenset(user & names), frozenset(candidates or others))


def not_kept(manifest: Manifest, inputs: Collection[str], ranks: bool) -> BadInput | None:
    """Return the error of a request where no user is kept; None if it is whole, but for candidates to rank."""
    missing = [i.name for i in manifest.inputs if i.name not in inputs and i.name not in manifest.fillers]
    if missing and ranks:
        candidates = roles_of(manifest).candidates
        missing = [name for name in missing if name not in candidates]
    if not missing:
        return None
    return BadInput(
        f"input {missing[0]!r} is missing: expected all inputs, because this server keeps none of a sequence_id "
        "(freshet serve --user-state-mb MB)"
    )
