"""The heap of users' events: words in memory as far as a budget goes, and the others in a file.

Invariants
- Word n of the heap is word n of the file. Words below `base` are in memory. The kernels (models.data.event_kernels)
  give out blocks from `used` on; none crosses `base`, which is the heap's first length or a border, a place that `used`
  once had.
- fit() only ever lowers `base`: the words from there on go to the file, and their memory to the system.
- Space on disk is reserved before it is written to.
- Pages of the file stay mapped up to a quarter of the budget, at least those of LEAST_BLOCKS: blocks are touched in the
  parts of touching(). The page cache keeps what is hot, and gives it back under pressure.

For one thread. Costs: a block that is not mapped is a page fault; a `base` lowered by n bytes is a write of n bytes.

Rejected: a file alone (the system writes every changed page to the disk, where small states need none); reading blocks
by system calls (as slow as the page faults, and a copy more).
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.event_kernels import NOWHERE
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.memory import advise
from freshet_serving.processor.tables.scratch_file import ScratchFile

FIRST_WORDS, FILE_NBYTES, TAKEN_NBYTES = 1 << 16, 1 << 40, 64 << 20
BORDERS = 64
LEAST_BLOCKS, AROUND_NBYTES = 1 << 10, 1 << 16
"""Fewest blocks between two times that pages are unmapped, and what the system maps around a word that is read."""

Int64s = NDArray[np.int64]


class EventHeap:
    """Words of 8 bytes: `base` of them in memory, `end` in all; `used` and `free` are as kernels take them."""

    def __init__(self, budget_nbytes: int, block_nbytes: int, folder: Path | None) -> None:
        """Start with nothing given out; `folder` of the file is by default that of temporary files."""
        self._folder = folder
        self._file: ScratchFile | None = None
        self.base = self.end = max(FIRST_WORDS, budget_nbytes // 8)
        # The system gives memory when it is written to.
        self._memory = np.zeros(self.base, np.int64)
        self._borders, self._border_words = [0], self.base // BORDERS
        self.used, self.free = np.zeros(1, np.int64), np.full(64, NOWHERE, np.int64)
        self._most_blocks = max(LEAST_BLOCKS, budget_nbytes // 4 // max(AROUND_NBYTES, block_nbytes))
        self._touched = 0

    @property
    def nbytes(self) -> int:
        return 8 * min(int(self.used[0]), self.base)

    @property
    def file_nbytes(self) -> int:
        return 8 * (self.end - self.base)

    def addresses(self) -> tuple[int, int, int]:
        """Return what kernels take: the address of word 0, that of word `base` in the file, and `base`."""
        file = 0 if self._file is None else self._file.array.ctypes.data + 8 * self.base
        return self._memory.ctypes.data, file, self.base

    def note_border(self) -> None:
        if self._borders[-1] + self._border_words < self.used[0] <= self.base:
            self._borders.append(int(self.used[0]))

    def lengthen(self, words: int) -> None:
        """Add room for these words, or more; raise BadInput if the disk is full."""
        nbytes = max(TAKEN_NBYTES, 8 * words)
        self._take(self.end, nbytes)
        self.end += nbytes // 8

    def fit(self, nbytes: int) -> None:
        """Keep no more bytes in memory than these; raise BadInput if the disk is full."""
        allowed, used = nbytes // 8, int(self.used[0])
        if allowed >= self.base:
            return
        base = allowed if used <= allowed else max(border for border in self._borders if border <= allowed)
        if used > base or self._file is not None:
            self._take(base, 8 * (self.base - base))
            assert self._file is not None
            self._file.write(8 * base, self._memory[base : min(used, self.base)])
        else:
            self.end = base
        self._borders = [border for border in self._borders if border <= base]
        # Its end is returned to the system, nothing is copied.
        self._memory.resize(base, refcheck=False)
        self.base = base

    def touching(self, blocks: int) -> Iterator[slice]:
        """Yield parts of blocks that the caller touches next, each few enough to be mapped at once."""
        step = max(1, blocks) if self._file is None else self._most_blocks
        for first in range(0, blocks, step):
            yield slice(first, min(blocks, first + step))
            self._touched += min(step, blocks - first)
            if self._file is not None and self._touched >= self._most_blocks:
                advise(self._file.array[8 * self.base : 8 * self.end], mmap.MADV_DONTNEED)
                self._touched = 0

    def scratch(self, nbytes: int) -> ScratchFile:
        """Return a file for a copy of the heap, with space for these bytes; raise BadInput if the disk is full."""
        try:
            file = self._opened(nbytes)
            file.take(0, nbytes)
        except OSError as error:
            raise _no_room(error) from None
        return file

    def _take(self, word: int, nbytes: int) -> None:
        try:
            if self._file is None:
                self._file = self._opened(FILE_NBYTES)
                advise(self._file.array, mmap.MADV_RANDOM)
            self._file.take(8 * word, nbytes)
        except OSError as error:
            raise _no_room(error) from None

    def _opened(self, nbytes: int) -> ScratchFile:
        with tempfile.TemporaryDirectory() as place:
            folder = self._folder or Path(place)
            folder.mkdir(parents=True, exist_ok=True)
            return ScratchFile(folder, nbytes)


def _no_room(error: OSError) -> BadInput:
    return BadInput(f"histories: no room on disk for more events: {error.strerror}")
