"""Words that are kept under a name and replaced as a whole, in the arena of user states: one copy for all processes.

A state that was computed may lie in several segments, and each of them is as good. What a client has sent may not: a
process that replaces it takes the copies of others away. Who changes a name holds its lock.

Invariants
- A name has at most one copy, but for a holder that dies between two stores: then it has none, or an older one and no
  newer. Others' copies are taken away before the new one is written, so no older copy comes back when a newer one is
  evicted.
- A lock is a range of bytes of the arena's file, locked by the process (fcntl), and a lock of its threads: the system
  frees the first when its holder dies at any instruction. Names share STRIPES locks.
- A reader holds no lock. While a copy is replaced there is none for a moment; so who finds none looks again under the
  lock before it believes so.
- An erasure is never undone: what was read before it is not written after it (StateStore.keep), but read anew.

Costs: a look is that of a state; a change is a look, two system calls and a write.

Rejected: compare and set of one word in the arena (the writer that has won may die before it writes, and who takes a
dead one's place has to know that it is dead); a message to the process that owns a name (another process's speed).
"""

from __future__ import annotations

import contextlib
import fcntl
import threading
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.kept_columns import version_of
from freshet_serving.processor.extensions.user_state.state_store import Segment, StateName, StateStore
from freshet_serving.processor.memory import place_in_file

Int64s = NDArray[np.int64]

STRIPES = 256
PATIENCE_S, PAUSE_S = 0.05, 0.0005
"""How long a change waits for another one, and how often it looks. A change takes a fraction of a millisecond."""
NO_WEIGHTS = 0
NO_STAMPS = np.empty(0, np.int64)


class KeptWords:
    """The kept words as one process reads and replaces them. Thread-safe."""

    def __init__(self, store: StateStore) -> None:
        """Take the store; other processes have stores of the same memory.

        Args:
            store: The store.
        """
        self._store = store
        self._file = place_in_file(store.memory)
        self._stripes = [threading.Lock() for _ in range(STRIPES)]

    @property
    def most_nbytes(self) -> int:
        """Most bytes of what is kept under one name."""
        return self._store.own.pages // 2 * arena.PAGE * 8

    def read(self, name: StateName) -> Int64s | None:
        """Return what is kept under a name, without its lock; None for nothing.

        Args:
            name: The name.
        """
        words = self.read_held(name)
        if words is None:
            with self.locked(name):
                words = self.read_held(name)
        return words

    @contextlib.contextmanager
    def locked(self, name: StateName) -> Iterator[None]:
        """Hold a name's lock.

        Args:
            name: The name.

        Raises:
            NotReady: Others hold it for too long.
        """
        stripe = name.low % STRIPES
        threads = self._stripes[stripe]
        if not threads.acquire(timeout=PATIENCE_S):
            raise _busy()
        try:
            self._lock_file(stripe)
            try:
                yield
            finally:
                if self._file is not None:
                    fcntl.lockf(self._file[0], fcntl.LOCK_UN, 1, self._file[1] + stripe)
        finally:
            threads.release()

    def replace(self, name: StateName, words: Int64s, erasures: int) -> bool:
        """Replace what is kept under a name; its lock is held. Return False if it could not be kept: nothing is.

        Args:
            name: The name.
            words: The words; the first is the version, which readers compare.
            erasures: StateStore.erasures as they were before what `words` are made of was read.
        """
        self.forget(name)
        if not self._store.keep(name, NO_WEIGHTS, NO_STAMPS, [words], erasures, always=True):
            return False
        # A change counts as a read: else what was just changed is evicted before what nobody reads.
        self.read_held(name)
        return True

    def forget(self, name: StateName) -> None:
        """Zero what is kept under a name; its lock is held.

        Args:
            name: The name.
        """
        store = self._store
        store.take_away(name)
        for segment in store.segments:
            if segment is not store.own:
                while (number := self._find(segment, name, -1)) >= 0:
                    self._clear(segment, number)

    def read_held(self, name: StateName) -> Int64s | None:
        """Return what is kept under a name, whose lock is held; None for nothing.

        Args:
            name: The name.
        """
        newest: Int64s | None = None
        for segment in self._store.segments:
            number = -1
            while (number := self._find(segment, name, number)) >= 0:
                words = self._copy(segment, number, name)
                if words is not None and (newest is None or version_of(words) > version_of(newest)):
                    newest = words
        return newest

    def _find(self, segment: Segment, name: StateName, after: int) -> int:
        return int(arena.find_entry(segment.address, segment.entries, name.high, name.low, after))

    def _copy(self, segment: Segment, number: int, name: StateName) -> Int64s | None:
        store = self._store
        count = int(store.memory[self._at(segment, number) + arena.WORDS])
        if not 0 < count <= segment.pages * arena.PAGE:
            return None
        words = np.empty(count, np.int64)
        written_ms = arena.read_state(
            segment.address, segment.entries, segment.pages, number, name.high, name.low, store.oldest_ms, NO_STAMPS,
            NO_WEIGHTS, arena.EXACT, words,
        )  # fmt: skip
        return words if written_ms >= 0 else None

    def _clear(self, segment: Segment, number: int) -> None:
        """Zero an entry of another process's segment and its pages; that process frees them when it sweeps."""
        memory, at = self._store.memory, self._at(segment, number)
        seq, page = int(memory[at + arena.SEQ]), int(memory[at + arena.FIRST])
        links = self._at(segment, segment.entries)
        pages = -(-int(memory[at + arena.WORDS]) // arena.PAGE)
        for _ in range(min(pages, segment.pages)):
            # Its owner may evict it meanwhile, and use the pages for another.
            if not 0 <= page < segment.pages or int(memory[at + arena.SEQ]) != seq:
                break
            first = links + segment.pages + page * arena.PAGE
            memory[first : first + arena.PAGE] = 0
            page = int(memory[links + page])
        if int(memory[at + arena.SEQ]) == seq:
            memory[at + arena.SEQ] = 0
            memory[at : at + arena.ENTRY] = 0

    def _at(self, segment: Segment, number: int) -> int:
        """Return the word of the arena at which an entry begins."""
        return (segment.address - self._store.address) // 8 + arena.HEAD + number * arena.ENTRY

    def _lock_file(self, stripe: int) -> None:
        if self._file is None:
            return
        fd, first = self._file
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, first + stripe)
            except OSError as error:
                if time.monotonic() > end_s:
                    raise _busy() from error
                time.sleep(PAUSE_S)
            else:
                return


def _busy() -> NotReady:
    return NotReady("sequence_id: other requests are changing this user for too long; send it again")
