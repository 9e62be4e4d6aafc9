"""Locks of the arena: one for each range of users' names, and one for each segment.

Invariants
- A lock is held by one thread of one process at a time: a range of bytes of the arena's file, locked by the process
  (fcntl), which the system frees when the process dies at any instruction; and a lock of its threads.
- The holder of a name's lock may take segments' locks, in the order of their addresses, and never the other way round.

Costs: two system calls, and no wait where nobody else has the lock.

Rejected: a word of the arena that is compared and set (who takes a dead holder's place has to know that it is dead);
locks of the open file (F_OFD_SETLK: workers inherit the file, so all of them would hold one lock); no locks (an eraser
that compares an entry and then writes zeros may hit another user that the owner put there in between); a message to
the segment's process, which may be busy or gone.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.memory import place_in_file

Int64s = NDArray[np.int64]

NAMES = 256
"""Locks of names; those of segments have the numbers behind them."""
PAUSE_S = 0.0005

_opened: weakref.WeakValueDictionary[tuple[int, int], ArenaLocks] = weakref.WeakValueDictionary()
_opening = threading.Lock()


class ArenaLocks:
    def __init__(self, memory: Int64s) -> None:
        self._file = place_in_file(memory)
        self._threads: dict[int, threading.Lock] = {}

    @classmethod
    def of(cls, memory: Int64s) -> ArenaLocks:
        """Return this process's locks of an arena's memory."""
        # A forked process has the parent's objects, but none of its locks.
        place = os.getpid(), int(memory.ctypes.data)
        with _opening:
            if (locks := _opened.get(place)) is None:
                locks = _opened[place] = cls(memory)
        return locks

    def acquire(self, number: int, patience_s: float) -> bool:
        """Take a lock; return False if others hold it for `patience_s`."""
        end_s = time.monotonic() + patience_s
        threads = self._threads.setdefault(number, threading.Lock())
        if not threads.acquire(timeout=patience_s):
            return False
        while self._file is not None:
            try:
                fcntl.lockf(self._file[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._file[1] + number)
                break
            except OSError:
                if time.monotonic() > end_s:
                    threads.release()
                    return False
                time.sleep(PAUSE_S)
        return True

    def release(self, number: int) -> None:
        if self._file is not None:
            fcntl.lockf(self._file[0], fcntl.LOCK_UN, 1, self._file[1] + number)
        self._threads[number].release()
