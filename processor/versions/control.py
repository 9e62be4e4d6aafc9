"""A version's control words: which flip is served, what it stands for, and who reads it. All that a flip changes.

words    int64 [HEADER + ENTRIES * ENTRY + processes * WORDS], mapped by every process that reads the version

    header    [HEADER]            the flip that is served; the rest of its cache line is spare, for readers write pins
    entries   [ENTRIES, ENTRY]    flip f's are at f % ENTRIES: epoch, step, number of the frame, digest in two words
    pins      [processes, WORDS]  for each reader the flip that it has pinned, or IDLE

A flip is one number, one higher than the last, and never used again. Its entry says what is read under it: the epoch
of the rows, the step and digest that replies name, and the frame (processor.versions.replica): buffers and executables,
which every reader holds already. So a delta of rows is published by a few words and one store, and nobody is asked.

Who writes what: the writer the header and the entries; a reader its own pin, and one thread at a time does that. What a
process that has died leaves in its pins the writer clears when it has buried it.

Invariants
- An entry is whole before its flip is served: publish() writes it, then stores the flip as a full barrier.
- pin() announces a flip and then looks again: if another is served by now, it announces anew. Both stores are full
  barriers, so either the reader sees the new flip or the writer sees the pin. What is read under a pin that was not
  confirmed: nothing, not even the entry. The number looked at twice cannot have come back in between: flips only rise.
- An entry is overwritten ENTRIES flips later, and only when no pin names its flip or an older one: has_room() is asked
  before anything of a change is made. A reader that has not confirmed yet may announce a flip whose entry is gone; it
  finds another flip served and lets go.
- A frame that an entry names is held by every reader when the flip is stored, and until no pin is older than the flip
  that replaced it (processor.versions.served_version, processor.versions.replica).
- Rollback is a flip like any other, with an older epoch and step under a new number; a process that is replaced starts
  with IDLE words and maps the same ones, so it needs to be told of frames only, whatever is published meanwhile.

Refused: one word that holds it all (a step alone may take 60 bits); a sequence lock around one entry (a reader would
copy what is being written, and need fences that Python has not); reference counts (a lock, or an atomic
read-modify-write of a word that all sessions share, for each batch).
"""

from __future__ import annotations

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
"""Readers of one process; the word after theirs is the process's own (Pins.ASKING)."""
PREVIEW_READER, SHADOW_READER, TRIAL_READER = READERS - 3, READERS - 2, READERS - 1
"""The words of the threads that preview a state (processor.versions.preview), that score shadow traffic
(processor.sessions.shadow) and the requests of canaries once more (processor.sessions.canary_trial): no session, no
scattered request has them."""


class ControlEntry(NamedTuple):
    """A flip's entry: what it stands for."""

    epoch: int
    step: int
    frame: int
    high: int = 0
    low: int = 0

    @classmethod
    def of(cls, epoch: int, frame: int, generation: Generation) -> ControlEntry:
        """What a flip to a generation stands for."""
        words = np.frombuffer(bytes.fromhex(generation.digest or 32 * "0"), ">i8").tolist()
        return cls(epoch, generation.step, frame, *words)

    @property
    def digest(self) -> str:
        """Of the generation, 32 hexadecimal digits."""
        return np.array([self.high, self.low], ">i8").tobytes().hex()


class ControlWords:
    """The words of one version. The writer's methods are called under the version's lock."""

    def __init__(self, words: NDArray[np.int64]) -> None:
        """words: those of reserve(), or a mapping of them."""
        self.words = words
        self._entries = words[HEADER:PINS].reshape(ENTRIES, ENTRY)
        self._pins = words[PINS:]
        self._address: int = words.ctypes.data

    @classmethod
    def reserve(cls, processes: int) -> ControlWords:
        """Control words for so many processes: flip 0 is served, at epoch 0, step 0, frame 0; nobody reads."""
        count = PINS + processes * WORDS
        control = cls(reserve(count * 8, "control").view(np.int64)[:count])
        control.words[:PINS], control._pins[:] = 0, IDLE
        return control

    @property
    def publish_seq(self) -> int:
        """The flip that is served."""
        return int(self.words[0])

    def entry(self, publish_seq: int) -> ControlEntry:
        """The entry of a flip: what it stands for. For whoever has pinned it, and for the writer."""
        return ControlEntry(*self._entries[publish_seq % ENTRIES].tolist())

    def publish(self, publish_seq: int, entry: ControlEntry) -> None:
        """The one store that every session of every process meets with its next batch. The writer's; flip: the next."""
        self._entries[publish_seq % ENTRIES] = entry
        exchange(self._address, publish_seq)

    def has_room(self, publishes: int) -> bool:
        """Whether the writer may publish so many more flips."""
        return self.oldest_pin() > self.publish_seq + publishes - ENTRIES

    def oldest_pin(self) -> int:
        """The oldest flip that anybody has pinned; IDLE: none."""
        return int(self._pins.min())

    def clear(self, process: int) -> None:
        """Takes back every pin of a process that is dead."""
        self._pins[process * WORDS : (process + 1) * WORDS] = IDLE


class Pins:
    """The words of one process's readers."""

    ASKING = READERS

    def __init__(self, control: ControlWords, process: int) -> None:
        self._words = control.words
        self._pins = control.words[PINS + process * WORDS : PINS + (process + 1) * WORDS]
        self._address: int = self._pins.ctypes.data

    def pin(self, reader: int) -> int:
        """The flip that is served, which stands until this reader's unpin(). reader: below READERS, or ASKING."""
        words, own = self._words, self._address + 8 * reader
        while True:
            publish_seq = int(words[0])
            exchange(own, publish_seq)
            if words[0] == publish_seq:
                return publish_seq

    def unpin(self, reader: int) -> None:
        self._pins[reader] = IDLE
