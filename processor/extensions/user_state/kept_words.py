"""Words that are kept under a name and replaced as a whole, in the arena of user states: one copy for all processes.

Of a computed state each copy is as good. Of what a client has sent only the newest is: a process that replaces it takes
the copies of others away.

Invariants
- A name has at most one copy, but for a holder that dies between two stores: then it has none, or an older one and no
  newer. Others' copies are taken away before the new one is written: none comes back when a newer one is evicted.
- Who changes a name holds its lock, one of NAMES, and then those of the segments that it writes to (arena_locks): its
  own and those with a copy, all at once. So a change that meets an erasure changes nothing and is made anew.
- A reader holds no lock. Who finds no copy looks again under the lock: while a copy is replaced there is none.
- An erasure is never undone: what was read before it is not written after it (StateStore.replace), but read anew.

Costs: a look is that of a state; a change is a look, four system calls and a write.

Rejected: compare and set of one word in the arena (arena_locks); a message to the process that owns a name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.arena_locks import NAMES
from freshet_serving.processor.extensions.user_state.kept_columns import version_of
from freshet_serving.processor.extensions.user_state.state_store import NO_STAMPS, Segment, StateName, StateStore

Int64s = NDArray[np.int64]

PATIENCE_S = 0.05
"""How long a change waits for another one, which takes a fraction of a millisecond."""
NO_WEIGHTS = 0


class KeptWords:
    """The kept words as one process reads and replaces them. Thread-safe."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    @property
    def most_nbytes(self) -> int:
        return self._store.most_nbytes

    def read(self, name: StateName) -> Int64s | None:
        """Return what is kept under a name, without its lock; None for nothing."""
        words = self.read_held(name)
        if words is None:
            with self.locked(name):
                words = self.read_held(name)
        return words

    @contextlib.contextmanager
    def locked(self, name: StateName) -> Iterator[None]:
        """Hold a name's lock; raise NotReady if others hold it for too long."""
        number, locks = name.low % NAMES, self._store.locks
        if not locks.acquire(number, PATIENCE_S):
            raise NotReady("sequence_id: other requests are changing this user for too long; send it again")
        try:
            yield
        finally:
            locks.release(number)

    def replace(self, name: StateName, words: Int64s, erasures: int, scope: int = 0) -> bool:
        """Replace what is kept under a name; its lock is held. Return False, with nothing changed, if it was erased.

        The first word is the version, which readers compare. Erasures and scope are as of StateStore.replace.
        """
        if not self._store.replace(name, words, erasures, scope):
            return False
        # A change counts as a read: else what was just changed is evicted before what nobody reads.
        self.read_held(name)
        return True

    def forget(self, name: StateName) -> None:
        """Zero what is kept under a name; its lock is held."""
        self._store.forget(name)

    def read_held(self, name: StateName) -> Int64s | None:
        """Return what is kept under a name, whose lock is held; None for nothing."""
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
        count = store.field(segment, number, arena.WORDS)
        if not 0 < count <= segment.pages * arena.PAGE:
            return None
        words = np.empty(count, np.int64)
        written_ms = arena.read_state(
            segment.address, segment.entries, segment.pages, number, name.high, name.low, store.oldest_ms, NO_STAMPS,
            NO_WEIGHTS, arena.EXACT, words,
        )  # fmt: skip
        return words if written_ms >= 0 else None
