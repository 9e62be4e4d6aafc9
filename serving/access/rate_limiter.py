"""How much each key and each address has asked, counted in memory that all processes of a server share.

A rate is a token bucket that holds a second's worth, or one request where that is less: as many may come at once, and
then as many a second. It is kept as one number, the time at which the bucket will be full again, so that taking a token
is one addition. Concurrency is one count a process, and the sum of them is compared.

Who asks is known by two slots of a table of fixed size (a count-min sketch): what refuses one is that both of its slots
refuse. So there is nothing that floods of addresses could fill or evict, no list to agree on between processes, and
two that share a slot by chance do not notice; two that share both, one pair in SLOTS squared, share their limit.

Invariants
- A rate holds for the server, however many processes answer and however its connections are spread over them.
- Between two processes nothing is locked: of two that take a token in the same microsecond one may not be counted. So a
  rate is exceeded by at most one request for each such meeting, and never held for less than what was allowed.
- A process writes only its own row of counts, on one thread: they cannot be torn. Its row is cleared once it is dead.
- Slots of addresses are by a secret of this start, so that nobody chooses whose slots to share.

Refused: a share of the rate for each worker (a client with one connection would have 1/N of its rate); asking the
supervisor (a round trip a request); a table of addresses that is pruned (a flood prunes it).
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
    """The slots of whoever has this digest, 8 bytes of it at least."""
    return int.from_bytes(digest[:4], "little") % SLOTS, int.from_bytes(digest[4:8], "little") % SLOTS


def rate_limiter_memory(processes: int) -> NDArray[np.uint8]:
    """Shared memory for the meters of so many processes (or threads), all counts 0."""
    memory = reserve(SECRET_NBYTES + FULL_NBYTES + processes * COUNT_NBYTES, "meters").view(np.uint8)
    memory = memory[: SECRET_NBYTES + FULL_NBYTES + processes * COUNT_NBYTES]
    memory[:SECRET_NBYTES] = np.frombuffer(os.urandom(SECRET_NBYTES), np.uint8)
    return memory


def clear_process(memory: NDArray[np.uint8], place: int) -> None:
    """Forgets what a process had in flight that is dead."""
    _counts(memory)[place] = 0


class RateLimiter:
    """The meters as one thread of one process uses them."""

    def __init__(self, memory: NDArray[np.uint8], place: int, clock: Clock) -> None:
        """memory: of rate_limiter_memory(). place: this thread's row of counts."""
        self._secret = memory[:SECRET_NBYTES].tobytes()
        # Views of memory, not arrays: one number of an array costs ten times as much.
        full: Any = memoryview(memory[SECRET_NBYTES : SECRET_NBYTES + FULL_NBYTES].view(np.float64))  # type: ignore[arg-type]
        self._full_s = full[:SLOTS], full[SLOTS:]
        rows: list[Any] = [memoryview(row) for counts in _counts(memory) for row in counts]
        self._firsts, self._seconds = rows[::ROWS], rows[1::ROWS]
        self._first, self._second = self._firsts[place], self._seconds[place]
        self._clock = clock

    def address_slots(self, address: str) -> Slots:
        """The slots of a client's address. Of IPv6 the first half counts: the rest is any one host's to choose."""
        if ":" in address:
            address = _network(address)
        return slots_of(hashlib.blake2b(address.encode(), key=self._secret, digest_size=8).digest())

    def take_token(self, slots: Slots, rate: float) -> float:
        """Takes a token of a bucket that gets `rate` a second: 0.0, or, where there is none, the seconds until there
        is."""
        now_s = self._clock.now_s()
        (first, second), (one, other) = self._full_s, slots
        step_s = 1.0 / rate
        full_s = max(now_s, min(first[one], second[other])) + step_s
        wait_s = full_s - now_s - max(1.0, step_s)
        # Sums of steps are off by less than that, on a machine that has been up for years.
        if wait_s > 1e-6:
            return float(wait_s)
        first[one], second[other] = max(first[one], full_s), max(second[other], full_s)
        return 0.0

    def try_acquire(self, slots: Slots, most: int) -> bool:
        """Counts one more in flight, unless there are `most`; whoever enters leaves."""
        one, other = slots
        first = second = 0
        for row in self._firsts:
            first += row[one]
        for row in self._seconds:
            second += row[other]
        if first >= most <= second:
            return False
        self._first[one] += 1
        self._second[other] += 1
        return True

    def release(self, slots: Slots) -> None:
        """See try_acquire()."""
        one, other = slots
        self._first[one] -= 1
        self._second[other] -= 1


def _counts(memory: NDArray[np.uint8]) -> NDArray[np.int32]:
    """One row of counts a place."""
    return memory[SECRET_NBYTES + FULL_NBYTES :].view(np.int32).reshape(-1, ROWS, SLOTS)


def _network(address: str) -> str:
    """The first 64 bits of an IPv6 address, or the IPv4 address that it carries."""
    import ipaddress

    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped is not None else parsed.packed[:8].hex()
