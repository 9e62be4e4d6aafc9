"""Cache what was read for an entity, and let one request read for all that ask for it meanwhile.

Invariants
- An entry is served for at most ttl_s after the read that made it began, whether the store had the entity or not (a
  negative entry), so a change in the store is seen at most ttl_s later. A read that failed leaves no entry.
- For one key there is at most one flight. Its owner, the caller to whom claim() gave the key, settles it exactly once,
  with an entry or with None. A caller settles all that it owns before it waits for a flight of another, so no two wait
  for each other, and it waits no longer than its own deadline.
- What is erased is not there afterwards: neither an entry nor what a flight brings that had begun before.
- Entries take at most max_nbytes, as their makers count them; the least recently used go first.

With ttl_s = 0 nothing is kept and flights are still shared. Cost: a dictionary look-up under one lock for each key.
Rejected: refreshing entries before they end: it would read for users who do not come back.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import first_of

ENTRY_NBYTES = 300
"""Bytes of an entry beside its key and value: the objects that hold them."""

Value = TypeVar("Value")


class Flight(Generic[Value]):
    """A read that is under way, for all that wait for it."""

    __slots__ = ("_landed", "erased", "started_s", "value")

    def __init__(self, started_s: float) -> None:
        self._landed = threading.Event()
        self.started_s, self.erased = started_s, False
        self.value: Value | None = None

    def land(self, value: Value | None) -> None:
        self.value = value
        self._landed.set()

    def wait(self, timeout_s: float) -> Value | None:
        """Return the value that was read; None if there was none in time."""
        return self.value if self._landed.wait(max(0.0, timeout_s)) else None


@dataclass(slots=True)
class Claim(Generic[Value]):
    """Keys divided by claim(): with values in the cache, to be read and settled by the caller, or read by others."""

    found: dict[bytes, Value] = field(default_factory=dict)
    owned: list[bytes] = field(default_factory=list)
    joined: dict[bytes, Flight[Value]] = field(default_factory=dict)


class EntityCache(Generic[Value]):
    def __init__(self, ttl_s: float, max_nbytes: int, clock: Clock) -> None:
        """Create an empty cache; an entry is served for `ttl_s`, 0 for no entries."""
        self._ttl_s, self._max_nbytes, self._clock = ttl_s, max_nbytes, clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, tuple[float, int, Value]] = OrderedDict()
        self._flights: dict[bytes, Flight[Value]] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def peek(self, keys: Sequence[bytes]) -> dict[bytes, Value] | None:
        """Return the values of all keys if the cache has every one of them, else None; never waits for a read."""
        now_s = self._clock.now_s()
        with self._lock:
            entities = {}
            for key in keys:
                entry = self._entries.get(key)
                if entry is None or entry[0] <= now_s:
                    return None
                entities[key] = entry[2]
            for key in entities:
                self._entries.move_to_end(key)
            return entities

    def claim(self, keys: Sequence[bytes]) -> Claim[Value]:
        """Divide distinct keys: in the cache, read by others, or now the caller's to read."""
        claim: Claim[Value] = Claim()
        now_s = self._clock.now_s()
        with self._lock:
            for key in keys:
                entry = self._entries.get(key)
                if entry is not None:
                    if entry[0] > now_s:
                        self._entries.move_to_end(key)
                        claim.found[key] = entry[2]
                        continue
                    self._remove(key)
                flight = self._flights.get(key)
                if flight is not None:
                    claim.joined[key] = flight
                else:
                    self._flights[key] = Flight(now_s)
                    claim.owned.append(key)
        return claim

    def settle(self, key: bytes, value: Value | None, nbytes: int = 0) -> None:
        """End the caller's flight, with the value that was read, None if nothing was, and its size."""
        with self._lock:
            flight = self._flights.pop(key)
            size = nbytes + len(key) + ENTRY_NBYTES
            if value is not None and self._ttl_s > 0 and size <= self._max_nbytes and not flight.erased:
                self._remove(key)
                self._entries[key] = (flight.started_s + self._ttl_s, size, value)
                self._nbytes += size
                while self._nbytes > self._max_nbytes:
                    self._remove(first_of(self._entries))
        flight.land(value)

    def erase(self, prefixes: Sequence[bytes], keys: Collection[bytes] = ()) -> int:
        """Remove entries of keys, and of keys that begin like one of `prefixes`; return how many there were."""
        begins = tuple(prefixes)
        with self._lock:
            erased = [key for key in self._entries if key in keys or key.startswith(begins)]
            for key in erased:
                self._remove(key)
            for key, flight in self._flights.items():
                flight.erased = flight.erased or key in keys or key.startswith(begins)
        return len(erased)

    def _remove(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._nbytes -= entry[1]
