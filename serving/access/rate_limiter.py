"""Limit the request rate and concurrency of each key and address, in memory shared by all processes of a server.

A rate is a token bucket that holds one second's worth of requests, and at least one. It is stored as the time at which
the bucket will be full again, so that taking a token is one addition. Concurrency is one count for each process, and
the sum over processes is compared.

A key or address is identified by two slots of a fixed-size table (a count-min sketch), and refused only if both refuse.
So a flood of addresses can neither fill nor evict anything. Only clients that share both slots, one pair in SLOTS
squared, share their limit.

Invariants
- A rate holds for the server, however many processes answer and however connections are distributed over them.
- Processes take no locks: if two take a token in the same microsecond, one may not be counted. So a rate is exceeded by
  at most one request for each such collision, and is never below the configured one.
- A process writes only its own row of counts, on one thread, so they cannot be torn. Its row is cleared after its
  death.
- Slots of addresses depend on a secret of this start, so that no client can choose to share another's slots.

Rejected: a share of the rate for each worker (a client with one connection would have 1/N of its rate); asking the
supervisor (one round trip for each request); a pruned table of addresses (a flood prunes it).
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.memory import reserve

SLOTS, ROWS = 1 << 15, 2
SECRET_NBYTES = 64
FULL_NBYTES, COUNT_NBYTES = ROWS * SLOTS * 8, ROWS * SLOTS * 4

Slots = tuple[int, int]
"""One place in each row of the table."""


def slots_of(digest: bytes) -> Slots:
    return int.from_bytes(digest[:4], "little") % SLOTS, int.from_bytes(digest[4:8], "little") % SLOTS


def rate_limiter_memory(processes: int) -> NDArray[np.uint8]:
    """Return shared memory for the limits of this many processes (or threads), all counts 0."""
    memory = reserve(SECRET_NBYTES + FULL_NBYTES + processes * COUNT_NBYTES, "meters").view(np.uint8)
    memory = memory[: SECRET_NBYTES + FULL_NBYTES + processes * COUNT_NBYTES]
    memory[:SECRET_NBYTES] = np.frombuffer(os.urandom(SECRET_NBYTES), np.uint8)
    return memory


def clear_process(memory: NDArray[np.uint8], place: int) -> None:
    """Clear the in-flight counts of a dead process."""
    _counts(memory)[place] = 0


class RateLimiter:
    """The rate limiter as one thread of one process uses it; `place` is the thread's row of counts."""

    def __init__(self, memory: NDArray[np.uint8], place: int, clock: Clock) -> None:
        self._secret = memory[:SECRET_NBYTES].tobytes()
        # Memoryviews, not arrays: reading one element of an array costs ten times as much.
        full: Any = memoryview(memory[SECRET_NBYTES : SECRET_NBYTES + FULL_NBYTES].view(np.float64))  # type: ignore[arg-type]
        self._full_s = full[:SLOTS], full[SLOTS:]
        rows: list[Any] = [memoryview(row) for counts in _counts(memory) for row in counts]
        self._firsts, self._seconds = rows[::ROWS], rows[1::ROWS]
        self._first, self._second = self._firsts[place], self._seconds[place]
        self._clock = clock

    def address_slots(self, address: str) -> Slots:
        """Return the slots of a client's address; of IPv6 the first 64 bits, because a host chooses the rest freely."""
        if ":" in address:
            address = _network(address)
        return slots_of(hashlib.blake2b(address.encode(), key=self._secret, digest_size=8).digest())

    def take_token(self, slots: Slots, rate: float) -> float:
        """Take a token from a bucket of `rate` tokens a second; return 0.0, or the seconds until there is one."""
        now_s = self._clock.now_s()
        (first, second), (first_slot, second_slot) = self._full_s, slots
        step_s = 1.0 / rate
        full_s = max(now_s, min(first[first_slot], second[second_slot])) + step_s
        wait_s = full_s - now_s - max(1.0, step_s)
        # Rounding errors of summed steps stay below this, even on a machine that has been up for years.
        if wait_s > 1e-6:
            return float(wait_s)
        first[first_slot], second[second_slot] = max(first[first_slot], full_s), max(second[second_slot], full_s)
        return 0.0

    def try_acquire(self, slots: Slots, most: int) -> bool:
        """Count one more request in flight, which release() undoes; return False if the limit is reached."""
        first_slot, second_slot = slots
        first = second = 0
        for row in self._firsts:
            first += row[first_slot]
        for row in self._seconds:
            second += row[second_slot]
        if first >= most <= second:
            return False
        self._first[first_slot] += 1
        self._second[second_slot] += 1
        return True

    def release(self, slots: Slots) -> None:
        first_slot, second_slot = slots
        self._first[first_slot] -= 1
        self._second[second_slot] -= 1


def _counts(memory: NDArray[np.uint8]) -> NDArray[np.int32]:
    return memory[SECRET_NBYTES + FULL_NBYTES :].view(np.int32).reshape(-1, ROWS, SLOTS)


def _network(address: str) -> str:
    import ipaddress

    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped is not None else parsed.packed[:8].hex()
