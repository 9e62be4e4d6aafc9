"""Define the interface of an online store: fields of hashes by key, many at a time, within a deadline.

Tests use a dictionary; redis_store is the store that servers use. Calls may come from any thread.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_REPLY_NBYTES = 1 << 18
"""Size limit of what one read may answer: everything about one entity."""


class Loss(enum.Enum):
    """Reasons why a read has no answer."""

    LATE = "did not answer in time"
    NOT_ASKED = "is not asked after repeated failures (circuit breaker)"
    UNREACHABLE = "cannot be reached"
    REFUSED = "answered with an error"
    WRONG_TYPE = "has something other than a hash under the key"
    TOO_LARGE = "sent more than is taken for one entity"
    MALFORMED = "sent a malformed reply"


PERSISTENT = frozenset({Loss.WRONG_TYPE, Loss.TOO_LARGE})
"""Losses that lie in what the store holds for a key, and so come back with the next read of it."""


@dataclass(frozen=True, slots=True)
class HashRead:
    """A read of several fields of one hash."""

    key: bytes
    fields: tuple[bytes, ...]


HashReply = list[bytes | None] | Loss
"""Values in the order of the fields, None for each that is absent; or why there are none."""


class OnlineStore(Protocol):
    def fetch(self, reads: Sequence[HashRead], end_s: float) -> list[HashReply]:
        """Read hashes in one round trip, until `end_s` on time.monotonic(); return a reply for each read.

        What is not there by then is lost. A store's failure is never raised.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store as a process has it open, with time and memory for what a model has read; 0 for no cache."""

    store: OnlineStore
    cache_ttl_s: float
    cache_nbytes: int
