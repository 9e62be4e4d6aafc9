"""Shared control words of a version: which flip is served, what it refers to, and which readers pin it.

words    int64 [HEADER + ENTRIES * ENTRY + processes * WORDS], mapped by every process that reads the version

    header    [HEADER]            the served flip; a number of the load, which never changes; the newest turn; the rest
                                  of the cache line is unused, because readers write pins
    entries   [ENTRIES, ENTRY]    flip f is at f % ENTRIES: epoch, step, number of the frame, digest in two words
    pins      [processes, WORDS]  for each reader the flip that it has pinned, or IDLE

A flip is one number, one higher than the last, and never reused. Its entry describes what is read under it (an MVCC
snapshot): the epoch of the rows, the step and digest that replies name, and the frame (processor.versions.replica), the
buffers and executables that every reader already holds. So a delta of rows is published by a few words and one store,
without any message to readers.

Ownership: the writer writes the header and the entries. A reader writes its own pin, one thread at a time. When a dead
process has been reaped, the writer clears its pins.

Invariants
- An entry is complete before its flip is served: publish() writes it, then stores the flip as a full barrier.
- pin() announces a flip and reads the served flip again; if it has changed, pin() announces the new one. Both stores
  are full barriers, so either the reader sees the new flip or the writer sees the pin. Nothing may be read under an
  unconfirmed pin, not even the entry. Flips only rise, so the number cannot have changed and come back in between.
- An entry is overwritten ENTRIES flips later, and only when no pin names its flip or an older one: has_room() is
  checked before any part of a change is made. An unconfirmed pin may name a flip whose entry is gone; its reader then
  finds that another flip is served and drops the pin.
- Every reader holds the frame that an entry names when the flip is stored, until no pin is older than the flip that
  replaced it (processor.versions.served_version, processor.versions.replica).
- A turn is a flip whose generation does not continue the one before: a rollback. It is stored before its flip is
  served, so a reader with a pin sees the newest turn up to its flip, or a later one: of any two flips from there up to
  the pinned one, the older one's generation leads to the newer one's.
- Rollback is a flip like any other, with an older epoch and step under a new number. A replacement process starts with
  IDLE words in the same memory, so it only has to receive frames.

Rejected: one word that holds everything (a step alone may take 60 bits); a sequence lock around one entry (a reader
would copy what is being written, and needs fences that Python does not have); reference counts (a lock, or an atomic
read-modify-write of a shared word, for each batch).
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.kernels.pointers import exchange
from freshet_serving.processor.memory import reserve

IDLE = np.iinfo(np.int64).max
HEADER, ENTRIES, ENTRY = 8, 64, 5
PINS = HEADER + ENTRIES * ENTRY
WORDS = 2048
READERS = WORDS - 1
"""Number of readers in one process; the word after theirs is the process's own (Pins.ASKING)."""
RANKING_READER, PREVIEW_READER, SHADOW_READER, TRIAL_READER = range(READERS - 4, READERS)
"""Pin words of the threads that rank items (processor.extensions.top_items.item_ranker), preview a state
(processor.versions.row_scoring), score shadow traffic (processor.extensions.trials.shadow) and score canary requests
again (processor.extensions.trials.canary_trial); neither sessions nor split requests use them.
"""


class ControlEntry(NamedTuple):
    """The entry of a flip; `high` and `low` are the halves of the digest, as big-endian signed integers."""

    epoch: int
    step: int
    frame: int
    high: int = 0
    low: int = 0

    @classmethod
    def of(cls, epoch: int, frame: int, generation: Generation) -> ControlEntry:
        words = np.frombuffer(bytes.fromhex(generation.digest or 32 * "0"), ">i8").tolist()
        return cls(epoch, generation.step, frame, *words)

    @property
    def digest(self) -> str:
        """Digest of the generation, 32 hexadecimal digits."""
        return np.array([self.high, self.low], ">i8").tobytes().hex()


class ControlWords:
    """The control words of one version. The writer's methods are called under the version's lock."""

    def __init__(self, words: NDArray[np.int64]) -> None:
        self.words = words
        self._entries = words[HEADER:PINS].reshape(ENTRIES, ENTRY)
        self._pins = words[PINS:]
        self._address: int = words.ctypes.data

    @classmethod
    def reserve(cls, processes: int) -> ControlWords:
        """Allocate control words without readers: flip 0 served, at epoch 0, step 0, frame 0."""
        count = PINS + processes * WORDS
        control = cls(reserve(count * 8, "control").view(np.int64)[:count])
        control.words[:PINS], control._pins[:] = 0, IDLE
        control.words[1] = secrets.randbits(63)
        return control

    @property
    def load(self) -> int:
        """A random number of this load, the same in all processes; epochs of different loads cannot be compared."""
        return int(self.words[1])

    @property
    def publish_seq(self) -> int:
        return int(self.words[0])

    @property
    def turn(self) -> int:
        """The newest flip up to the served one, or soon to be served, that does not continue the one before it."""
        return int(self.words[2])

    def entry(self, publish_seq: int) -> ControlEntry:
        """Return the entry of a flip; only for a reader that has pinned it, and for the writer."""
        return ControlEntry(*self._entries[publish_seq % ENTRIES].tolist())

    def publish(self, publish_seq: int, entry: ControlEntry) -> None:
        """Store the next flip, which every session picks up with its next batch. Writer only."""
        before = self.entry(self.publish_seq)
        if entry.step < before.step or (entry.step == before.step and entry.digest != before.digest):
            self.words[2] = publish_seq
        self._entries[publish_seq % ENTRIES] = entry
        exchange(self._address, publish_seq)

    def has_room(self, publishes: int) -> bool:
        return self.oldest_pin() > self.publish_seq + publishes - ENTRIES

    def oldest_pin(self) -> int:
        """Return the oldest flip that any reader has pinned; IDLE if there is none."""
        return int(self._pins.min())

    def clear(self, process: int) -> None:
        self._pins[process * WORDS : (process + 1) * WORDS] = IDLE


class Pins:
    """The pin words of one process's readers."""

    ASKING = READERS

    def __init__(self, control: ControlWords, process: int) -> None:
        self._words = control.words
        self._pins = control.words[PINS + process * WORDS : PINS + (process + 1) * WORDS]
        self._address: int = self._pins.ctypes.data

    def pin(self, reader: int) -> int:
        """Pin the served flip and return it; it stays readable until this reader's (< READERS, or ASKING) unpin()."""
        words, slot = self._words, self._address + 8 * reader
        while True:
            publish_seq = int(words[0])
            exchange(slot, publish_seq)
            if words[0] == publish_seq:
                return publish_seq

    def unpin(self, reader: int) -> None:
        self._pins[reader] = IDLE
