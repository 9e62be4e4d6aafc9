"""Erase a user from what processes keep of requests: ask all keepers (processor.ports.KEEPERS).

    erase(user)                  everything of this process forgets the user; returns how much there was
    erase_once(user)             does it in one of several processes, each asked twice

Invariants
- A user is identified by the inputs that name one (user_inputs). What lacks these inputs and may be the user's is
  forgotten too if it is only a cache or a sample, which is filled again.
- A keeper forgets what it has, and what is being computed, read or copied for it meanwhile. A later request is a new
  one.
- Keys are personal data: they are in no message, log line or counter. A keeper's error is known by its type alone.
- A keeper that fails does not keep another from forgetting; what failed is named.

Copies. A keeper may copy from another that is asked later, in another process: a version takes over the requests of the
one before. So everything is asked twice (MOST_COPIES): the second time nothing is left to copy. Counts are of copies: a
request in a sample and in a file counts twice.

Rejected: a method of every port that stores something (ten of them, and one forgotten is a leak); one number for all
states of a user, raised by an erasure (what it makes invalid would still be there).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings, equal_strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.user_calls import sides_of
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import KEEPERS
from freshet_serving.processor.repository import MOST_KEY_NBYTES, number_of

log = logging.getLogger("freshet.erasure")

MOST_COPIES = 2
"""Number of times that everything is asked."""
KEY = f"a string of 1 to {MOST_KEY_NBYTES} bytes, or an integer from -2**63 to 2**64-1"


@dataclass(frozen=True)
class ErasedUser:
    """A user of a model to be forgotten; `inputs` may hold the key, a text or an integer in decimal digits.

    `bound` is the key as requests are bound to it: the integer, or its hashes with the seeds of the tables.
    """

    model: str
    inputs: tuple[str, ...]
    key: str
    bound: tuple[int, ...] = ()

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Self:
        """Parse the result of to_json()."""
        return cls(document["model"], tuple(document["inputs"]), document["key"], tuple(document["bound"]))

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "inputs": self.inputs, "key": self.key, "bound": self.bound}

    @cached_property
    def number(self) -> int | None:
        """The key as an integer, or None."""
        return number_of(self.key)

    @cached_property
    def text(self) -> bytes:
        return self.key.encode()

    def sent_in(self, columns: Mapping[str, Column]) -> bool | None:
        """Return whether a row of a request is the user's; None if it has none of the inputs."""
        present = [columns[name] for name in self.inputs if name in columns]
        return any(bool(self.rows(column).any()) for column in present) if present else None

    def rows(self, column: Column) -> NDArray[np.bool_]:
        """Return which values of an input are the key."""
        if isinstance(column, Ragged):
            return self.rows(column.values)
        if isinstance(column, Strings):
            return equal_strings(column, self.text)
        values = column.reshape(-1)
        if self.number is None or values.dtype.kind not in "iu":
            return np.zeros(len(values), np.bool_)
        # A uint64 may come as the int64 with the same bits.
        same: NDArray[np.bool_] = values.astype(np.int64, copy=False) == _signed(self.number)
        return same


class Erased(NamedTuple):
    """Number of things forgotten, by kind (0 for kinds that there might have been), and what failed, for people."""

    counts: Mapping[str, int]
    failed: tuple[str, ...]


def erase(user: ErasedUser) -> Erased:
    """Make everything of the only process that answers requests forget a user."""
    return merged(erase_once(user) for _ in range(MOST_COPIES))


def erase_once(user: ErasedUser) -> Erased:
    """Make everything of this process forget a user; other processes are asked in turn."""
    counts, failed = Counter[str](), []
    for keeper in list(KEEPERS):
        try:
            for kind, count in keeper.erase_user(user).items():
                counts[kind] += count
        except Exception as error:
            name = type(keeper).__name__
            log.error("%s could not forget a user: %s", name, type(error).__name__)
            failed.append(f"{name}, which failed: {type(error).__name__}")
    return Erased(counts, tuple(failed))


def merged(parts: Iterable[Erased]) -> Erased:
    """Sum up several processes, or several rounds."""
    counts, failed = Counter[str](), dict[str, None]()
    for part in parts:
        for kind, count in part.counts.items():
            counts[kind] += count
        failed |= dict.fromkeys(part.failed)
    return Erased(counts, tuple(failed))


def checked_key(key: Any, where: str) -> str:
    """Return a user's key as text, or raise BadInput, whose message does not contain the key."""
    if type(key) is int and -(2**63) <= key < 2**64:
        return str(key)
    if type(key) is not str:
        raise BadInput(f"{where}: expected {KEY}, got {'another integer' if type(key) is int else 'another type'}")
    try:
        nbytes = len(key.encode())
    except UnicodeEncodeError:
        raise BadInput(f"{where}: expected {KEY}, got text that is not Unicode") from None
    if not 0 < nbytes <= MOST_KEY_NBYTES:
        raise BadInput(f"{where}: expected {KEY}, got {nbytes:,} bytes")
    return key


def possible_inputs(manifest: Manifest) -> list[str]:
    """Return the inputs that could hold a key: those of one id or string a row."""
    return [i.name for i in manifest.inputs if i.dtype in ("int64", "string") and not i.ragged and not i.columns]


def user_inputs(manifest: Manifest) -> tuple[str, ...]:
    """Return the inputs that may hold a user's key: those that look up features of users, or their histories.

    Where there are none: the one-valued ids and strings of side user that a table has rows for.
    """
    one_valued = possible_inputs(manifest)
    sides = sides_of(manifest, (f for f in manifest.features if f.table))
    of_items = {name for name, seen in sides.items() if "item" in seen}
    for entity in manifest.entities:
        read = {f.side for f in manifest.features if f.input in entity.inputs}
        if "user" not in read:
            of_items.add(entity.key)
    keys = dict.fromkeys(key for filler in manifest.fillers.values() for key in filler.keys)
    by_key = tuple(key for key in keys if key in one_valued and key not in of_items)
    return by_key or tuple(name for name, seen in sides.items() if name in one_valued and seen == {"user"})


def user_input(manifest: Manifest) -> str:
    """Return the only input that holds a user's key; "" if there are several, or none."""
    names = user_inputs(manifest)
    return names[0] if len(names) == 1 else ""


def bound_keys(key: str, inputs: Collection[str], manifests: Iterable[Manifest]) -> tuple[int, ...]:
    """Return a key as requests of these versions are bound to it."""
    bound = set()
    if (number := number_of(key)) is not None:
        bound.add(_signed(number))
    for manifest in manifests:
        if any(i.dtype == "string" and i.name in inputs for i in manifest.inputs):
            bound |= {int(hash_strings(Strings.of([key]), table.hash_seed)[0]) for table in manifest.tables}
    return tuple(sorted(bound))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
