"""One process's store of user states, in the arena that all processes of a server share (state_arena).

Any thread of any process finds, without a lock. Who keeps, sweeps or erases holds the lock of the segment.

While there is room, everything is kept. Once pages would have to be taken from others, a state is admitted if it is
long (LONG_STAMPS rows) or if the same name was refused before: most short histories that are seen once are never seen
again. Eviction is LRU by one bit (CLOCK). Time to live is checked when a state is read; what is too old is zeroed by
sweeps, a few entries with every state that the process keeps.

Costs: a look at 2 WAYS entries in each segment, then one pass over the state. Keeping waits for other threads that
keep, and for an erasure at most as long as that looks at ERASED_AT_ONCE entries.

Rejected: one segment that a state's owner is sent to (a message for each state); a copy in each process's memory (as
many budgets as processes).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.arena_locks import NAMES, ArenaLocks
from freshet_serving.processor.extensions.user_state.erase_kernels import erase, erase_name, finish, take_over
from freshet_serving.processor.features.bound_request import address
from freshet_serving.processor.kernels.pointers import exchange
from freshet_serving.processor.memory import reserve

Int64s = NDArray[np.int64]

TTL_S = 1800.0
LONG_STAMPS = 256
SWEPT = 32
NO_STAMPS = np.empty(0, np.int64)
REMEMBERED = 1 << 16
"""Names that were refused, evicted or too old lately, by their last bits: a later one takes an earlier one's place."""
LEAST_PAGES = 128
PATIENCE_S, LONG_PATIENCE_S = 0.25, 5.0
"""How long a change waits for a segment's lock, and how long an erasure and a takeover do. A holder needs it for a
fraction of a millisecond, or has been stopped."""
ERASED_AT_ONCE = 1 << 14
"""Entries that an erasure looks at before it lets others have the segment."""


class StateName(NamedTuple):
    """The name of a state, of keyed hashes (state_names).

    Attributes:
        high: One half of the hash of whose it is, and of what it was computed by and from.
        low: The other half.
        subject: Of the user (state_erasure); arena.NOBODY for none, which only an erasure of all reaches.
    """

    high: int
    low: int
    owner: int
    subject: int = arena.NOBODY


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    number: int
    address: int
    entries: int
    pages: int


class StoreFigures(NamedTuple):
    """States of one process's segment, since it was taken over: not admitted, taken for others, swept."""

    refused: int
    evicted: int
    expired: int


def arena_memory(nbytes: int, processes: int) -> Int64s:
    """Allocate an empty arena, whose memory is taken as states come; raise BadInput if it is too small."""
    words = nbytes // 8
    if arena.segment_shape(_segment_words(words, processes))[1] < LEAST_PAGES:
        least = processes * (LEAST_PAGES + 1) * (arena.PAGE + 1 + arena.ENTRY) * 8 >> 20
        raise BadInput(f"user_state_mb: expected at least {least + 1} for {processes} processes, got {nbytes >> 20}")
    memory = reserve(words * 8, "user-states").view(np.int64)[:words]
    secret = np.frombuffer(secrets.token_bytes(8 * arena.SECRET_WORDS), np.int64)
    memory[arena.SECRET : arena.SECRET + arena.SECRET_WORDS] = secret
    return memory


def secret_of(memory: Int64s) -> bytes:
    """Return the key that names are made with, the same in all processes."""
    return memory[arena.SECRET : arena.SECRET + arena.SECRET_WORDS].tobytes()


def erase_states(memory: Int64s, processes: int, owner: int = arena.NOBODY, subject: int = arena.NOBODY) -> int:
    """Erase states of an owner, or of one subject of it, so that their bytes are nowhere in the arena; return how many.

    NOBODY stands for all. States that are being computed meanwhile are not kept; all others stay. Any process may call
    it. Raises NotReady if a process that writes has been stopped; what comes before its segment is erased.
    """
    locks, segments, gone = ArenaLocks.of(memory), _segments(memory, processes), 0
    exchange(int(memory.ctypes.data) + 8 * arena.ERASURES, secrets.randbits(62) + 1)
    for segment in segments:
        shape = segment.address, segment.entries, segment.pages
        for first in range(0, segment.entries, ERASED_AT_ONCE):
            with _held(locks, memory, segment, LONG_PATIENCE_S):
                gone += erase(*shape, owner, subject, first, first + ERASED_AT_ONCE)
    return gone


