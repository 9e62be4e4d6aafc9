"""Ask a trainer to forget a user: a file a request, beside its checkpoints, answered by its next checkpoint.

Invariants
- A request is durable: its file stays until no checkpoint on disk has the user's events, those for rollbacks included.
  So a trainer that was killed, or does not run now, answers it later.
- The key is not stored. A file's name is the number by which histories know the user: an id itself, or the hash of a
  text. A key that reads as an integer may be either, so both are requested.
- Asking again changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import xxhash

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.model_repository import check_name

FOLDER, NAME = "erase", re.compile(r"([0-9a-f]{16})\.user")
MOST_KEY_NBYTES = 1024


def number_of(key: str) -> int | None:
    """Return a user's key as an integer that an id can be; None if it is not one."""
    if not re.fullmatch(r"-?[0-9]{1,20}", key):
        return None
    number = int(key)
    return number if -(2**63) <= number < 2**64 else None


class Erasures:
    """The requests of one model's trainer."""

    NOT_REACHED = (
        "the log or stream itself, histories that others write to an online store, rows of embedding tables, and"
        " recordings"
    )

    def __init__(self, checkpoints: Path) -> None:
        self._folder = checkpoints / FOLDER

    @classmethod
    def of_model(cls, trainer: Path, model: str) -> Erasures:
        """Return a model's requests in the repository or `publish.trainer_folder`; raise BadInput without a trainer."""
        checkpoints = trainer / ".checkpoints" / check_name(model, "model")
        if not checkpoints.is_dir():
            raise BadInput(
                f"repository: expected the folder of the trainer of {model[:64]!r}, which has its checkpoints, got one"
                " without; name the repository, or publish.trainer_folder, on the trainer's machine"
            )
        return cls(checkpoints)

    def ask(self, key: str) -> None:
        """Ask the trainer to forget a user, known by a text, or an id in decimal digits."""
        text = key.encode(errors="replace")
        if text.decode() != key:
            raise BadInput("key: expected a user's key in UTF-8, got other bytes")
        if not 0 < len(text) <= MOST_KEY_NBYTES:
            raise BadInput(f"key: expected a user's key of 1 to {MOST_KEY_NBYTES} bytes, got {len(text):,}")
        numbers = {xxhash.xxh3_64_intdigest(text, 0)}
        if (number := number_of(key)) is not None:
            numbers.add(number)
        self._folder.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            (self._folder / f"{number % 2**64:016x}.user").touch()

    def asked(self) -> dict[int, Path]:
        """Return the users to forget: the number of each, signed, and its request."""
        if not self._folder.is_dir():
            return {}
        named = [(NAME.fullmatch(path.name), path) for path in self._folder.iterdir()]
        numbers = {int(match[1], 16): path for match, path in named if match}
        return {number - (number >> 63 << 64): path for number, path in numbers.items()}

    def answered(self, requests: Iterable[Path]) -> None:
        """Remove requests, once no checkpoint to continue from has the users' events."""
        for path in requests:
            path.unlink(missing_ok=True)