def _segments(memory: Int64s, processes: int) -> list[Segment]:
    words, first = _segment_words(len(memory), processes), int(memory.ctypes.data) + 8 * arena.HEADER
    return [Segment(n, first + 8 * n * words, *arena.segment_shape(words)) for n in range(processes)]


@contextlib.contextmanager
def _held(locks: ArenaLocks, memory: Int64s, segment: Segment, patience_s: float) -> Iterator[None]:
    """Hold a segment's lock, to write to it, else raise NotReady; what a dead holder has left is zeroed first."""
    number = NAMES + segment.number
    unfinished = (segment.address - int(memory.ctypes.data)) // 8 + arena.UNFINISHED
    if not locks.acquire(number, patience_s):
        raise NotReady("user state: another process writes to it for too long; send it again")
    try:
        if memory[unfinished]:
            finish(segment.address, segment.entries, segment.pages)
        memory[unfinished] = 1
        yield
        memory[unfinished] = 0
    finally:
        locks.release(number)


def _segment_words(words: int, processes: int) -> int:
    return max(0, words - arena.HEADER) // processes


class StateStore:
    def __init__(
        self, memory: Int64s, processes: int, process: int, now_s: Callable[[], float], ttl_s: float = TTL_S
    ) -> None:
        """Take over a process's segment of an arena; the process that had it before must be dead."""
        self.memory, self._now_s, self._ttl_ms = memory, now_s, int(ttl_s * 1000)
        segments = _segments(memory, processes)
        self.own = own = segments[process]
        # Its own is looked at first: it has what this process computed last.
        self.segments = [own, *(s for s in segments if s is not own)]
        self._counts, self._firsts = np.zeros((2, own.entries), np.int64)
        self._free, self._books = np.zeros(own.pages, np.int64), np.zeros(arena.BOOKS, np.int64)
        self._refused_names, self._evicted_names, self._expired_names = np.zeros((3, REMEMBERED), np.int64)
        self._scopes = np.zeros(own.entries, np.int64)
        self._refused = self._evicted = self._expired = 0
        self.locks = ArenaLocks.of(memory)
        with _held(self.locks, memory, own, LONG_PATIENCE_S):
            take_over(own.address, own.entries, own.pages, self._counts, self._firsts, self._free, self._books)

    @property
    def secret(self) -> bytes:
        return secret_of(self.memory)

    @property
    def erasures(self) -> int:
        """A number that each erasure replaces; to be read when a request begins, and given to keep()."""
        return int(self.memory[arena.ERASURES])

    def usage(self, scope: int) -> tuple[int, int]:
        """Return the states of a scope in this process's segment, and the bytes of their pages."""
        pages = self._counts[self._scopes == scope]
        return int(np.count_nonzero(pages)), int(pages.sum()) * arena.PAGE * 8

    @property
    def figures(self) -> StoreFigures:
        return StoreFigures(self._refused, self._evicted, self._expired)

    def find(
        self, name: StateName, weights: int, stamps: Callable[[], Int64s], words: Int64s, bounds: Int64s = arena.EXACT
    ) -> tuple[int, float]:
        """Copy a state into `words`; return HIT or the cause of a miss, and the seconds since it was written.

        Args:
            weights: The mark of the dense weights that are read.
            stamps: Returns int64 [n], the stamps of its rows as of the epoch that is read; called if there is a state
                of the name.
            words: int64 [m], its words; written, and worth nothing without a hit.
            bounds: int64 [arena.BOUNDS], which states need not be valid; AS_OF is written.
        """
        oldest_ms = self._now_ms() - self._ttl_ms
        outcome, now = arena.ABSENT, None
        for segment in self.segments:
            number = -1
            while True:
                number = arena.find_entry(segment.address, segment.entries, name.high, name.low, number)
                if number < 0:
                    break
                if now is None:
                    now = stamps()
                read = arena.read_state(
                    segment.address, segment.entries, segment.pages, number, name.high, name.low, oldest_ms, now,
                    weights, bounds, words,
                )  # fmt: skip
                if read >= 0:
                    return arena.HIT, (oldest_ms + self._ttl_ms - read) / 1000
                outcome = max(outcome, -read)
        return self._cause(name) if outcome == arena.ABSENT else outcome, 0.0

    def cause(self, name: StateName) -> int:
        """Return why nothing is kept under a name: EXPIRED, EVICTED by this process, or ABSENT."""
        return arena.EXPIRED if self.holders(name) else self._cause(name)

    def _cause(self, name: StateName) -> int:
        place = name.low % REMEMBERED
        names = {arena.EVICTED: self._evicted_names, arena.EXPIRED: self._expired_names}
        return next((cause for cause, lows in names.items() if lows[place] == name.low), arena.ABSENT)

    def field(self, segment: Segment, number: int, field: int) -> int:
        """Return a field of an entry (state_arena)."""
        first = (segment.address - int(self.memory.ctypes.data)) // 8 + arena.HEAD + number * arena.ENTRY
        return int(self.memory[first + field])

    @property
    def oldest_ms(self) -> int:
        """The earliest time at which a state that is still used may have been written."""
        return self._now_ms() - self._ttl_ms

    @property
    def now_s(self) -> float:
        return self._now_s()

    def holders(self, name: StateName) -> list[Segment]:
        """Return the segments that have something under a name."""
        return [
            segment
            for segment in self.segments
            if arena.find_entry(segment.address, segment.entries, name.high, name.low, -1) >= 0
        ]

    def forget(self, name: StateName) -> None:
        """Zero what all segments have under a name; raise NotReady if others write to one of them for too long."""
        for segment in self.holders(name):
            with _held(self.locks, self.memory, segment, PATIENCE_S):
                self._forget(segment, name)

    def keep(
        self,
        name: StateName,
        weights: int,
        stamps: Int64s,
        tensors: Sequence[NDArray[Any]],
        erasures: int,
        scope: int = 0,
        flip: int = 0,
        step: int = 0,
    ) -> bool:
        """Write a state, in place of what this process has under its name; return False if it is not admitted.

        Args:
            weights: The mark of the dense weights that it was computed with.
            stamps: int64 [n], the stamps of the rows that it was computed from.
            tensors: Its words, one array after another; each is contiguous and begins with a new word.
            erasures: `erasures` as they were when its request began.
            scope: A number that its bytes are counted under in this process.
            flip: The flip that it was computed under.
            step: The step that the flip serves.
        """
        try:
            with _held(self.locks, self.memory, self.own, PATIENCE_S):
                if self.erasures != erasures:
                    return False
                self._sweep()
                return self._write(name, weights, stamps, tensors, scope, False, flip, step)
        except NotReady:
            self._refused += 1
            return False

    def replace(self, name: StateName, words: Int64s, erasures: int, scope: int = 0) -> bool:
        """Write words in place of what any process has under a name; return False, with nothing changed, if not.

        They are admitted whatever else is kept, if they fill at most half of a segment; nobody else replaces what the
        name has (kept_words). `erasures` are those before what they are made of was read. Raises NotReady if others
        write to one of the segments for too long.
        """
        own, others = self.own, [segment for segment in self.holders(name) if segment is not self.own]
        with contextlib.ExitStack() as locked:
            for segment in sorted([own, *others], key=lambda segment: segment.address):
                locked.enter_context(_held(self.locks, self.memory, segment, PATIENCE_S))
            if self.erasures != erasures or words.nbytes > self.most_nbytes:
                return False
            for segment in others:
                self._forget(segment, name)
            self._sweep()
            return self._write(name, 0, NO_STAMPS, [words], scope, True, 0, 0)

    @property
    def most_nbytes(self) -> int:
        return self.own.pages // 2 * arena.PAGE * 8

    def _write(
        self,
        name: StateName,
        weights: int,
        stamps: Int64s,
        tensors: Sequence[NDArray[Any]],
        scope: int,
        always: bool,
        flip: int,
        step: int,
    ) -> bool:
        """Write a state, as keep() says; the segment's lock is held. With `always` it is admitted whatever is kept."""
        own = self.own
        pieces = np.array([(address(array), array.nbytes) for array in (stamps, *tensors)], np.int64)
        needed = -(-int((pieces[:, 1] + 7 >> 3).sum()) // arena.PAGE)
        fields = np.zeros(arena.SUM, np.int64)
        fields[arena.HIGH : arena.STAMPS] = (*name, self._now_ms(), weights, flip, step)
        number = arena.place_for(own.address, own.entries, name.high, name.low, self._counts)
        if self._counts[number] and not self._lives(number):
            self._drop(number)
        before = int(self._counts[number])
        same = before > 0 and self._is(number, name)
        free = int(self._books[arena.FREE]) + own.pages - int(self._books[arena.FRESH])
        short = needed > free + (before if same else 0) or (before > 0 and not same)
        if not 0 < needed <= own.pages // 2 or (short and not always and not self._admits(name, len(stamps))):
            self._refused += 1
            return False
        if before:
            if not same:
                self._evicted += 1
                arena.note_gone(own.address, number, self._evicted_names)
            arena.make_way(
                own.address, own.entries, own.pages, number, self._counts, self._firsts, self._free, self._books
            )
        self._evicted += arena.evict(
            own.address, own.entries, own.pages, needed, self._counts, self._firsts, self._free, self._books,
            self._evicted_names,
        )  # fmt: skip
        arena.write_state(
            own.address, own.entries, own.pages, number, fields, len(stamps), pieces, self._counts, self._firsts,
            self._free, self._books,
        )  # fmt: skip
        self._scopes[number] = scope
        return True

    def erase(self, owner: int = arena.NOBODY, subject: int = arena.NOBODY) -> int:
        return erase_states(self.memory, len(self.segments), owner, subject)

    def _sweep(self, entries: int = SWEPT) -> None:
        """Take away states that are too old among the next entries of this process's segment; its lock is held."""
        own = self.own
        self._expired += arena.sweep(
            own.address, own.entries, own.pages, self._now_ms() - self._ttl_ms, self._counts, self._firsts, self._free,
            self._books, self._expired_names, entries,
        )  # fmt: skip

    def _forget(self, segment: Segment, name: StateName) -> None:
        if segment is not self.own:
            erase_name(segment.address, segment.entries, segment.pages, name.high, name.low)
            return
        number = -1
        while (number := arena.find_entry(segment.address, segment.entries, name.high, name.low, number)) >= 0:
            self._drop(number)

    def _drop(self, number: int) -> None:
        own = self.own
        arena.drop(own.address, own.entries, own.pages, number, self._counts, self._firsts, self._free, self._books)

    def _lives(self, number: int) -> bool:
        """Report whether nobody has erased an entry of this process's segment."""
        return self.field(self.own, number, arena.SEQ) != 0

    def _is(self, number: int, name: StateName) -> bool:
        own = self.own
        return (self.field(own, number, arena.HIGH), self.field(own, number, arena.LOW)) == (name.high, name.low)

    def _admits(self, name: StateName, stamps: int) -> bool:
        place = name.low % REMEMBERED
        if stamps >= LONG_STAMPS or self._refused_names[place] == name.low:
            self._refused_names[place] = 0
            return True
        self._refused_names[place] = name.low
        return False

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)
